"""Best of the compared sides by goal: the side with the best value of a figure, if it is better than each other side.

The best of several measured values is partly chance. A side is the best one only if the comparison with each other side calls it
better: chance alone then names one of equal sides at most as often as a single test does (Gutmann and Maymin, Is the selected
population the best?, Annals of Statistics 15, 1987). Tests and corrections are those of `compare`, so that both agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from inferload.figures.figure import Figure
from inferload.figures.rate_figures import OUTPUT
from inferload.results.prices import per_million
from inferload.results.statistics.paired_runs import pairs_needed

from ..data.figures import GOALS, Term
from .compare import RECOMMENDED_PAIRS, Comparison, FigureRow, compare
from .sides import Side

COST = Term(
    Figure(
        key="cost_per_million_output_tokens",
        title="Cost of a million output tokens",
        unit="",
        text="price of the hardware over the time in which the run generates a million output tokens",
        better="lower",
    )
)

Certainty = Literal["best", "tie", "no difference found", "not tested", "not measured"]


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

    `worse`: what is worse than on the baseline: figures, turns not served, a load that was not served. `missing`: why the figure is
    not measured or not tested.
    """

    baseline: str
    figure: Term
    label: str | None = None
    rivals: tuple[Rival, ...] = ()
    worse: tuple[str, ...] = ()
    missing: str = ""

    @property
    def value(self) -> float | None:
        """Best value, over the pairs with the first rival."""
        return self.rivals[0].row.candidate if self.rivals else None

    @property
    def tied(self) -> tuple[Rival, ...]:
        """Other sides that are not separated from this one."""
        return tuple(rival for rival in self.rivals if not rival.behind)

    @property
    def certainty(self) -> Certainty:
        """`best` if all other sides are behind, `tie` if only some are."""
        if self.label is None:
            return "not measured"
        if not all(rival.row.tested for rival in self.rivals):
            return "not tested"
        if not self.tied:
            return "best"
        undecided = all(rival.row.answer in ("no difference found", "no difference") for rival in self.rivals)
        return "no difference found" if undecided else "tie"

    @property
    def more_pairs(self) -> int | None:
        """Pairs still needed to separate this side from all others, 0 for none; None: over 1,000, or they do not help."""
        counts = [rival.more_pairs for rival in self.tied]
        known = [count for count in counts if count is not None]
        return max(known, default=0) if len(known) == len(counts) and not self.missing else None


def best_by_goal(comparisons: Sequence[Comparison]) -> list[BestSide]:
    """Return the side with the best value of each goal, for each baseline of the comparisons; none for a baseline file.

    Goals are the primary figure, the compared ones of `GOALS`, and the cost; without those that no side has a value of. Sides that
    are not comparable with the baseline do not take part.
    """
    by_baseline: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        if not comparison.differences.refusals and comparison.occasions is None:
            by_baseline.setdefault(comparison.baseline.label, []).append(comparison)
    return [best for group in by_baseline.values() for best in _Contest(group).results()]


class _Contest:
    """Sides that are compared with one baseline: the baseline and the candidates."""

    def __init__(self, comparisons: Sequence[Comparison]) -> None:
        first, *others = comparisons
        self._baseline, self._primary, self._allowed = first.baseline, first.primary.figure, first.allowed
        # Goodput has no row where the SLOs differ.
        of_others = [{row.figure for row in comparison.rows} for comparison in others]
        self._figures = [row.figure for row in first.rows if all(row.figure in figures for figures in of_others)]
        self._sides = (self._baseline, *(comparison.candidate for comparison in comparisons))
        self._known = {(self._baseline.label, found.candidate.label): found for found in comparisons}

    def results(self) -> Iterator[BestSide]:
        goals = [figure for figure in self._figures if figure is self._primary or figure in GOALS]
        for figure in (*goals, COST):
            lacking = [side.label for side in self._sides if not (_with_cost(side).mean(figure.name) or 0) > 0]
            if not lacking:
                yield self._best(figure)
            elif len(lacking) < len(self._sides):
                missing = f"not known, or not above 0, on {', '.join(lacking)}"
                yield BestSide(self._baseline.label, figure, missing=missing)

    def _best(self, figure: Term) -> BestSide:
        changes = [
            0.0,
            *(self._comparison(self._baseline, side, figure).row(figure).change or 0.0 for side in self._sides[1:]),
        ]
        best = self._sides[changes.index((min if figure.better == "lower" else max)(changes))]
        rivals = [self._rival(side, best, figure) for side in self._sides if side is not best]
        rivals.sort(key=lambda rival: (rival.behind, abs(rival.row.change or 0.0)))
        with_baseline = self._known.get((self._baseline.label, best.label))
        return BestSide(
            baseline=self._baseline.label,
            figure=figure,
            label=best.label,
            rivals=tuple(rivals),
            worse=() if with_baseline is None else with_baseline.regressions,
            missing=next(
                (rival.row.untested for rival in rivals if rival.row.answer in ("not known", "not comparable")), ""
            ),
        )

    def _rival(self, other: Side, best: Side, figure: Term) -> Rival:
        comparison = self._comparison(other, best, figure)
        return Rival(other.label, len(comparison.pairs), comparison.row(figure))

    def _comparison(self, before: Side, after: Side, figure: Term) -> Comparison:
        """Compare two sides on all figures; on the cost beside the primary figure alone, so that it changes no correction."""
        if figure is COST:
            return compare(_with_cost(before), _with_cost(after), self._primary, (COST,), self._allowed)
        key = before.label, after.label
        if key not in self._known:
            self._known[key] = compare(before, after, self._primary, self._figures, self._allowed)
        return self._known[key]


def _with_cost(side: Side) -> Side:
    """Return the side with the cost as a figure of its runs."""
    return replace(
        side,
        runs=tuple(
            replace(run, figures={**run.figures, COST.name: per_million(run.prices, run.value(OUTPUT.key))})
            for run in side.runs
        ),
    )
