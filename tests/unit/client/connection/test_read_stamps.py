"""Stamps of reads: the kernel's where it can be believed, ours where the wall clock was stepped or no stamp came."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.client.connection.reply import GatheredReply

S, MS = 1_000_000_000, 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
SENT = 100 * S
WALL = 1_795_000_000 * S


def stamp(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(1, 35, struct.pack("qq", wall_ns // S, wall_ns % S))]


def reply() -> GatheredReply:
    made = GatheredReply(lambda: None)
    made.floor_ns = SENT
    return made


def test_a_read_is_dated_by_the_kernel_and_its_wait_is_the_clients() -> None:
    one = reply()
    one.take(HEAD + b"x", SENT + 50 * MS, WALL + 50 * MS, stamp(WALL + 43 * MS))
    one.take(b"y", SENT + 60 * MS, WALL + 60 * MS, stamp(WALL + 60 * MS - 1000))
    arrived = one.body(10)
    assert list(arrived.at_ns) == [SENT + 43 * MS, SENT + 60 * MS - 1000]
    assert list(arrived.delay_ns) == [7 * MS, 1000]
    assert arrived.unstamped == 0


@pytest.mark.parametrize(
    "ancillary",
    [
        pytest.param([], id="no stamp"),
        pytest.param(stamp(WALL + 3600 * S), id="the wall clock was stepped back an hour since"),
        pytest.param(stamp(WALL - 3600 * S), id="the wall clock was stepped forward an hour since"),
        pytest.param(stamp(WALL - 1 * MS), id="stamped before the request was sent"),
    ],
)
def test_a_stamp_that_cannot_be_believed_is_replaced_by_our_own_time(ancillary: list[tuple[int, int, bytes]]) -> None:
    one = reply()
    one.take(HEAD + b"x", SENT + 50 * MS, WALL + 50 * MS, stamp(WALL + 49 * MS))
    one.take(b"y", SENT + 60 * MS, WALL + 60 * MS, ancillary)
    one.take(b"z", SENT + 70 * MS, WALL + 70 * MS, stamp(WALL + 69 * MS))
    arrived = one.body(10)
    assert list(arrived.at_ns) == [SENT + 49 * MS, SENT + 60 * MS, SENT + 69 * MS]
    assert list(arrived.delay_ns) == [1 * MS, 1 * MS]
    assert arrived.unstamped == 1


reads = st.lists(
    st.tuples(st.integers(0, 20 * MS), st.integers(-5 * S, 5 * S), st.integers(-10 * MS, 30 * MS)),
    min_size=1,
    max_size=40,
)


@given(reads, st.integers(1, 9))
def test_instants_never_run_backwards_whatever_the_clock_does(steps: list[tuple[int, int, int]], slice_: int) -> None:
    one = reply()
    mono = SENT
    for number, (gap_ns, wall_step_ns, wait_ns) in enumerate(steps):
        mono += gap_ns
        wall = WALL + mono + wall_step_ns
        one.take((HEAD if number == 0 else b"") + b"x", mono, wall, stamp(wall - wait_ns))
    at_ns: list[int] = []
    kept = unstamped = 0
    while one.fetch_waiting():
        arrived = one.body(slice_)
        at_ns += arrived.at_ns
        kept, unstamped = kept + len(arrived.delay_ns), unstamped + arrived.unstamped
    assert at_ns == sorted(at_ns)
    assert at_ns[0] >= SENT
    assert at_ns[-1] <= mono
    assert kept + unstamped == len(at_ns) == len(steps)
