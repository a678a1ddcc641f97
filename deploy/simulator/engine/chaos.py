"""Faults on request: plans of /chaos, and their assignment to completions. No I/O, no clock.

A plan is JSON: {"kind": K, "count": N} for the next N completions (default 1), or {"kind": K, "duration_s": T} for all
that arrive in that time. Kinds and their own keys, with defaults:

  latency       ms=1000                  the first token comes this much later
  stall         ms=1000, after_events=1  a pause in mid-stream; all later events are delayed by as much
  cut           after_events=1, reset=false  the connection is closed after that many events (reset: with RST)
  status        status=503, message, retry_after_s  an error in vLLM's form instead of an answer
  garbage       after_events=1, bytes=64 bytes that are neither SSE nor JSON, in the place of an event
  html          (none)                   200 with an HTML page, as a proxy might send
  error_event   after_events=1, status=500, message  {"error": ...} in the stream, then [DONE]
  comment       every=1                  an SSE comment before every Nth event (every=N)
  slow_header   ms=1000                  the reply's head comes this much later
  slow_read     bytes_per_s=100000       requests are read at this speed on each connection
  close_idle    (at once)                closes the connections that wait for a request
  restart       (at once) down_s=2       as if the server restarted: every connection ends, connections are refused for
                                         down_s, then the cache is empty and all counters begin at zero
  restart_counters (at once)             all counters to zero and a new start time, and nothing else

Faults that end, delay or change an answer apply only to completions with one choice (n = 1, one prompt).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

AT_ONCE = ("close_idle", "restart", "restart_counters")
_KEYS: Mapping[str, Mapping[str, Any]] = {
    "latency": {"ms": 1000.0},
    "stall": {"ms": 1000.0, "after_events": 1},
    "cut": {"after_events": 1, "reset": False},
    "status": {"status": 503, "message": "the simulator was told to refuse", "retry_after_s": 0},
    "garbage": {"after_events": 1, "bytes": 64},
    "html": {},
    "error_event": {"after_events": 1, "status": 500, "message": "the simulator was told to fail"},
    "comment": {"every": 1},
    "slow_header": {"ms": 1000.0},
    "slow_read": {"bytes_per_s": 100_000.0},
    "close_idle": {},
    "restart": {"down_s": 2.0},
    "restart_counters": {},
}
KINDS = tuple(_KEYS)


class ChaosError(Exception):
    """Invalid plan; the message names the key and valid values."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One fault, for the next `left` completions or for all until `until_ns` (monotonic)."""

    kind: str
    values: Mapping[str, Any]
    left: int | None
    until_ns: int | None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, **self.values, "left": self.left}


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of one completion, by kind."""

    plans: Mapping[str, Mapping[str, Any]]

    def of(self, kind: str) -> Mapping[str, Any] | None:
        """The values of one kind; None: it does not befall this completion."""
        return self.plans.get(kind)

    def ns(self, kind: str) -> int:
        """`ms` of one kind in ns; 0 if this completion does not have the fault."""
        values = self.plans.get(kind)
        return round(values["ms"] * 1e6) if values else 0


def parse_plan(document: Any, now_ns: int) -> Plan:
    """Parse a plan. ChaosError for unknown kinds or keys."""
    if not isinstance(document, dict) or document.get("kind") not in _KEYS:
        raise ChaosError(f"kind: not one of {', '.join(KINDS)}")
    kind = document["kind"]
    known = _KEYS[kind]
    for key, value in document.items():
        if key not in known and key not in ("kind", "count", "duration_s"):
            raise ChaosError(f"{key}: unknown for {kind}; known are {', '.join((*known, 'count', 'duration_s'))}")
        if (key in known and not _fits(value, known[key])) or (
            key in ("count", "duration_s") and not _fits(value, 1.0)
        ):
            raise ChaosError(f"{key}: {value!r} is no value for it")
    values = {key: document.get(key, default) for key, default in known.items()}
    duration_s = document.get("duration_s")
    if duration_s is not None:
        return Plan(kind, values, None, now_ns + round(duration_s * 1e9))
    return Plan(kind, values, int(document.get("count", 1)), None)


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool | str):
        return type(value) is type(default)
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


class Chaos:
    """The plans that are not used up; one of each kind at a time, the older first."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    def add(self, plan: Plan) -> None:
        """Append a plan."""
        self._plans.append(plan)

    def clear(self) -> None:
        """Drop all plans."""
        self._plans = []

    def active(self, now_ns: int) -> list[dict[str, Any]]:
        """The plans that still wait for a completion, as JSON."""
        self._drop_old(now_ns)
        return [plan.document() for plan in self._plans]

    def read_rate(self, now_ns: int) -> float | None:
        """How fast requests are read, in bytes/s of each connection; None: as fast as they come."""
        if not self._plans:
            return None
        self._drop_old(now_ns)
        slow = [float(plan.values["bytes_per_s"]) for plan in self._plans if plan.kind == "slow_read"]
        return slow[0] if slow else None

    def draw(self, now_ns: int) -> Faults | None:
        """Faults of the completion that arrives now; None if there are none."""
        if not self._plans:
            return None
        self._drop_old(now_ns)
        taken: dict[str, Mapping[str, Any]] = {}
        for place, plan in enumerate(self._plans):
            if plan.kind not in taken:
                taken[plan.kind] = plan.values
                if plan.left is not None:
                    self._plans[place] = replace(plan, left=plan.left - 1)
        self._drop_old(now_ns)
        return Faults(taken) if taken else None

    def _drop_old(self, now_ns: int) -> None:
        self._plans = [
            plan
            for plan in self._plans
            if (plan.left is None or plan.left > 0) and (plan.until_ns is None or now_ns < plan.until_ns)
        ]
