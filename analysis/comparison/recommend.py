"""Recommendation: the best variant for each aim, with its gain over the baseline, significance and trade-offs.

Each aim has one figure. Gains are over pairs of runs, with their interval. A paired t-test with Holm's correction over the
variants decides if a gain is significant, since the best of several values is partly chance. None: not measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Literal

from inferload import rundir
from inferload.errors import UsageError
from inferload.numbers import number
from inferload.statistics.paired_runs import holm, p_against, pairs_needed

from ..data.figures import Figure
from . import costs
from .compare import ALPHA, PAIRS_WANTED, Comparison, compare
from .sides import Level, Run, Side

Certainty = Literal["certain", "not certain", "not tested", "counted", "none"]

TTFT = Figure("p50(ttft_ms)", "TTFT, median", "lower", "ms")
TPOT = Figure("mean(tpot_ms)", "TPOT, mean", "lower", "ms")
THROUGHPUT = Figure("output_tok_per_s", "Output", "higher", "tok/s")
AXES = (TTFT, TPOT, THROUGHPUT)


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """Limits on p95 of TTFT and TPOT."""

    name: str
    ttft_ms: float
    tpot_ms: float


SLOS = (LatencyLimits("chat", 500, 50), LatencyLimits("batch", 2000, 100))
_FAILED = 0.01


@dataclass(frozen=True, slots=True)
class Held:
    """Highest load within an SLO, None if no load met it; `broken_above`: a higher one missed it; `tried`: all tested loads."""

    load: float | None
    unit: str
    broken_above: bool
    tried: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """Figures of one variant; None: not measured. `held`: by the name of the SLO."""

    side: Side
    values: Mapping[str, float | None]
    memory_mb: float | None
    memory_of: str  # GPUs, or processes
    gpus: int | None
    cost: float | None
    held: Mapping[str, Held]

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


@dataclass(frozen=True, slots=True)
class BestVariant:
    """The best variant for one aim. `change`, `low`, `high`: of its figure against the baseline, as shares; None: not known.

    `prices`: figures that are worse with it, as (axis, change). `why`: reason for no recommendation, or a remark.
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
    prices: tuple[tuple[str, float], ...] = ()
    why: str = ""

    @property
    def undecided(self) -> bool:
        """Return True if no test separates the best value from the others; no variant is recommended then."""
        return self.variant is not None and self.certainty in ("not certain", "not tested")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """All aims on one scenario. `front`: variants that no other beats on TTFT, TPOT and output at once."""

    scenario: str
    baseline: Side
    standings: tuple[Standing, ...]
    comparisons: tuple[Comparison, ...]
    advice: tuple[BestVariant, ...]
    front: tuple[str, ...]
    refusals: tuple[str, ...]


def recommend(scenario: str, sides: Sequence[Side]) -> Recommendation:
    """Compare all sides with the first, the baseline. Sides that do not compare with it are named in `refusals`."""
    comparisons = tuple(compare(sides[0], side, TTFT, AXES) for side in sides[1:])
    refused = {one.candidate.label: one.differences.refusals[0] for one in comparisons if one.differences.refusals}
    usable = tuple(one for one in comparisons if one.candidate.label not in refused)
    standings = tuple(standing(side) for side in sides if side.label not in refused)
    return Recommendation(
        scenario=scenario,
        baseline=sides[0],
        standings=standings,
        comparisons=usable,
        advice=(
            _by_figure("lowest TTFT", TTFT, standings, usable),
            _by_figure("highest throughput", THROUGHPUT, standings, usable),
            *(_most_users(slo, standings) for slo in SLOS),
            _least("least memory", "memory", [one.memory_mb for one in standings], standings, "MB"),
            _lowest_cost(standings, usable),
            _balanced(standings, usable),
        ),
        front=_front(standings),
        refusals=tuple(f"{label}: {why}" for label, why in refused.items()),
    )


def standing(side: Side) -> Standing:
    """Return a side's means over its valid runs, or over all if none is valid."""
    runs = [run for run in side.runs if run.level != "invalid"] or list(side.runs)
    on_gpus, of_processes = (_most(runs, name) for name in ("gpu_memory_mb", "memory_mb"))
    return Standing(
        side=side,
        values={axis.name: side.mean(axis.name) for axis in AXES},
        memory_mb=on_gpus if on_gpus is not None else of_processes,
        memory_of="GPUs" if on_gpus is not None else "processes",
        gpus=runs[0].served.gpus or runs[0].prices.gpus,
        cost=costs.of_side(side).per_million_output_tokens,
        held={slo.name: held(slo, [level for run in runs for level in run.levels]) for slo in SLOS},
    )


def _most(runs: Sequence[Run], name: str) -> float | None:
    """Return the maximum over the runs; None if one of them has no value."""
    values = [getattr(run.served, name) for run in runs]
    return None if None in values else max(values)


def held(slo: LatencyLimits, levels: Sequence[Level]) -> Held:
    """Return the highest load below every load that missed the SLO; repeats of a load must all meet it."""
    unit = levels[0].unit if levels else ""
    outcomes: dict[float, bool] = {}
    for level in levels:
        kept = _kept(slo, level)
        if kept is not None and level.unit == unit:
            outcomes[level.load] = outcomes.get(level.load, True) and kept
    broken = [load for load, kept in outcomes.items() if not kept]
    below = [load for load, kept in outcomes.items() if kept and load < min(broken, default=float("inf"))]
    return Held(max(below, default=None), unit, bool(broken), tuple(sorted(outcomes)))


def _kept(slo: LatencyLimits, level: Level) -> bool | None:
    """Return None if there are too few samples for a p95."""
    ttft_ms, tpot_ms = (level.figures.get(f"p95({measure})") for measure in ("ttft_ms", "tpot_ms"))
    if ttft_ms is None or tpot_ms is None:
        return None
    return ttft_ms < slo.ttft_ms and tpot_ms < slo.tpot_ms and (level.figures.get("failed_ratio") or 0.0) < _FAILED


def _by_figure(
    aim: str, figure: Figure, standings: Sequence[Standing], comparisons: Sequence[Comparison]
) -> BestVariant:
    """Return the variant with the best mean of a figure."""
    values = [one.values[figure.name] for one in standings]
    best = _best(values, figure.better == "lower")
    if best is None:
        return BestVariant(aim, None, figure.title, None, figure.unit, why="not measured on any variant")
    chosen = standings[best]
    missing = [one.side.label for one in standings if one.values[figure.name] is None]
    why = f"not measured on {', '.join(missing)}" if missing else ""
    compared = next((one for one in comparisons if one.candidate is chosen.side), None)
    certainty = _certainty(figure, compared, comparisons)
    advice = BestVariant(aim, chosen.side.label, figure.title, values[best], figure.unit, certainty=certainty)
    if compared is None:
        return replace(advice, why=_joined(why or "it is the baseline", _needed(figure, comparisons, certainty)))
    row = next(row for row in compared.rows if row.figure.name == figure.name)
    effect = row.effect
    return replace(
        advice,
        change=row.change,
        low=None if effect is None or effect.low is None else effect.low - 1,
        high=None if effect is None or effect.high is None else effect.high - 1,
        prices=_prices(chosen, standings[0], figure.name),
        why=_joined(why, _needed(figure, [compared], certainty)),
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _certainty(
    figure: Figure,
    chosen: Comparison | None,
    comparisons: Sequence[Comparison],
    no_gain: Mapping[str, float] | None = None,
) -> Certainty:
    """Return the answer of the paired tests, Holm over the variants. `chosen` None: the baseline, from which each variant must
    differ. `no_gain`: ratio of a variant that is no gain, if it is not 1."""
    raw = {}
    for one in comparisons:
        row = next(row for row in one.rows if row.figure.name == figure.name)
        label = one.candidate.label
        p = None if row.effect is None else p_against(row.effect, (no_gain or {}).get(label, 1.0))
        if one.tested and p is not None:
            raw[label] = p
    adjusted = holm(raw)
    wanted = comparisons if chosen is None else [chosen]
    values = [adjusted.get(one.candidate.label) for one in wanted]
    known = [p for p in values if p is not None]
    if len(known) < len(values):
        return "not tested"
    return "not certain" if any(p >= ALPHA for p in known) else "certain" if known else "counted"


def _needed(figure: Figure, comparisons: Sequence[Comparison], certainty: Certainty, no_gain: float = 1.0) -> str:
    """Return the number of pairs of runs that a test needs, in words; empty if all comparisons are decided."""
    if certainty == "not tested":
        pairs = min(len(one.pairs) for one in comparisons)
        counted = f"{pairs} {'pair' if pairs == 1 else 'pairs'} of runs"
        return f"{counted}: a test needs {PAIRS_WANTED} or more, each run on its own server start"
    if certainty != "not certain":
        return ""
    counts: list[int | None] = [PAIRS_WANTED]
    for one in comparisons:
        effect = next(row for row in one.rows if row.figure.name == figure.name).effect
        if effect is not None and effect.sd_log is not None:
            counts.append(pairs_needed(effect.ratio / no_gain - 1, effect.sd_log))
    known = [count for count in counts if count is not None]
    most = f"about {max(known)}" if len(known) == len(counts) else "over 1,000"
    return f"a difference of this size needs {most} pairs of runs"


def _most_users(slo: LatencyLimits, standings: Sequence[Standing]) -> BestVariant:
    aim = f"most users, {slo.name}"
    figure = f"load with TTFT < {slo.ttft_ms:g} ms and TPOT < {slo.tpot_ms:g} ms at p95"
    loads = [one.held[slo.name].load for one in standings]
    best = _best(loads, lower=False)
    if best is None:
        tried = any(one.held[slo.name].tried for one in standings)
        why = "every tested load missed the SLO" if tried else "not measured: too few turns, or a load without a number"
        return BestVariant(aim, None, figure, None, "", why=why)
    top, chosen = standings[best].held[slo.name], standings[best]
    equal = [one for one in standings if one.held[slo.name].load == top.load]
    if len(equal) > 1 and not all(one.held[slo.name].broken_above for one in equal):
        labels = ", ".join(one.side.label for one in equal)
        why = f"not measured: {labels} all met the SLO at the highest tested load ({top.load:g} {top.unit}); test higher loads"
        return BestVariant(aim, None, figure, top.load, top.unit, why=why)
    why = "a higher load missed the SLO" if top.broken_above else "highest tested load, no upper bound"
    advice = BestVariant(aim, None, figure, top.load, top.unit, why=why)
    return _counted(advice, chosen, standings[0], standings[0].held[slo.name].load)


def _counted(advice: BestVariant, chosen: Standing, base: Standing, before: float | None) -> BestVariant:
    """Complete the advice on a figure that is counted, not sampled. `before`: its value on the baseline."""
    advice = replace(advice, variant=chosen.side.label, certainty="counted")
    if chosen is base:
        return advice
    change = advice.value / before - 1 if advice.value and before else None
    return replace(advice, change=change, prices=_prices(chosen, base, ""))


def _least(
    aim: str, figure: str, values: Sequence[float | None], standings: Sequence[Standing], unit: str
) -> BestVariant:
    """Return the variant with the lowest value of a counted figure."""
    best = _best(values, lower=True)
    missing = [one.side.label for one, value in zip(standings, values, strict=True) if value is None]
    if best is None or missing:
        return BestVariant(aim, None, figure, None, unit, why=f"not measured on {', '.join(missing)}")
    chosen = standings[best]
    if figure == "memory":
        if len({one.memory_of for one in standings}) > 1:
            why = "not comparable: memory of GPUs on some variants, of processes on others"
            return BestVariant(aim, None, figure, None, unit, why=why)
        figure = f"memory of {chosen.memory_of}"
    why = "" if best else "it is the baseline"
    return _counted(BestVariant(aim, None, figure, values[best], unit, why=why), chosen, standings[0], values[0])


def _lowest_cost(standings: Sequence[Standing], comparisons: Sequence[Comparison]) -> BestVariant:
    """Return the variant with the lowest cost: its interval is the inverse of the output's times the ratio of prices."""
    advice = _least("lowest cost", "million output tokens", [one.cost for one in standings], standings, "")
    chosen = next((one for one in comparisons if one.candidate.label == advice.variant), None)
    prices = _price_ratios(standings)
    if chosen is None or advice.change is None:
        if advice.variant is None:
            return advice
        certainty = _certainty(THROUGHPUT, None, comparisons, prices)
        return replace(
            advice, certainty=certainty, why=_joined(advice.why, _needed(THROUGHPUT, comparisons, certainty))
        )
    effect = next(row for row in chosen.rows if row.figure.name == THROUGHPUT.name).effect
    mine = prices.get(chosen.candidate.label)
    if effect is None or effect.low is None or effect.high is None or mine is None:
        return replace(
            advice, certainty="not tested", why=_joined(advice.why, _needed(THROUGHPUT, [chosen], "not tested"))
        )
    low, high = mine / effect.high - 1, mine / effect.low - 1
    certainty = _certainty(THROUGHPUT, chosen, comparisons, prices)
    why = _joined(advice.why, _needed(THROUGHPUT, [chosen], certainty, mine))
    return replace(advice, change=mine / effect.ratio - 1, low=low, high=high, certainty=certainty, why=why)


def _price_ratios(standings: Sequence[Standing]) -> dict[str, float]:
    """Return the price of an hour of each variant against the baseline's: cost times output, if both are known."""
    hours = {
        one.side.label: one.cost * output
        for one in standings
        if one.cost is not None and (output := one.values[THROUGHPUT.name]) is not None
    }
    base = hours.get(standings[0].side.label)
    return {label: hour / base for label, hour in hours.items()} if base else {}


def _balanced(standings: Sequence[Standing], comparisons: Sequence[Comparison]) -> BestVariant:
    """Return the variant with the least geometric mean of the ratios to the baseline, over axes that are known of all variants.

    It has no test of its own: it is counted if an axis shows a difference, by its test or in memory, which is not sampled.
    """
    axes: dict[str, list[float]] = {}
    for axis in AXES:
        values = [one.values[axis.name] for one in standings]
        known = [value for value in values if value]
        if len(known) == len(values):
            axes[axis.title] = [value if axis.better == "lower" else 1 / value for value in known]
    alike = len({one.memory_of for one in standings}) == 1
    for name, counted in (("memory", [one.memory_mb for one in standings]), ("cost", [one.cost for one in standings])):
        known = [value for value in counted if value]
        if len(known) == len(counted) and (alike or name != "memory"):
            axes[name] = known
    if not axes:
        return BestVariant("balanced", None, "all axes", None, "", why="not measured on any axis")
    scores = [
        exp(sum(log(values[at] / values[0]) for values in axes.values()) / len(axes)) for at in range(len(standings))
    ]
    best = scores.index(min(scores))
    chosen = standings[best]
    why = f"geometric mean over {', '.join(axes)}, relative to the baseline; lower is better" + (
        "; it is the baseline" if not best else ""
    )
    prices = _prices(chosen, standings[0], "") if best else ()
    change = scores[best] - 1 if best else None
    compared = [one for one in comparisons if not best or one.candidate is chosen.side]
    answers = [_certainty(axis, one, comparisons) for axis in AXES for one in compared]
    certainty: Certainty = "counted"
    if compared and "certain" not in answers and len(set(axes.get("memory", ()))) < 2:
        certainty = "not certain" if "not certain" in answers else "not tested"
        why = f"{why}; no significant difference on any axis"
    return BestVariant(
        "balanced", chosen.side.label, "all axes", scores[best], "", change, certainty=certainty, prices=prices, why=why
    )


def _prices(chosen: Standing, base: Standing, aim: str) -> tuple[tuple[str, float], ...]:
    """Return the axes on which the variant's mean is worse than the baseline's by 1 % or more."""
    changes = []
    for axis in AXES:
        now, before = chosen.values[axis.name], base.values[axis.name]
        if axis.name != aim and now is not None and before:
            changes.append((axis.title, now / before - 1, axis.better == "lower"))
    alike = chosen.memory_of == base.memory_of
    for name, now, before in (
        ("memory", chosen.memory_mb if alike else None, base.memory_mb),
        ("cost", chosen.cost, base.cost),
        ("GPUs", chosen.gpus, base.gpus),
    ):
        if now is not None and before:
            changes.append((name, now / before - 1, True))
    return tuple((name, change) for name, change, lower in changes if (change if lower else -change) >= 0.01)


def _best(values: Sequence[float | None], lower: bool) -> int | None:
    known = [(value if lower else -value, index) for index, value in enumerate(values) if value is not None]
    return min(known)[1] if known else None


def _front(standings: Sequence[Standing]) -> tuple[str, ...]:
    """Return the Pareto front: no other variant is at least as good on all axes and better on one. Unmeasured ones are left out."""
    known: list[tuple[str, list[float]]] = []
    for one in standings:
        values = [(one.values[axis.name], axis.better) for axis in AXES]
        costs_of = [value if better == "lower" else -value for value, better in values if value is not None]
        if len(costs_of) == len(AXES):
            known.append((one.side.label, costs_of))
    return tuple(label for label, mine in known if not any(_beats(other, mine) for _, other in known))


def _beats(other: Sequence[float], mine: Sequence[float]) -> bool:
    pairs = list(zip(other, mine, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Searched:
    """Search of one variant. `question`: SLO, scenario, digest, unit; `holds`, `breaks`: loads that meet and miss the SLO."""

    label: str
    question: tuple[str, str, str, str]
    holds: float | None
    breaks: float | None
    estimate: float | None
    text: str


def read_search(argument: str) -> Searched:
    """Read the search of `[NAME=]FOLDER`; UsageError if there is none or it has no answer."""
    label, sign, rest = argument.partition("=")
    path = Path(rest) if sign and not Path(argument).exists() else Path(argument)
    if not (path / rundir.SEARCH).is_file():
        raise UsageError(f"--search {argument}: contains no {rundir.SEARCH}; name a folder of inferload search")
    document = rundir.read_json(path / rundir.SEARCH)
    try:
        answer, scenario = document["answer"], document["scenario"]
        holds, breaks, estimate = (
            None if answer[key] is None else float(answer[key]) for key in ("holds", "breaks", "estimate")
        )
        question = (document["slo"], scenario["name"], scenario.get("digest") or "", document["unit"])
        name = label if path != Path(argument) else path.name
        return Searched(name, question, holds, breaks, estimate, str(answer["text"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--search {argument}: {rundir.SEARCH} cannot be used ({error}); is it complete, and not a sweep of --rates?"
        ) from error


def with_searches(recommended: Recommendation, searches: Sequence[Searched]) -> Recommendation:
    """Add an aim for each searched question; UsageError for a search of no variant, or two of one."""
    labels = [one.side.label for one in recommended.standings]
    for one in searches:
        if one.label not in labels:
            raise UsageError(f"--search {one.label}=...: no such variant; name one of {', '.join(labels)} before the =")
        if [other.label for other in searches].count(one.label) > 1:
            raise UsageError(f"--search {one.label}=...: given twice; one search for each variant")
    more = [
        _of_searches([one for one in searches if one.question == question], recommended.baseline.label)
        for question in dict.fromkeys(one.question for one in searches)
    ]
    return replace(recommended, advice=(*recommended.advice, *more))


def _of_searches(searches: Sequence[Searched], baseline: str) -> BestVariant:
    """Return the variant with the highest load that meets the SLO."""
    slo, scenario, _, unit = searches[0].question
    aim, figure = f"most users, searched with {scenario}", f"load that meets {slo}"
    texts = "; ".join(f"{one.label}: {one.text}" for one in searches)
    known = [one for one in searches if one.holds is not None]
    if not known:
        return BestVariant(aim, None, figure, None, unit, why=f"not measured: no load met it with certainty ({texts})")
    best = max(known, key=lambda one: one.holds or 0.0)
    others = [one for one in searches if one is not best]
    why = "the only searched variant"
    if others:
        sure = all(one.breaks is not None and one.breaks <= (best.holds or 0.0) for one in others)
        why = "all other variants miss it at this load" if sure else "not certain: the bounds of the searches overlap"
    if best.breaks is not None:
        why += f"; missed at {number(best.breaks)}"
    base = next((one for one in others if one.label == baseline), None)
    change = best.estimate / base.estimate - 1 if base and best.estimate and base.estimate else None
    if base and base.breaks and base.holds and best.holds and best.breaks:
        low, high = best.holds / base.breaks - 1, best.breaks / base.holds - 1
        why += f"; bounds of the gain: {low:+.1%} to {high:+.1%}"
    return BestVariant(aim, best.label, figure, best.holds, unit, change, certainty="counted", why=f"{why} ({texts})")
