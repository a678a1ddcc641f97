"""Which variant for which aim: a decision matrix filled from measured sides, with the gain, its interval and its price.

Each aim has one figure. The variant with the best mean is named, its gain over the baseline is that of pairs of runs with
their interval, and it is certain only where the paired test says so after Holm over the variants: the best of many is lucky
too. What nobody measured is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Literal

from inferload.measure.pairedruns import holm, p_against, pairs_needed

from .comparison import costs
from .comparison.compare import ALPHA, PAIRS_WANTED, Comparison, compare
from .comparison.figures import Figure
from .comparison.sides import Run, Side
from .recommendslo import AT, SLOS, STAND_IN, Held, Slo, held

Certainty = Literal["certain", "not certain", "not tested", "counted", "none"]

TTFT = Figure("p50(ttft_ms)", "TTFT, median", "lower", "ms")
TPOT = Figure("mean(tpot_ms)", "TPOT, mean", "lower", "ms")
THROUGHPUT = Figure("output_tok_per_s", "Output", "higher", "tok/s")
AXES = (TTFT, TPOT, THROUGHPUT)


@dataclass(frozen=True, slots=True)
class Standing:
    """One variant's figures on every axis; None: not measured. `held`: the highest load within an SLO, by its name."""

    side: Side
    values: Mapping[str, float | None]
    memory_mb: float | None
    memory_of: str  # GPUs, or processes
    gpus: int | None
    cost: float | None
    held: Mapping[str, Held]

    @property
    def tok_per_s_per_user(self) -> float | None:
        """What one reader sees: 1,000 / mean TPOT."""
        tpot = self.values[TPOT.name]
        return 1000 / tpot if tpot else None

    @property
    def tok_per_s_per_gpu(self) -> float | None:
        """Output over GPUs; None where nobody knows how many there are."""
        output = self.values[THROUGHPUT.name]
        return output / self.gpus if output is not None and self.gpus else None


@dataclass(frozen=True, slots=True)
class Advice:
    """One row of the matrix. `variant`: the one with the best value. `change`, `low`, `high`: of the aim's figure against the
    baseline, as shares; None: not known.

    `prices`: what gets worse with it, as (axis, change). `why`: where nothing can be recommended, or what to know.
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
    """The whole of it, for one scenario."""

    scenario: str
    baseline: Side
    standings: tuple[Standing, ...]
    comparisons: tuple[Comparison, ...]
    advice: tuple[Advice, ...]
    front: tuple[str, ...]  # variants that no other beats on TTFT, TPOT and output at once
    front_per_gpu: tuple[str, ...] | None  # tok/s per user against tok/s per GPU; None: GPUs not known
    refusals: tuple[str, ...]


def recommend(scenario: str, sides: Sequence[Side]) -> Recommendation:
    """The first side is the baseline. Sides that do not compare with it are left out of the matrix and named."""
    comparisons = tuple(compare(sides[0], side, TTFT, AXES) for side in sides[1:])
    refused = {one.candidate.label: one.differences.refusals[0] for one in comparisons if one.differences.refusals}
    kept = [side for side in sides if side.label not in refused]
    usable = tuple(one for one in comparisons if one.candidate.label not in refused)
    standings = tuple(standing(side) for side in kept)
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
        front=_front(standings, [[one.values[axis.name] for axis in AXES] for one in standings], AXES),
        front_per_gpu=_gpu_front(standings),
        refusals=tuple(f"{label}: {why}" for label, why in refused.items()),
    )


def standing(side: Side) -> Standing:
    """A side's means, from its valid runs."""
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
    """What the hungriest run took; None where one of them does not say."""
    found = [getattr(run.served, name) for run in runs]
    return None if None in found else max(found)


def _by_figure(aim: str, figure: Figure, standings: Sequence[Standing], comparisons: Sequence[Comparison]) -> Advice:
    """The variant with the best mean of a figure."""
    values = [one.values[figure.name] for one in standings]
    best = _best(values, figure.better == "lower")
    if best is None:
        return Advice(aim, None, figure.title, None, figure.unit, why="not measured on any variant")
    chosen = standings[best]
    found = next((one for one in comparisons if one.candidate is chosen.side), None)
    why = ""
    if len(standings) > sum(value is not None for value in values):
        why = f"not measured on {', '.join(one.side.label for one in standings if one.values[figure.name] is None)}"
    certainty = _certainty(figure, found, comparisons)
    if found is None:
        whys = (why or "it is the baseline", _needed(figure, comparisons, certainty))
        return Advice(
            aim,
            chosen.side.label,
            figure.title,
            values[best],
            figure.unit,
            certainty=certainty,
            why=_joined(*whys),
        )
    row = next(row for row in found.rows if row.figure.name == figure.name)
    effect = row.effect
    return Advice(
        aim=aim,
        variant=chosen.side.label,
        figure=figure.title,
        value=values[best],
        unit=figure.unit,
        change=row.change,
        low=None if effect is None or effect.low is None else effect.low - 1,
        high=None if effect is None or effect.high is None else effect.high - 1,
        certainty=certainty,
        prices=_prices(chosen, standings[0], figure.name),
        why=_joined(why, _needed(figure, [found], certainty)),
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _certainty(
    figure: Figure,
    chosen: Comparison | None,
    comparisons: Sequence[Comparison],
    no_gain: Mapping[str, float] | None = None,
) -> Certainty:
    """By the paired test of each variant's figure, Holm over the variants. `chosen` None: the baseline, which each of them must
    differ from. `no_gain`: the ratio that gains nothing, where not 1."""
    raw = {}
    for one in comparisons:
        row = next(row for row in one.rows if row.figure.name == figure.name)
        label = one.candidate.label
        p = None if row.effect is None else p_against(row.effect, (no_gain or {}).get(label, 1.0))
        if one.tested and p is not None:
            raw[label] = p
    adjusted = holm(raw)
    wanted = comparisons if chosen is None else [chosen]
    found = [adjusted.get(one.candidate.label) for one in wanted]
    known = [p for p in found if p is not None]
    if len(known) < len(found):
        return "not tested"
    return "not certain" if any(p >= ALPHA for p in known) else "certain" if known else "counted"


def _needed(figure: Figure, comparisons: Sequence[Comparison], certainty: Certainty, no_gain: float = 1.0) -> str:
    """Return the number of pairs of runs that a test needs, in words; empty if every comparison is decided."""
    if certainty == "not tested":
        pairs = min(len(one.pairs) for one in comparisons)
        counted = f"{pairs} {'pair' if pairs == 1 else 'pairs'} of runs"
        return f"{counted}: {PAIRS_WANTED} or more, each run on a server start of its own, carry a test"
    if certainty != "not certain":
        return ""
    counts: list[int | None] = [PAIRS_WANTED]
    for one in comparisons:
        effect = next(row for row in one.rows if row.figure.name == figure.name).effect
        if effect is not None and effect.sd_log is not None:
            counts.append(pairs_needed(effect.ratio / no_gain - 1, effect.sd_log))
    known = [count for count in counts if count is not None]
    most = f"about {max(known)}" if len(known) == len(counts) else "over 1,000"
    return f"{most} pairs of runs would show a difference of this size"


def _most_users(slo: Slo, standings: Sequence[Standing]) -> Advice:
    aim = f"most users, {slo.name}"
    figure = f"load with TTFT < {slo.ttft_ms:g} ms and TPOT < {slo.tpot_ms:g} ms at "
    loads = [one.held[slo.name].load for one in standings]
    best = _best(loads, lower=False)
    tried = {load for one in standings for load in one.held[slo.name].tried}
    if best is None:
        why = "no load that was tried kept it" if tried else "not measured: too few turns, or a load without a number"
        return Advice(aim, None, figure + AT, None, "", why=why)  # what breaks it at p90 breaks it at p95
    top = standings[best].held[slo.name]
    several = [one.side.label for one in standings if one.held[slo.name].load == top.load]
    known = [one.held[slo.name] for one in standings if one.side.label in several]
    figure += STAND_IN if any(one.at == STAND_IN for one in known) else AT
    weaker = _stood_in(slo, standings)
    if len(several) > 1 and not all(one.broken_above for one in known):
        highest = f"{top.load:g} {top.unit}"
        why = f"not measured: {', '.join(several)} all kept it at the highest load that was tried ({highest}); try more"
        return Advice(aim, None, figure, top.load, top.unit, why=why + weaker)
    chosen, base = standings[best], standings[0].held[slo.name].load
    if len(several) > 1:
        chosen = next(one for one in standings if one.side.label in several)
    change = top.load / base - 1 if base and top.load and chosen is not standings[0] else None
    why = "a higher load broke it" if top.broken_above else "the highest that was tried: it may hold more"
    prices = _prices(chosen, standings[0], "") if chosen is not standings[0] else ()
    return Advice(
        aim, chosen.side.label, figure, top.load, top.unit, change, certainty="counted", prices=prices, why=why + weaker
    )


def _stood_in(slo: Slo, standings: Sequence[Standing]) -> str:
    """Whose loads were held against a quantile that says less, as a part of a sentence."""
    labels = [one.side.label for one in standings if one.held[slo.name].at == STAND_IN]
    return f"; {STAND_IN} stands in for {AT}, for want of turns, on {', '.join(labels)}" if labels else ""


def _least(
    aim: str,
    figure: str,
    values: Sequence[float | None],
    standings: Sequence[Standing],
    unit: str,
) -> Advice:
    """The variant that takes least of something that is counted, not sampled."""
    best = _best(values, lower=True)
    missing = [one.side.label for one, value in zip(standings, values, strict=True) if value is None]
    if best is None or missing:
        return Advice(aim, None, figure, None, unit, why=f"not measured on {', '.join(missing)}")
    if figure == "memory" and len({one.memory_of for one in standings}) > 1:
        return Advice(
            aim, None, figure, None, unit, why="not measured alike: of GPUs on some variants, of processes on others"
        )
    chosen, base = standings[best], values[0]
    change = values[best] / base - 1 if base and chosen is not standings[0] else None  # type: ignore[operator]
    figure = f"{figure} of {chosen.memory_of}" if figure == "memory" else figure
    prices = _prices(chosen, standings[0], "") if chosen is not standings[0] else ()
    why = "it is the baseline" if chosen is standings[0] else ""
    return Advice(
        aim, chosen.side.label, figure, values[best], unit, change, certainty="counted", prices=prices, why=why
    )


def _lowest_cost(standings: Sequence[Standing], comparisons: Sequence[Comparison]) -> Advice:
    """A price over output: its interval is the output's, turned over, times what the GPUs' prices differ."""
    found = _least("lowest cost", "million output tokens", [one.cost for one in standings], standings, "")
    chosen = next((one for one in comparisons if one.candidate.label == found.variant), None)
    prices = _price_ratios(standings)
    if chosen is None or found.change is None:
        if found.variant is None:
            return found
        certainty = _certainty(THROUGHPUT, None, comparisons, prices)
        return replace(found, certainty=certainty, why=_joined(found.why, _needed(THROUGHPUT, comparisons, certainty)))
    effect = next(row for row in chosen.rows if row.figure.name == THROUGHPUT.name).effect
    mine = prices.get(chosen.candidate.label)
    if effect is None or effect.low is None or effect.high is None or mine is None:
        return replace(
            found, certainty="not tested", why=_joined(found.why, _needed(THROUGHPUT, [chosen], "not tested"))
        )
    low, high = mine / effect.high - 1, mine / effect.low - 1
    certainty = _certainty(THROUGHPUT, chosen, comparisons, prices)
    why = _joined(found.why, _needed(THROUGHPUT, [chosen], certainty, mine))
    return replace(found, change=mine / effect.ratio - 1, low=low, high=high, certainty=certainty, why=why)


def _price_ratios(standings: Sequence[Standing]) -> dict[str, float]:
    """What an hour of each variant costs against the baseline's: cost times output, where both are known."""
    hours = {
        one.side.label: one.cost * output
        for one in standings
        if one.cost is not None and (output := one.values[THROUGHPUT.name]) is not None
    }
    base = hours.get(standings[0].side.label)
    return {label: hour / base for label, hour in hours.items()} if base else {}


def _balanced(standings: Sequence[Standing], comparisons: Sequence[Comparison]) -> Advice:
    """The geometric mean of the ratios to the baseline, each axis turned so that less is better; axes known of all variants.

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
        return Advice("balanced", None, "all axes", None, "", why="not measured on any axis")
    scores = [
        exp(sum(log(values[at] / values[0]) for values in axes.values()) / len(axes)) for at in range(len(standings))
    ]
    best = scores.index(min(scores))
    chosen = standings[best]
    why = f"geometric mean over {', '.join(axes)}, against the baseline; less is better" + (
        "; it is the baseline" if not best else ""
    )
    prices = _prices(chosen, standings[0], "") if best else ()
    change = scores[best] - 1 if best else None
    compared = [one for one in comparisons if not best or one.candidate is chosen.side]
    found = [_certainty(axis, one, comparisons) for axis in AXES for one in compared]
    certainty: Certainty = "counted"
    if compared and "certain" not in found and len(set(axes.get("memory", ()))) < 2:
        certainty = "not certain" if "not certain" in found else "not tested"
        why = f"{why}; no axis shows a difference"
    return Advice(
        "balanced", chosen.side.label, "all axes", scores[best], "", change, certainty=certainty, prices=prices, why=why
    )


def _prices(chosen: Standing, base: Standing, aim: str) -> tuple[tuple[str, float], ...]:
    """Axes on which the variant's mean is worse than the baseline's by 1 % or more."""
    found = []
    for axis in AXES:
        now, before = chosen.values[axis.name], base.values[axis.name]
        if axis.name != aim and now is not None and before:
            found.append((axis.title, now / before - 1, axis.better == "lower"))
    alike = chosen.memory_of == base.memory_of
    for name, now, before in (
        ("memory", chosen.memory_mb if alike else None, base.memory_mb),
        ("cost", chosen.cost, base.cost),
        ("GPUs", chosen.gpus, base.gpus),
    ):
        if now is not None and before:
            found.append((name, now / before - 1, True))
    return tuple((name, change) for name, change, lower in found if (change if lower else -change) >= 0.01)


def _best(values: Sequence[float | None], lower: bool) -> int | None:
    known = [(value if lower else -value, place) for place, value in enumerate(values) if value is not None]
    return min(known)[1] if known else None


def _front(
    standings: Sequence[Standing], points: Sequence[Sequence[float | None]], axes: Sequence[Figure]
) -> tuple[str, ...]:
    """Who is beaten by nobody: no other is at least as good on every axis and better on one. Without all axes: left out."""
    known: list[tuple[str, list[float]]] = []
    for one, point in zip(standings, points, strict=True):
        turned = [
            value if axis.better == "lower" else -value
            for value, axis in zip(point, axes, strict=True)
            if value is not None
        ]
        if len(turned) == len(axes):
            known.append((one.side.label, turned))
    return tuple(label for label, mine in known if not any(_beats(other, mine) for _, other in known))


def _beats(other: Sequence[float], mine: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(other, mine, strict=True)) and any(
        a < b for a, b in zip(other, mine, strict=True)
    )


_PER_GPU = (Figure("user", "per user", "higher", "tok/s"), Figure("gpu", "per GPU", "higher", "tok/s"))


def _gpu_front(standings: Sequence[Standing]) -> tuple[str, ...] | None:
    points = [[one.tok_per_s_per_user, one.tok_per_s_per_gpu] for one in standings]
    return None if any(None in point for point in points) else _front(standings, points, _PER_GPU)
