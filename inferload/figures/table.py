"""A table, and its forms: text for a terminal, Markdown, and HTML (`analysis/pages/macros.html.j2`).

A builder makes each table once; the forms decide how it looks. An unknown value is a dash in text, and in words on pages.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len

from inferload.base.escaping import escaped
from inferload.base.escaping import markdown as plain
from inferload.base.numbers import NOT_KNOWN, NOT_MEASURED, number
from inferload.base.status_lines import wrapped
from inferload.figures.figure import Head

_DIGITS = 4  # significant, of a cell
_LONG = 26  # characters; no number, range or gauge takes so many
_NOTE_WIDTH = 120
_GAP = "  "  # before each column


class Detailed(Struct, frozen=True):
    """Value with a detail that only pages show, such as its interval."""

    value: str | float | None
    detail: str


Cell = str | float | Head | Detailed | None


class Table(Struct, frozen=True):
    """One table; the first column names the row. `key`: its anchor on a page."""

    key: str
    title: str
    columns: Sequence[str | Head]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def shown(self, cell: Cell) -> str:
        """Return the text of a cell, as on a page."""
        return cell_text(cell, detailed=True)

    @property
    def texts(self) -> list[list[str]]:
        """Return the texts of the rows, as on a page."""
        return [[self.shown(cell) for cell in row] for row in self.rows]

    def in_words(self, column: int) -> bool:
        """Return True if a column holds text, which is aligned left, and not numbers, whatever their details."""
        if column == 0:
            return True
        texts = (cell_text(row[column]) for row in self.rows)
        cells = [text for text in texts if text not in ("", NOT_KNOWN, NOT_MEASURED)]
        return bool(cells) and (any(len(cell) > _LONG for cell in cells) or all(cell[0].isalpha() for cell in cells))

    def marked(self, caution: str) -> "Table":
        """Return the table with a caution in its title; unchanged if there is none."""
        return replace(self, title=f"{self.title} ({caution})") if caution else self


def head_of(label: str | Head) -> Head:
    """Return the head of a column that may be only a text."""
    return label if isinstance(label, Head) else Head(label)


def cell_text(cell: Cell, unknown: str = NOT_KNOWN, detailed: bool = False) -> str:
    """Return the text of a cell. `unknown`: of None; `detailed`: with its detail."""
    if isinstance(cell, Detailed):
        value = cell_text(cell.value, unknown, detailed)
        return f"{value} {cell.detail}" if detailed else value
    if isinstance(cell, Head):
        return cell.text
    return cell if isinstance(cell, str) else number(cell, _DIGITS, unknown)


def _aligned(cells: Sequence[str], *, left: bool) -> list[str]:
    """Pad texts to one width on a terminal, where a character takes up to two cells."""
    width = max(map(cell_len, cells))
    if left:
        return [cell + " " * (width - cell_len(cell)) for cell in cells]
    return [" " * (width - cell_len(cell)) + cell for cell in map(str.rstrip, cells)]


def text(table: Table) -> str:
    """Format a table for a terminal: title, indented rows, note."""
    rows = [[head_of(head).text for head in table.columns]]
    rows += [[cell_text(cell, "-") for cell in row] for row in table.rows]
    columns = [
        _aligned([escaped(cell) for cell in cells], left=table.in_words(column))
        for column, cells in enumerate(zip(*rows, strict=True))
    ]
    lines = [(_GAP + _GAP.join(cells)).rstrip() for cells in zip(*columns, strict=True)]
    note = wrapped(escaped(table.note), _NOTE_WIDTH, "  ", "  ")
    return "\n".join([*([escaped(table.title)] if table.title else []), *lines, *note])


def markdown(table: Table, level: int = 2) -> str:
    """Format a table as Markdown: heading, note, rows."""
    rule = [":---" if table.in_words(column) else "---:" for column in range(len(table.columns))]
    lines: list[list[str]] = [[plain(head_of(head).text) for head in table.columns], rule]
    lines += [[plain(cell) for cell in row] for row in table.texts]
    heading = [f"{'#' * level} {plain(table.title)}"] if table.title else []
    note = [plain(table.note)] if table.note else []
    return "\n\n".join([*heading, *note, "\n".join(f"| {' | '.join(row)} |" for row in lines)])
