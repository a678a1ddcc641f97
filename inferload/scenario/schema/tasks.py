"""The workload of a locustfile whose own tasks send the turns: no session of it is planned."""

from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from pydantic import Field

from inferload.content.data import Data, Notes
from inferload.content.script import Script
from inferload.scenario.schema.base import Part

# Kinds of workload whose turns follow from the model's answers: records alone are not enough to run them again.
REACTING: frozenset[str] = frozenset({"live_agent", "tasks"})


class Tasks(Part):
    """Turns that the tasks of a locustfile's users send."""

    kind: Literal["tasks"] = Field(description="tasks: the tasks of the locustfile's users send the turns")


class TaskSessions:
    """The sessions of a `Tasks` workload: empty scripts."""

    digest = None
    draws = False

    def __init__(self, _workload: Tasks, _class_name: str, _data: Data) -> None:
        pass

    def script(self, _index: int, _rng: Random, _notes: Notes) -> Script:
        """No turn."""
        yield from ()

    def sample(self) -> Sequence[str]:
        """No text is known before the run."""
        return ()

    def warnings(self) -> list[str]:
        """None."""
        return []

    def facts(self) -> dict[str, Any]:
        """None."""
        return {}

    def in_words(self) -> list[str]:
        """One line for the plan."""
        return ["the tasks of the locustfile's users send the turns: their number and lengths cannot be planned"]


#: The scenario of a locustfile that names none and has tasks of its own.
SCENARIO = """\
schema: 1
name: tasks
workload: {kind: tasks}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: null, drain_s: 60}
"""
