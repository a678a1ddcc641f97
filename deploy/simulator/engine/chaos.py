"""Fault injection: plans of /chaos, and their assignment to completions. No I/O, no clock.

A plan is JSON: {"kind": K, "count": N} for the next N completions (default 1). Kinds with their keys and defaults:

  stall         ms=1000, after_events=1  pauses the stream; the tokens of the pause follow in one event
  cut           after_events=1           closes the connection after this many events
  status        status=503, message      an error in vLLM's format instead of an answer
  garbage       after_events=1           bytes that are neither SSE nor JSON instead of an event
  html          (none)                   200 with an HTML page, as from a proxy
  error_event   after_events=1, status=500, message  {"error": ...} in the stream, then [DONE]
  restart_counters (at once)             resets all counters and the start time, as after a restart
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..protocol.errors import ApiError

_KEYS: Mapping[str, Mapping[str, Any]] = {
    "stall": {"ms": 1000, "after_events": 1},
    "cut": {"after_events": 1},
    "status": {"status": 503, "message": "refused by a fault plan"},
    "garbage": {"after_events": 1},
    "html": {},
    "error_event": {"after_events": 1, "status": 500, "message": "failed by a fault plan"},
    "restart_counters": {},
}
KINDS = tuple(_KEYS)

Faults = Mapping[str, Mapping[str, Any]]  # values of the faults of one completion, by kind


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Fault for the next `left` completions."""

    kind: str
    values: Mapping[str, Any]
    left: int


def parse_plan(document: Mapping[str, Any]) -> FaultPlan:
    """Parse a plan. Raise ApiError for unknown kinds or keys, or invalid values."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ApiError(f"kind: not one of {', '.join(KINDS)}")
    known = {**_KEYS[kind], "count": 1}
    for key, value in document.items():
        if key != "kind" and key not in known:
            raise ApiError(f"{key}: unknown for {kind}; known are {', '.join(known)}")
        if key in known and (type(value) is not type(known[key]) or (isinstance(value, int) and value < 0)):
            raise ApiError(f"{key}: {value!r}: needs a {'text' if isinstance(known[key], str) else 'whole number'}")
    values = {key: document.get(key, default) for key, default in known.items()}
    return FaultPlan(kind, values, values.pop("count"))


class Chaos:
    """Active plans. A completion gets the oldest plan of each kind."""

    def __init__(self) -> None:
        self.plans: list[FaultPlan] = []

    def active(self) -> list[dict[str, Any]]:
        """Active plans, as JSON."""
        return [{"kind": plan.kind, **plan.values, "left": plan.left} for plan in self.plans]

    def draw(self) -> Faults | None:
        """Draw the faults of the next completion; None if there are none."""
        drawn: dict[str, Mapping[str, Any]] = {}
        for index, plan in enumerate(self.plans):
            if plan.kind not in drawn:
                drawn[plan.kind] = plan.values
                self.plans[index] = replace(plan, left=plan.left - 1)
        self.plans = [plan for plan in self.plans if plan.left > 0]
        return drawn or None
