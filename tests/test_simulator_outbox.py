"""Plain events on their way out: the compiled writer and the one in Python do the same."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from inferload.deploy.simulator import outbox
from inferload.deploy.simulator.text import SPACED

from inferload.measure import clock

KINDS = ["python", "compiled"]
BEFORE, AFTER, WORD, STRIDE = b"<", b">", 4090, 3
LATER_NS = 1_000_000_000


class Stream:
    """Whose events go to one end of a pair of sockets."""

    def __init__(self, kind: str) -> None:
        self.there, here = socket.socketpair()
        self.here = here
        here.setblocking(False)
        self.there.settimeout(10)
        self.kept = b""
        if kind == "python":
            self.line: Any = outbox.Line(self)
        else:
            from inferload.deploy.simulator import _native

            self.line = _native.Line(self)

    def event(self, index: int) -> bytes:
        return BEFORE + SPACED[(WORD + index * STRIDE) & 4095] + AFTER

    def write_plain(self, index: int) -> bool:
        data = self.event(index)
        try:
            sent = self.here.send(data)
        except OSError:
            sent = 0
        self.kept += data[sent:]
        return sent == len(data)

    def arm(self, left: int, index: int = 0, due_ns: int = 0) -> None:
        self.line.index, self.line.due_ns = index, due_ns
        self.line.arm(self.here.fileno(), BEFORE, AFTER, WORD, STRIDE, left)

    def read(self, events: range) -> None:
        wanted = b"".join(map(self.event, events))
        found = b""
        while len(found) < len(wanted):
            found += self.there.recv(len(wanted) - len(found))
        assert found == wanted


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "compiled" and not outbox.COMPILED:
        pytest.skip("the compiled writer was not built")
    return str(request.param)


@pytest.fixture
def streams(kind: str) -> Iterator[list[Stream]]:
    made = [Stream(kind) for _ in range(3)]
    yield made
    for each in made:
        each.here.close()
        each.there.close()


def samples(kind: str) -> Any:
    if kind == "python":
        return []
    from inferload.deploy.simulator import _native

    return _native.Samples()


def new_ring(
    kind: str,
    late: Any = None,
    gaps: Any = None,
    *,
    full: list[Any] | None = None,
    spin_ns: int = 0,
    gap_ns: int = 1000,
) -> Any:
    late = samples(kind) if late is None else late
    gaps = samples(kind) if gaps is None else gaps
    full = [] if full is None else full
    if kind == "python":
        return outbox.Ring(gap_ns, 4, spin_ns, outbox.Books(late, gaps, full))
    from inferload.deploy.simulator import _native

    return _native.Ring(gap_ns, 4, spin_ns, (late, gaps, full))


def batch_writer(kind: str) -> Any:
    if kind == "python":
        return outbox.write_batch
    from inferload.deploy.simulator import _native

    return _native.write_batch


class TestRing:
    def test_events_go_out_in_order_of_their_due_times_until_one_asks(self, kind: str, streams: list[Stream]) -> None:
        late, gaps = samples(kind), samples(kind)
        ring, start = new_ring(kind, late, gaps), clock.now_ns() - 100_000
        for place, each in enumerate(streams):
            each.arm(3 - place, index=4000, due_ns=start + place)
            each.line.last_ns = start - 7
            ring.append(each.line)
        assert (ring.head_ns(), ring.last_ns()) == (start, start + 2)
        now = clock.now_ns()
        end, line, events, written = ring.write(now, now + LATER_NS, outbox.NEVER_NS, 0)
        assert (line, events, written) == (streams[2].line, 3, 1)  # its one event went out
        assert end >= now
        end, line, events, written = ring.write(end, now + LATER_NS, outbox.NEVER_NS, 0)
        assert (line, events, written) == (streams[1].line, 2, 1)
        assert [each.line.index for each in streams] == [4002, 4002, 4001]
        assert [each.line.due_ns for each in streams] == [start + 2000, start + 2001, start + 1002]
        assert len(late) == len(gaps) == 5
        assert gaps[0] == now - (start - 7)
        assert min(late) > 0
        for each in streams:
            each.read(range(4000, each.line.index))

    def test_what_is_not_due_or_behind_another_or_out_of_time_waits(self, kind: str, streams: list[Stream]) -> None:
        ring, now = new_ring(kind), clock.now_ns()
        streams[0].arm(9, due_ns=now)
        ring.append(streams[0].line)
        assert ring.write(now - 1, now + LATER_NS, outbox.NEVER_NS, 0)[1:] == (None, 0, 0)
        assert ring.write(now, now + LATER_NS, now - 1, 0)[1:] == (None, 0, 0)
        assert ring.write(now, now, outbox.NEVER_NS, 0)[1:] == (None, 0, 0)
        assert ring.head_ns() == now

    def test_a_line_goes_on_behind_the_end_of_a_block_where_there_are_spare_ones(
        self, kind: str, streams: list[Stream]
    ) -> None:
        full: list[Any] = []
        ring, start = new_ring(kind, full=full), clock.now_ns() - 100_000
        for each in streams[:2]:
            each.arm(2, due_ns=start)
            each.line.more = 7
            ring.append(each.line)
        now = clock.now_ns()
        one, other = streams[0].line, streams[1].line
        assert ring.write(now, now + LATER_NS, outbox.NEVER_NS, 3)[1:] == (other, 12, 1)
        assert full == [one, other, one]  # a block is four tokens; the fourth time nothing was spare
        assert [(line.index, line.left, line.more) for line in (one, other)] == [(6, 3, 0), (6, 0, 3)]

    def test_a_short_wait_is_spent_without_sleep_unless_something_else_comes_first(
        self, kind: str, streams: list[Stream]
    ) -> None:
        late = samples(kind)
        ring, now = new_ring(kind, late, spin_ns=2_000_000), clock.now_ns()
        due = now + 1_000_000
        streams[0].arm(1, due_ns=due)
        ring.append(streams[0].line)
        assert ring.write(now, due, outbox.NEVER_NS, 0)[1:] == (None, 0, 0)  # the network's turn comes before
        assert ring.write(now, now + LATER_NS, due - 1, 0)[1:] == (None, 0, 0)
        assert ring.write(now - 2_000_000, now + LATER_NS, outbox.NEVER_NS, 0)[1:] == (None, 0, 0)  # too long
        assert ring.spun_ns == 0
        assert ring.write(now, now + LATER_NS, outbox.NEVER_NS, 0)[1:] == (streams[0].line, 1, 1)
        assert ring.spun_ns >= due - now
        assert min(late) >= 0

    def test_who_waits_awake_lets_others_have_a_look_after_a_while(self, kind: str, streams: list[Stream]) -> None:
        ring, now = new_ring(kind, spin_ns=2_000_000, gap_ns=1_000_000), clock.now_ns()
        streams[0].arm(10_000, due_ns=now)
        ring.append(streams[0].line)
        end, line, events, _own = ring.write(now, now + LATER_NS, outbox.NEVER_NS, 0)
        assert line is None
        assert 0 < events < 500  # without a look there would be a thousand until its time is over
        assert ring.head_ns() > end > now + 4 * 2_000_000

    def test_a_line_that_was_given_up_or_put_off_is_dropped(self, kind: str, streams: list[Stream]) -> None:
        ring, now = new_ring(kind), clock.now_ns()
        for each in streams:
            each.arm(9, due_ns=now)
            ring.append(each.line)
        streams[0].line.due_ns = outbox.NEVER_NS
        streams[0].line.release()
        streams[1].line.due_ns = now + 5
        streams[2].line.left = 0
        assert ring.write(now, now + LATER_NS, outbox.NEVER_NS, 0)[1:] == (streams[2].line, 0, 0)
        assert ring.head_ns() is None

    def test_a_reader_that_does_not_read_gets_everything_in_the_end(self, kind: str, streams: list[Stream]) -> None:
        each = streams[0]
        each.here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ring, now = new_ring(kind), clock.now_ns()
        each.arm(1_000_000, due_ns=0)
        ring.append(each.line)
        _end, line, events, written = ring.write(now, now + 60 * LATER_NS, outbox.NEVER_NS, 0)
        assert (line, written, line.trouble) == (each.line, 1, outbox.BLOCKED)
        rest = each.kept + line.rest()
        assert 0 < len(rest) <= len(each.event(0))
        assert line.index == events
        wanted, found = b"".join(map(each.event, range(events))), b""
        while len(found) < len(wanted) - len(rest):
            found += each.there.recv(65_536)
        assert found + rest == wanted

    def test_a_connection_that_is_gone_is_told(self, kind: str, streams: list[Stream]) -> None:
        streams[0].there.close()
        ring, now = new_ring(kind), clock.now_ns()
        streams[0].arm(5, due_ns=now)
        ring.append(streams[0].line)
        line = ring.write(now, now + LATER_NS, outbox.NEVER_NS, 0)[1]
        assert line.trouble == (outbox.LOST if kind == "compiled" else outbox.BLOCKED)  # in Python its connection knows


class TestBatch:
    def test_one_line_after_another_as_far_as_they_are_due(self, kind: str, streams: list[Stream]) -> None:
        write, late = batch_writer(kind), samples(kind)
        lines = [each.line for each in streams]
        for each in streams:
            each.arm(5)
            each.line.pending = 1
        now = clock.now_ns()
        assert write(lines, 0, now, 10, now + 9, now + LATER_NS, late)[1:] == (0, now, outbox.PLAIN)
        assert write(lines, 0, now, 10, now + 25, now + LATER_NS, late)[1:] == (2, now + 20, outbox.PLAIN)
        lines[2].pending = 2
        assert write(lines, 2, now + 20, 10, now + 99, now + LATER_NS, late)[1:] == (2, now + 20, outbox.ASKS)
        lines[2].pending, lines[2].left = 1, 0
        assert write(lines, 2, now + 20, 10, now + 99, now + LATER_NS, late)[1:] == (2, now + 20, outbox.ASKS)
        streams[2].there.close()
        lines[2].left = 1
        assert write(lines, 2, now + 20, 10, now + 99, now + LATER_NS, late)[1:] == (3, now + 30, outbox.TROUBLE)
        assert [each.line.pending for each in streams] == [0, 0, 0]
        assert len(late) == 2
        streams[0].read(range(1))
        streams[1].read(range(1))
