"""Several classes of turns compared on the same sides, such as each tenant alone and in the mix: which of them loses."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from inferload.base.errors import UsageError
from inferload.base.numbers import percent
from inferload.figures.figure import Head
from inferload.figures.rate_figures import ATTAINMENT
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import TTFT

from ..data.figures import Term
from .compare import Comparison
from .sides import Side, of_class

ATTAINED = Term(ATTAINMENT)
_LATE = Term(TTFT, "p95")


def by_class(sides: Sequence[Side], classes: Iterable[str], names: tuple[str, ...]) -> list[tuple[str, list[Side]]]:
    """Return the sides of each class, with its figures; of several classes each on the sides that have it.

    UsageError for a class that fewer than two sides have.
    """
    wanted, found = [*classes], []
    for name in wanted:
        having = [side for side in sides if len(wanted) == 1 or all(_has(run.summary, name) for run in side.runs)]
        if len(having) < 2:
            missing = f"{len(having)} of the sides has turns of it; name a run of it alone and one of the mix"
            raise UsageError(f"--class {name}: {missing}")
        of_name = [of_class(side, name, names) for side in having]
        labels = [side.label if len(wanted) == 1 else f"{side.label}: {name}" for side in of_name]
        found.append((name, [replace(side, label=label) for side, label in zip(of_name, labels, strict=True)]))
    return found


def _has(summary: object, name: str) -> bool:
    return name in getattr(summary, "by_class", {})


def table(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return the table of several classes; empty unless there are several. Its note names the class that loses most."""
    if len({comparison.class_name for comparison in comparisons}) < 2:
        return []
    rows: list[Sequence[Cell]] = []
    for comparison in comparisons:
        row = next(row for row in comparison.rows if row.figure == ATTAINED)
        for side, answer in zip(
            comparison.paired, ("", row.answer if row.tested else f"not tested: {row.untested}"), strict=True
        ):
            attained = side.mean(ATTAINED.name)
            share = None if attained is None else percent(attained)
            rows.append((comparison.class_name, side.label, share, side.mean(_LATE.name), answer))
    columns: Sequence[str | Head] = ("class", "side", ATTAINED.head, _LATE.head, "answer")
    return [Table("suffers", "Who loses", columns, rows, _loser(comparisons))]


def _loser(comparisons: Sequence[Comparison]) -> str:
    lost: dict[str, float] = {}
    for comparison in comparisons:
        before, after = (side.mean(ATTAINED.name) for side in comparison.paired)
        if before is None or after is None:
            return "It is not known which class loses most: not each has an SLO."
        lost[comparison.class_name] = max(before - after, lost.get(comparison.class_name, 0.0))
    name = max(lost, key=lambda each: lost[each])
    if lost[name] <= 0:
        return "No class attains less of its SLO."
    return f"Loses most: {name}, {100 * lost[name]:.1f} points of its SLO attainment."
