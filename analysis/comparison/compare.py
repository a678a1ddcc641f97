"""Comparison of a candidate with a baseline, by pairs of runs or with the occasions of a baseline file."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from inferload.server_metrics.metric_names import PROCESS_START
from inferload.statistics import baseline_stats as occasions
from inferload.statistics import paired_runs

from ..data.figures import SLO_FIGURES, Figure
from . import max_change, plausible
from .comparable import Differences, differences
from .sides import Run, Side, TableRow

ALPHA = 0.05
# With fewer pairs a sign-flip test cannot reject at 0.05.
RECOMMENDED_PAIRS = 6

Answer = Literal["better", "worse", "no difference found", "not tested", "not comparable", "not known"]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Figure on both sides. `effect`: None if unknown on a side; `p`: adjusted for multiple tests."""

    figure: Figure
    primary: bool
    baseline: float | None
    candidate: float | None
    effect: paired_runs.Effect | None
    p: float | None
    answer: Answer

    @property
    def change(self) -> float | None:
        """Candidate / baseline - 1: over pairs if there are any, else of the two values."""
        if self.effect is not None:
            return self.effect.ratio - 1
        return self.candidate / self.baseline - 1 if self.baseline and self.candidate is not None else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a candidate. `conditional`: reason why the answer holds for these server starts only."""

    baseline: Side
    candidate: Side
    differences: Differences
    rows: tuple[FigureRow, ...]
    conditional: str
    implausible: tuple[str, ...]
    pairs: tuple[tuple[Run, Run], ...] = ()
    unpaired: tuple[Run, ...] = ()
    occasions: int | None = None  # of a baseline file, which has no pairs
    weaker: str = ""  # reason why occasions are a weaker baseline: they share server starts
    limits: tuple[max_change.CheckedLimit, ...] = ()  # of --max-change

    @property
    def paired(self) -> tuple[Side, Side]:
        """Return both sides over the paired runs only; over all runs if there are no pairs."""
        return _paired(self.baseline, self.candidate, self.pairs)

    @property
    def primary(self) -> FigureRow:
        """Row of the primary figure, which is declared in advance."""
        return next(row for row in self.rows if row.primary)

    def row(self, figure: Figure) -> FigureRow:
        """Return the row of a compared figure."""
        return next(row for row in self.rows if row.figure.name == figure.name)

    @property
    def tested(self) -> bool:
        """True if the primary figure was tested."""
        return self.primary.answer in ("better", "worse", "no difference found")

    @property
    def regressed(self) -> bool:
        """True if a figure became significantly worse."""
        return any(row.answer == "worse" for row in self.rows)


def compare(
    baseline: Side, candidate: Side, primary: Figure, others: Sequence[Figure], allowed: Collection[str] = ()
) -> Comparison:
    """Compare two sides by pairs of runs: the primary figure at ALPHA, all others with Holm's correction."""
    pairs, unpaired = _pairs(baseline, candidate)
    effects = {figure: _effect(pairs, figure) for figure in (primary, *others)}
    conditional = _conditional(baseline, candidate)
    compared = _compared(
        baseline, candidate, effects, allowed, pairs=pairs, conditional=conditional, enough=len(pairs) >= 3
    )
    return replace(compared, unpaired=unpaired)


def compare_with_occasions(
    baseline: Side, candidate: Side, primary: Figure, others: Sequence[Figure], allowed: Collection[str] = ()
) -> Comparison:
    """Compare a candidate (a single occasion) with the occasions of a baseline; corrections as in `compare`."""
    effects = {figure: _against_occasions(baseline.runs, candidate, figure) for figure in (primary, *others)}
    count, conditional = len(baseline.runs), _unknown_starts(baseline)
    enough = count >= occasions.FEWEST
    compared = _compared(baseline, candidate, effects, allowed, conditional=conditional, enough=enough)
    return replace(compared, occasions=count, weaker=shared_starts(baseline))


def _compared(
    baseline: Side,
    candidate: Side,
    effects: Mapping[Figure, paired_runs.Effect | None],
    allowed: Collection[str],
    *,
    conditional: str,
    enough: bool,
    pairs: tuple[tuple[Run, Run], ...] = (),
) -> Comparison:
    """Compare by the effects on figures, the primary one first. `enough`: the samples suffice for a test."""
    differ = differences(baseline, candidate, allowed)
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        differences=differ,
        rows=_rows(*_paired(baseline, candidate, pairs), effects, differ, enough and not conditional),
        conditional=conditional,
        implausible=_implausible(baseline, candidate),
        pairs=pairs,
    )


def _rows(
    baseline: Side,
    candidate: Side,
    effects: Mapping[Figure, paired_runs.Effect | None],
    differ: Differences,
    testable: bool,
) -> tuple[FigureRow, ...]:
    """Return the rows of all figures; the first figure is the primary one."""
    primary, *_ = figures = list(effects)
    if differ.slo:
        figures = [figure for figure in figures if figure.name not in SLO_FIGURES or figure is primary]
    raw = {figure.name: effect.p for figure, effect in effects.items() if effect is not None and effect.p is not None}
    adjusted = paired_runs.holm({name: p for name, p in raw.items() if name != primary.name})
    if primary.name in raw:
        adjusted[primary.name] = raw[primary.name]
    return tuple(
        FigureRow(
            figure=figure,
            primary=figure is primary,
            baseline=baseline.mean(figure.name),
            candidate=candidate.mean(figure.name),
            effect=effects[figure],
            p=adjusted.get(figure.name),
            answer=_answer(figure, effects[figure], adjusted.get(figure.name), testable)
            if not differ.reasons(figure.name)
            else "not comparable",
        )
        for figure in figures
    )


def _against_occasions(earlier: Sequence[Run], candidate: Side, figure: Figure) -> paired_runs.Effect | None:
    known = [value for value in (run.value(figure.name) for run in earlier) if value is not None and value > 0]
    now = candidate.mean(figure.name)
    if len(known) < max(2, len(earlier)) or now is None or now <= 0:
        return None
    return occasions.effect(known, now)


def _answer(figure: Figure, effect: paired_runs.Effect | None, p: float | None, testable: bool) -> Answer:
    if effect is None:
        return "not known"
    if not testable or p is None:
        return "not tested"
    if p >= ALPHA:
        return "no difference found"
    return "better" if figure.change_is_good(effect.ratio) else "worse"


def _effect(pairs: Sequence[tuple[Run, Run]], figure: Figure) -> paired_runs.Effect | None:
    values = [(first.value(figure.name), second.value(figure.name)) for first, second in pairs]
    known = [(a, b) for a, b in values if a is not None and b is not None and a > 0 and b > 0]
    if not known or len(known) < len(values):
        return None
    before, after = zip(*known, strict=True)
    return paired_runs.effect(before, after)


def _pairs(baseline: Side, candidate: Side) -> tuple[tuple[tuple[Run, Run], ...], tuple[Run, ...]]:
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


def _paired(baseline: Side, candidate: Side, pairs: Sequence[tuple[Run, Run]]) -> tuple[Side, Side]:
    """Cut the sides down to the paired runs: a run without a partner shifts a mean without a difference of the servers."""
    if not pairs:
        return baseline, candidate
    paired = {id(run) for pair in pairs for run in pair}
    base, other = (
        replace(side, runs=tuple(run for run in side.runs if id(run) in paired)) for side in (baseline, candidate)
    )
    return base, other


def table_rows(comparisons: Sequence[Comparison]) -> list[TableRow]:
    """Return the sides of tables over the paired runs, the baseline first; a baseline for each candidate if their pairs differ.

    Sides that are not comparable have no changes.
    """
    pairs_of = [comparison.paired for comparison in comparisons]
    common = all(base.runs == pairs_of[0][0].runs for base, _ in pairs_of)
    rows: list[TableRow] = []
    for comparison, (paired_base, side) in zip(comparisons, pairs_of, strict=True):
        base = paired_base if common else replace(paired_base, label=f"{paired_base.label}, pairs of {side.label}")
        row = side, None if comparison.differences.refusals else base
        rows += [row] if common and rows else [(base, None), row]
    return rows


def _conditional(baseline: Side, candidate: Side) -> str:
    """Return the reason why a verdict holds for these server starts only; empty if each run had its own server start."""
    for side in (baseline, candidate):
        starts = [run.start for run in side.runs]
        known = [start for start in starts if start is not None]
        if len(side.runs) > 1 and len(set(known)) < len(side.runs):
            single = len(set(known)) == 1 and len(known) == len(starts)
            which = "one server start" if single else "unknown or shared server starts"
            return f"{side.label}: {len(side.runs)} runs on {which}: repeats on one start are one sample of a configuration"
    return ""


def _unknown_starts(baseline: Side) -> str:
    """Return the reason why occasions may share a server start; empty if all starts are known."""
    unknown = [run.label for run in baseline.runs if run.start is None]
    if not unknown:
        return ""
    return (
        f"{baseline.label}: the server start is not known of {', '.join(unknown)}: repeats on one start are one sample of "
        f"a configuration; add occasions whose server publishes {PROCESS_START}"
    )


def shared_starts(baseline: Side) -> str:
    """Return the reason why a baseline is weaker: occasions share server starts; empty if each has its own."""
    starts = [run.start for run in baseline.runs if run.start is not None]
    count = len(set(starts))
    if count == len(starts):
        return ""
    return (
        f"weaker baseline: {len(starts)} occasions on {count} server start{'' if count == 1 else 's'}: the variation "
        "between starts is underestimated, so a restart alone may be reported as a change"
    )


def _implausible(baseline: Side, candidate: Side) -> tuple[str, ...]:
    """Return contradictions in the figures of other clients, a sentence each. The verdict of a run checks its own figures."""
    lines = []
    for side in (baseline, candidate):
        for run in side.runs:
            if run.level == "not judged":
                name = side.label if run.label == side.label else f"{side.label}, {run.label}"
                faults = plausible.faults(run.figures, run.concurrency, run.input_tokens, run.output_tokens)
                lines += [f"{name}: {fault}" for fault in faults]
    return tuple(lines)
