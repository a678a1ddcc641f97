"""Values of a JSON file with their positions, in one pass and constant memory."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

BLOCK_BYTES = 4 << 20
LONGEST_BYTES = 256 << 20  # of a value; a longer one means that the file has another format
_BLANK = re.compile(r"[ \t\r\n]*")


class RecordFault(ValueError):
    """Invalid JSON in a line of a file."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


class Record(msgspec.Struct, frozen=True, gc=False):
    """Value of a file. `line`: of its start. `offset`: from the file's start. `document`: decoded, if its text is ASCII."""

    line: int
    offset: int
    text: bytes
    document: Any = None


def decode_json(text: bytes) -> Any:
    """Decode a JSON document. ValueError for invalid JSON, UnicodeDecodeError for text that is not UTF-8."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return json.loads(text.decode())  # accepts halves of surrogate pairs, and reports error positions
        except RecursionError:
            raise ValueError("nested too deeply") from None


class JsonValues:
    """Reader of a file, block by block: the elements of arrays at its top level, and other values.

    `what`: an element, in messages. `array`: the file must be one array. The bytes are scanned as Latin-1, because the syntax of
    JSON is ASCII. RecordFault for a malformed or truncated file.
    """

    def __init__(self, file: BinaryIO, what: str, *, array: bool = False) -> None:
        self._file, self._what, self._array = file, what, array
        self._text, self._position = "", 0  # read text, and the position in it
        self._before = 0  # bytes of the file before the text
        self._line, self._counted = 1, 0  # line of a position in the text
        self._ended = False
        self._json = json.JSONDecoder()

    def __iter__(self) -> Iterator[Record]:
        self._read_on()
        if self._text.startswith(("\xff\xfe", "\xfe\xff")):
            raise self._fault(0, "not UTF-8; save the file as UTF-8")
        if self._text.startswith(codecs.BOM_UTF8.decode("latin-1")):
            self._position = 3
        if self._array and self._next_character(f"an array of {self._what}s") != "[":
            raise self._fault(
                self._position, f"not a JSON array of {self._what}s; for one object per line use kind jsonl"
            )
        while self._skip_blanks():
            if self._text[self._position] != "[":
                yield self._value()
                continue
            yield from self._elements()
            if self._array and self._skip_blanks():
                raise self._fault(self._position, "unexpected text after the array's end")

    def _elements(self) -> Iterator[Record]:
        self._position += 1
        if self._next_character(f"a {self._what} or the array's end") == "]":
            self._position += 1
            return
        while True:
            yield self._value()
            character = self._next_character("a comma or the array's end")
            self._position += 1
            if character == "]":
                return
            if character != ",":
                raise self._fault(self._position - 1, f"{character!r} where a comma or the array's end was expected")
            self._next_character(f"a {self._what}")

    def _value(self) -> Record:
        while True:
            try:
                document, end = self._json.raw_decode(self._text, self._position)
            except RecursionError:
                raise self._fault(self._position, "nested too deeply") from None
            except json.JSONDecodeError as error:  # a value that continues beyond the block, or invalid JSON
                if self._ended or len(self._text) - self._position > LONGEST_BYTES:
                    cut = f"the file ends within a {self._what}; is it whole? " if self._cut(error) else ""
                    raise self._fault(error.pos, f"{cut}{error.msg[:1].lower()}{error.msg[1:]}") from None
            except ValueError as error:  # a number of thousands of digits
                raise self._fault(self._position, str(error).partition(";")[0]) from None
            else:
                if end < len(self._text) or self._ended:  # a number may go on in the next block
                    break
            self._read_on()
        start, self._position = self._position, end
        text = self._text[start:end]
        document = document if text.isascii() else None  # ASCII is equal in Latin-1 and UTF-8
        return Record(self._line_at(start), self._before + start, text.encode("latin-1"), document)

    def _cut(self, error: json.JSONDecodeError) -> bool:
        """Return whether the error is at the end of the file."""
        at_end = error.msg.startswith("Unterminated") or error.pos >= len(self._text.rstrip())
        return self._ended and at_end

    def _next_character(self, expected: str) -> str:
        if not self._skip_blanks():
            raise self._fault(self._position, f"the file ends where {expected} was expected; is it whole?")
        return self._text[self._position]

    def _skip_blanks(self) -> bool:
        """Skip blanks. Return whether a character follows."""
        while True:
            blanks = _BLANK.match(self._text, self._position)
            self._position = self._position if blanks is None else blanks.end()
            if self._position < len(self._text):
                return True
            if self._ended:
                return False
            self._read_on()

    def _read_on(self) -> None:
        """Drop the text before the position, and read as much as is left, at least a block."""
        self._line_at(self._position)
        self._before += self._position
        left = self._text[self._position :]
        block = self._file.read(max(BLOCK_BYTES, len(left), 4))
        self._ended = not block
        self._text, self._position, self._counted = left + block.decode("latin-1"), 0, 0

    def _line_at(self, position: int) -> int:
        """Return the line of a position, which is not before the one of the call before."""
        self._line += self._text.count("\n", self._counted, position)
        self._counted = position
        return self._line

    def _fault(self, position: int, problem: str) -> RecordFault:
        return RecordFault(self._line_at(position), problem)
