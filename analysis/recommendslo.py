"""How much load a variant held within the limits that people who chat, or jobs in a batch, can live with."""

from collections.abc import Sequence
from dataclasses import dataclass

from .comparison.sides import Level


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that a load has to keep at a quantile of its turns."""

    name: str
    ttft_ms: float
    tpot_ms: float


SLOS = (Slo("chat", 500, 50), Slo("batch", 2000, 100))
AT, STAND_IN = "p95", "p90"
_FAILED = 0.01


@dataclass(frozen=True, slots=True)
class Held:
    """Of the loads that were tried: the highest that kept the SLO (None: none did), and whether a higher one broke it."""

    load: float | None
    unit: str
    broken_above: bool
    tried: tuple[float, ...]
    at: str = AT  # STAND_IN where turns were too few for AT at the load that was held, or at any where none was


def held(slo: Slo, levels: Sequence[Level]) -> Held:
    """Over all levels; a load that was tried several times keeps the SLO where each time it did."""
    unit = levels[0].unit if levels else ""
    outcomes: dict[float, bool] = {}
    stood_in = set()
    for level in levels:
        kept = _kept(slo, level)
        if kept is not None and level.unit == unit:
            outcomes[level.load] = outcomes.get(level.load, True) and kept
            if any(level.figures.get(f"{AT}({measure})") is None for measure in ("ttft_ms", "tpot_ms")):
                stood_in.add(level.load)
    broken = [load for load, kept in outcomes.items() if not kept]
    below = [load for load, kept in outcomes.items() if kept and load < min(broken, default=float("inf"))]
    load = max(below, default=None)
    at = STAND_IN if (load in stood_in if load is not None else stood_in) else AT
    return Held(load, unit, bool(broken), tuple(sorted(outcomes)), at)


def _kept(slo: Slo, level: Level) -> bool | None:
    """None: samples are too few to say. Where AT is left out for want of samples, STAND_IN stands in."""
    found = []
    for measure, limit in (("ttft_ms", slo.ttft_ms), ("tpot_ms", slo.tpot_ms)):
        value = level.figures.get(f"{AT}({measure})")
        value = level.figures.get(f"{STAND_IN}({measure})") if value is None else value
        if value is None:
            return None
        found.append(value < limit)
    return all(found) and (level.figures.get("failed_ratio") or 0.0) < _FAILED
