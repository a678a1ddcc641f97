"""Locust's tasks: name of the running task, delay of wake-ups."""

from typing import Any

from inferload.base.clock import NS_PER_S, now_ns
from inferload.locust_adapters.compat import names_in, parameters, replacing


def executes_tasks() -> bool:
    from locust.user.task import DefaultTaskSet, TaskSet

    calls = "execute_task" in names_in(TaskSet.execute_next_task)
    return calls and all(
        parameters(kind.__dict__["execute_task"]) == ["self", "task"] for kind in (TaskSet, DefaultTaskSet)
    )


def note_task_names() -> None:
    """Record the name of a user's running task, under which its turns are counted; Locust does not provide it."""
    from locust.user.task import DefaultTaskSet, TaskSet

    for kind in (TaskSet, DefaultTaskSet):
        _note_task_names_of(kind)


def _note_task_names_of(kind: Any) -> None:
    original = kind.execute_task

    @replacing(kind, "execute_task")
    def execute_task(self: Any, task: Any) -> None:
        user = self.user
        before = task_name(user)
        user.inferload_task_name = getattr(task, "__name__", None)
        try:
            original(self, task)
        finally:
            user.inferload_task_name = before


def task_name(user: Any) -> str | None:
    """Return the name of a user's running task; None outside of tasks, as in on_start."""
    name: str | None = vars(user).get("inferload_task_name")
    return name


def sleeps_between_tasks() -> bool:
    """Return True if a user waits by `TaskSet._sleep`."""
    from locust.user.task import TaskSet

    return parameters(TaskSet._sleep) == ["self", "seconds"] and "_sleep" in names_in(TaskSet.wait)


def note_late_wakes() -> None:
    """Record the delay of a user's wake-up after a wait, as when another task blocked the process.

    A wait of 0 s, with which Locust lets other users run, is left out after a task that has set `inferload_waited` of its user.
    """
    from locust.user.task import TaskSet

    original = TaskSet._sleep

    @replacing(TaskSet, "_sleep")
    def _sleep(self: Any, seconds: float) -> None:
        if not seconds and vars(self.user).pop("inferload_waited", False):
            self.user.inferload_late_ns = 0
            return
        due_ns = now_ns() + round(seconds * NS_PER_S)
        original(self, seconds)
        self.user.inferload_late_ns = max(0, now_ns() - due_ns)
