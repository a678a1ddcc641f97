"""Condition of a verdict on runs that share server starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferload.numbers import plural
from inferload.server_metrics.metric_names import PROCESS_START

from .sides import Side


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a verdict: runs share server starts. `holds_for`: these starts; `reason`: the sides and their starts."""

    holds_for: str
    reason: str


def shared_starts(sides: Sequence[Side], noun: str = "run") -> Condition | None:
    """Return the condition of a verdict on runs that share server starts; None if each run of a side had its own.

    `noun`: what a run of a side is called.
    """
    reasons = []
    for side in sides:
        starts = [run.start for run in side.runs]
        known = {start for start in starts if start is not None}
        if len(side.runs) > 1 and (None in starts or len(known) < len(side.runs)):
            which = "unknown server starts" if None in starts else plural(len(known), "server start")
            reasons.append(f"{side.label} has {plural(len(side.runs), noun)} on {which}")
    if not reasons:
        return None
    starts_of_all = {run.start for side in sides for run in side.runs}
    count = len(starts_of_all)
    holds_for = {1: "this server start", 2: "these two server starts"}.get(count, f"these {count} server starts")
    if None in starts_of_all:
        holds_for = f"the server starts of these {noun}s, which are not known (no {PROCESS_START})"
    return Condition(holds_for, f"{'; '.join(reasons)}: a restart alone may change the figures")
