"""Comparison of a candidate with a baseline, by pairs of runs or with the occasions of a baseline file."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from inferload.base.numbers import plural
from inferload.figures.limits.gate import Gate
from inferload.figures.table import Table
from inferload.figures.turn_figures import E2E
from inferload.results.statistics import baseline_stats as occasions
from inferload.results.statistics import paired_runs

from ..data.figures import DEFAULT_PRIMARY, ENERGY, OF_TEXTS, SLO_FIGURES, Term
from . import max_change, not_served, plausible
from .comparable import Condition, Differences, differences, shared_starts
from .not_served import NotServedTurns
from .sides import NOT_JUDGED, Run, Side, TableRow

FEWEST_PAIRS = 3  # of a t-test
RECOMMENDED_PAIRS = paired_runs.FEWEST_FLIPS

Answer = Literal["better", "worse", "no difference found", "no difference", "not tested", "not comparable", "not known"]
DECIDED: tuple[Answer, ...] = ("better", "worse", "no difference found", "no difference")
Verdict = Answer | Literal["mixed"]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Figure on both sides. `effect`: None if unknown on a side; `p`: adjusted for multiple tests, None without a test.

    `untested`: reason why the figure has no test; empty if it has one.
    """

    figure: Term
    primary: bool
    baseline: float | None
    candidate: float | None
    effect: paired_runs.Effect | None
    p: float | None
    answer: Answer
    untested: str = ""

    @property
    def tested(self) -> bool:
        """True if the answer is that of a test, or of pairs that do not vary."""
        return self.answer in DECIDED

    @property
    def is_same(self) -> bool:
        """True for a difference that is the same in every pair, so that no test applies."""
        return self.tested and self.effect is not None and self.effect.is_same

    @property
    def ratio(self) -> float | None:
        """Candidate / baseline. Over pairs this is the mean ratio of the pairs, since the values are geometric means."""
        return self.candidate / self.baseline if self.baseline and self.candidate is not None else None

    @property
    def change(self) -> float | None:
        """The ratio - 1."""
        return None if self.ratio is None else self.ratio - 1

    @property
    def difference(self) -> float | None:
        """Candidate - baseline, in the unit of the figure."""
        return None if self.baseline is None or self.candidate is None else self.candidate - self.baseline


@dataclass(frozen=True, slots=True)
class Question:
    """Answer to a preset of `inferload ab`. `document`: its values as JSON."""

    table: Table
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a candidate. `condition`: None if each run had its own server start."""

    baseline: Side
    candidate: Side
    differences: Differences
    rows: tuple[FigureRow, ...] = ()
    condition: Condition | None = None
    implausible: tuple[str, ...] = ()
    pairs: tuple[tuple[Run, Run], ...] = ()
    unpaired: tuple[Run, ...] = ()
    occasions: int | None = None  # of a baseline file, which has no pairs
    not_served: NotServedTurns = not_served.UNKNOWN
    limits: tuple[max_change.CheckedLimit, ...] = ()  # of --max-change
    allowed: tuple[str, ...] = ()  # keys of the scenario that may differ
    class_name: str = ""  # of the turns, if several classes are compared
    question: Question | None = None  # of runs of a preset
    required: tuple[Gate, ...] = ()  # requirements on the best sides; none: the gates that all runs have

    @property
    def paired(self) -> tuple[Side, Side]:
        """Return both sides over the paired runs only; over all runs if there are no pairs.

        A run without a partner shifts a mean without a difference of the servers.
        """
        if not self.pairs:
            return self.baseline, self.candidate
        paired = {id(run) for pair in self.pairs for run in pair}
        sides = (self.baseline, self.candidate)
        base, other = (replace(side, runs=tuple(run for run in side.runs if id(run) in paired)) for side in sides)
        return base, other

    @property
    def primary(self) -> FigureRow:
        """Row of the primary figure, which is declared in advance."""
        return next(row for row in self.rows if row.primary)

    def row(self, figure: Term) -> FigureRow:
        return next(row for row in self.rows if row.figure.name == figure.name)

    @property
    def tested(self) -> bool:
        return self.primary.tested

    @property
    def worse(self) -> tuple[FigureRow, ...]:
        """Figures that the test calls worse: the trade-offs of the candidate, and the regressions of a gate."""
        return tuple(row for row in self.rows if row.answer == "worse")

    @property
    def regressed(self) -> bool:
        """True if a figure became significantly worse, more turns were not served, or only the candidate did not serve its load."""
        return bool(self.worse) or self.not_served.regressed

    @property
    def regressions(self) -> tuple[str, ...]:
        """Titles of what became worse."""
        return (*(row.figure.title for row in self.worse), *self.not_served.regressions)

    @property
    def verdict(self) -> Verdict:
        """Answer over all figures: that of the primary one, unless another one is worse, or turns were not served."""
        if not self.regressed:
            return self.primary.answer
        # The latencies of a load that was not served are those of another load.
        broken = self.not_served.collapsed or self.not_served.wrong
        return "mixed" if self.primary.answer == "better" and not broken else "worse"


def compare(
    baseline: Side, candidate: Side, primary: Term, others: Sequence[Term], allowed: Collection[str] = ()
) -> Comparison:
    """Compare two sides by pairs of runs: the primary figure by both tests, all others by the t-test, corrected."""
    pairs, unpaired = pairs_of(baseline, candidate)
    begun = replace(_begun(baseline, candidate, allowed), pairs=pairs, unpaired=unpaired)
    tested = replace(begun, condition=shared_starts(begun.paired))
    return _decided(tested, primary, others, lambda figure: _effect(pairs, figure), few(len(pairs)))


def compare_with_occasions(
    baseline: Side, candidate: Side, primary: Term, others: Sequence[Term], allowed: Collection[str] = ()
) -> Comparison:
    """Compare a candidate (a single occasion) with the occasions of a baseline; corrections as in `compare`."""
    count, condition = len(baseline.runs), shared_starts((baseline, candidate), "occasion")
    begun = replace(_begun(baseline, candidate, allowed), occasions=count, condition=condition)
    too_few = (
        f"{plural(count, 'occasion')} in {baseline.label}, {occasions.FEWEST} are required for the variation between days and "
        "restarts; add more (inferload baseline add), or compare pairs of runs"
    )
    effect = partial(_against_occasions, baseline.runs, candidate)
    return _decided(begun, primary, others, effect, "" if count >= occasions.FEWEST else too_few)


def _begun(baseline: Side, candidate: Side, allowed: Collection[str]) -> Comparison:
    differ = differences(baseline, candidate, allowed)
    return Comparison(
        baseline,
        candidate,
        differ,
        implausible=_implausible(baseline, candidate),
        not_served=not_served.compare(baseline, candidate) if differ.of_one_load else not_served.UNKNOWN,
        allowed=tuple(allowed),
    )


def _decided(
    begun: Comparison,
    primary: Term,
    others: Sequence[Term],
    effect_of: Callable[[Term], paired_runs.Effect | None],
    few: str,
) -> Comparison:
    """Return the comparison with the rows of all figures, the primary one first. `few`: why there are too few samples to test."""
    baseline, candidate = begun.paired
    primary, others = _measured(primary, others, begun.baseline, begun.candidate)
    effects = {figure: effect_of(figure) for figure in (primary, *others)}
    if (found := effects[primary]) is not None:
        effects[primary] = found.confirmed()
    raw = {figure.name: effect.p for figure, effect in effects.items() if effect is not None and effect.p is not None}
    adjusted = paired_runs.corrected(raw, primary.name)

    def row(figure: Term) -> FigureRow:
        effect, p, reasons = effects[figure], adjusted.get(figure.name), begun.differences.reasons(figure.name)
        untested = reasons[0] if reasons else few or _unknown(figure.name, baseline, candidate, effect)
        return FigureRow(
            figure=figure,
            primary=figure is primary,
            baseline=baseline.mean(figure.name),
            candidate=candidate.mean(figure.name),
            effect=None if effect is None else effect.shown(),
            p=p if effect is None or effect.varies else None,
            answer="not comparable" if reasons else _answer(figure, effect, p, tested=not untested),
            untested=untested,
        )

    shown = [each for each in effects if each is primary or not (begun.differences.slo and each.name in SLO_FIGURES)]
    return replace(begun, rows=tuple(map(row, shown)))


def _measured(primary: Term, others: Sequence[Term], *sides: Side) -> tuple[Term, Sequence[Term]]:
    """Return the figures to compare: also energy if known; of requests of texts also texts/s, and E2E for TTFT as default."""
    measured = (term for term in ENERGY if any(side.mean(term.name) is not None for side in sides))
    others = [*others, *(term for term in measured if term != primary)]
    if any(side.mean(OF_TEXTS.name) is None for side in sides):
        return primary, others
    whole = primary.name == DEFAULT_PRIMARY and all(side.mean(primary.name) is None for side in sides)
    return Term(E2E, "mean") if whole else primary, [*others, OF_TEXTS]


def few(pairs: int) -> str:
    """Return the reason why so few pairs have no test; empty if they suffice."""
    if pairs >= FEWEST_PAIRS:
        return ""
    if not pairs:
        return "no valid runs of the two sides have the same seed"
    return f"{plural(pairs, 'pair')} of runs: a test needs {FEWEST_PAIRS}, better {RECOMMENDED_PAIRS} or more"


def _unknown(name: str, baseline: Side, candidate: Side, effect: paired_runs.Effect | None) -> str:
    """Return the reason why a figure has no effect: its values that are unknown or not above 0; empty if it has one."""
    if effect is not None:
        return ""
    lacking = [
        f"{side.label} ({', '.join(labels)})" if len(labels) < len(side.runs) else side.label
        for side in (baseline, candidate)
        if (labels := [run.label for run in side.runs if not (run.value(name) or 0) > 0])
    ]
    return f"not known, or not above 0, on {' and '.join(lacking)}"


def _against_occasions(earlier: Sequence[Run], candidate: Side, figure: Term) -> paired_runs.Effect | None:
    known = [value for value in (run.value(figure.name) for run in earlier) if value is not None and value > 0]
    now = candidate.mean(figure.name)
    if len(known) < max(2, len(earlier)) or now is None or now <= 0:
        return None
    return occasions.effect(known, now)


def _answer(figure: Term, effect: paired_runs.Effect | None, p: float | None, tested: bool) -> Answer:
    if effect is None:
        return "not known"
    if not tested or p is None:
        return "not tested"
    if not effect.varies and not effect.is_same:
        return "no difference"
    if p >= paired_runs.ALPHA:
        return "no difference found"
    return "better" if figure.change_is_good(effect.ratio) else "worse"


def _effect(pairs: Sequence[tuple[Run, Run]], figure: Term) -> paired_runs.Effect | None:
    values = [(first.value(figure.name), second.value(figure.name)) for first, second in pairs]
    known = [(a, b) for a, b in values if a is not None and b is not None and a > 0 and b > 0]
    if not known or len(known) < len(values):
        return None
    before, after = zip(*known, strict=True)
    return paired_runs.effect(before, after)


def pairs_of(baseline: Side, candidate: Side) -> tuple[tuple[tuple[Run, Run], ...], tuple[Run, ...]]:
    """Pair the runs of both sides by seed; runs of one seed in the order of their starts."""
    unpaired = list(candidate.runs)
    pairs, alone = [], []
    for run in baseline.runs:
        partner = next((other for other in unpaired if other.seed == run.seed), None)
        if partner is None:
            alone.append(run)
        else:
            unpaired.remove(partner)
            if "invalid" not in (run.level, partner.level):
                pairs.append((run, partner))
    return tuple(pairs), (*alone, *unpaired)


def table_rows(comparisons: Sequence[Comparison]) -> list[TableRow]:
    """Return the sides of tables over the paired runs, the baseline first; a baseline for each candidate if their pairs differ.

    Sides that are not comparable have no changes.
    """
    pairs_of = [comparison.paired for comparison in comparisons]
    rows: list[TableRow] = []
    shown: list[Side] = []
    for comparison, (paired_base, side) in zip(comparisons, pairs_of, strict=True):
        alike = [base for base, _ in pairs_of if base.label == paired_base.label]
        common = all(base.runs == paired_base.runs for base in alike)
        base = paired_base if common else replace(paired_base, label=f"{paired_base.label}, pairs of {side.label}")
        if base not in shown:
            rows.append((base, None))
            shown.append(base)
        rows.append((side, None if comparison.differences.refusals else base))
    return rows


def _implausible(baseline: Side, candidate: Side) -> tuple[str, ...]:
    """Return contradictions in the figures of other clients, a sentence each. The verdict of a run checks its own figures."""
    return tuple(
        f"{side.label if run.label == side.label else f'{side.label}, {run.label}'}: {fault}"
        for side in (baseline, candidate)
        for run in side.runs
        if run.level == NOT_JUDGED
        for fault in plausible.faults(run.figures, run.concurrency, run.input_tokens, run.output_tokens)
    )
