"""Counting of ended turns: records with the greatest numbers of servers and tasks fit all counts and columns."""

from array import array
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import turn, turns

from inferload.client.answers.number_bounds import MAX_MS, MAX_OUTPUT_TOKENS, MAX_TOKENS
from inferload.client.turn_record import MOST_MAX_TOKENS, TurnRequest, TurnResult
from inferload.figures.counting import count_delays, count_turns, keyed
from inferload.run.worker.process_health import LoopMonitor
from inferload.run.worker.turn_counter import TurnCounter
from inferload.turns.client_health import HealthSet
from inferload.turns.record import SERVER_TIMES, PhaseWindow, TurnRecord
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns

WINDOWS = (PhaseWindow("measure", 0),)
SLOS = {"chat": None, "agent": None}
CLIENT: Any = SimpleNamespace(pauses=list)


def results(records: list[TurnRecord]) -> list[TurnResult]:
    return [TurnResult(record, "", "", reads_unstamped=1) for record in records]


def counter_of(write: Any) -> TurnCounter:
    windows = RunWindows()
    windows.set(WINDOWS)
    return TurnCounter(SLOS, write, windows, LoopMonitor(), cast(Any, None))


@given(st.lists(st.lists(turns(), max_size=5), max_size=4))
def test_batches_are_counted_as_by_count_turns(batches: list[list[TurnRecord]]) -> None:
    written: list[TurnRecord] = []
    counter = counter_of(written.extend)
    expected, delays = TallySet(), HealthSet()
    for batch in batches:
        counter.count(CLIENT, results(batch))
        count_turns(expected, keyed(batch), WINDOWS, SLOS)
        count_delays(delays, batch, [1] * len(batch))
    assert (counter.tallies.take(), counter.health.take()) == (expected, delays)
    assert written == [record for batch in batches for record in batch]
    assert (counter.tallies.take(), counter.health.take()) == (TallySet(), HealthSet())


def test_the_greatest_numbers_of_a_record_fit_counts_messages_and_columns() -> None:
    columns = TurnColumns()
    counter = counter_of(columns.extend)
    record = turn(
        input_tokens=3 * MAX_TOKENS,  # the sum of three numbers of one answer
        output_tokens=MAX_OUTPUT_TOKENS,
        cached_tokens=3 * MAX_TOKENS,
        event_tokens=array("i", [MAX_OUTPUT_TOKENS] * 5),
        max_tokens=MOST_MAX_TOKENS,
        **dict.fromkeys(SERVER_TIMES, MAX_MS),
    )
    for _ in range(3):
        counter.count(CLIENT, results([record] * 2))
    tallies = counter.tallies.take()
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(tallies.to_wire()))
    assert TallySet.from_wire(sent) == tallies
    assert tallies.total().answer_limit_tokens == 6 * MOST_MAX_TOKENS
    assert columns.arrays(0)["max_tokens"].to_pylist() == [MOST_MAX_TOKENS] * 6


@pytest.mark.parametrize("limit", [MOST_MAX_TOKENS + 1, -1, 1.5, "5"])
def test_a_limit_that_fits_no_column_is_refused_before_the_turn(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"^max_tokens is .*; give a whole number up to 2,147,483,647$"):
        TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", 0, max_tokens=limit)
