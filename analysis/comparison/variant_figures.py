"""Figures of one variant over its counted runs: latency, output, memory, cost, and the highest load that meets an SLO."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferload.results.cost import Prices

from ..data.figures import Figure, figure
from . import costs
from .compare import Comparison
from .sides import LoadFigures, Run, Side

TTFT, TPOT, THROUGHPUT = map(figure, ("p50(ttft_ms)", "mean(tpot_ms)", "output_tok_per_s"))
AXES = (TTFT, TPOT, THROUGHPUT)


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """SLO of an aim: limits on p95 of TTFT and TPOT."""

    name: str
    ttft_ms: float
    tpot_ms: float


SLOS = (LatencyLimits("chat", 500, 50), LatencyLimits("batch", 2000, 100))
_MAX_FAILED_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class MaxLoad:
    """Highest load within an SLO, None if no load met it; `missed_above`: a higher load missed it; `tested`: all tested loads."""

    load: float | None
    unit: str
    missed_above: bool
    tested: tuple[float, ...]

    def misses(self, load: float) -> bool:
        """Return True if this load, or a lower one, missed the SLO."""
        return self.missed_above and any((self.load or 0.0) < tested <= load for tested in self.tested)


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """Figures of one variant; None: not measured. `max_load`: by the name of the SLO.

    `paired`: its runs in pairs with the baseline, which the figures are over; `base`: figures of the baseline over the same pairs,
    None for the baseline itself.
    """

    side: Side
    paired: Side
    base: "VariantFigures | None"
    values: Mapping[str, float | None]
    memory_mb: float | None
    memory_of: str  # GPUs, or processes
    gpus: int | None
    prices: Prices
    cost: float | None
    max_load: Mapping[str, MaxLoad]

    @property
    def tok_per_s_per_user(self) -> float | None:
        """Return 1,000 / mean TPOT."""
        tpot = self.values[TPOT.name]
        return 1000 / tpot if tpot else None

    @property
    def tok_per_s_per_gpu(self) -> float | None:
        """Return output over GPUs; None if their number is not known."""
        output = self.values[THROUGHPUT.name]
        return output / self.gpus if output is not None and self.gpus else None


def variant_figures(side: Side, paired: Side, base: VariantFigures | None = None) -> VariantFigures:
    """Return the figures of a side over the counted ones of its paired runs."""
    runs = paired.counted
    on_gpus, of_processes = (_maximum(runs, name) for name in ("gpu_memory_mb", "memory_mb"))
    return VariantFigures(
        side=side,
        paired=paired,
        base=base,
        values={axis.name: paired.mean(axis.name) for axis in AXES},
        memory_mb=on_gpus if on_gpus is not None else of_processes,
        memory_of="GPUs" if on_gpus is not None else "processes",
        gpus=runs[0].deployment.gpus or runs[0].prices.gpus,
        prices=runs[0].prices,
        cost=costs.of_side(paired).per_million_output_tokens,
        max_load={slo.name: max_load(slo, [level for run in runs for level in run.loads]) for slo in SLOS},
    )


def _maximum(runs: Sequence[Run], name: str) -> float | None:
    """Return the maximum over the runs; None if a run has no value."""
    values = [getattr(run.deployment, name) for run in runs]
    return None if None in values else max(values)


def max_load(slo: LatencyLimits, loads: Sequence[LoadFigures]) -> MaxLoad:
    """Return the highest load below every load that missed the SLO; repeats of a load must all meet it."""
    unit = loads[0].unit if loads else ""
    outcomes: dict[float, bool] = {}
    for level in loads:
        met = _meets(slo, level)
        if met is not None and level.unit == unit:
            outcomes[level.load] = outcomes.get(level.load, True) and met
    missed = [load for load, met in outcomes.items() if not met]
    below = [load for load, met in outcomes.items() if met and load < min(missed, default=float("inf"))]
    return MaxLoad(max(below, default=None), unit, bool(missed), tuple(sorted(outcomes)))


def _meets(slo: LatencyLimits, level: LoadFigures) -> bool | None:
    """Return False if a known figure is at its limit or above; otherwise None if one is unknown, as p95 of few samples."""
    limits = {"p95(ttft_ms)": slo.ttft_ms, "p95(tpot_ms)": slo.tpot_ms, "failed_ratio": _MAX_FAILED_RATIO}
    values = {name: level.figures.get(name) for name in limits}
    if any(value is not None and value >= limits[name] for name, value in values.items()):
        return False
    return None if None in values.values() else True


def aligned(
    variants: Sequence[VariantFigures], value_of: Callable[[VariantFigures], float | None]
) -> list[float | None]:
    """Return a value of each variant on one scale.

    A variant with other pairs than the baseline's runs has its ratio to the baseline over these pairs, times the baseline's value.
    """
    first = value_of(variants[0])
    values = []
    for variant in variants:
        value, before = value_of(variant), first if variant.base is None else value_of(variant.base)
        if value is not None and before != first:
            value = value * first / before if first and before else None
        values.append(value)
    return values


def axis_values(variants: Sequence[VariantFigures], axis: Figure) -> list[float | None]:
    """Return the figure of an axis of each variant on one scale."""
    return aligned(variants, lambda variant: variant.values[axis.name])


def trade_offs(chosen: VariantFigures, comparison: Comparison | None) -> tuple[tuple[str, float], ...]:
    """Return what is worse than on the baseline: each figure that the test calls worse, and memory, cost and GPUs from 1 % on.

    `comparison`: with the baseline; None for the baseline itself. Cost at the price of the baseline is that of the output, which
    the test decides.
    """
    base = chosen.base
    if base is None or comparison is None:
        return ()
    worse = {row.figure.name: (row.figure.title, row.change or 0.0) for row in comparison.worse}
    same_kind = chosen.memory_of == base.memory_of
    dearer = chosen.prices.per_s != base.prices.per_s or THROUGHPUT.name in worse
    counted = (
        ("memory", chosen.memory_mb if same_kind else None, base.memory_mb),
        ("cost", chosen.cost if dearer else None, base.cost),
        ("GPUs", chosen.gpus, base.gpus),
    )
    changes = [(name, now / before - 1) for name, now, before in counted if now is not None and before]
    return (*worse.values(), *(change for change in changes if change[1] >= 0.01))
