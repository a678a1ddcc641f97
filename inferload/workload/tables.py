"""Lines of text files, and tables: CSV by RFC 4180 with a header line."""

import codecs
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from inferload.workload.json_values import LONGEST_BYTES, Record, RecordFault

csv.field_size_limit(LONGEST_BYTES)  # the default is 128 kB, and prompts are longer


class TableFault(ValueError):
    """Text that is no row or header of a table."""


def lines(file: BinaryIO) -> Iterator[Record]:
    """Yield the lines of a file that are not blank, without a byte order mark."""
    return (line for line in _lines(file) if line.text and not line.text.isspace())


def _lines(file: BinaryIO) -> Iterator[Record]:
    offset = 0
    for number, raw in enumerate(file, 1):
        text = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        yield Record(number, offset + len(raw) - len(text), text)
        offset += len(raw)


def rows(file: BinaryIO) -> Iterator[Record]:
    """Yield the lines of a table that are not blank, its header first. A quoted field may go over several lines."""
    parts: list[Record] = []
    quoted = False
    for line in _lines(file):
        row = line
        if quoted or b'"' in line.text:
            parts.append(line)
            quoted ^= line.text.count(b'"') % 2 == 1
            if quoted:
                continue
            row = Record(parts[0].line, parts[0].offset, b"".join(part.text for part in parts))
            parts.clear()
        if row.text and not row.text.isspace():
            yield row
    if parts:
        raise RecordFault(parts[0].line, "the file ends within a quoted field that begins here; is it whole?")


def columns_of(header: bytes) -> list[str]:
    """Return the names in the header of a table. TableFault if one is there twice."""
    names = [name.strip() for name in _cells(header)]
    if twice := [name for name, count in Counter(filter(None, names)).items() if count > 1]:
        raise TableFault(f"column {twice[0]} is there twice; rename one of them")
    return names


def row_of(columns: Sequence[str], row: bytes) -> dict[str, str]:
    """Return the cells of a row by column. TableFault for one that is no CSV or has another number of cells."""
    cells = _cells(row)
    if len(cells) != len(columns):
        raise TableFault(f"{len(cells)} fields, the header has {len(columns)}")
    return dict(zip(columns, cells, strict=True))


def _cells(row: bytes) -> list[str]:
    text = row.decode().rstrip("\r\n")
    if '"' not in text and "\r" not in text:  # most rows
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise TableFault(f"not CSV: {error}; quote fields as spreadsheets do") from None
