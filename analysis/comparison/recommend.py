"""Best variant for each aim, with its gain over the baseline, the result of its test (`ranking`), and the trade-offs.

Each aim has one figure. Gains are means over pairs of runs, with their interval. None: not measured.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log

from inferload.results.cost import per_million

from ..data.figures import ALL, DEFAULT_PRIMARY, Figure, figure
from .compare import Comparison, compare
from .ranking import Certainty, Score, effect_of, rank
from .sides import Run, Side
from .variant_figures import (
    AXES,
    SLOS,
    THROUGHPUT,
    TTFT,
    LatencyLimits,
    MaxLoad,
    VariantFigures,
    aligned,
    axis_values,
    trade_offs,
    variant_figures,
)


@dataclass(frozen=True, slots=True)
class AimResult:
    """Best variant for one aim. `change`, `low`, `high`: of its figure against the baseline, as shares; None: not known.

    `tied`: other variants that are not separated from it. `trade_offs`: what is worse than on the baseline, as (name, change).
    `remark`: includes the reason for no recommendation.
    """

    aim: str
    variant: str | None
    figure: str
    value: float | None
    unit: str
    change: float | None = None
    low: float | None = None
    high: float | None = None
    certainty: Certainty = "none"
    tied: tuple[str, ...] = ()
    trade_offs: tuple[tuple[str, float], ...] = ()
    untested: str = ""  # reason why figures of the variant have no test against the baseline
    remark: str = ""

    @property
    def undecided(self) -> bool:
        """Return True if no test separates the best value from the others; no variant is recommended then."""
        return self.variant is not None and self.certainty in ("tie", "no difference found", "not tested")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Results of all aims on one scenario. `front`: Pareto front of TTFT, TPOT and output."""

    scenario: str
    baseline: Side
    variants: tuple[VariantFigures, ...]
    comparisons: tuple[Comparison, ...]
    aims: tuple[AimResult, ...]
    front: tuple[str, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    """Variants that can be compared with the baseline, which is the first one, and their comparisons with it."""

    variants: tuple[VariantFigures, ...]
    comparisons: tuple[Comparison, ...]

    def comparison(self, variant: VariantFigures) -> Comparison | None:
        """Return the comparison of a variant; None for the baseline."""
        return next((found for found in self.comparisons if found.candidate is variant.side), None)


def recommend(scenario: str, sides: Sequence[Side], primary: Figure | None = None) -> Recommendation:
    """Recommend among the sides, the baseline first. `primary`: of the comparisons with the baseline, which give trade-offs.

    `refusals` of the result: sides that are not comparable with the baseline.
    """
    comparisons = tuple(compare(sides[0], side, primary or figure(DEFAULT_PRIMARY), ALL) for side in sides[1:])
    refused = {
        comparison.candidate.label: comparison.differences.refusals[0]
        for comparison in comparisons
        if comparison.differences.refusals
    }
    usable = tuple(comparison for comparison in comparisons if comparison.candidate.label not in refused)
    variants = (_baseline_figures(sides[0], usable), *map(_candidate_figures, usable))
    field = _Field(variants, usable)
    return Recommendation(
        scenario=scenario,
        baseline=sides[0],
        variants=variants,
        comparisons=usable,
        aims=(
            _by_figure("lowest TTFT", TTFT, field),
            _by_figure("highest throughput", THROUGHPUT, field),
            *(_most_users(slo, field) for slo in SLOS),
            _least_memory(field),
            _lowest_cost(field),
            _balanced(field),
        ),
        front=_front(variants),
        refusals=tuple(f"{label}: {reason}" for label, reason in refused.items()),
    )


def _baseline_figures(base: Side, comparisons: Sequence[Comparison]) -> VariantFigures:
    """Return the figures of the baseline over its runs in any pair."""
    used = [run for comparison in comparisons for run in comparison.paired[0].runs]
    return variant_figures(base, replace(base, runs=tuple(run for run in base.runs if run in used) or base.runs))


def _candidate_figures(comparison: Comparison) -> VariantFigures:
    base, candidate = comparison.paired
    return variant_figures(comparison.candidate, candidate, variant_figures(comparison.baseline, base))


def _by_figure(aim: str, figure: Figure, field: _Field) -> AimResult:
    """Return the variant with the best mean of a figure over the pairs."""
    values = axis_values(field.variants, figure)
    best = _best(values, figure.better == "lower")
    if best is None:
        return AimResult(aim, None, figure.title, None, figure.unit, remark="not measured on any variant")
    result = AimResult(aim, None, figure.title, field.variants[best].values[figure.name], figure.unit)
    score = Score(lambda run: run.value(figure.name), figure.better == "lower")
    return _ranked(replace(result, remark=_unmeasured(values, field.variants)), score, values, best, field)


def _ranked(result: AimResult, score: Score, values: Sequence[float | None], best: int, field: _Field) -> AimResult:
    """Complete a result by the test of the best variant against all others with a value."""
    chosen, base = field.variants[best], field.variants[0]
    others = [
        variant.side
        for variant, value in zip(field.variants, values, strict=True)
        if value is not None and variant is not chosen
    ]
    ranking = rank(score, chosen.side, others)
    own = "" if best or result.remark else "it is the baseline"
    result = replace(
        result,
        variant=chosen.side.label,
        certainty=ranking.certainty,
        tied=ranking.tied,
        remark=_joined(result.remark, own, ranking.remark),
    )
    effect = effect_of(score, base.side, chosen.side) if best else None
    before, now = values[0], values[best]
    if effect is None:
        result = replace(result, change=now / before - 1 if best and before and now is not None else None)
    else:
        ends = [None if end is None else end - 1 for end in (effect.low, effect.high)]
        result = replace(result, change=effect.ratio - 1, low=ends[0], high=ends[1])
    return _with_trade_offs(result, field)


def _with_trade_offs(result: AimResult, field: _Field) -> AimResult:
    """Add what is worse than on the baseline: of the variant, or of each of the tied ones, with its name."""
    found: list[tuple[str, float]] = []
    untested = []
    for variant in field.variants:
        comparison = field.comparison(variant)
        if comparison is None or variant.side.label not in (result.variant, *result.tied):
            continue
        label = f"{variant.side.label}: " if result.tied else ""
        found += [(label + name, change) for name, change in trade_offs(variant, comparison)]
        if not comparison.tested_any:
            untested.append(label + comparison.primary.untested)
    return replace(result, trade_offs=tuple(found), untested="; ".join(untested))


def _unmeasured(values: Sequence[float | None], variants: Sequence[VariantFigures]) -> str:
    labels = [variant.side.label for variant, value in zip(variants, values, strict=True) if value is None]
    return f"not measured on {', '.join(labels)}" if labels else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _most_users(slo: LatencyLimits, field: _Field) -> AimResult:
    aim = f"most users, {slo.name}"
    figure = f"load with TTFT < {slo.ttft_ms:g} ms and TPOT < {slo.tpot_ms:g} ms at p95"
    maxima = [variant.max_load[slo.name] for variant in field.variants]
    highest = max((maximum.load for maximum in maxima if maximum.load is not None), default=None)
    if highest is None:
        tested = any(maximum.tested for maximum in maxima)
        remark = (
            "every tested load missed the SLO" if tested else "not measured: too few turns, or a load without a number"
        )
        return AimResult(aim, None, figure, None, "", remark=remark)
    top = next(maximum for maximum in maxima if maximum.load == highest)
    if remark := _unjudged(highest, top.unit, field.variants, maxima):
        return AimResult(aim, None, figure, highest, top.unit, remark=f"not measured: {remark}")
    remark = "a higher load missed the SLO" if top.missed_above else "highest tested load, no upper bound"
    result = AimResult(aim, None, figure, highest, top.unit, remark=remark)
    return _counted(result, [maximum.load for maximum in maxima], highest, field)


def _unjudged(load: float, unit: str, variants: Sequence[VariantFigures], maxima: Sequence[MaxLoad]) -> str:
    """Return the reason why no variant is shown to be the best at the highest load that met the SLO; empty if one is."""
    labels = [variant.side.label for variant in variants]
    equal = [label for label, maximum in zip(labels, maxima, strict=True) if maximum.load == load]
    missed_above = all(maximum.missed_above for maximum in maxima if maximum.load == load)
    if len(equal) > 1 and not missed_above:
        return f"{', '.join(equal)} all met the SLO at the highest tested load ({load:g} {unit}); test higher loads"
    unknown = [
        label for label, maximum in zip(labels, maxima, strict=True) if label not in equal and not maximum.misses(load)
    ]
    return f"{', '.join(unknown)} not judged at {load:g} {unit}; measure more turns at this load" if unknown else ""


def _counted(result: AimResult, values: Sequence[float | None], best: float, field: _Field) -> AimResult:
    """Complete the result of a figure that is counted, not sampled; variants of one value are tied."""
    chosen, *tied = (variant.side.label for variant, value in zip(field.variants, values, strict=True) if value == best)
    own = "it is the baseline" if chosen == field.variants[0].side.label and not tied else ""
    before = values[0]
    result = replace(
        result,
        variant=chosen,
        tied=tuple(tied),
        certainty="tie" if tied else "counted",
        change=best / before - 1 if before and not own and best != before else None,
        remark=_joined(result.remark, own),
    )
    return _with_trade_offs(result, field)


def _least_memory(field: _Field) -> AimResult:
    """Return the variant with the least memory."""
    values = aligned(field.variants, lambda variant: variant.memory_mb)
    result = AimResult("least memory", None, "memory", None, "MB", remark=_unmeasured(values, field.variants))
    best = _best(values, lower=True)
    if best is None or result.remark:
        return result
    if len({variant.memory_of for variant in field.variants}) > 1:
        return replace(result, remark="not comparable: memory of GPUs on some variants, of processes on others")
    chosen = field.variants[best]
    result = replace(result, figure=f"memory of {chosen.memory_of}", value=chosen.memory_mb)
    return _counted(result, values, values[best] or 0.0, field)


def _lowest_cost(field: _Field) -> AimResult:
    """Return the variant with the lowest cost of its output."""
    values = aligned(field.variants, lambda variant: variant.cost)
    result = AimResult(
        "lowest cost", None, "million output tokens", None, "", remark=_unmeasured(values, field.variants)
    )
    best = _best(values, lower=True)
    if best is None or result.remark:
        return result
    return _ranked(
        replace(result, value=field.variants[best].cost), Score(_cost_of_run, lower=True), values, best, field
    )


def _cost_of_run(run: Run) -> float | None:
    return per_million(run.prices, run.value(THROUGHPUT.name))


def _balanced(field: _Field) -> AimResult:
    """Return the variant with the lowest geometric mean of all axes known on all variants, relative to the baseline."""
    axes = _known_axes(field.variants)
    if not axes:
        return AimResult("balanced", None, "all axes", None, "", remark="not measured on any axis")
    scores = [
        exp(fsum(log(values[index] / values[0]) for values in axes.values()) / len(axes))
        for index in range(len(field.variants))
    ]
    best = scores.index(min(scores))
    remark = f"geometric mean over {'; '.join(axes)}, relative to the baseline; lower is better"
    result = AimResult("balanced", None, "all axes", scores[best], "", remark=remark)
    return _ranked(result, Score(lambda run: _balance_of_run(run, axes, field), lower=True), scores, best, field)


def _balance_of_run(run: Run, axes: Collection[str], field: _Field) -> float | None:
    """Return the geometric mean of the axes of a run; memory is that of its variant."""
    memory = next(variant.memory_mb for variant in field.variants if run in variant.side.runs)
    known = {axis.title: _penalty(axis, run) for axis in AXES} | {"memory": memory, "cost": _cost_of_run(run)}
    values = [value for axis in axes if (value := known[axis])]
    return exp(fsum(map(log, values)) / len(axes)) if len(values) == len(axes) else None


def _penalty(axis: Figure, run: Run) -> float | None:
    """Return the figure of a run as a value of which less is better."""
    value = run.value(axis.name)
    return value if axis.better == "lower" or not value else 1 / value


def _known_axes(variants: Sequence[VariantFigures]) -> dict[str, list[float]]:
    """Return the values of all variants by axis, lower is better; without axes that are unknown or 0 on a variant."""
    columns = {axis.title: (axis_values(variants, axis), axis.better == "lower") for axis in AXES}
    if len({variant.memory_of for variant in variants}) == 1:
        columns["memory"] = [variant.memory_mb for variant in variants], True
    columns["cost"] = aligned(variants, lambda variant: variant.cost), True
    axes = {}
    for name, (values, lower) in columns.items():
        known = [value if lower else 1 / value for value in values if value]
        if len(known) == len(values):
            axes[name] = known
    return axes


def _best(values: Sequence[float | None], lower: bool) -> int | None:
    known = [(value if lower else -value, index) for index, value in enumerate(values) if value is not None]
    return min(known)[1] if known else None


def _front(variants: Sequence[VariantFigures]) -> tuple[str, ...]:
    """Return the Pareto front: no other variant is as good on all axes and better on one. Without unmeasured variants."""
    known: list[tuple[str, list[float]]] = []
    columns = [axis_values(variants, axis) for axis in AXES]
    for index, variant in enumerate(variants):
        values = [(column[index], axis.better) for column, axis in zip(columns, AXES, strict=True)]
        penalties = [value if better == "lower" else -value for value, better in values if value is not None]
        if len(penalties) == len(AXES):
            known.append((variant.side.label, penalties))
    return tuple(label for label, own in known if not any(_dominates(other, own) for _, other in known))


def _dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
