"""Reader of published tables: Markdown, CSV, and printed columns with bars between them, framed or not.

A row is a configuration and a column a figure, or the other way round: then the first column names the figures. Columns may also
be the statistics of the measures that the first one names.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import isclose

from . import headings, units
from .headings import Heading
from .published import VRAM, Published, number

_RULE = re.compile(r"\s*:?-{2,}:?\s*")
_DRAWN = "│┃║"
_NORMAL = str.maketrans("│┃║\uff08\uff09\u3010\u3011", "|||()[]")
_FRAME = re.compile(r"[\s|:+=\-\u2500-\u257f]*[+=\-\u2500-\u257f]{2,}[\s|:+=\-\u2500-\u257f]*")
# A number, with a comma before each group of three digits or none, and its unit. Behind them a remark: in brackets, an arrow, or
# what follows "±".
_CELL = re.compile(
    r"[~≈]?\s*([+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ%][A-Za-zµμ/%]*)?"
    r"\s*(?:\([^()]*\)|\[[^\[\]]*\]|[↑↓▲▼*†]+|±.*)?",
    re.I,
)
_EMPTY = re.compile(r"[-\u2013\u2014/\s]*|n/?a|nan|none|null", re.I)  # of a figure that the source does not have
_CHANGE = re.compile(
    r"\b(?:change|diff(?:erence)?|delta|gain|improvement|speed-?up)\b|提升|变化|差值|差异|降低|[Δ%]", re.I
)
_ROUNDED = 0.01  # difference of two numbers of one figure, in two units or with different digits
_UNIT = re.compile(r"units?|单位", re.I)
# Headings of what is known of a setup beside its figures.
_FACTS = {
    "gpus": re.compile(
        r"tp(?:[ _-]?size)?|tensor[ _-]parallel(?:ism|[ _-]size)?|(?:number of |# ?)?gpus?|gpu ?(?:count|数量?)|卡数",
        re.I,
    ),
    "concurrency": re.compile(
        r"(?:max(?:imum)?[ _])?(?:request )?concurrency(?: limit)?|concurrent (?:users|requests)|并发(?:数|度|用户数?)?",
        re.I,
    ),
    VRAM: re.compile(
        r"(?:peak |max(?:imum)? |峰值 ?)?(?:vram|gpu mem(?:ory)?|显存)(?: ?(?:usage|used?|占用))?"
        r"(?: ?[(\[](?P<unit>[^)\]]*)[)\]])?",
        re.I,
    ),
}
_MEMORY = re.compile(
    r"(?P<size>\d+(?:\.\d+)?) ?(?P<unit>[mgt]i?b?)?(?P<each> ?(?:/|per|每) ?(?:gpu|card|device|张?卡))?"
    r"(?: ?[x*\u00d7] ?(?P<times>\d+))?",
    re.I,
)
_MIB = {"m": 1e6 / 2**20, "g": 1e9 / 2**20, "t": 1e12 / 2**20, "mi": 1.0, "gi": 2.0**10, "ti": 2.0**20}


def rows(text: str) -> list[Published]:
    """Return the configurations of a text's tables, in order; of one without any figure none. CSV is read if no line has bars."""
    tables = [list(_sides(table)) for table in grids(text) if len(table) > 1]
    return [side for table in tables if any(side.figures for side in table) for side in table]


def refused(text: str) -> list[str]:
    """Return the headings of a text's tables that name a measure and are not read, in order."""
    cells = [
        _plain(cell) for table in grids(text) for row in (table[0], *(row[:1] for row in table[1:])) for cell in row
    ]
    return [cell for cell in dict.fromkeys(cells) if headings.names_a_measure(cell) and headings.of(cell) is None]


def grids(text: str) -> list[list[list[str]]]:
    """Return the cells of each table of a text; tables in CSV are separated by empty lines. ValueError for a malformed CSV."""
    lines = text.lstrip("\ufeff").translate(_NORMAL).splitlines()
    tables = list(_barred(lines))
    if any(bar in text for bar in _DRAWN):
        tables = [_joined(table) for table in tables]
    try:
        return tables or [list(rows) for filled, rows in groupby(csv.reader(lines), bool) if filled]
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from error


def _barred(lines: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the cells of each table: consecutive lines with bars, and rules between them. A title with a bar is none of them."""
    table: list[list[str]] = []
    framed = False
    for line in (*lines, ""):
        if _FRAME.fullmatch(line):
            continue
        cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip())]
        starts_with_bar = line.lstrip().startswith("|")
        if table and (len(cells) == 1 or starts_with_bar != framed):
            yield table
            table = []
        if len(cells) > 1:
            framed = starts_with_bar
            inner = cells[1:] if framed else cells
            row = inner[:-1] if not inner[-1] else inner
            table.append(row[: len(table[0])] if table else row)


def _joined(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows of a drawn table, whose names are wrapped: a line with a first cell only continues the row above."""
    joined: list[list[str]] = []
    for row in table:
        if len(joined) > 1 and len(row) > 1 and row[0] and not any(row[1:]):
            joined[-1][0] = f"{joined[-1][0]} {row[0]}"
        else:
            joined.append(list(row))
    return joined


def _sides(table: Sequence[Sequence[str]]) -> Iterator[Published]:
    lines = [[_plain(cell) for cell in row] for row in table if not all(map(_RULE.fullmatch, row))]
    if len(lines) < 2 or (not _units(lines[0]) and _is_heading(lines[1])):
        return  # a heading of several lines: its units and statistics are not in the first
    header, *body = lines
    statistics = [headings.statistic_of(name) for name in header[1:] if not _UNIT.fullmatch(name)]
    if any(map(headings.of, header)):
        yield from _of_rows(header, body)
    elif any(statistics) and None not in statistics:
        yield from _of_statistics(header, body)
    else:
        yield from _of_columns(header, body)


def _is_heading(row: Sequence[str]) -> bool:
    """Return True for a second line of a heading: units or statistics, and no number."""
    found = [cell for cell in row[1:] if cell and (units.is_unit(cell) or headings.statistic_of(cell) is not None)]
    return bool(found) and not any(_CELL.fullmatch(cell) for cell in row[1:])


def _of_rows(header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Published]:
    """Yield a configuration for each row, labelled by its first two other texts. A column of units is of the column before it."""
    of_units = [at for at, name in enumerate(header) if at and _UNIT.fullmatch(name) and headings.of(header[at - 1])]
    for cells in body:
        _aligned(header, cells)
        names = list(header)
        for at in of_units:
            names[at - 1] = _with_unit(header[at - 1], _cell(cells, at))
        named = [(name, headings.of(name), cell) for name, cell in zip(names, cells, strict=False)]
        figures, lost = _read(named)
        texts = [(name, cell) for name, column, cell in named if column is None and cell and not _CELL.fullmatch(cell)]
        others = [name for name in names if headings.names_a_measure(name) or _UNIT.fullmatch(name) or _fact(name)]
        words = [(name, cell) for name, cell in texts[:2] if name not in others]
        facts = _facts(zip(names, cells, strict=False))
        used = {*dict(words), *_units(header), *(name for name in names if _fact(name) in facts)}
        unread = [name for name in names if headings.of(name) is None and name not in used]
        if figures or any(map(_has_number, lost)):
            yield Published(" ".join(cell for _, cell in words) or "row", figures, (*unread, *lost), facts)


def _fact(name: str) -> str:
    """Return the key of `_FACTS` of a heading; empty if it is none."""
    return next((key for key, pattern in _FACTS.items() if pattern.fullmatch(name)), "")


def _facts(cells: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return what is known of a setup by the keys of `_FACTS`, memory over all GPUs. `cells`: heading, text."""
    known = [(key, name, cell) for name, cell in cells if (key := _fact(name))]
    facts = {key: float(cell) for key, _, cell in known if key != VRAM and re.fullmatch(r"[1-9]\d{0,5}", cell)}
    for key, name, cell in known:
        if key == VRAM and (size_mib := _memory_mib(name, cell, facts.get("gpus"))) is not None:
            facts[key] = size_mib
    return facts


def _memory_mib(name: str, cell: str, gpus: float | None) -> float | None:
    """Return a memory over all GPUs; None without a unit, or of each GPU without their number."""
    heading, match = _FACTS[VRAM].fullmatch(name), _MEMORY.fullmatch(cell)
    of_heading = _MEMORY.fullmatch(f"1 {(heading and heading['unit']) or ''}".strip())
    if match is None or of_heading is None:
        return None
    factor = _MIB.get((match["unit"] or of_heading["unit"] or "").lower().removesuffix("b"))
    times = float(match["times"]) if match["times"] else gpus if match["each"] or of_heading["each"] else 1.0
    return None if factor is None or times is None else float(match["size"]) * factor * times


def _aligned(header: Sequence[str], cells: Sequence[str]) -> None:
    """Raise ValueError for a row of numbers with more cells than the heading: `1,234` without quotes is two cells in CSV."""
    if len(cells) > len(header) and any(_CELL.fullmatch(cell) for cell in cells[1:]):
        raise ValueError(
            f"the row {' | '.join(cells[:4])} has {len(cells)} cells below {len(header)} headings; quote a number with commas"
        )


def _units(header: Sequence[str]) -> list[str]:
    return [name for name in header if _UNIT.fullmatch(name)]


def _with_unit(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit and not _EMPTY.fullmatch(unit) else name


def _named_rows(header: Sequence[str], body: Sequence[Sequence[str]]) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the rows, with the unit of a column of units, and those without a figure."""
    of_units = [at for at, name in enumerate(header) if at and _UNIT.fullmatch(name)]
    for row in body:
        _aligned(header, row)
    names = [_with_unit(row[0], " ".join(_cell(row, at) for at in of_units)) for row in body]
    return names, tuple(name for name in names if headings.of(name) is None)


def _of_statistics(header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Published]:
    """Yield one configuration: a row for each measure, and a column for each of its statistics."""
    names, unread = _named_rows(header, body)
    cells: list[tuple[str, Heading | None, str]] = []
    for position, label in enumerate(header[1:], 1):
        if not (statistic := headings.statistic_of(label)):
            continue
        for name, row in zip(names, body, strict=True):
            heading = headings.of(name)
            if heading is None or (statistic != headings.MEAN and heading.measure not in units.LATENCIES):
                continue  # a percentile of a rate is not the rate
            same = heading.statistic in (headings.MEAN, statistic)
            cells.append(
                (f"{name} {label}", replace(heading, statistic=statistic) if same else None, _cell(row, position))
            )
    figures, lost = _read(cells)
    if figures:
        yield Published("", figures, (*unread, *lost))


def _of_columns(header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Published]:
    """Yield a configuration for each column; the first has the names of the figures. Columns of changes are left out."""
    names, unread = _named_rows(header, body)
    for position, label in enumerate(header[1:], 1):
        cells = [_cell(row, position) for row in body]
        if _UNIT.fullmatch(label) or _CHANGE.search(label) or any(cell.startswith("+") for cell in cells):
            continue
        values, lost = _read(zip(names, map(headings.of, names), cells, strict=True))
        facts = _facts(zip(names, cells, strict=True))
        if values or any(map(_has_number, lost)):
            others = (name for name in unread if _fact(name) not in facts)
            yield Published(label or f"column {position}", values, (*others, *lost), facts)


def _has_number(text: str) -> bool:
    return re.search(r"\(.*\d.*\)$", text) is not None


def _cell(row: Sequence[str], position: int) -> str:
    return row[position] if position < len(row) else ""


def _plain(cell: str) -> str:
    """Return a cell without emphasis and marks of code; a star behind a number is a remark."""
    return re.sub(r"\*(\S[^*]*)\*", r"\1", re.sub(r"\*\*|__|`", "", cell)).strip()


def _read(cells: Iterable[tuple[str, Heading | None, str]]) -> tuple[dict[str, float], list[str]]:
    """Return the numbers of the cells of a side by figure, and the cells without one. `cells`: name, its figure, text.

    Of two cells with different numbers for one figure neither is read.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    lost: list[str] = []
    for name, heading, cell in cells:
        if heading is None or _EMPTY.fullmatch(cell):
            continue
        if (value := _value(heading, cell)) is None:
            lost.append(f"{name} ({cell})")
        else:
            found.setdefault(heading.figure, []).append((value, f"{name} ({cell})"))
    values = {
        figure: each[0][0]
        for figure, each in found.items()
        if all(isclose(value, each[0][0], rel_tol=_ROUNDED) for value, _ in each)
    }
    return values, [*lost, *(text for figure, each in found.items() if figure not in values for _, text in each)]


def _value(heading: Heading, cell: str) -> float | None:
    """Return the number of a cell in the unit of its measure; a latency without a unit is in ms."""
    match = _CELL.fullmatch(cell)
    if match is None or (value := number(match[1].removeprefix("+"))) is None:
        return None
    factor = 1.0 if heading.factor is None else heading.factor
    in_cell = factor if match[2] is None else units.factor(heading.measure, match[2])
    return None if in_cell is None else value * in_cell
