"""Several classes of turns compared on the same sides, such as each tenant alone and in the mix: which of them loses."""

from collections.abc import Iterable, Mapping, Sequence
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
    """Return the sides by class, with its figures; of several classes those that have it. UsageError for fewer than two sides."""
    wanted, found = [*classes], []
    for name in wanted:
        having = [side for side in sides if len(wanted) == 1 or side.has_class(name)]
        if len(having) < 2:
            missing = f"{len(having)} of the sides has turns of it; name a run of it alone and one of the mix"
            raise UsageError(f"--class {name}: {missing}")
        of_name = [of_class(side, name, names) for side in having]
        if len(wanted) > 1:
            of_name = [replace(side, label=f"{side.label}: {name}") for side in of_name]
        found.append((name, of_name))
    return found


def table(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return the table of several classes; empty unless there are several. Its note names the class that loses most."""
    if len({comparison.class_name for comparison in comparisons}) < 2:
        return []
    rows: list[Sequence[Cell]] = []
    lost: dict[str, float] = {}
    unknown: dict[str, None] = {}
    for comparison in comparisons:
        row = next((row for row in comparison.rows if row.figure == ATTAINED), None)
        answer = "not comparable"  # other limits
        if row is not None and row.answer != answer:
            answer = row.answer if row.tested else f"not tested: {row.untested}"
        attained = [side.mean(ATTAINED.name) for side in comparison.paired]
        for side, share, text in zip(comparison.paired, attained, ("", answer), strict=True):
            shown = None if share is None else percent(share)
            rows.append((comparison.class_name, side.label, shown, side.mean(_LATE.name), text))
        before, after = attained
        if before is None or after is None or answer == "not comparable":
            unknown[comparison.class_name] = None
        else:
            lost[comparison.class_name] = max(before - after, lost.get(comparison.class_name, 0.0))
    columns: Sequence[str | Head] = ("class", "side", ATTAINED.head, _LATE.head, "answer")
    return [Table("suffers", "Who loses", columns, rows, _loser(lost, [*unknown]))]


def _loser(lost: Mapping[str, float], unknown: Sequence[str]) -> str:
    """Return the note. `lost`: attainment, by class."""
    if unknown:
        attained = f"attainment of {' and '.join(unknown)} is not known or not comparable"
        return f"It is not known which class loses most: {attained}."
    name = max(lost, key=lambda each: lost[each])
    if lost[name] <= 0:
        return "No class attains less of its SLO."
    return f"Loses most: {name}, {100 * lost[name]:.1f} points of its SLO attainment."
