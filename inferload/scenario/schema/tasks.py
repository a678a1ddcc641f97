"""Schema and sessions of the workload `tasks`: turns that the tasks of a locustfile send."""

from random import Random
from typing import Any, Literal

from pydantic import Field

from inferload.content.data import DataContext, Notes, Opened
from inferload.content.script import Script
from inferload.scenario.schema.base import ScenarioPart

# Kinds of workload whose turns depend on the answers: records alone are not enough to repeat them. No set: a file may
# have a mapping or a list as `kind`, which no set can look up.
REACTING = ("live_agent", "tasks")


class Tasks(ScenarioPart):
    """Turns that the tasks of a locustfile send, without planned sessions."""

    kind: Literal["tasks"] = Field(description="tasks: the tasks of the locustfile send the turns")


class TaskSessions(Opened):
    """Sessions of a `tasks` workload: empty scripts."""

    digest = None
    draws = False

    def __init__(self, _workload: Tasks, _class_name: str, _data: DataContext) -> None:
        pass

    def script(self, _index: int, _rng: Random, _notes: Notes) -> Script:
        """Return an empty script."""
        yield from ()

    def facts(self) -> dict[str, Any]:
        """Return no facts."""
        return {}

    def in_words(self) -> list[str]:
        """Return the line of the plan."""
        return ["the tasks of the locustfile send the turns: their number and lengths are not known before the run"]


#: Default scenario of a locustfile with its own tasks.
SCENARIO = """\
schema: 1
name: tasks
workload: {kind: tasks}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: null, drain_s: 60}
"""
