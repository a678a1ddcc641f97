"""Limits of an SLO in words. No I/O."""

from collections.abc import Mapping
from types import MappingProxyType

from inferload.base.numbers import number
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

# What each limit of one turn is about.
LIMITS = MappingProxyType(
    {TTFT.key: TTFT.title, TPOT.key: TPOT.title, E2E.key: E2E.title, ITL.key: "p99 of the gaps within the turn"}
)


def limits_text(limits: Mapping[str, float]) -> str:
    """`TTFT <= 1,000 ms, p99 of the gaps within the turn <= 50 ms`, of limits by name."""
    return ", ".join(limit_text(name, limits[name]) for name in LIMITS if name in limits)


def limit_text(name: str, limit: float | None) -> str:
    """Return a limit of one turn in words; without its value if it is None."""
    return LIMITS[name] if limit is None else f"{LIMITS[name]} <= {number(limit)} ms"
