"""Plain events on their way out: one word each, written when it is due, with as little around the kernel's call as can be.

A `Line` says what one stream writes next; `left` of its events may go out without anything else being looked at. A `Ring`
is a queue of lines in order of due times whose events follow each other at one gap; `write_batch` writes what a step put
out, one line after another. Both stop at a line that has more to it, and hand it back.

The extension `_native` does the same in C: at 100,000 events a second a core has 10 microseconds for each, and the kernel
takes most of them. These are for where it was not built, for TLS, and to say what it does.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, cast

from inferload.measure import clock

from .text import SPACED

NEVER_NS = 1 << 62
_SPINS = 4  # waits without sleep: so many long a ring may take before it lets others have a look instead of waiting
FINE, BLOCKED, LOST = range(
    3
)  # trouble of a line: the kernel took all of the latest event, or a part, or the connection is gone
PLAIN, ASKS, TROUBLE = range(
    3
)  # why a batch stopped: it did not, its next line is not for it, its last line has trouble


class Owner(Protocol):
    """Whose events they are."""

    def write_plain(self, index: int) -> bool:
        """Write the event of one token; False: the kernel did not take all of it, and the rest is kept."""


class Samples(Protocol):
    """Numbers that were not sorted into buckets yet."""

    def append(self, number: int, /) -> None:
        """Put one behind all others."""

    def clear(self) -> None:
        """None is left."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...


class Line:
    """`index` tokens were written in `events` events, `pending` are due (of a step), `last_ns` is when the latest was.

    `left` events may go out before the line is looked at, and `more` behind them, a block at a time, where there are blocks.
    """

    __slots__ = ("due_ns", "events", "index", "last_ns", "left", "more", "owner", "pending", "trouble")

    def __init__(self, owner: Owner) -> None:
        self.owner: Owner | None = owner
        self.trouble = FINE
        self.index = self.pending = self.left = self.more = self.due_ns = self.last_ns = self.events = 0

    def arm(self, _fd: int, _before: bytes, _after: bytes, _word: int, _stride: int, left: int) -> None:
        """Let so many events go out by themselves: `before`, word (word + index * stride) of the vocabulary, `after`."""
        self.left = left

    def rest(self) -> bytes:
        """What the kernel did not take of the latest event, and nobody has kept."""
        return b""

    def release(self) -> None:
        """Its stream is over."""
        self.owner = None

    def write_next(self) -> None:
        """Write the event of token `index`; `trouble` says how it went."""
        assert self.owner is not None
        self.trouble = FINE if self.owner.write_plain(self.index) else BLOCKED
        self.index += 1
        self.events += 1
        self.left -= 1


class Books(NamedTuple):
    """What a ring tells of its events: write time less due time, time since the one before it; and which lines went on behind
    the end of a block.
    """

    late: Samples
    gaps: Samples
    full: list[Line]


class Ring:
    """Events of a line follow each other at `gap_ns`; a block is so many tokens. Waits up to `spin_ns` are spent awake."""

    def __init__(self, gap_ns: int, block: int, spin_ns: int, books: Books) -> None:
        self._gap_ns, self._block = gap_ns, block
        self._late, self._gaps, self._full = books
        self._spin_ns = spin_ns
        self.spun_ns = 0
        self._lines: deque[tuple[int, Line]] = deque()

    def append(self, line: Line) -> None:
        """Put a line behind all others; its due time is not before theirs."""
        self._lines.append((line.due_ns, line))

    def head_ns(self) -> int | None:
        """When the first is due; None where there is none."""
        return self._lines[0][0] if self._lines else None

    def last_ns(self) -> int | None:
        """When the last is due; None where there is none."""
        return self._lines[-1][0] if self._lines else None

    def write(self, now_ns: int, until_ns: int, other_ns: int, spare: int) -> tuple[int, Line | None, int, int]:
        """Write what is due now and not behind `other_ns`. A line may go on behind the end of a block, `spare` times in all.

        The time when it ended; a line to be looked at, which is no longer in the ring; how many events were written, and whether
        that line's own was. A line whose due time is no longer what it was is dropped.
        """
        lines, gap_ns, events, begun_ns = self._lines, self._gap_ns, 0, now_ns
        while lines and now_ns < until_ns:
            due_ns, line = lines[0]
            if due_ns > other_ns or due_ns >= until_ns:
                break
            if due_ns > now_ns and (due_ns > now_ns + self._spin_ns or now_ns > begun_ns + _SPINS * self._spin_ns):
                break
            since_ns = now_ns
            while now_ns < due_ns:
                now_ns = clock.now_ns()
            self.spun_ns += now_ns - since_ns
            lines.popleft()
            if due_ns != line.due_ns:
                continue
            if line.left <= 0:
                return now_ns, line, events, 0
            self._gaps.append(now_ns - line.last_ns)
            line.last_ns = now_ns
            line.write_next()
            events += 1
            now_ns = clock.now_ns()
            line.due_ns = due_ns + gap_ns
            if not line.trouble:
                self._late.append(now_ns - due_ns)
            if not line.left and not line.trouble and line.more > 0 and len(self._full) < spare:
                line.left = min(line.more, self._block)
                line.more -= line.left
                self._full.append(line)
            if line.trouble or not line.left:
                return now_ns, line, events, 1
            lines.append((line.due_ns, line))
        return now_ns, None, events, 0


def write_batch(  # noqa: PLR0917 - called a thousand times a second, and in C it has no names for them
    lines: list[Line], place: int, due_ns: int, event_ns: int, horizon_ns: int, until_ns: int, late: Samples
) -> tuple[int, int, int, int]:
    """Write lines from `place` on, one every event_ns, as far as they are due; (now, place, due of the latest, why it stopped)."""
    now_ns, end = horizon_ns, len(lines)
    while place < end and due_ns + event_ns <= horizon_ns and now_ns < until_ns:
        line = lines[place]
        if line.pending != 1 or line.left <= 0:
            return now_ns, place, due_ns, ASKS
        due_ns += event_ns
        place += 1
        line.pending = 0
        line.write_next()
        now_ns = clock.now_ns()
        if line.trouble:
            return now_ns, place, due_ns, TROUBLE
        late.append(now_ns - due_ns)
    return now_ns, place, due_ns, PLAIN


def _compiled() -> bool:
    if os.environ.get("INFERLOAD_WRITER") == "python":
        return False
    try:
        from . import _native
    except ImportError:  # no compiler, no headers, or not Linux
        return False
    if not hasattr(_native, "Samples"):  # it was built from older sources
        return False
    _native.use_words(SPACED)
    return True


COMPILED = _compiled()


BatchWriter = Callable[[list[Line], int, int, int, int, int, Samples], tuple[int, int, int, int]]


def batch_writer() -> BatchWriter:
    """`write_batch` for such lines as `new_line` makes."""
    if not COMPILED:
        return write_batch
    from ._native import write_batch as compiled

    return cast(BatchWriter, compiled)


def new_samples() -> Samples:
    """Samples of whichever kind there is."""
    if not COMPILED:
        return []
    from ._native import Samples as Compiled

    return Compiled()


def new_line(owner: Owner) -> Line:
    """A line of whichever kind there is."""
    if not COMPILED:
        return Line(owner)
    from ._native import Line as Compiled

    return cast(Line, Compiled(owner))


def new_ring(gap_ns: int, block: int, spin_ns: int, books: Books) -> Ring:
    """A ring for such lines, and for `new_samples`."""
    if not COMPILED:
        return Ring(gap_ns, block, spin_ns, books)
    from ._native import Ring as Compiled

    return cast(Ring, Compiled(gap_ns, block, spin_ns, books))
