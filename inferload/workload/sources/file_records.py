"""Records of large files, one after the other, each with its place: a file is gone through once and never held whole."""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from inferload.errors import UsageError

_BLOCK_BYTES = 4 << 20
_LONGEST_BYTES = 256 << 20  # a record that is longer than this is no conversation, but a file that is not what it seems
_BLANK = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as it stands in a file: where its bytes are, and what they say."""

    start: int
    size: int
    document: Any


# How the bytes of one record become its document.
Decode = Callable[[bytes], Any]


def decode_json(data: bytes) -> Any:
    """A JSON document; ValueError (UnicodeDecodeError where it is not UTF-8) says why it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return json.loads(data.decode())  # takes halves of surrogate pairs, and says where a fault is
        except RecursionError:
            raise ValueError("nested too deeply") from None


def json_array(path: Path) -> Iterator[Raw]:
    """The elements of a file that is one JSON array. UsageError, with the line, where it is none, or cut off."""
    with path.open("rb") as file:
        yield from _Elements(path, file)


class _Elements:
    """Reads on block by block. Text is looked at as Latin-1: a character is a byte, and JSON's own signs are ASCII."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._text, self._place = "", 0  # what is read and not passed yet, and how far we are in it
        self._before = 0  # bytes of the file in front of the text
        self._ended = False
        self._json = json.JSONDecoder()

    def __iter__(self) -> Iterator[Raw]:
        self._begin()
        if self._sign("a conversation or the array's end") == "]":
            self._place += 1
        else:
            while True:
                yield self._element()
                sign = self._sign("a comma or the array's end")
                self._place += 1
                if sign == "]":
                    break
                if sign != ",":
                    raise self._fault(self._place - 1, f"{sign!r} where a comma or the array's end was expected")
                self._sign("a conversation")
        if self._more_signs():
            raise self._fault(self._place, "something follows the array's end")

    def _begin(self) -> None:
        self._read_on()
        if self._text.startswith(codecs.BOM_UTF8.decode("latin-1")):
            self._place = 3
        if self._text.startswith(("\xff\xfe", "\xfe\xff")):
            raise self._fault(0, "not UTF-8; save the file as UTF-8")
        if not self._more_signs():
            raise UsageError(f"{self._path}: empty; a ShareGPT file is a JSON array of conversations")
        if self._text[self._place] != "[":
            raise self._fault(
                self._place, "not a JSON array, as a ShareGPT file is; for an object a line use kind jsonl"
            )
        self._place += 1

    def _element(self) -> Raw:
        while True:
            try:
                document, end = self._json.raw_decode(self._text, self._place)
                break
            except RecursionError:
                raise self._fault(self._place, "nested too deeply") from None
            except json.JSONDecodeError as error:  # of a record that goes on beyond the block, or of a fault
                if self._ended or len(self._text) - self._place > _LONGEST_BYTES:
                    cut = "the file ends within a conversation; is it whole? " if self._cut(error) else ""
                    raise self._fault(error.pos, f"{cut}{error.msg[:1].lower()}{error.msg[1:]}") from None
                self._read_on()
            except ValueError as error:  # a number of thousands of digits
                raise self._fault(self._place, str(error).partition(";")[0]) from None
        start, self._place = self._place, end
        text = self._text[start:end]
        if text.isascii():  # then it says what its bytes say
            return Raw(self._before + start, len(text), document)
        data = text.encode("latin-1")
        try:
            document = decode_json(data)
        except UnicodeDecodeError as error:
            raise self._fault(start + error.start, "not UTF-8; save the file as UTF-8") from None
        return Raw(self._before + start, len(data), document)

    def _cut(self, error: json.JSONDecodeError) -> bool:
        """Whether it is the end of the text that the decoder ran into."""
        at_end = error.msg.startswith("Unterminated") or error.pos >= len(self._text.rstrip())
        return self._ended and at_end

    def _sign(self, wanted: str) -> str:
        if not self._more_signs():
            raise self._fault(self._place, f"the file ends where {wanted} was expected; is it whole?")
        return self._text[self._place]

    def _more_signs(self) -> bool:
        """Pass blanks; whether something follows."""
        while True:
            found = _BLANK.match(self._text, self._place)
            self._place = self._place if found is None else found.end()
            if self._place < len(self._text):
                return True
            if self._ended:
                return False
            self._read_on()

    def _read_on(self) -> None:
        """Drop what is passed, and read as much again as there is left, at least a block."""
        self._before += self._place
        left = self._text[self._place :]
        block = self._file.read(max(_BLOCK_BYTES, len(left), 4))
        self._ended = not block
        self._text, self._place = left + block.decode("latin-1"), 0

    def _fault(self, place: int, why: str) -> UsageError:
        return UsageError(f"{self._path}:{line_of(self._path, self._before + place)}: {why}")


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(line number, start, bytes) of each line of a file, a byte-order mark left out; its line end is kept."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            mark = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
            yield number, start + mark, line[mark:]
            start += len(line)


def json_lines(path: Path) -> Iterator[Raw]:
    """The objects of a file of one JSON document a line; blank lines are passed. UsageError names the line that is none."""
    for number, start, line in lines(path):
        if not line.strip():
            continue
        try:
            document = decode_json(line)
        except UnicodeDecodeError:
            raise UsageError(f"{path}:{number}: not UTF-8; save the file as UTF-8") from None
        except ValueError as error:
            hint = "; a file that is one JSON array is of kind sharegpt" if line.lstrip().startswith(b"[") else ""
            raise UsageError(f"{path}:{number}: not JSON: {error}{hint}") from None
        if not isinstance(document, dict):
            raise UsageError(f"{path}:{number}: not a JSON object; each line is one, {{prompt: ...}} say")
        yield Raw(start, len(line), document)


csv.field_size_limit(_LONGEST_BYTES)  # its own limit is 128 kB, and prompts are longer


def table_columns(path: Path) -> Sequence[str]:
    """The names in a table's first line; UsageError where there is none."""
    names = next((_row(path, number, data) for number, _, data in _records(path)), [])
    if not any(name.strip() for name in names):
        raise UsageError(f"{path}: empty; a table has a header line with the column prompt")
    return [name.strip() for name in names]


def table(path: Path) -> Iterator[Raw]:
    """The rows of a table (CSV as RFC 4180 has it) as documents by column name; blank lines are passed."""
    names = table_columns(path)
    found = _records(path)
    next(found, None)
    for number, start, data in found:
        row = _row(path, number, data)
        if not row:
            continue
        if len(row) != len(names):
            raise UsageError(f"{path}:{number}: {len(row)} fields, the header has {len(names)}")
        yield Raw(start, len(data), dict(zip(names, row, strict=True)))


def decode_row(names: Sequence[str]) -> Decode:
    """How a row's bytes become its document."""
    return lambda data: dict(zip(names, next(csv.reader([data.decode()], strict=True)), strict=True))


def _records(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(first line, start, bytes) of each record: one line, or as many as an open quote joins."""
    kept: list[bytes] = []
    first, begun, quotes = 0, 0, 0
    for number, start, line in lines(path):
        if not kept:
            first, begun = number, start
        kept.append(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            yield first, begun, b"".join(kept)
            kept = []
    if kept:
        raise UsageError(f"{path}:{first}: the file ends within a quoted field that begins here; is it whole?")


def _row(path: Path, number: int, data: bytes) -> list[str]:
    try:
        return next(csv.reader([data.decode("utf-8-sig" if number == 1 else "utf-8")], strict=True), [])
    except UnicodeDecodeError:
        raise UsageError(f"{path}:{number}: not UTF-8; save the file as UTF-8") from None
    except csv.Error as error:
        raise UsageError(f"{path}:{number}: {error}; quote fields as spreadsheets do") from None


def line_of(path: Path, place: int) -> int:
    """The line that a byte of a file stands in, from 1."""
    line, left = 1, place
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
            line += block.count(b"\n")
            left -= len(block)
    return line
