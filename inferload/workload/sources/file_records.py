"""Readers of large files, record by record with positions, in one pass and constant memory."""

import codecs
import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.workload.json_values import BLOCK_BYTES, LONGEST_BYTES, JsonFault, JsonValues, decode_json
from inferload.workload.packed_files import opened, unpack
from inferload.workload.sources.parsing import is_message


class Raw(Struct, frozen=True):
    """Record of a file: position and size of its bytes, and its decoded document."""

    start: int
    size: int
    document: Any


# Bytes of one record -> document.
Decode = Callable[[bytes], Any]


def descriptor(path: Path) -> int:
    """Return a descriptor of the content of a file for reads at any position: gzip is unpacked into a temporary file."""
    with opened(path, str(path)) as file:
        if isinstance(file, io.BufferedReader):
            return os.dup(file.fileno())
        with tempfile.TemporaryFile(prefix="inferload-data-") as unpacked:
            unpack(file, unpacked, str(path))
            return os.dup(unpacked.fileno())


def json_array(path: Path) -> Iterator[Raw]:
    """Yield the elements of a file that is one JSON array. UsageError, with the line, for a malformed or truncated file."""
    with opened(path, str(path)) as file:
        try:
            for record in JsonValues(file, "conversation", array=True):
                document = decode_json(record.text) if record.document is None else record.document
                yield Raw(record.offset, len(record.text), document)
        except JsonFault as fault:
            raise UsageError(f"{path}:{fault.line}: {fault}") from None
        except UnicodeDecodeError as error:
            line = record.line + record.text.count(b"\n", 0, error.start)
            raise UsageError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (line number, start, bytes) of each line of a file, with its newline and without a byte-order mark."""
    start = 0
    with opened(path, str(path)) as file:
        for number, line in enumerate(file, 1):
            mark = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
            yield number, start + mark, line[mark:]
            start += len(line)


def json_values(path: Path) -> Iterator[Raw]:
    """Yield the records of a file with one JSON value per line, or with one JSON array of them.

    A file of one line that is an array of messages is one record.
    """
    with opened(path, str(path)) as file:
        head = file.read(BLOCK_BYTES)
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if not text.startswith(b"["):
        return json_lines(path)
    first, _, rest = text.partition(b"\n")
    try:
        value = decode_json(first)
    except ValueError:  # it goes on in the next line
        return json_array(path)
    return json_lines(path) if rest.strip() or (value and all(map(is_message, value))) else json_array(path)


def json_lines(path: Path) -> Iterator[Raw]:
    """Yield the values of a JSON Lines file, without blank lines. UsageError names an invalid line."""
    for number, start, line in lines(path):
        if not line.strip():
            continue
        try:
            document = decode_json(line)
        except UnicodeDecodeError:
            raise UsageError(f"{path}:{number}: not UTF-8; save the file as UTF-8") from None
        except ValueError as error:
            raise UsageError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(document, dict | list | str):
            raise UsageError(f"{path}:{number}: not a JSON object; write one object per line, such as {{prompt: ...}}")
        yield Raw(start, len(line), document)


csv.field_size_limit(LONGEST_BYTES)  # the default is 128 kB, and prompts are longer


def table_columns(path: Path) -> Sequence[str]:
    """Return the names in the header line of a table. UsageError for an empty table."""
    names = next((_row(path, number, data) for number, _, data in _records(path)), [])
    if not any(name.strip() for name in names):
        raise UsageError(f"{path}: empty; a table has a header line with the column prompt")
    return [name.strip() for name in names]


def table(path: Path) -> Iterator[Raw]:
    """Yield the rows of a table (CSV by RFC 4180) as documents by column name, without blank lines."""
    names = table_columns(path)
    records = _records(path)
    next(records, None)
    for number, start, data in records:
        row = _row(path, number, data)
        if not row:
            continue
        if len(row) != len(names):
            raise UsageError(f"{path}:{number}: {len(row)} fields, the header has {len(names)}")
        yield Raw(start, len(data), dict(zip(names, row, strict=True)))


def decode_row(names: Sequence[str]) -> Decode:
    """Return the decoder of rows with these columns."""
    return lambda data: dict(zip(names, next(csv.reader([data.decode()], strict=True)), strict=True))


def _records(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (first line, start, bytes) of each record: one line, or several with a quoted field over them."""
    parts: list[bytes] = []
    first, record_start, quotes = 0, 0, 0
    for number, start, line in lines(path):
        if not parts:
            first, record_start = number, start
        parts.append(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            yield first, record_start, b"".join(parts)
            parts = []
    if parts:
        raise UsageError(f"{path}:{first}: the file ends within a quoted field that begins here; is it whole?")


def _row(path: Path, number: int, data: bytes) -> list[str]:
    try:
        return next(csv.reader([data.decode("utf-8-sig" if number == 1 else "utf-8")], strict=True), [])
    except UnicodeDecodeError:
        raise UsageError(f"{path}:{number}: not UTF-8; save the file as UTF-8") from None
    except csv.Error as error:
        raise UsageError(f"{path}:{number}: {error}; quote fields as spreadsheets do") from None


def line_of(path: Path, position: int) -> int:
    """Return the number of the line, from 1, that contains a byte of a file."""
    line, left = 1, position
    with opened(path, str(path)) as file:
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            line += block.count(b"\n")
            left -= len(block)
    return line
