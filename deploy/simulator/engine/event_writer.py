"""Queue of streams with equal gaps whose next events are plain: one word in a fixed frame."""

from collections import deque

from inferload.measure import clock

from ..metrics.lateness import Lateness
from .stream import Stream


class Ring:
    """Streams in order of due times. All gaps are equal, so a stream moves to the end of the queue after each event.

    Appends the gap before each event to `gaps_ns`, and the event's lateness to `lateness`.
    """

    def __init__(self, gap_ns: int, lateness: Lateness, gaps_ns: list[int]) -> None:
        self._gap_ns, self._lateness, self._gaps_ns = gap_ns, lateness, gaps_ns
        self._queue: deque[tuple[int, Stream]] = deque()

    def append(self, stream: Stream) -> None:
        """Append a stream. Its due time must not be before that of the last stream."""
        self._queue.append((stream.due_ns, stream))

    def head_ns(self) -> int | None:
        """Due time of the first stream; None if the ring is empty."""
        return self._queue[0][0] if self._queue else None

    def last_ns(self) -> int | None:
        """Due time of the last stream; None if the ring is empty."""
        return self._queue[-1][0] if self._queue else None

    def write(self, now_ns: int, until_ns: int, other_ns: int) -> tuple[int, Stream | None, int, bool]:
        """Write events due now and not after `other_ns`, until `until_ns` or until a stream has no plain event left.

        Return the time at the end, that stream (removed from the ring), the number of events written, and True if they
        include an event of that stream. Drop streams whose due time has changed since they were appended.
        """
        queue, gap_ns, lateness, gaps_ns, events = self._queue, self._gap_ns, self._lateness, self._gaps_ns, 0
        while queue and now_ns < until_ns:
            due_ns, stream = queue[0]
            if due_ns > now_ns or due_ns > other_ns:
                break
            queue.popleft()
            if due_ns != stream.due_ns:
                continue
            if not stream.plain_left:
                return now_ns, stream, events, False
            gaps_ns.append(now_ns - stream.last_ns)
            stream.last_ns = now_ns
            taken = stream.write_plain()
            now_ns = clock.now_ns()
            lateness.book(now_ns - due_ns, taken)
            events += 1
            stream.due_ns = due_ns + gap_ns
            if not stream.plain_left:
                return now_ns, stream, events, True
            queue.append((stream.due_ns, stream))
        return now_ns, None, events, False
