"""Best of several variants by one figure: the best value, tested against each other variant.

The best of several measured values is partly chance. Over pairs of runs of equal seeds, a paired t-test with Holm's correction
compares the variant with the best value with every other one; variants that it does not separate are tied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from inferload.statistics.paired_runs import ALPHA, Effect, effect, holm, pairs_needed

from .compare import RECOMMENDED_PAIRS, few, pairs_of
from .sides import Run, Side

Certainty = Literal["certain", "tie", "no difference found", "not tested", "counted", "none"]


@dataclass(frozen=True, slots=True)
class Score:
    """Figure of merit of a run, above 0; None: not known. `lower`: lower is better."""

    of_run: Callable[[Run], float | None]
    lower: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """Result of `rank`. `tied`: sides that are not separated from the best one. `remark`: the neighbour, or what is missing."""

    certainty: Certainty
    tied: tuple[str, ...] = ()
    remark: str = ""


def effect_of(score: Score, baseline: Side, candidate: Side) -> Effect | None:
    """Return the effect on a score over pairs of runs; None without a pair, or if a run of a pair has no score above 0."""
    values = [(score.of_run(first), score.of_run(second)) for first, second in pairs_of(baseline, candidate)[0]]
    known = [(a, b) for a, b in values if a is not None and b is not None and a > 0 and b > 0]
    return effect(*zip(*known, strict=True)) if known and len(known) == len(values) else None


def rank(score: Score, best: Side, others: Sequence[Side]) -> Ranking:
    """Test the side with the best value against each other side."""
    if not others:
        return Ranking("counted", remark="the only measured variant")
    effects = {other.label: effect_of(score, other, best) for other in others}
    p_values = {label: found.p for label, found in effects.items() if found is not None and found.p is not None}
    missing = [other for other in others if other.label not in p_values]
    if missing:
        return Ranking("not tested", remark="; ".join(_why_untested(best, other) for other in missing))
    adjusted = holm(p_values)
    known = {label: found for label, found in effects.items() if found is not None}
    tied = {
        label: found
        for label, found in known.items()
        if adjusted[label] >= ALPHA or (found.ratio < 1) != score.lower or found.ratio == 1
    }
    if not tied:
        return Ranking("certain", remark=_ahead(score, known, adjusted))
    remark = f"{best.label} is not separated from {', '.join(tied)}; {_needed(list(tied.values()))}"
    return Ranking("tie" if len(tied) < len(others) else "no difference found", tuple(tied), remark)


def _why_untested(best: Side, other: Side) -> str:
    reason = few(len(pairs_of(other, best)[0])) or "a run of a pair has no value above 0"
    return f"not tested against {other.label}: {reason}"


def _ahead(score: Score, effects: dict[str, Effect], adjusted: dict[str, float]) -> str:
    """Format the distance to the next variant; empty with a single other one, which the gain is against."""
    if len(effects) < 2:
        return ""
    label, next_best = min(effects.items(), key=lambda entry: abs(entry[1].ratio - 1))
    return f"{next_best.ratio - 1:+.1%} against the next variant, {label} (adjusted p {adjusted[label]:.2g})"


def _needed(effects: Sequence[Effect]) -> str:
    """Format the number of pairs that a test of these differences needs."""
    counts = [pairs_needed(found.ratio - 1, found.sd_log) for found in effects if found.sd_log is not None]
    known = [count for count in counts if count is not None]
    most = f"about {max(RECOMMENDED_PAIRS, *known)}" if len(known) == len(counts) else "over 1,000"
    return f"a difference of this size needs {most} pairs of runs"
