"""Events that arrive together: streams that something holds on their way, and those that nothing holds."""

import random
from array import array
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import MS, turn
from turn_reference import count_turn

from inferload.figures.rate_figures import EVENTS_PER_ARRIVAL, HELD_EVENTS, joined_on_the_way, typical_gap_ms
from inferload.figures.turn_figures import ITL
from inferload.turns.record import PhaseWindow
from inferload.turns.tally import Tally, TallySet

US = MS // 1000


@dataclass(frozen=True)
class Stream:
    """Gaps of a stream, in microseconds."""

    gaps_us: tuple[int, ...]

    def tally(self, turns: int = 3) -> Tally:
        tallies = TallySet()
        events = array("q", [50 * MS])
        for gap in self.gaps_us:
            events.append(events[-1] + gap * US)
        for _ in range(turns):
            count_turn(
                tallies, turn(event_ns=events, output_tokens=len(events)), [PhaseWindow("measure", 0, None)], None
            )
        return tallies.total("measure")

    def events_per_arrival(self) -> float:
        value = EVENTS_PER_ARRIVAL.value(self.tally(), 1.0)
        assert value is not None
        return value


@given(st.integers(400, 300_000), st.lists(st.floats(0.3, 3.0), min_size=1, max_size=40))
def test_events_of_a_steady_stream_arrive_one_by_one(typical_us: int, factors: list[float]) -> None:
    assert Stream(tuple(round(typical_us * factor) for factor in factors)).events_per_arrival() == 1.0


@given(st.integers(3, 40), st.integers(0, 90), st.integers(1, 12), st.integers(2_000, 100_000))
def test_a_held_stream_has_the_events_of_its_bursts(events: int, within_us: int, bursts: int, token_us: int) -> None:
    """A proxy that holds `events` tokens of a server with a gap of `token_us`, and then sends them at once."""
    burst = [within_us] * (events - 1)
    stream = Stream(tuple(gap for _ in range(bursts) for gap in (*burst, events * token_us))[: bursts * events - 1])
    assert stream.events_per_arrival() == pytest.approx(events)
    assert stream.events_per_arrival() > HELD_EVENTS
    gaps = stream.tally().sketches[ITL.key]
    assert typical_gap_ms(gaps) == pytest.approx(gaps.mean, rel=0.01)


@given(st.integers(3, 200))
def test_a_wholly_held_answer_arrives_at_once(events: int) -> None:
    stream = Stream((0,) * (events - 1))
    assert stream.events_per_arrival() == events
    assert typical_gap_ms(stream.tally().sketches[ITL.key]) == 0.0


@given(st.integers(2_000, 50_000), st.integers(10, 60), st.integers(1, 5))
def test_stalls_of_a_server_are_no_held_stream(token_us: int, tokens: int, stalls: int) -> None:
    gaps = [token_us] * tokens
    for at in range(stalls):
        gaps[at * tokens // stalls] = 2_000_000
    stream = Stream(tuple(gaps))
    assert stream.events_per_arrival() == 1.0
    assert typical_gap_ms(stream.tally().sketches[ITL.key]) == pytest.approx(token_us / 1000, rel=0.01)


def test_turns_without_gaps_have_no_figure() -> None:
    assert EVENTS_PER_ARRIVAL.value(Tally(), 1.0) is None
    assert EVENTS_PER_ARRIVAL.value(Stream(()).tally(), 1.0) is None


@given(st.floats(1.0, 100.0), st.floats(0.0, 500.0), st.integers(10, 200), st.randoms(use_true_random=False))
def test_what_a_late_client_joins_is_not_joined_on_the_way(
    gap_ms: float, delay_ms: float, events: int, order: random.Random
) -> None:
    """A client that reads a steady stream late, by up to `delay_ms` each time."""
    arrivals, read_ms = 0, 0.0
    sent = [index * gap_ms for index in range(events)]
    while sent:
        read_ms = max(read_ms, sent[0]) + order.uniform(0.0, delay_ms)
        sent = [at_ms for at_ms in sent if at_ms > read_ms]
        arrivals += 1
    joined = joined_on_the_way(events / arrivals, delay_ms, gap_ms, None)
    assert joined is not None
    assert joined <= 1.0 + 1e-9


@given(st.floats(3.1, 40.0), st.floats(1.0, 100.0), st.floats(0.0, 1.0))
def test_what_a_proxy_joins_is_counted_if_the_client_is_on_time(held: float, gap_ms: float, late: float) -> None:
    joined = joined_on_the_way(held, late * gap_ms, gap_ms, 1.0)
    assert joined is not None
    assert joined > HELD_EVENTS


def test_what_was_joined_is_not_known_without_the_delay_or_the_gap() -> None:
    assert joined_on_the_way(None, 1.0, 1.0, None) is None
    assert joined_on_the_way(9.0, None, 1.0, None) is None
    assert joined_on_the_way(9.0, 1.0, None, None) is None
    assert joined_on_the_way(9.0, 1.0, 0.0, None) is None


@given(st.integers(1, 40), st.floats(1.0, 40.0))
def test_parts_of_a_token_are_not_joined_on_the_way(parts: int, tokens_per_event: float) -> None:
    assert joined_on_the_way(float(parts), 0.0, 10.0, 1 / parts) == pytest.approx(1.0)
    assert joined_on_the_way(float(parts), 0.0, 10.0, tokens_per_event) == parts
