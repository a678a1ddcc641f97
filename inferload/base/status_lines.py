"""Lines on a terminal: styles, status lines at its foot, and wrapped text."""

import math
import os
import re
import stat
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

if TYPE_CHECKING:
    import logging

Item = TypeVar("Item")
_QUIET_S, _REDRAWN_S = 1.0, 0.2  # before the first line of progress, and between two

# Parameters of the escape code of each style (ECMA-48, Select Graphic Rendition).
STYLES = {"good": "32", "bad": "1;31", "doubt": "1;33", "heading": "1", "figure": "36", "quiet": "2"}

# Parts of printed lines with a style: texts are made without styles, which are added where a text is written to a terminal.
_PARTS: Sequence[tuple[str, str]] = (
    # Outcome, gates, measurement and diagnosis of a run; marks of a figure.
    ("heading", r"^diagnosis(?=: |$)"),
    ("good", r"(?:^|(?<=\. ))passed(?=: )|^gate passed\b"),
    ("bad", r"(?:^|(?<=\. ))(?:(?:failed|invalid|overloaded)(?=: |  )|stopped early\b)"),
    ("bad", r"^gate FAILED\b|^FAILED(?=:)|^measurement INVALID\b|^INVALID\b|\(INVALID\)$"),
    ("doubt", r"(?:^|(?<=\. ))suspect(?=: )|^measurement SUSPECT\b|^SUSPECT\b"),
    ("doubt", r"\((?:SUSPECT|inconclusive)\b|(?<=\d )~(?=  |$)|^note(?=:|  )"),
    # Answers of a comparison and of a search, checks.
    ("good", r"(?<=  )better$|\bBETTER(?=, )|(?<=: )holds(?=;|$)|^  ok(?=  )|(?<=: )valid(?=, digest )"),
    ("bad", r"(?<=  )worse$|\b(?:WORSE|MIXED)(?=, )|^  fail(?=  )|(?<=: )(?:breaks|overloaded)(?=[;:]|$)"),
    ("doubt", r"^  warn(?=  )|(?<=: )undecided(?=[;:]|$)"),
    # Errors, warnings and notes.
    ("bad", r"^[\w. ]+: error(?=: )|(?<=/)(?:ERROR|CRITICAL)(?=/)"),
    ("doubt", r"^inferload(?=: )|(?<=/)WARNING(?=/)"),
)
_STYLED = re.compile("|".join(f"(?P<{style}{row}>{part})" for row, (style, part) in enumerate(_PARTS)), re.MULTILINE)

_NO = ("", "0")
_UP_AND_CLEAR = "\x1b[1A\x1b[2K"
_WIDE = re.compile(r"[\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]")


def has_colour(stream: TextIO) -> bool:
    """Return True if styles are shown on a stream: by the variables NO_COLOR, FORCE_COLOR and CLICOLOR, else on a terminal.

    Never in a file, whatever the variables are.
    """
    told = os.environ.get
    if told("NO_COLOR"):
        return False
    if told("FORCE_COLOR", "0") not in _NO or told("CLICOLOR_FORCE", "0") not in _NO:
        return not _is_file(stream)
    return stream.isatty() and told("TERM", "dumb") != "dumb" and told("CLICOLOR", "1") != "0"


def _is_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # a stream without a descriptor
        return True


def styled(text: str, style: str) -> str:
    """Return a text with the escape codes of a style."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def painted(text: str) -> str:
    """Return a printed text with the styles of its parts."""
    return _STYLED.sub(lambda part: styled(part[0], str(part.lastgroup).rstrip("0123456789")), text)


def plain_environment() -> dict[str, str]:
    """Return the environment of a program whose output is read here."""
    return {**os.environ, "NO_COLOR": "1"}


class Written:
    """Stream whose texts are changed before they are written."""

    def __init__(self, stream: TextIO, change: Callable[[str], str]) -> None:
        self._stream, self._change = stream, change

    def write(self, text: str) -> int:
        """Write the changed text."""
        self._stream.write(self._change(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def painting(stream: TextIO) -> TextIO:
    """Return the stream that adds the styles of texts, if styles are shown on this one."""
    return cast(TextIO, Written(stream, painted)) if has_colour(stream) and not isinstance(stream, Written) else stream


def print_error(text: str) -> None:
    """Print an error of a command to stderr."""
    name = "inferload:"
    print(styled(name, "bad") if has_colour(sys.stderr) else name, text, file=sys.stderr)


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
        self.colour = has_colour(stream)
        self.enabled = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._stream = stream
        self._height = 0
        self._handlers: list[logging.Handler] = []

    def watch(self, handlers: "Sequence[logging.Handler]") -> None:
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

    def _make_way(self, _record: "logging.LogRecord") -> bool:
        self.clear()
        return True


class Progress:
    """Progress of the work of a command: a line at the foot of a terminal once its outermost loop has taken a second."""

    def __init__(self) -> None:
        self.is_shown = False  # a run has status lines of its own
        self._status: StatusLines | None = None  # of the outermost loop

    def of(
        self, items: Iterable[Item], what: str, total: float | None, done: Callable[[Item], float] | None = None
    ) -> Iterator[Item]:
        """Yield the items of a loop, and show the share of `total`. `done`: of it after an item; 1 for each by default."""
        if not total:
            yield from items
            return
        with self.task(what) as at:
            for number, item in enumerate(items, 1):
                yield item
                at((number if done is None else done(item)) / total)

    @contextmanager
    def task(self, what: str) -> Iterator[Callable[[float], None]]:
        """Context of a work; its value is called with the share that is done, from 0 to 1. Within another, nothing is shown."""
        status = StatusLines(sys.stderr)
        if not self.is_shown or not status.enabled or self._status is not None:
            yield lambda _share: None
            return
        self._status, begun_s = status, _now_s()
        drawn_s = begun_s + _QUIET_S - _REDRAWN_S

        def at(share: float) -> None:
            nonlocal drawn_s
            if (now_s := _now_s()) - drawn_s > _REDRAWN_S:
                drawn_s = now_s
                status.draw([_progress_text(what, min(1.0, share), now_s - begun_s)])

        try:
            yield at
        finally:
            self._status = None
            status.clear()

    def clear(self) -> None:
        """Remove the lines, for a text that follows; the next share shows them again."""
        if self._status is not None:
            self._status.clear()


def _now_s() -> float:
    from inferload.base.clock import NS_PER_S, now_ns  # not of a help

    return now_ns() / NS_PER_S


def _progress_text(what: str, share: float, took_s: float) -> str:
    from inferload.base.numbers import clock  # not of a help

    left = f", about {clock(took_s * (1 - share) / share)} left" if share > 0 else ""
    return f"{what}: {math.floor(100 * share)} %{left}"


progress = Progress()  # of this process


def wrapped(text: str, cells: int, first: str = "", rest: str = "") -> list[str]:
    """Wrap a text to lines of at most `cells` characters, but for longer words. `first`, `rest`: indents of the lines.

    A text with wide characters, such as Chinese ones, has few blanks: it is left to the terminal, in one line.
    """
    if _WIDE.search(text):
        return [f"{first}{text}"]
    return textwrap.wrap(
        text, cells, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
