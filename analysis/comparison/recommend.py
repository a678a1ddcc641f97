"""Best variant for each aim, with its gain over the baseline, significance and trade-offs.

Each aim has one figure. Gains are means over pairs of runs, with their interval. A paired t-test with Holm's correction over the
variants decides if a gain is significant: the best of several measured values is partly chance. None: not measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Literal

from inferload.numbers import plural
from inferload.statistics.paired_runs import holm, p_against, pairs_needed

from ..data.figures import Figure
from .compare import ALPHA, RECOMMENDED_PAIRS, Comparison, compare
from .sides import Side
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

Certainty = Literal["certain", "not certain", "not tested", "counted", "none"]


@dataclass(frozen=True, slots=True)
class AimResult:
    """Best variant for one aim. `change`, `low`, `high`: of its figure against the baseline, as shares; None: not known.

    `trade_offs`: figures that are worse than the baseline's, as (axis, change). `remark`: includes the reason for no
    recommendation.
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
    trade_offs: tuple[tuple[str, float], ...] = ()
    remark: str = ""

    @property
    def undecided(self) -> bool:
        """Return True if no test separates the best value from the others; no variant is recommended then."""
        return self.variant is not None and self.certainty in ("not certain", "not tested")


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


def recommend(scenario: str, sides: Sequence[Side]) -> Recommendation:
    """Recommend among the sides, the baseline first. `refusals` of the result: sides that are not comparable with it."""
    comparisons = tuple(compare(sides[0], side, TTFT, AXES) for side in sides[1:])
    refused = {
        comparison.candidate.label: comparison.differences.refusals[0]
        for comparison in comparisons
        if comparison.differences.refusals
    }
    usable = tuple(comparison for comparison in comparisons if comparison.candidate.label not in refused)
    variants = (_baseline_figures(sides[0], usable), *map(_candidate_figures, usable))
    return Recommendation(
        scenario=scenario,
        baseline=sides[0],
        variants=variants,
        comparisons=usable,
        aims=(
            _by_figure("lowest TTFT", TTFT, variants, usable),
            _by_figure("highest throughput", THROUGHPUT, variants, usable),
            *(_most_users(slo, variants) for slo in SLOS),
            _least("least memory", "memory", lambda variant: variant.memory_mb, variants, "MB"),
            _lowest_cost(variants, usable),
            _balanced(variants, usable),
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


def _by_figure(
    aim: str, figure: Figure, variants: Sequence[VariantFigures], comparisons: Sequence[Comparison]
) -> AimResult:
    """Return the variant with the best mean of a figure over the pairs."""
    values = axis_values(variants, figure)
    best = _best(values, figure.better == "lower")
    if best is None:
        return AimResult(aim, None, figure.title, None, figure.unit, remark="not measured on any variant")
    chosen = variants[best]
    unmeasured = _unmeasured(values, variants)
    compared = next((comparison for comparison in comparisons if comparison.candidate is chosen.side), None)
    certainty, reason = _decided(figure, compared, comparisons)
    value = chosen.values[figure.name]
    result = AimResult(aim, chosen.side.label, figure.title, value, figure.unit, certainty=certainty)
    if compared is None:
        return replace(result, remark=_joined(unmeasured or "it is the baseline", reason))
    row = compared.row(figure)
    effect = row.effect
    return replace(
        result,
        change=row.change,
        low=None if effect is None or effect.low is None else effect.low - 1,
        high=None if effect is None or effect.high is None else effect.high - 1,
        trade_offs=trade_offs(chosen, figure.name),
        remark=_joined(unmeasured, reason),
    )


def _unmeasured(values: Sequence[float | None], variants: Sequence[VariantFigures]) -> str:
    labels = [variant.side.label for variant, value in zip(variants, values, strict=True) if value is None]
    return f"not measured on {', '.join(labels)}" if labels else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _certainty(
    figure: Figure,
    chosen: Comparison | None,
    comparisons: Sequence[Comparison],
    no_gain: Mapping[str, float] | None = None,
) -> Certainty:
    """Return the result of the paired tests with Holm's correction over the variants.

    `chosen`: comparison of the best variant; None if the baseline is the best, which each variant must differ from. `no_gain`:
    ratio by variant that is no gain (default: 1).
    """
    p_values = {}
    for comparison in comparisons:
        label, effect = comparison.candidate.label, comparison.row(figure).effect
        p = None if effect is None else p_against(effect, (no_gain or {}).get(label, 1.0))
        if comparison.tested and p is not None:
            p_values[label] = p
    adjusted = holm(p_values)
    deciding = comparisons if chosen is None else [chosen]
    values = [adjusted.get(comparison.candidate.label) for comparison in deciding]
    known = [p for p in values if p is not None]
    if len(known) < len(values):
        return "not tested"
    return "not certain" if any(p >= ALPHA for p in known) else "certain" if known else "counted"


def _decided(
    figure: Figure,
    chosen: Comparison | None,
    comparisons: Sequence[Comparison],
    no_gain: Mapping[str, float] | None = None,
) -> tuple[Certainty, str]:
    """Return the certainty of the best variant and its reason; arguments as of `_certainty`."""
    ratios = no_gain or {}
    certainty = _certainty(figure, chosen, comparisons, ratios)
    deciding = comparisons if chosen is None else [chosen]
    for comparison in deciding:
        effect = comparison.row(figure).effect
        ratio = None if effect is None else effect.ratio / ratios.get(comparison.candidate.label, 1.0)
        # The tests are two-sided: without this check a certain loss would pass for a gain.
        if certainty == "certain" and ratio is not None and figure.change_is_good(ratio) != (chosen is not None):
            return "not certain", "the means over the runs and the changes over the pairs disagree"
    level = 1.0 if chosen is None else ratios.get(chosen.candidate.label, 1.0)
    return certainty, _needed(figure, deciding, certainty, level)


def _needed(figure: Figure, comparisons: Sequence[Comparison], certainty: Certainty, no_gain: float = 1.0) -> str:
    """Format the number of pairs of runs that a test needs; empty if all comparisons are decided."""
    if certainty == "not tested":
        pairs = plural(min(len(comparison.pairs) for comparison in comparisons), "pair")
        return f"{pairs} of runs: a test needs {RECOMMENDED_PAIRS} or more, each run on its own server start"
    if certainty != "not certain":
        return ""
    counts: list[int | None] = [RECOMMENDED_PAIRS]
    for comparison in comparisons:
        effect = comparison.row(figure).effect
        if effect is not None and effect.sd_log is not None:
            counts.append(pairs_needed(effect.ratio / no_gain - 1, effect.sd_log))
    known = [count for count in counts if count is not None]
    most = f"about {max(known)}" if len(known) == len(counts) else "over 1,000"
    return f"a difference of this size needs {most} pairs of runs"


def _most_users(slo: LatencyLimits, variants: Sequence[VariantFigures]) -> AimResult:
    aim = f"most users, {slo.name}"
    figure = f"load with TTFT < {slo.ttft_ms:g} ms and TPOT < {slo.tpot_ms:g} ms at p95"
    maxima = [variant.max_load[slo.name] for variant in variants]
    highest = max((maximum.load for maximum in maxima if maximum.load is not None), default=None)
    if highest is None:
        tested = any(maximum.tested for maximum in maxima)
        remark = (
            "every tested load missed the SLO" if tested else "not measured: too few turns, or a load without a number"
        )
        return AimResult(aim, None, figure, None, "", remark=remark)
    best = next(index for index, maximum in enumerate(maxima) if maximum.load == highest)
    top = maxima[best]
    if remark := _unjudged(highest, top.unit, variants, maxima):
        return AimResult(aim, None, figure, highest, top.unit, remark=f"not measured: {remark}")
    remark = "a higher load missed the SLO" if top.missed_above else "highest tested load, no upper bound"
    result = AimResult(aim, None, figure, highest, top.unit, remark=remark)
    return _counted(result, variants[best], variants[0], maxima[0].load)


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


def _counted(result: AimResult, chosen: VariantFigures, base: VariantFigures, before: float | None) -> AimResult:
    """Complete the result of a figure that is counted, not sampled. `before`: its value on the baseline."""
    result = replace(result, variant=chosen.side.label, certainty="counted")
    if chosen is base:
        return result
    change = result.value / before - 1 if result.value and before else None
    return replace(result, change=change, trade_offs=trade_offs(chosen, ""))


def _least(
    aim: str,
    figure: str,
    value_of: Callable[[VariantFigures], float | None],
    variants: Sequence[VariantFigures],
    unit: str,
) -> AimResult:
    """Return the variant with the lowest value of a counted figure."""
    values = aligned(variants, value_of)
    best = _best(values, lower=True)
    unmeasured = _unmeasured(values, variants)
    if best is None or unmeasured:
        return AimResult(aim, None, figure, None, unit, remark=unmeasured)
    chosen = variants[best]
    if figure == "memory":
        if len({variant.memory_of for variant in variants}) > 1:
            remark = "not comparable: memory of GPUs on some variants, of processes on others"
            return AimResult(aim, None, figure, None, unit, remark=remark)
        figure = f"memory of {chosen.memory_of}"
    remark = "" if best else "it is the baseline"
    result = AimResult(aim, None, figure, value_of(chosen), unit, remark=remark)
    return _counted(result, chosen, variants[0], value_of(chosen.base or chosen))


def _lowest_cost(variants: Sequence[VariantFigures], comparisons: Sequence[Comparison]) -> AimResult:
    """Return the variant with the lowest cost: its interval is the inverse of the output's times the ratio of prices."""
    result = _least("lowest cost", "million output tokens", lambda variant: variant.cost, variants, "")
    if result.variant is None:
        return result
    chosen = next((comparison for comparison in comparisons if comparison.candidate.label == result.variant), None)
    ratios = _price_ratios(variants)
    if chosen is None or result.change is None:
        certainty, reason = _decided(THROUGHPUT, None, comparisons, ratios)
        return replace(result, certainty=certainty, remark=_joined(result.remark, reason))
    effect, ratio = chosen.row(THROUGHPUT).effect, ratios.get(chosen.candidate.label)
    if effect is None or effect.low is None or effect.high is None or ratio is None:
        remark = _joined(result.remark, _needed(THROUGHPUT, [chosen], "not tested"))
        return replace(result, certainty="not tested", remark=remark)
    certainty, reason = _decided(THROUGHPUT, chosen, comparisons, ratios)
    return replace(
        result,
        change=ratio / effect.ratio - 1,
        low=ratio / effect.high - 1,
        high=ratio / effect.low - 1,
        certainty=certainty,
        remark=_joined(result.remark, reason),
    )


def _price_ratios(variants: Sequence[VariantFigures]) -> dict[str, float]:
    """Return the price of an hour of each variant over the baseline's: cost times output, if both are known."""
    hours = {
        variant.side.label: variant.cost * output
        for variant in variants
        if variant.cost is not None and (output := variant.values[THROUGHPUT.name]) is not None
    }
    base = hours.get(variants[0].side.label)
    return {label: hour / base for label, hour in hours.items()} if base else {}


def _balanced(variants: Sequence[VariantFigures], comparisons: Sequence[Comparison]) -> AimResult:
    """Return the variant with the lowest geometric mean of the ratios to the baseline, over axes known on all variants.

    The mean has no test of its own: the result is "counted" if an axis shows a difference, by its test or in memory, which is
    not sampled.
    """
    axes = _known_axes(variants)
    if not axes:
        return AimResult("balanced", None, "all axes", None, "", remark="not measured on any axis")
    scores = [
        exp(sum(log(values[index] / values[0]) for values in axes.values()) / len(axes))
        for index in range(len(variants))
    ]
    best = scores.index(min(scores))
    chosen = variants[best]
    remark = f"geometric mean over {', '.join(axes)}, relative to the baseline; lower is better"
    if not best:
        remark += "; it is the baseline"
    compared = [comparison for comparison in comparisons if not best or comparison.candidate is chosen.side]
    answers = [_certainty(axis, comparison, comparisons) for axis in AXES for comparison in compared]
    certainty: Certainty = "counted"
    if compared and "certain" not in answers and len(set(axes.get("memory", ()))) < 2:
        certainty = "not certain" if "not certain" in answers else "not tested"
        remark += "; no significant difference on any axis"
    return AimResult(
        "balanced",
        chosen.side.label,
        "all axes",
        scores[best],
        "",
        scores[best] - 1 if best else None,
        certainty=certainty,
        trade_offs=trade_offs(chosen, ""),
        remark=remark,
    )


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
