"""Schema of the workload `tasks`: turns that the tasks of a locustfile send."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from inferload.scenario.schema.base import ScenarioPart

# Kinds of workload whose turns depend on the answers: records alone are not enough to repeat them. No set: a file may
# have a mapping or a list as `kind`, which no set can look up.
REACTING = ("live_agent", "tasks")


class Tasks(ScenarioPart):
    """Turns that the tasks of a locustfile send, without planned sessions."""

    kind: Literal["tasks"] = Field(description="tasks: the tasks of the locustfile send the turns")


def reacts(workload: object) -> bool:
    """Return True if Python code determines the turns of a workload as in a file, which may be damaged."""
    if not isinstance(workload, Mapping):
        return False
    classes = workload.get("classes")
    listed = classes if isinstance(classes, list) else []
    members = [workload, *(each.get("workload") for each in listed if isinstance(each, Mapping))]
    return any(isinstance(member, Mapping) and member.get("kind") in REACTING for member in members)


NAME = "tasks"  # of a run whose locustfile has no name

#: Default scenario of a locustfile with its own tasks.
SCENARIO = """\
schema: 1
name: tasks
workload: {kind: tasks}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: null, drain_s: 60}
"""


def named(name: str) -> str:
    """Return the default scenario of a locustfile's tasks with the name of its runs."""
    return SCENARIO.replace(f"name: {NAME}\n", f'name: "{name}"\n')
