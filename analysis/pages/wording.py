"""Formatting of intervals, histogram quantiles and gauges; `not known` for None."""

from collections.abc import Iterable, Mapping
from typing import Any

from inferload.base.numbers import NOT_KNOWN, number, percent


def bracket(bounds: list[float | None] | None) -> str:
    """Format a quantile of a histogram as the bounds of its bucket."""
    return bounds_text(*bounds) if bounds else NOT_KNOWN


def bounds_text(low: float | None, high: float | None) -> str:
    """Format an interval; unknown ends are open."""
    if low is None and high is None:
        return "open"
    if low is None or high is None:
        return f"under {number(high)}" if low is None else f"over {number(low)}"
    return f"{number(low)} to {number(high)}"


def mean_max(gauge: Mapping[str, Any] | None, as_percent: bool = False) -> str:
    """Format mean and maximum of a gauge."""
    form = percent if as_percent else number
    if not gauge or gauge.get("mean") is None:
        return NOT_KNOWN
    return f"{form(gauge['mean'])} (max {form(gauge.get('max'))})"


def words(name: str) -> str:
    """Replace underscores: `turns_per_s` to `turns per s`."""
    return name.replace("_", " ")


def is_simulated(engine: object) -> bool:
    """Return True for an engine, or a list of engines, with the embedded simulator."""
    return "simulator" in str(engine or "")


def stands_for(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the simulated servers of a run stand for; empty for other servers and runs that do not record it."""
    named = [target.get("stands_for") for target in manifest.get("targets") or ()]
    return tuple(dict.fromkeys(str(name) for name in named if name))


def simulated(names: Iterable[str]) -> str:
    """Return the sentence on simulated servers. `names`: of `stands_for`."""
    text = " and ".join(dict.fromkeys(names))
    return f"Simulated server: stands for {text}." if text else "Simulated server: what it stands for is not recorded."
