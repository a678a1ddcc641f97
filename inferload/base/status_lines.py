"""Lines on a terminal: status lines at its foot, and wrapped text."""

import logging
import os
import re
import textwrap
from collections.abc import Sequence
from typing import TextIO

_UP_AND_CLEAR = "\x1b[1A\x1b[2K"

_FILLER = "\0"  # second cell of a wide character, such as a Chinese one
_WIDE = r"[\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]"
_CLOSING = "，。；：、\uff01\uff1f）》】」"  # never at the start of a line
_WIDE_CHARACTER = re.compile(_WIDE)
_PIECE = re.compile(rf"((?![{_CLOSING}（《【「]){_WIDE}{_FILLER}(?:[{_CLOSING}”\u2019]{_FILLER}?)*)")


def columns(stream: TextIO) -> int | None:
    """Return the number of characters that fit into a line of a terminal; None for a stream that is no terminal."""
    return StatusLines(stream).width() if stream.isatty() else None


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        return os.get_terminal_size(stream.fileno())
    except OSError:
        return 0, 0


class StatusLines:
    """Lines at the foot of a terminal that are overwritten in place. Log records are written above them.

    Nothing is written to a stream that is no terminal, nor after a write error (a closed terminal, a full buffer).
    """

    def __init__(self, stream: TextIO) -> None:
        self.enabled = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._stream = stream
        self._height = 0
        self._handlers: list[logging.Handler] = []

    def watch(self, handlers: Sequence[logging.Handler]) -> None:
        """Clear the lines before each log record of these handlers."""
        self._handlers = list(handlers)
        for handler in self._handlers:
            handler.addFilter(self._make_way)

    def draw(self, texts: Sequence[str], styled: bool = False) -> None:
        """Replace the lines by `texts`, each cut to the width of the terminal. `styled`: with escape codes, which fit it."""
        if not self.enabled:
            return
        width = None if styled else self.width()
        try:
            self._stream.write(_UP_AND_CLEAR * self._height + "".join(f"{text[:width]}\n" for text in texts))
            self._stream.flush()
        except OSError:
            self.enabled = False
        self._height = len(texts)

    def width(self) -> int:
        """Return the number of characters that fit into a line."""
        return (_size(self._stream)[0] or 80) - 1  # some terminals report 0

    def height(self) -> int:
        """Return the number of lines that fit above the cursor's."""
        return (_size(self._stream)[1] or 24) - 1

    def clear(self) -> None:
        self.draw([])

    def close(self) -> None:
        self.clear()
        for handler in self._handlers:
            handler.removeFilter(self._make_way)

    def _make_way(self, _record: logging.LogRecord) -> bool:
        self.clear()
        return True


class _Wrapper(textwrap.TextWrapper):
    def _split(self, text: str) -> list[str]:
        return [piece for word in super()._split(text) for piece in _PIECE.split(word) if piece]


def wrapped(text: str, cells: int, first: str = "", rest: str = "") -> list[str]:
    """Wrap a text to lines of at most `cells` terminal cells, but for longer words. `first`, `rest`: indents of the lines.

    A wide character takes two cells, and a line may end after it, but not begin with a closing mark.
    """
    wrapper = _Wrapper(
        cells, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    filled = _WIDE_CHARACTER.sub(rf"\g<0>{_FILLER}", text.replace(_FILLER, ""))
    return [line.replace(_FILLER, "") for line in wrapper.wrap(filled)]
