"""Times of reads: kernel timestamps if plausible, else the time of the read."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.client.connection import reader_choice
from inferload.client.connection.reply import GatheredReply

S, MS = 1_000_000_000, 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
SENT = 100 * S
WALL = 1_795_000_000 * S


@pytest.fixture(autouse=True, scope="module", params=["compiled", "python"])
def _parser(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled" and reader_choice.parser() is None:
        pytest.skip("the compiled parser was not built")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(reader_choice, "_parser", None)
        yield


def stamp(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(1, 35, struct.pack("qq", wall_ns // S, wall_ns % S))]


def reply() -> GatheredReply:
    gathered = GatheredReply(lambda: None)
    gathered.floor_ns = SENT
    return gathered


def test_a_read_has_the_kernel_time_and_the_clients_delay() -> None:
    gathered = reply()
    gathered.take(HEAD + b"x", SENT + 50 * MS, WALL + 50 * MS, stamp(WALL + 43 * MS))
    gathered.take(b"y", SENT + 60 * MS, WALL + 60 * MS, stamp(WALL + 60 * MS - 1000))
    arrived = gathered.body(10)
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
def test_an_implausible_stamp_is_replaced_by_the_read_time(ancillary: list[tuple[int, int, bytes]]) -> None:
    gathered = reply()
    gathered.take(HEAD + b"x", SENT + 50 * MS, WALL + 50 * MS, stamp(WALL + 49 * MS))
    gathered.take(b"y", SENT + 60 * MS, WALL + 60 * MS, ancillary)
    gathered.take(b"z", SENT + 70 * MS, WALL + 70 * MS, stamp(WALL + 69 * MS))
    arrived = gathered.body(10)
    assert list(arrived.at_ns) == [SENT + 49 * MS, SENT + 60 * MS, SENT + 69 * MS]
    assert list(arrived.delay_ns) == [1 * MS, 1 * MS]
    assert arrived.unstamped == 1


reads = st.lists(
    st.tuples(st.integers(0, 20 * MS), st.integers(-5 * S, 5 * S), st.integers(-10 * MS, 30 * MS)),
    min_size=1,
    max_size=40,
)


@given(reads, st.integers(1, 9))
def test_read_times_are_monotonic_for_any_clock_step(steps: list[tuple[int, int, int]], slice_: int) -> None:
    gathered = reply()
    mono = SENT
    for number, (gap_ns, wall_step_ns, wait_ns) in enumerate(steps):
        mono += gap_ns
        wall = WALL + mono + wall_step_ns
        gathered.take((HEAD if number == 0 else b"") + b"x", mono, wall, stamp(wall - wait_ns))
    at_ns: list[int] = []
    delayed = unstamped = 0
    while gathered.fetch_waiting():
        arrived = gathered.body(slice_)
        at_ns += arrived.at_ns
        delayed, unstamped = delayed + len(arrived.delay_ns), unstamped + arrived.unstamped
    assert at_ns == sorted(at_ns)
    assert at_ns[0] >= SENT
    assert at_ns[-1] <= mono
    assert delayed + unstamped == len(at_ns) == len(steps)
