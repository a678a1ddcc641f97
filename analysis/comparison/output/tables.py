"""Tables of a comparison: configurations, changes and costs, effects on figures, best by goal, and the A/B block."""

from collections.abc import Sequence

from msgspec.structs import replace

from inferload.base.numbers import NOT_MEASURED, listed, number, plural
from inferload.figures.figure import Head
from inferload.figures.rate_figures import OUTPUT, TURNS
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import E2E, TPOT, TTFT

from ...data import changes
from ...data.figures import OF_TEXTS, TABLE, Term
from ...pages.texts import Name
from ..best import BestSide, Decision
from ..compare import Comparison, FigureRow, table_rows
from ..sides import Side, TableRow

_BLOCK = (Term(TTFT, "p50"), Term(TTFT, "p99"), Term(TPOT, "mean"), Term(E2E, "p50"), Term(TURNS), Term(OUTPUT))
BLOCK_NAMES = tuple(term.name for term in _BLOCK)


def sides(rows_of: Sequence[TableRow]) -> Table:
    """Return the figures of each configuration, means over its counted runs, with their changes from its baseline."""
    shown = _shown(rows_of)
    bases = {base.label for _, base in rows_of if base is not None}
    rows = []
    for side, base in rows_of:
        label = side.heading if base is None or len(bases) == 1 else f"{side.heading} against {base.label}"
        rows.append((label, len(side.counted), *(_value(side, base, term) for term in shown)))
    note = f"With the change against {bases.pop()}." if len(bases) == 1 else "With the change." if bases else ""
    return Table("sides", "Configurations", ["configuration", "runs", *(term.head for term in shown)], rows, note)


def names(sides: Sequence[Side]) -> list[Table]:
    """Return the names of the directories and files that the labels shorten; no table without any."""
    rows = dict.fromkeys((side.part_of or side.label, side.name) for side in sides if side.name)
    return [Table("names", "Names", ("configuration", "run"), [*rows])] if rows else []


def _shown(rows_of: Sequence[TableRow]) -> Sequence[Term]:
    """Return the figures of a table of configurations: of requests of texts those that are known."""
    known = [term for term in (OF_TEXTS, *TABLE) if any(side.mean(term.name) is not None for side, _ in rows_of)]
    return known if OF_TEXTS in known else TABLE


def _value(side: Side, base: Side | None, term: Term, answer: str = "") -> Cell:
    """Return the mean of a figure, in text with its change and the answer on it if there is a base that has the figure."""
    value, before = side.mean(term.name), None if base is None else base.mean(term.name)
    if value is None or not before:
        return value
    ratio = value / before
    change = f"({changes.signed(ratio)})" if changes.is_factor(ratio) else changes.signed(ratio)
    return f"{number(value, 4)} {change} {answer}".rstrip()


def together(comparisons: Sequence[Comparison]) -> Table:
    """Return a row for each figure and a column for each side: its value, and its change from the baseline with the answer."""
    by_label = {comparison.candidate.label: comparison for comparison in comparisons}
    sides = table_rows(comparisons)
    figures = {row.figure: row.primary for comparison in comparisons for row in comparison.rows}
    rows: list[Sequence[Cell]] = [("runs", *(len(side.counted) for side, _ in sides))]
    for term, is_primary in figures.items():
        if any(side.mean(term.name) is not None for side, _ in sides):
            head = f"{term.head.text} (primary)" if is_primary else term.head.text
            cells = (_value(side, base, term, _word(by_label.get(side.label), term)) for side, base in sides)
            rows.append((Head(head, term.figure.key), *cells))
    note = "better, worse: by the tests. No word: no difference found, or not tested."
    return Table("sides", "Configurations", ("figure", *(Name(side.heading) for side, _ in sides)), rows, note)


def _word(comparison: Comparison | None, term: Term) -> str:
    answers = [row.answer for row in comparison.rows if row.figure == term] if comparison is not None else []
    return next((answer for answer in answers if answer in ("better", "worse")), "")


def effects(comparison: Comparison) -> Table:
    """Return a row for each figure: both sides, change with interval, p and answer."""
    sides = (Name(comparison.baseline.heading), Name(comparison.candidate.heading))
    columns = ("figure", *sides, "change", "difference", "95 % CI", "p", "p, sign flips", "answer")
    rows = []
    for row in comparison.rows:
        if row.baseline is None and row.candidate is None and not row.primary:
            continue  # unknown on both sides
        term, effect = row.figure, row.effect
        flips = "" if effect is None or effect.p_sign_flip is None else p_text(effect.p_sign_flip)
        rows.append(
            (
                Head(f"{term.head.text} (primary)", term.figure.key) if row.primary else term.head,
                row.baseline,
                row.candidate,
                _change(row) or None,
                _difference(row) or None,
                interval(row),
                "" if row.p is None else p_text(row.p),
                flips,
                answer(row, comparison),
            )
        )
    return _without_empty(Table("effects", "", columns, rows))


def _without_empty(shown: Table) -> Table:
    """Return a table without the columns that say nothing in any row, such as p without a test."""
    said = [at for at in range(len(shown.columns)) if any(row[at] != "" for row in shown.rows)]
    rows = [[row[at] for at in said] for row in shown.rows]
    return replace(shown, columns=[shown.columns[at] for at in said], rows=rows)


def same(comparison: Comparison) -> str:
    """Return in words that a change is the same in all samples, so that it has no p."""
    return "the same in every pair" if comparison.occasions is None else "the same from every occasion"


def answer(row: FigureRow, comparison: Comparison) -> str:
    return f"{row.answer}, {same(comparison)}" if row.is_same else row.answer


def _change(row: FigureRow | None) -> str:
    return "" if row is None or row.ratio is None else changes.signed(row.ratio)


def _difference(row: FigureRow | None) -> str:
    """Format candidate - baseline with its sign and the unit of the figure; empty if a side is unknown."""
    if row is None or row.difference is None:
        return ""
    sign = "-" if row.difference < 0 else "+" if row.difference > 0 else ""
    return f"{sign}{number(abs(row.difference))} {row.figure.unit}".rstrip()


def interval(row: FigureRow) -> str:
    """Format the interval of a change; empty if an end is unknown."""
    effect = row.effect
    if effect is None or effect.low is None or effect.high is None:
        return ""
    return changes.interval(effect.low, effect.high)


def p_text(p: float) -> str:
    """Format an error probability."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def best(decisions: Sequence[Decision], *, whole: bool = True) -> list[Table]:
    """Return a row for each goal: the side with the best value, its change from the closest other side, and the answer.

    No table without a row. `whole`: with interval and p.
    """
    rows = [_best_row(best, whole) for decision in decisions for best in decision.results]
    tests = ("95 % CI", "p") if whole else ()
    columns = ("goal", "best", "best value", "closest", "change", *tests, "answer")
    return [_without_empty(Table("best", "Best by goal", columns, rows))] if rows else []


def _best_row(best: BestSide, whole: bool) -> Sequence[Cell]:
    term, row = best.figure, best.rivals[0].row if best.rivals else None
    answer = f"tied with {listed([rival.label for rival in best.tied])}" if best.certainty == "tie" else best.certainty
    tests = "" if row is None else interval(row), "" if row is None or row.p is None else p_text(row.p)
    return (
        Head(term.title, term.figure.key),
        best.label or "",
        "" if best.label is None else f"{number(best.value)} {term.unit}".rstrip(),
        best.rivals[0].label if best.rivals else "",
        _change(row),
        *(tests if whole else ()),
        "; ".join([answer, *more_pairs(best)]),
    )


def more_pairs(best: BestSide) -> list[str]:
    """Return the pairs that an undecided goal still needs, in words; empty if none are known to help."""
    if best.missing or best.certainty not in ("tie", "no difference found") or best.more_pairs == 0:
        return []
    return ["over 1,000 more pairs" if best.more_pairs is None else f"about {plural(best.more_pairs, 'more pair')}"]


def block(sides: Sequence[Side]) -> Table:
    """Return the table of `inferload compare --format block`: a row for each figure and a column for each side."""
    success: list[Cell] = ["success", *map(_success, sides)]
    rows: list[list[Cell]] = [[term.head, *(side.mean(term.name) for side in sides)] for term in _BLOCK]
    return Table("block", "A/B comparison", ("metric", *(side.heading for side in sides)), [success, *rows])


def _success(side: Side) -> Cell:
    ok, sent = side.ok_and_sent or (0, 0)
    return f"{ok}/{sent} ({ok / sent:.0%})" if sent else None


def gains(base: Side, side: Side) -> list[str]:
    """Return TTFT and requests as changes of the first side's value, output as a factor."""
    lines = []
    for title, term in (("TTFT", Term(TTFT, "p50")), ("QPS", Term(TURNS)), ("throughput", Term(OUTPUT))):
        before, after = base.mean(term.name), side.mean(term.name)
        if not before or after is None:
            gain = NOT_MEASURED
        elif term.figure is OUTPUT:
            gain = f"{after / before:.2f}x"
        else:
            gain = f"{'↓' if after < before else '↑'} {changes.size(after / before)}"
        lines.append(f"  {title}: {gain}")
    return lines
