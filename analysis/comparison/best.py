"""Best of the compared sides by goal: the side with the best value of a figure, if it is better than each other side.

The best of several measured values is partly chance. A side is the best one only if the comparison with each other side calls it
better: chance alone then names one of equal sides at most as often as a single test does (Gutmann and Maymin, Is the selected
population the best?, Annals of Statistics 15, 1987). Tests and corrections are those of `compare`, so that both agree. Sides
beyond a requirement take no part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, Literal

from inferload.figures.limits.gate import Gate
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.figures.rate_figures import ATTAINMENT, GOODPUT, OUTPUT, TURNS
from inferload.figures.rate_figures import BY_KEY as RATES
from inferload.figures.turn_figures import BY_KEY as TURN_FIGURES
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT
from inferload.results.documents.summary_document import Results
from inferload.results.prices import per_million
from inferload.results.statistics.paired_runs import pairs_needed
from inferload.results.verdict import gates

from ..data.figures import (
    BALANCE,
    COST,
    GOOD_SHARE,
    GPU_MEMORY,
    HIGHEST_LOAD,
    KV_CACHE,
    SLO_FIGURES,
    WEIGHTS,
    Term,
    is_unsteady,
)
from ..interop.published import VRAM
from . import requirements
from .comparable import shared_starts
from .compare import RECOMMENDED_PAIRS, Comparison, FigureRow, compare
from .requirements import Checked
from .sides import Run, Side

_GB_PER_MIB = 2**20 / 1e9
Certainty = Literal["best", "only side left", "tie", "no difference found", "not tested", "not measured"]
_STATISTICS = ("mean", "p50", "p99", "p95")
_OF_SLO = "p99"  # an SLO is about almost every turn, which a mean hides
_LATENCIES = (TTFT, TPOT, ITL, E2E)
_ALWAYS = (TTFT, TPOT)  # latencies that are goals without a limit on them
# Figures of each goal but the latencies: the first is used that all sides have.
_GOALS = ((Term(OUTPUT), Term(TURNS)), (Term(GOODPUT),), (GPU_MEMORY, WEIGHTS, KV_CACHE), (HIGHEST_LOAD,), (COST,))


@dataclass(frozen=True, slots=True)
class Rival:
    """Another side, `pairs`: of runs with the side that has the best value; `row`: the change from the other side to that one."""

    label: str
    pairs: int
    row: FigureRow

    @property
    def behind(self) -> bool:
        """True if the test separates the other side from the one with the best value."""
        return self.row.answer == "better"

    @property
    def more_pairs(self) -> int | None:
        """Pairs that a test of the measured difference still needs, 0 if pairs do not vary; None: over 1,000 in total."""
        effect = self.row.effect
        if effect is not None and not effect.varies:
            return 0  # further pairs would be the same
        if not self.row.tested or effect is None or effect.sd_log is None:
            return max(1, RECOMMENDED_PAIRS - self.pairs)
        needed = pairs_needed(effect.ratio - 1, effect.sd_log)
        return None if needed is None else max(1, needed - self.pairs)


@dataclass(frozen=True, slots=True)
class BestSide:
    """Side with the best value of a figure, None if a side has no value. `rivals`: all others, that in doubt or next best first.

    `value`: over the pairs with the first rival. `worse`: what is worse than on the baseline: figures, turns not served, a load
    that was not served. `missing`: why the figure is not measured or not tested. `unsteady`: sides with a percentile of fewer than
    10 samples beyond it.
    """

    baseline: str
    figure: Term
    label: str | None = None
    value: float | None = None
    rivals: tuple[Rival, ...] = ()
    worse: tuple[str, ...] = ()
    missing: str = ""
    unsteady: tuple[str, ...] = ()

    @property
    def tied(self) -> tuple[Rival, ...]:
        """Other sides that are not separated from this one."""
        return tuple(rival for rival in self.rivals if not rival.behind)

    @property
    def certainty(self) -> Certainty:
        """`best` if all other sides are behind, `tie` if only some are."""
        if self.label is None:
            return "not measured"
        if not self.rivals:
            return "only side left"
        if not all(rival.row.tested for rival in self.rivals):
            return "not tested"
        if not self.tied:
            return "best"
        undecided = all(rival.row.answer in ("no difference found", "no difference") for rival in self.rivals)
        return "no difference found" if undecided else "tie"

    @property
    def is_decided(self) -> bool:
        """True if a test, or the requirements alone, name the side."""
        return self.certainty == "best" or (self.certainty == "only side left" and not self.missing)

    @property
    def more_pairs(self) -> int | None:
        """Pairs still needed to separate this side from all others, 0 for none; None: over 1,000, or they do not help."""
        counts = [rival.more_pairs for rival in self.tied]
        known = [count for count in counts if count is not None]
        return max(known, default=0) if len(known) == len(counts) and not self.missing else None


@dataclass(frozen=True, slots=True)
class Winner:
    """Side that is the best in `goals`. `command`: starts its server; empty: not known, or no side is left."""

    label: str
    goals: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Best sides by goal, of a baseline and the sides that are compared with it.

    `checked`: requirements on each side. `ruled_out`: why sides take no part, by label; if no side is left, those that only
    requirements rule out do. `apart`: sides that are not comparable with the baseline. `holds_for`: server starts for which the
    answers hold; empty for any.
    """

    baseline: str
    apart: tuple[str, ...]
    sides: tuple[Side, ...] = ()
    checked: tuple[Checked, ...] = ()
    ruled_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    results: tuple[BestSide, ...] = ()
    holds_for: str = ""

    @property
    def is_none_left(self) -> bool:
        return bool(self.sides) and len(self.ruled_out) == len(self.sides)

    @property
    def winners(self) -> list[Winner]:
        """Sides that are the best in a goal, with their goals, in the order of these."""
        goals: dict[str, list[str]] = {}
        for best in self.results:
            if best.label is not None and best.is_decided:
                goals.setdefault(best.label, []).append(best.figure.title)
        lines = {} if self.is_none_left else {side.label: _deployed(side.runs[0]) for side in self.sides}
        commands = {label: str(deployed.get("command_line") or "") for label, deployed in lines.items()}
        return [Winner(label, tuple(titles), commands.get(label, "")) for label, titles in goals.items()]


def best_by_goal(comparisons: Sequence[Comparison]) -> list[Decision]:
    """Return the side with the best value of each goal, for each baseline of the comparisons; none for a baseline file.

    Goals are the primary figure, latencies, throughput, goodput, memory, load within the limits, cost, and the balance of all
    these; without those that no side has a value of. Sides that are not comparable with the baseline do not take part.
    """
    by_baseline: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.occasions is None:
            by_baseline.setdefault(comparison.baseline.label, []).append(comparison)
    return [_decision(baseline, group) for baseline, group in by_baseline.items()]


def _decision(baseline: str, comparisons: Sequence[Comparison]) -> Decision:
    comparable = [each for each in comparisons if not each.differences.refusals]
    apart = tuple(each.candidate.label for each in comparisons if each not in comparable)
    if not comparable:
        return Decision(baseline, apart)
    contest = _Contest(comparable)
    return Decision(
        baseline,
        apart,
        sides=contest.everyone,
        checked=contest.checked,
        ruled_out=contest.ruled_out,
        results=tuple(contest.results()),
        holds_for="" if contest.condition is None else contest.condition.holds_for,
    )


class _Contest:
    """Sides that are compared with one baseline: the baseline and the candidates."""

    def __init__(self, comparisons: Sequence[Comparison]) -> None:
        first, *others = comparisons
        self._baseline, self._primary, self._allowed = first.baseline, first.primary.figure, first.allowed
        # Goodput has no row where the SLOs differ.
        of_others = [{row.figure for row in comparison.rows} for comparison in others]
        self._figures = [row.figure for row in first.rows if all(row.figure in figures for figures in of_others)]
        sides = (self._baseline, *(comparison.candidate for comparison in comparisons))
        limits = first.required or requirements.of_runs(sides)
        self._limited = _limited(limits, sides)
        formulas = _of_run(limits, self._limited)
        self.everyone = tuple(_with_figures(side, formulas) for side in sides)
        self.checked = tuple(requirements.check(gate, side) for side in self.everyone for gate in limits)
        collapsed = {side.label: [side.collapsed] for side in sides if side.has_collapsed}
        if len(collapsed) == len(sides):
            collapsed = {}  # the load is beyond all of them
        wrong = {side.label: [side.wrong] for side in sides if side.wrong}
        collapsed |= wrong  # also if no side is left: there is no best of broken servers
        self.ruled_out: dict[str, list[str]] = {}
        for side in sides:
            beyond = [each.text for each in self.checked if each.label == side.label and not each.holds]
            if reasons := [*beyond, *collapsed.get(side.label, [])]:
                self.ruled_out[side.label] = reasons
        out = collapsed if len(self.ruled_out) == len(sides) else self.ruled_out
        self._sides = tuple(side for side in self.everyone if side.label not in out)
        self.condition = shared_starts(sides)
        self._known = {(self._baseline.label, found.candidate.label): found for found in comparisons}

    def results(self) -> Iterator[BestSide]:
        best_values: dict[Term, float] = {}
        seen: set[Term] = set()
        for terms in _goals(self._primary, self._limited):
            shown = [term for term in terms if term.name not in SLO_FIGURES or term in self._figures]
            means = {term: {side.label: side.mean(term.name) for side in self._sides} for term in shown}
            known = [term for term in shown if any(means[term].values())]
            # The first that all have, else the first.
            figure = min(known, key=lambda term: None in means[term].values(), default=None)
            if figure is None or figure in seen:
                continue
            seen.add(figure)
            # A rate of 0 is behind each other one, and has no ratio to it.
            at_0 = [label for label, mean in means[figure].items() if mean == 0 and figure.better == "higher"]
            lacking = [label for label, mean in means[figure].items() if not mean and label not in at_0]
            if lacking:
                missing = f"not known, or not above 0, on {', '.join(lacking)}"
                yield BestSide(self._baseline.label, figure, missing=missing)
                continue
            if not at_0:
                best_values[figure] = (min if figure.better == "lower" else max)(filter(None, means[figure].values()))
            others = [side for side in self._sides if side.label not in at_0]
            yield self._best(figure, others, f"0 on {', '.join(at_0)}" if at_0 else "")
        if len(best_values) > 1 and len(self._sides) > 1:
            balance = {BALANCE.name: partial(_largest_ratio, best_values)}
            yield self._best(BALANCE, [_with_figures(side, balance) for side in self._sides])

    def _best(self, figure: Term, sides: Sequence[Side], missing: str = "") -> BestSide:
        first, *others = sides
        changes = [0.0, *(self._comparison(first, side, figure).row(figure).change or 0.0 for side in others)]
        best = sides[changes.index((min if figure.better == "lower" else max)(changes))]
        compared = {side.label: self._comparison(side, best, figure) for side in sides if side is not best}
        rivals = [Rival(label, len(found.pairs), found.row(figure)) for label, found in compared.items()]
        rivals.sort(key=lambda rival: (rival.behind, abs(rival.row.change or 0.0)))
        with_baseline = self._known.get((self._baseline.label, best.label))
        untested = (rival.row.untested for rival in rivals if rival.row.answer in ("not known", "not comparable"))
        return BestSide(
            baseline=self._baseline.label,
            figure=figure,
            label=best.label,
            value=rivals[0].row.candidate if rivals else best.mean(figure.name),
            rivals=tuple(rivals),
            worse=() if with_baseline is None else with_baseline.regressions,
            missing=missing or next(untested, ""),
            unsteady=tuple(
                side.label
                for side in (sides if figure.figure in _LATENCIES else ())
                if any(run.summary is not None and is_unsteady(figure.name, run.summary) for run in side.counted)
            ),
        )

    def _comparison(self, before: Side, after: Side, figure: Term) -> Comparison:
        """Compare two sides on all figures; on one that is not among them beside the primary one alone: no correction changes."""
        if figure not in self._figures:
            return compare(before, after, self._primary, (figure,), self._allowed)
        key = before.label, after.label
        if key not in self._known:
            self._known[key] = compare(before, after, self._primary, self._figures, self._allowed)
        return self._known[key]


def _limited(limits: Sequence[Gate], sides: Sequence[Side]) -> dict[str, Gate]:
    """Return a limit of each latency that has one, by its key: the first given, else one on p99 in place of the SLO."""
    slo = {
        measure: parse_gate(f"{_OF_SLO}({measure}) > 0") for side in sides for run in side.runs for measure in run.slo
    }
    return slo | {gate.name: gate for gate in reversed(limits) if gate.name in TURN_FIGURES and gate.selector is None}


def _goals(primary: Term, limited: Mapping[str, Gate]) -> list[tuple[Term, ...]]:
    """Return the figures of each goal, in the order of preference: of a latency with a limit the statistic of the limit."""
    goals: list[tuple[Term, ...]] = [(primary,)]
    for figure in _LATENCIES:
        if figure in _ALWAYS or figure.key in limited:
            of_limit = [limited[figure.key].statistic] if figure.key in limited else []
            goals.append(tuple(Term(figure, each) for each in dict.fromkeys((*of_limit, *_STATISTICS))))
    return [*goals, *_GOALS]


def _of_run(limits: Sequence[Gate], limited: Mapping[str, Gate]) -> Mapping[str, Callable[[Run], float | None]]:
    """Return the formulas of the goals' figures that a run does not record, by name."""
    return {
        **{requirements.name_of(gate): partial(requirements.value, gate) for gate in limited.values()},
        COST.name: lambda run: per_million(run.prices, run.value(OUTPUT.key)),
        GPU_MEMORY.name: _gpu_memory_gb,
        WEIGHTS.name: lambda run: _deployed(run).get(WEIGHTS.name),
        KV_CACHE.name: _kv_cache_tokens,
        HIGHEST_LOAD.name: partial(_highest_load, limits),
    }


def _with_figures(side: Side, formulas: Mapping[str, Callable[[Run], float | None]]) -> Side:
    return side.with_runs(
        lambda run: replace(run, figures={**run.figures, **{name: value(run) for name, value in formulas.items()}})
    )


def _deployed(run: Run) -> Mapping[str, Any]:
    """Return what run.json records of the server's variant; empty if unknown."""
    variant = run.server.get("variant")
    return variant if isinstance(variant, Mapping) else {}


def _gpu_memory_gb(run: Run) -> float | None:
    """Return the memory in use on all GPUs: published, else of the exporters' pages, else by nvidia-smi at the start."""
    if (published := run.value(VRAM)) is not None:
        return published * _GB_PER_MIB
    pages = [] if run.summary is None else [each.gpu for each in run.summary.servers if each.gpu is not None]
    if (used := _sum([page.memory_mib.max if page.memory_mib else None for page in pages])) is not None:
        return used * _GB_PER_MIB
    at_start, hardware = _deployed(run).get("gpu_memory_mb") or {}, _deployed(run).get("hardware") or {}
    # nvidia-smi does not report all GPUs: the sum of the others is not that of the server.
    return sum(at_start.values()) / 1e3 if len(at_start) >= (hardware.get("gpus") or 1) else None


def _kv_cache_tokens(run: Run) -> float | None:
    engines = [] if run.summary is None else [each for each in run.summary.servers if each.engines]
    return _sum([each.kv_cache_size_tokens for each in engines])


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None for no values, or if one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _highest_load(limits: Sequence[Gate], run: Run) -> float | None:
    """Return the load that a search found, else the highest step up to which each holds its limits; 0: the first does not."""
    upper = [gate for gate in limits if gate.sign in ("<", "<=") and gate.selector is None]
    upper = [gate for gate in upper if gate.name in TURN_FIGURES or gate.name in RATES]
    if not any(gate.name in TURN_FIGURES for gate in upper):
        upper += [parse_gate(f"{ATTAINMENT.key} >= {GOOD_SHARE}")]  # which no step has without an SLO
    steps = () if run.summary is None else run.summary.steps
    loads = [(float(step.users or step.sessions_per_s or 0), Results.of_part(step)) for step in steps]
    if not loads:
        return run.value(HIGHEST_LOAD.name)
    failed = [load for load, part in loads for gate in upper if not gate.holds(gates.evaluate(gate, part).value)]
    return max((load for load, _ in loads if load < min(failed, default=inf)), default=0.0)


def _largest_ratio(best_values: Mapping[Term, float], run: Run) -> float | None:
    """Return the largest ratio of a figure to its best value, above 1 for what is worse; None if one is unknown."""
    ratios = []
    for term, best in best_values.items():
        value = run.value(term.name)
        if not value:
            return None
        ratios.append(value / best if term.better == "lower" else best / value)
    return max(ratios)
