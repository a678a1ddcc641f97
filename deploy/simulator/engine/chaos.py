"""Fault injection: plans of /chaos, and their assignment to completions. No I/O, no clock.

A plan is JSON: {"kind": K, "count": N} for the next N completions (default 1), or {"kind": K, "duration_s": T} for all
that arrive within that time. Kinds with their keys and defaults:

  latency       ms=1000                  delays the first token
  stall         ms=1000, after_events=1  pauses the stream; later events are delayed as well
  cut           after_events=1, reset=false  closes the connection after this many events (reset: with RST)
  status        status=503, message, retry_after_s  an error in vLLM's format instead of an answer
  garbage       after_events=1, bytes=64 bytes that are neither SSE nor JSON instead of an event
  html          (none)                   200 with an HTML page, as from a proxy
  error_event   after_events=1, status=500, message  {"error": ...} in the stream, then [DONE]
  comment       every=1                  an SSE comment before every Nth event (every=N)
  slow_header   ms=1000                  delays the response head
  slow_read     bytes_per_s=100000       reads requests at this rate per connection
  close_idle    (at once)                closes idle connections
  restart       (at once) down_s=2       simulates a restart: closes all connections, refuses new ones for down_s,
                                         then starts with an empty cache and counters at zero
  restart_counters (at once)             resets all counters and the start time only

Faults that end, delay or change an answer apply only to completions with one choice (n = 1, one prompt).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_KEYS: Mapping[str, Mapping[str, Any]] = {
    "latency": {"ms": 1000.0},
    "stall": {"ms": 1000.0, "after_events": 1},
    "cut": {"after_events": 1, "reset": False},
    "status": {"status": 503, "message": "refused by a fault plan", "retry_after_s": 0},
    "garbage": {"after_events": 1, "bytes": 64},
    "html": {},
    "error_event": {"after_events": 1, "status": 500, "message": "failed by a fault plan"},
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
class FaultPlan:
    """Fault for the next `left` completions, or for all until `until_ns` (monotonic)."""

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
        """Values of a fault kind; None if it does not apply to this completion."""
        return self.plans.get(kind)

    def ns(self, kind: str) -> int:
        """Delay `ms` of a fault kind in ns; 0 if it does not apply to this completion."""
        values = self.plans.get(kind)
        return round(values["ms"] * 1e6) if values else 0


def parse_plan(document: Any, now_ns: int) -> FaultPlan:
    """Parse a plan. Raise ChaosError for unknown kinds or keys, or invalid values."""
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
            raise ChaosError(f"{key}: {value!r}: invalid value")
    values = {key: document.get(key, default) for key, default in known.items()}
    duration_s = document.get("duration_s")
    if duration_s is not None:
        return FaultPlan(kind, values, None, now_ns + round(duration_s * 1e9))
    return FaultPlan(kind, values, int(document.get("count", 1)), None)


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool | str):
        return type(value) is type(default)
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


class Chaos:
    """Active plans. A completion gets the oldest plan of each kind."""

    def __init__(self) -> None:
        self._plans: list[FaultPlan] = []

    def add(self, plan: FaultPlan) -> None:
        """Append a plan."""
        self._plans.append(plan)

    def clear(self) -> None:
        """Drop all plans."""
        self._plans = []

    def active(self, now_ns: int) -> list[dict[str, Any]]:
        """Active plans, as JSON."""
        self._drop_expired(now_ns)
        return [plan.document() for plan in self._plans]

    def read_rate(self, now_ns: int) -> float | None:
        """Rate at which requests are read, in bytes/s per connection; None: unlimited."""
        if not self._plans:
            return None
        self._drop_expired(now_ns)
        slow = [float(plan.values["bytes_per_s"]) for plan in self._plans if plan.kind == "slow_read"]
        return slow[0] if slow else None

    def draw(self, now_ns: int) -> Faults | None:
        """Draw the faults of a completion that arrives now; None if there are none."""
        if not self._plans:
            return None
        self._drop_expired(now_ns)
        drawn: dict[str, Mapping[str, Any]] = {}
        for index, plan in enumerate(self._plans):
            if plan.kind not in drawn:
                drawn[plan.kind] = plan.values
                if plan.left is not None:
                    self._plans[index] = replace(plan, left=plan.left - 1)
        self._drop_expired(now_ns)
        return Faults(drawn) if drawn else None

    def _drop_expired(self, now_ns: int) -> None:
        self._plans = [
            plan
            for plan in self._plans
            if (plan.left is None or plan.left > 0) and (plan.until_ns is None or now_ns < plan.until_ns)
        ]
