"""A baseline against a candidate, by pairs of runs: better, worse, no difference found, or no comparison, and how sure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inferload.server_metrics.metric_names import PROCESS_START
from inferload.statistics import baseline_stats as occasions
from inferload.statistics import paired_runs

from ..data.figures import Figure
from . import max_change, plausible
from .comparable import Differences, differences
from .sides import Run, Side

ALPHA = 0.05
# Fewer pairs than this can never reject by sign flips at 0.05, whatever they show.
PAIRS_WANTED = 6

# Figures that mean something else where the limits of a good turn differ.
GOODNESS = ("goodput_turns_per_s", "slo_attainment")

Answer = Literal["better", "worse", "no difference found", "not tested", "not comparable", "not known"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure on both sides. `effect` None: not known on both; `p`: adjusted for the family that the figure is of."""

    figure: Figure
    primary: bool
    baseline: float | None
    candidate: float | None
    effect: paired_runs.Effect | None
    p: float | None
    answer: Answer

    @property
    def change(self) -> float | None:
        """Candidate / baseline - 1: over pairs where there are some, else of the two values."""
        if self.effect is not None:
            return self.effect.ratio - 1
        return self.candidate / self.baseline - 1 if self.baseline and self.candidate is not None else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that is said of one candidate. `conditional`: why the answer holds for these server starts only."""

    baseline: Side
    candidate: Side
    differences: Differences
    pairs: tuple[tuple[Run, Run], ...]
    unpaired: tuple[Run, ...]
    rows: tuple[Row, ...]
    conditional: str
    implausible: tuple[str, ...]
    occasions: int | None = None  # of a baseline file; then there are no pairs
    weaker: str = ""  # why a baseline of occasions is weaker than one with a server start for each
    limits: tuple[max_change.Checked, ...] = ()  # of --max-change

    @property
    def primary(self) -> Row:
        """The figure that was declared before anybody looked."""
        return next(row for row in self.rows if row.primary)

    @property
    def tested(self) -> bool:
        """Whether the pairs carry a verdict at all."""
        return self.primary.answer in ("better", "worse", "no difference found")

    @property
    def regressed(self) -> bool:
        """Whether the primary figure, or one of the others, became worse for certain."""
        return any(row.answer == "worse" for row in self.rows)


def compare(
    baseline: Side, candidate: Side, primary: Figure, others: Sequence[Figure], allowed: Collection[str] = ()
) -> Comparison:
    """Compare two sides: one primary figure at alpha 0.05, Holm over all others."""
    pairs, unpaired = _pairs(baseline, candidate)
    conditional = _conditional(baseline, candidate)
    figures = (primary, *(other for other in others if other.name != primary.name))
    effects = {one.name: _effect(pairs, one) for one in figures}
    differ = differences(baseline, candidate, allowed)
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        differences=differ,
        pairs=pairs,
        unpaired=unpaired,
        rows=_rows(
            baseline,
            candidate,
            figures,
            effects,
            comparable=not differ.refusals,
            testable=not conditional and len(pairs) >= 3,
        ),
        conditional=conditional,
        implausible=_implausible(baseline, candidate),
    )


def compare_with_occasions(
    baseline: Side, candidate: Side, primary: Figure, others: Sequence[Figure], allowed: Collection[str] = ()
) -> Comparison:
    """Hold a candidate, one occasion, against earlier ones of a baseline, a run each; the same family as `compare`."""
    figures = (primary, *(other for other in others if other.name != primary.name))
    effects = {one.name: _away(baseline.runs, candidate, one) for one in figures}
    differ = differences(baseline, candidate, allowed)
    count, conditional = len(baseline.runs), _unknown_starts(baseline)
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        differences=differ,
        pairs=(),
        unpaired=(),
        rows=_rows(
            baseline,
            candidate,
            figures,
            effects,
            comparable=not differ.refusals,
            testable=not conditional and count >= occasions.FEWEST,
        ),
        conditional=conditional,
        implausible=_implausible(baseline, candidate),
        occasions=count,
        weaker=shared_starts(baseline),
    )


def _rows(
    baseline: Side,
    candidate: Side,
    figures: Sequence[Figure],
    effects: Mapping[str, paired_runs.Effect | None],
    *,
    comparable: bool,
    testable: bool,
) -> tuple[Row, ...]:
    """Every figure with its answer; the first of them is the primary one."""
    primary = figures[0]
    if baseline.runs[0].slo != candidate.runs[0].slo:
        # What counts as good differs, so how much was good does not compare.
        figures = tuple(one for one in figures if one.name not in GOODNESS or one is primary)
        comparable = comparable and primary.name not in GOODNESS
    raw = {name: found.p for name, found in effects.items() if found is not None and found.p is not None}
    adjusted = paired_runs.holm({name: p for name, p in raw.items() if name != primary.name})
    if primary.name in raw:
        adjusted[primary.name] = raw[primary.name]
    return tuple(
        Row(
            figure=one,
            primary=one is primary,
            baseline=baseline.mean(one.name),
            candidate=candidate.mean(one.name),
            effect=effects[one.name],
            p=adjusted.get(one.name),
            answer=_answer(one, effects[one.name], adjusted.get(one.name), testable)
            if comparable
            else "not comparable",
        )
        for one in figures
    )


def _away(earlier: Sequence[Run], candidate: Side, figure: Figure) -> paired_runs.Effect | None:
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
    values = [(one.value(figure.name), other.value(figure.name)) for one, other in pairs]
    known = [(one, other) for one, other in values if one is not None and other is not None and one > 0 and other > 0]
    if not known or len(known) < len(values):
        return None
    before, after = zip(*known, strict=True)
    return paired_runs.effect(before, after)


def _pairs(baseline: Side, candidate: Side) -> tuple[tuple[tuple[Run, Run], ...], tuple[Run, ...]]:
    """Runs of one schedule on both sides: by seed, and in the order of their starts where a seed stands several times."""
    left = list(candidate.runs)
    pairs, alone = [], []
    for run in baseline.runs:
        partner = next((other for other in left if other.seed == run.seed), None)
        if partner is None:
            alone.append(run)
        else:
            left.remove(partner)
            if "invalid" not in (run.level, partner.level):
                pairs.append((run, partner))
    return tuple(pairs), (*alone, *left)


def _conditional(baseline: Side, candidate: Side) -> str:
    """Why a verdict would hold for these starts of the servers only; empty where each run had a start of its own."""
    for side in (baseline, candidate):
        starts = [run.start for run in side.runs]
        known = [start for start in starts if start is not None]
        if len(side.runs) > 1 and len(set(known)) < len(side.runs):
            said = (
                "one server start"
                if len(set(known)) == 1 and len(known) == len(starts)
                else "starts that are not known"
            )
            return f"{side.label}: {len(side.runs)} runs on {said}: repeats inside one start are one sample of a configuration"
    return ""


def _unknown_starts(baseline: Side) -> str:
    """Why occasions may be of one start after all; empty where each has a start of its own."""
    unknown = [run.label for run in baseline.runs if run.start is None]
    if not unknown:
        return ""
    return (
        f"{baseline.label}: the server start is not known of {', '.join(unknown)}: repeats inside one start are one sample of "
        f"a configuration; add occasions whose server publishes {PROCESS_START}"
    )


def shared_starts(baseline: Side) -> str:
    """Why a baseline is weaker: its occasions share server starts; empty if each has one of its own."""
    starts = [run.start for run in baseline.runs if run.start is not None]
    count = len(set(starts))
    if count == len(starts):
        return ""
    return (
        f"weaker baseline: {len(starts)} occasions on {count} server start{'' if count == 1 else 's'}: what differs between "
        "starts is not in the spread, so that a restart alone may look like a change"
    )


def _implausible(baseline: Side, candidate: Side) -> tuple[str, ...]:
    """Figures that cannot be true, a sentence each; those of runs whose window is shorter than a turn in one."""
    found = []
    for side in (baseline, candidate):
        short = 0
        for run in side.runs:
            faults = plausible.faults(run.figures, run.concurrency, run.input_tokens, run.output_tokens)
            if _shorter_than_a_turn(run):
                sums = [fault for fault in faults if fault.startswith(plausible.TOKEN_SUMS)]
                short += bool(sums)
                faults = [fault for fault in faults if fault not in sums]
            name = side.label if run.label == side.label else f"{side.label}, {run.label}"
            found += [f"{name}: {fault}" for fault in faults]
        if short:
            found.append(
                f"{side.label}: turns/s and tok/s of {short} of {len(side.runs)} runs do not agree: the measure phase is shorter "
                "than a turn, so that they count different turns; set a longer measure_s"
            )
    return tuple(found)


def _shorter_than_a_turn(run: Run) -> bool:
    e2e_ms = run.figures.get("mean(e2e_ms)")
    return run.window_s is not None and e2e_ms is not None and run.window_s * 1e3 < e2e_ms
