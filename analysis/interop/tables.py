"""Reader of published tables: Markdown, CSV, and printed columns with bars between them, framed or not.

A row is a configuration and a column a figure, or the other way round: then the first column names the figures.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence

from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

from .published import Published, finite

_RULE = re.compile(r"\s*:?-{2,}:?\s*")
_NORMAL = str.maketrans("│┃║\uff08\uff09\u3010\u3011", "|||()[]")
_FRAME = re.compile(r"[\s|:+=\-\u2500-\u257f]*[+=\-\u2500-\u257f]{2,}[\s|:+=\-\u2500-\u257f]*")
# A number with its unit, and behind it a remark: in brackets, an arrow, or what follows "±".
_CELL = re.compile(
    r"[~≈]?\s*([+-]?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(ms|s|us|µs|[A-Za-z/%]+)?"
    r"\s*(?:\([^()]*\)|\[[^\[\]]*\]|[↑↓▲▼*†]+|±.*)?",
    re.I,
)
_EMPTY = re.compile(r"[-\u2013\u2014/\s]*|n/?a|nan|none|null", re.I)  # of a figure that the source does not have
_UNIT_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_QUANTILE = re.compile(r"p\s*(50|90|95|99)\b|(50|90|95|99)\s*(?:th|分位)", re.I)
_MEDIAN = re.compile(r"median|中位", re.I)
_CHANGE = re.compile(
    r"\b(?:change|diff(?:erence)?|delta|gain|improvement|speed-?up)\b|提升|变化|差值|差异|降低|[Δ%]", re.I
)
_OF_MEASURE = (
    (re.compile(r"ttft|time to first token|首\s*token|首字", re.I), TTFT.key),
    (re.compile(r"tpot|time per output token", re.I), TPOT.key),
    (re.compile(r"\bitl\b|inter-?token", re.I), ITL.key),
    (re.compile(r"e2el?|end-to-end|端到端", re.I), E2E.key),
)
_OF_RATE = (
    (re.compile(r"goodput", re.I), GOODPUT.key),
    (re.compile(r"req(?:uest)?s?\s*/\s*s|\bqps\b|\brps\b|request throughput|请求吞吐", re.I), TURNS.key),
    (re.compile(r"(?:total|总).*(?:tok|吞吐)", re.I), TOTAL.key),
    (re.compile(r"input|prompt|prefill|输入", re.I), ""),
    (re.compile(r"tok(?:en)?s?\s*/\s*s|throughput|吞吐", re.I), OUTPUT.key),
)


def rows(text: str) -> list[Published]:
    """Return the configurations of the tables of a text, in order; CSV is read only if no line has bars."""
    lines = text.lstrip("\ufeff").translate(_NORMAL).splitlines()
    tables = list(_barred(lines)) or [[row for row in csv.reader(lines) if row]]
    return [side for table in tables if len(table) > 1 for side in _sides(table)]


def _barred(lines: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the cells of each table: consecutive lines with bars, and rules between them."""
    table: list[list[str]] = []
    for line in (*lines, ""):
        if _FRAME.fullmatch(line):
            continue
        cells = [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())]
        if len(cells) > 1:
            framed = cells[1:] if not cells[0].strip() and line.lstrip().startswith("|") else cells
            table.append(framed[:-1] if not framed[-1].strip() else framed)
        elif table:
            yield table
            table = []


def _sides(table: Sequence[Sequence[str]]) -> Iterator[Published]:
    header, *body = [[_plain(cell) for cell in row] for row in table if not all(map(_RULE.fullmatch, row))]
    if any(figure_of(name) for name in header):
        yield from _of_rows(header, body)
    else:
        yield from _of_columns(header, body)


def _of_rows(header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Published]:
    """Yield a configuration for each row. Its label: the first two cells that are neither figures nor numbers."""
    columns = [figure_of(name) for name in header]
    for cells in body:
        named = list(zip(header, columns, cells, strict=False))
        figures, lost = _read(named)
        words = [
            (name, cell) for name, column, cell in named if column is None and cell and _CELL.fullmatch(cell) is None
        ][:2]
        used = [name for name, _ in words]
        unread = [name for name, column in zip(header, columns, strict=True) if column is None and name not in used]
        if figures:
            yield Published(" ".join(cell for _, cell in words) or "row", figures, (*unread, *lost))


def _of_columns(header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Published]:
    """Yield a configuration for each column; the first has the names of the figures. Columns of changes are left out."""
    names = [cells[0] for cells in body]
    figures = [figure_of(name) for name in names]
    unread = tuple(name for name, figure in zip(names, figures, strict=True) if figure is None)
    for position, label in enumerate(header[1:], 1):
        cells = [row[position] if position < len(row) else "" for row in body]
        if _CHANGE.search(label) or any(cell.startswith("+") for cell in cells):
            continue
        values, lost = _read(zip(names, figures, cells, strict=True))
        if values:
            yield Published(label or f"column {position}", values, (*unread, *lost))


def _plain(cell: str) -> str:
    """Return a cell without emphasis and marks of code; a star behind a number is a remark."""
    return re.sub(r"\*(\S[^*]*)\*", r"\1", re.sub(r"\*\*|__|`", "", cell)).strip()


def figure_of(header: str) -> str | None:
    """Return the gate name of a column's figure; None if there is none for it. A latency without a statistic is a mean."""
    for pattern, key in _OF_MEASURE:
        if pattern.search(header):
            quantile = _QUANTILE.search(header)
            if quantile:
                return f"p{quantile[1] or quantile[2]}({key})"
            if re.search(r"\bp\d|std|min|max|最", header, re.I):
                return None
            return f"p50({key})" if _MEDIAN.search(header) else f"mean({key})"
    return next((key or None for pattern, key in _OF_RATE if pattern.search(header)), None)


def _read(cells: Iterable[tuple[str, str | None, str]]) -> tuple[dict[str, float], list[str]]:
    """Return the numbers of the cells of a side by figure, and the cells without one. `cells`: header, figure, text."""
    values: dict[str, float] = {}
    lost: list[str] = []
    for header, figure, cell in cells:
        if figure is None or _EMPTY.fullmatch(cell):
            continue
        if (value := _value(header, figure, cell)) is None:
            lost.append(f"{header} ({cell})")
        else:
            values[figure] = value
    return values, lost


def _value(header: str, figure: str, cell: str) -> float | None:
    """Return the number of a cell; a latency in ms, from the unit of the cell or of the header."""
    match = _CELL.fullmatch(cell)
    if match is None:
        return None
    number = finite(match[1].replace(",", ""))
    if number is None or "(" not in figure:
        return number
    in_header = re.search(r"[(\[](ms|s|us|µs)[)\]]", header, re.I)
    unit = (match[2] or (in_header[1] if in_header else "ms")).lower()
    return number * _UNIT_MS[unit] if unit in _UNIT_MS else None
