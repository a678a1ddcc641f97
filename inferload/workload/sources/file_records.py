"""Readers of large files, record by record with positions, in one pass and constant memory."""

import codecs
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.workload.json_values import BLOCK_BYTES, JsonValues, Record, RecordFault, decode_json
from inferload.workload.packed_files import opened, unpack
from inferload.workload.sources.parsing import is_message
from inferload.workload.tables import TableFault, columns_of, lines, row_of, rows


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
    for record, document in _decoded(
        path, lambda file: iter(JsonValues(file, "conversation", array=True)), decode_json
    ):
        yield Raw(record.offset, len(record.text), document)


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
    for line, document in _decoded(path, lines, decode_json):
        if not isinstance(document, dict | list | str):
            raise UsageError(
                f"{path}:{line.line}: not a JSON object; write one object per line, such as {{prompt: ...}}"
            )
        yield Raw(line.offset, len(line.text), document)


def table_columns(path: Path) -> Sequence[str]:
    """Return the names in the header line of a table. UsageError for an empty table."""
    names: Sequence[str] = next((columns for _header, columns in _decoded(path, rows, columns_of)), ())
    if not any(names):
        raise UsageError(f"{path}: empty; a table has a header line with the column prompt")
    return names


def table(path: Path) -> Iterator[Raw]:
    """Yield the rows of a table (CSV by RFC 4180) as documents by column name, without blank lines."""
    of_row = partial(row_of, table_columns(path))
    for row, document in _decoded(path, lambda file: islice(rows(file), 1, None), of_row):
        yield Raw(row.offset, len(row.text), document)


def _decoded(path: Path, read: Callable[[BinaryIO], Iterator[Record]], decode: Decode) -> Iterator[tuple[Record, Any]]:
    """Yield the records of a file and their documents. UsageError names the line of an invalid one."""
    record = Record(1, 0, b"")
    with opened(path, str(path)) as file:
        try:
            for record in read(file):
                yield record, decode(record.text) if record.document is None else record.document
        except UnicodeDecodeError as error:
            line = record.line + record.text.count(b"\n", 0, error.start)
            raise UsageError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
        except RecordFault as fault:
            raise UsageError(f"{path}:{fault.line}: {fault}") from None
        except ValueError as error:
            kind = "" if isinstance(error, TableFault) else "not JSON: "
            raise UsageError(f"{path}:{record.line}: {kind}{error}") from None


def line_of(path: Path, position: int) -> int:
    """Return the number of the line, from 1, that contains a byte of a file."""
    line, left = 1, position
    with opened(path, str(path)) as file:
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            line += block.count(b"\n")
            left -= len(block)
    return line
