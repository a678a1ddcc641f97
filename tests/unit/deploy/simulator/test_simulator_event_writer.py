"""Writing of plain events: order, due times and blocked clients, in paced timing and in the step model."""

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from inferload.deploy.simulator.core.step_time import FrontEnd
from inferload.deploy.simulator.engine.engine import NEVER_NS
from inferload.deploy.simulator.engine.event_writer import Ring
from inferload.deploy.simulator.engine.stepped_engine import SteppedEngine, _OutputBatch
from inferload.deploy.simulator.engine.stream import Stream
from inferload.deploy.simulator.metrics.engine_metrics import Metrics
from inferload.deploy.simulator.metrics.lateness import Lateness

from inferload.measure import clock

LATER_NS = 1_000_000_000
TOKENS = 2_000_000
GAP_NS = 1000


class Pair:
    """A stream to one end of a socket pair."""

    def __init__(self) -> None:
        self.there, self.here = socket.socketpair()
        self.here.setblocking(False)
        self.there.settimeout(10)
        self.unsent = b""
        events = SimpleNamespace(
            plain_until=lambda _index: TOKENS,
            plain_token=self.event,
            token=lambda first, count: b"[%d+%d]" % (first, count),
        )
        self.stream = Stream(
            completion=cast(Any, SimpleNamespace(stream=True)),
            request=cast(Any, SimpleNamespace(output_tokens=TOKENS, preemptions=0)),
            events=cast(Any, events),
            peer=cast(Any, self),
            keep_alive=True,
            framed=False,
            request_id="",
        )

    @staticmethod
    def event(index: int) -> bytes:
        return b"<%d>" % index

    def write(self, data: bytes) -> bool:
        try:
            sent = self.here.send(data)
        except OSError:
            sent = 0
        self.unsent += data[sent:]
        return sent == len(data)

    def allow(self, events: int, index: int = 0, due_ns: int = 0) -> Stream:
        self.stream.index, self.stream.due_ns = index, due_ns
        self.stream.allow_plain(events)
        assert self.stream.plain_left == events
        return self.stream

    def read(self, expected: bytes) -> None:
        received = b""
        while len(received) < len(expected):
            received += self.there.recv(len(expected) - len(received))
        assert received == expected

    def read_events(self, indexes: range) -> None:
        self.read(b"".join(map(self.event, indexes)))


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    all_pairs = [Pair() for _ in range(3)]
    yield all_pairs
    for pair in all_pairs:
        pair.here.close()
        pair.there.close()


def ring_of(lateness: Lateness | None = None, gaps_ns: list[int] | None = None) -> Ring:
    return Ring(GAP_NS, lateness or Lateness(), [] if gaps_ns is None else gaps_ns)


class TestRing:
    def test_events_are_written_in_order_of_due_times(self, pairs: list[Pair]) -> None:
        lateness, gaps_ns, start = Lateness(), [], clock.now_ns() - 100_000
        ring = ring_of(lateness, gaps_ns)
        for index, pair in enumerate(pairs):
            stream = pair.allow(3 - index, index=4000, due_ns=start + index)
            stream.last_ns = start - 7
            ring.append(stream)
        assert (ring.head_ns(), ring.last_ns()) == (start, start + 2)
        now = clock.now_ns()
        end, stream, events, written = ring.write(now, now + LATER_NS, NEVER_NS)
        assert (stream, events, written) == (pairs[2].stream, 3, True)
        assert end >= now
        end, stream, events, written = ring.write(end, now + LATER_NS, NEVER_NS)
        assert (stream, events, written) == (pairs[1].stream, 2, True)
        assert [pair.stream.index for pair in pairs] == [4002, 4002, 4001]
        assert [pair.stream.written for pair in pairs] == [2, 2, 1]
        assert [pair.stream.due_ns for pair in pairs] == [start + 2000, start + 2001, start + 1002]
        assert len(gaps_ns) == 5
        assert gaps_ns[0] == now - (start - 7)
        summary = lateness.summary()
        assert (summary["count"], lateness.blocked) == (5, 0)
        assert 0 < summary["mean"] <= summary["max"]
        for pair in pairs:
            pair.read_events(range(4000, pair.stream.index))

    def test_nothing_is_written_before_it_is_due_or_after_the_limits(self, pairs: list[Pair]) -> None:
        ring, now = ring_of(), clock.now_ns()
        ring.append(pairs[0].allow(9, due_ns=now))
        assert ring.write(now - 1, now + LATER_NS, NEVER_NS)[1:] == (None, 0, False)
        assert ring.write(now, now + LATER_NS, now - 1)[1:] == (None, 0, False)
        assert ring.write(now, now, NEVER_NS)[1:] == (None, 0, False)
        assert ring.head_ns() == now

    def test_ended_and_postponed_streams_are_dropped(self, pairs: list[Pair]) -> None:
        ring, now = ring_of(), clock.now_ns()
        for pair in pairs:
            ring.append(pair.allow(9, due_ns=now))
        pairs[0].stream.due_ns = NEVER_NS
        pairs[1].stream.due_ns = now + 5
        pairs[2].stream.plain_left = 0
        assert ring.write(now, now + LATER_NS, NEVER_NS)[1:] == (pairs[2].stream, 0, False)
        assert ring.head_ns() is None

    def test_a_blocked_client_delays_no_other_and_is_not_lateness(self, pairs: list[Pair]) -> None:
        pairs[0].here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        lateness, now, events = Lateness(), clock.now_ns(), 20_000
        ring = ring_of(lateness)
        ring.append(pairs[0].allow(events, due_ns=now - LATER_NS))
        stream = ring.write(now, now + 60 * LATER_NS, NEVER_NS)[1]
        assert stream is pairs[0].stream
        ring.append(pairs[1].allow(1, due_ns=now))
        assert ring.write(now, now + LATER_NS, NEVER_NS)[1:] == (pairs[1].stream, 1, True)
        assert lateness.blocked > 0
        assert lateness.summary()["count"] + lateness.blocked == events + 1
        complete = b"".join(map(Pair.event, range(events)))
        assert 0 < len(pairs[0].unsent) < len(complete)
        pairs[0].read(complete[: -len(pairs[0].unsent)])
        pairs[1].read_events(range(1))


class TestSteppedEngine:
    @pytest.fixture
    def engine(self) -> SteppedEngine:
        pipeline = cast(Any, SimpleNamespace(scheduler=None))
        return SteppedEngine(pipeline, FrontEnd(event_s=10e-9), Metrics(64))

    @pytest.fixture
    def write(self, engine: SteppedEngine, pairs: list[Pair]) -> Callable[[int], int]:
        """Write a batch of all streams up to a time; return the number of streams written."""
        batch = _OutputBatch([pair.stream for pair in pairs], 0)
        engine._batches.append(batch)

        def write(horizon_ns: int) -> int:
            engine._write(horizon_ns, LATER_NS + clock.now_ns())
            return batch.index

        return write

    def test_streams_of_a_step_are_written_as_they_become_due(
        self, engine: SteppedEngine, pairs: list[Pair], write: Callable[[int], int]
    ) -> None:
        for pair in pairs:
            pair.allow(5).pending = 1
        assert [write(9), write(10), write(25), write(30)] == [0, 1, 2, 3]
        assert not engine._batches
        assert [pair.stream.pending for pair in pairs] == [0, 0, 0]
        assert (engine.lateness.summary()["count"], engine.lateness.blocked) == (3, 0)
        for pair in pairs:
            pair.read_events(range(1))

    def test_pending_tokens_are_one_event(
        self, engine: SteppedEngine, pairs: list[Pair], write: Callable[[int], int]
    ) -> None:
        for pair, pending, plain_left in zip(pairs, (1, 2, 1), (5, 5, 0), strict=True):
            stream = pair.allow(5, index=7)
            stream.pending, stream.plain_left = pending, plain_left
        assert write(99) == 3
        assert [pair.stream.index for pair in pairs] == [8, 9, 8]
        for pair, expected in zip(pairs, (b"<7>", b"[7+2]", b"[7+1]"), strict=True):
            pair.read(expected)

    def test_a_lost_connection_is_counted_as_blocked(
        self, engine: SteppedEngine, pairs: list[Pair], write: Callable[[int], int]
    ) -> None:
        for pair in pairs:
            pair.allow(5).pending = 1
        pairs[1].there.close()
        assert write(99) == 3
        assert (engine.lateness.summary()["count"], engine.lateness.blocked) == (2, 1)
