"""Writing of plain events: order, due times and blocked clients."""

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from inferload.deploy.simulator.core.step_time import FrontEnd
from inferload.deploy.simulator.engine.engine import Engine, _OutputBatch
from inferload.deploy.simulator.engine.stream import Stream
from inferload.deploy.simulator.metrics.engine_metrics import Metrics

from inferload.base import clock

LATER_NS = 1_000_000_000
TOKENS = 2_000_000


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
            completion=cast(Any, SimpleNamespace(params=SimpleNamespace(stream=True))),
            request=cast(Any, SimpleNamespace(output_tokens=TOKENS, cached_tokens=0)),
            events=cast(Any, events),
            peer=cast(Any, self),
            keep_alive=True,
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

    def allow(self, index: int = 0) -> Stream:
        self.stream.index = index
        self.stream.allow_plain()
        assert self.stream.plain_left == TOKENS - 1 - index
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


class TestEngine:
    @pytest.fixture
    def engine(self) -> Engine:
        core = cast(Any, SimpleNamespace(scheduler=None))
        return Engine(core, FrontEnd(event_s=10e-9), Metrics())

    @pytest.fixture
    def write(self, engine: Engine, pairs: list[Pair]) -> Callable[[int], int]:
        """Write a batch of all streams up to a time; return the number of streams written."""
        batch = _OutputBatch([pair.stream for pair in pairs], 0)
        engine._batches.append(batch)

        def write(horizon_ns: int) -> int:
            engine._write(horizon_ns, LATER_NS + clock.now_ns())
            return batch.index

        return write

    def test_streams_of_a_step_are_written_as_they_become_due(
        self, engine: Engine, pairs: list[Pair], write: Callable[[int], int]
    ) -> None:
        for pair in pairs:
            pair.allow().pending = 1
        assert [write(9), write(10), write(25), write(30)] == [0, 1, 2, 3]
        assert not engine._batches
        assert [pair.stream.pending for pair in pairs] == [0, 0, 0]
        assert (engine.lateness.summary()["count"], engine.lateness.blocked) == (3, 0)
        for pair in pairs:
            pair.read_events(range(1))

    def test_pending_tokens_are_one_event(self, engine: Engine, pairs: list[Pair], write: Callable[[int], int]) -> None:
        for pair, pending, plain_left in zip(pairs, (1, 2, 1), (5, 5, 0), strict=True):
            stream = pair.allow(index=7)
            stream.pending, stream.plain_left = pending, plain_left
        assert write(99) == 3
        assert [pair.stream.index for pair in pairs] == [8, 9, 8]
        for pair, expected in zip(pairs, (b"<7>", b"[7+2]", b"[7+1]"), strict=True):
            pair.read(expected)

    def test_a_lost_connection_is_counted_as_blocked(
        self, engine: Engine, pairs: list[Pair], write: Callable[[int], int]
    ) -> None:
        for pair in pairs:
            pair.allow().pending = 1
        pairs[1].there.close()
        assert write(99) == 3
        assert (engine.lateness.summary()["count"], engine.lateness.blocked) == (2, 1)
