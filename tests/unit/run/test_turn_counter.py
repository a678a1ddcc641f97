"""Counting of ended turns: only the turn that cannot be counted becomes a client error."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from records import turn, turns

from inferload.client.turn_record import TurnResult
from inferload.figures.counting import count_delays, count_turns
from inferload.run.worker.turn_counter import TurnCounts
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns

WINDOWS = (PhaseWindow("measure", 0),)
SLOS = {"chat": None, "agent": None}
POISON: list[dict[str, Any]] = [
    {"output_tokens": 2**70},
    {"input_tokens": 2**63},
    {"cached_tokens": -(2**63) - 1},
    {"server_queue_ms": 1e308},
    {"event_ns": array("b", [1, 2, 3])},
]


def results(records: list[TurnRecord]) -> list[TurnResult]:
    return [TurnResult(record, "", "", reads_unstamped=1) for record in records]


@pytest.mark.parametrize("poison", POISON, ids=str)
@settings(max_examples=settings.default.max_examples // 4)
@given(before=st.lists(turns(), max_size=4), beside=st.lists(turns(), max_size=4))
def test_a_turn_that_cannot_be_counted_loses_no_other(
    poison: dict[str, Any], before: list[TurnRecord], beside: list[TurnRecord]
) -> None:
    written: list[TurnRecord] = []
    columns = TurnColumns()

    def write(records: list[TurnRecord]) -> None:
        columns.extend(records)
        written.extend(records)

    counts = TurnCounts(SLOS, write)  # type: ignore[arg-type]
    bad = replace(turn(turn_id="bad", phase="measure"), **poison)
    counts.count(results(before), WINDOWS, ())
    counts.count(results([*beside, bad]), WINDOWS, ())
    counts.count(results([turn()]), WINDOWS, ())
    tallies, health = counts.take()

    good = [*before, *beside, turn()]
    expected, delays = TallySet(), HealthSet()
    count_turns(expected, good, WINDOWS, SLOS)
    count_delays(delays, good, [1] * len(good))
    assert tallies.total().ended == len(good) + 1
    assert tallies.total().by_failure.get("client_error") == 1
    assert tallies.total().output_tokens == expected.total().output_tokens
    assert tallies.total().sketches.get("ttft_ms") == expected.total().sketches.get("ttft_ms")
    assert health.total().delay_ms == delays.total().delay_ms
    assert [record.turn_id for record in written] == [r.turn_id for r in (*before, *beside, bad, turn())]
    assert columns.arrays(0)["turn_id"].to_pylist() == [record.turn_id for record in written]
    assert counts.take() == (TallySet(), HealthSet())


@given(st.lists(st.lists(turns(), max_size=5), max_size=4))
def test_ordinary_batches_are_counted_as_by_count_turns(batches: list[list[TurnRecord]]) -> None:
    counts = TurnCounts(SLOS, lambda _records: None)
    expected, delays = TallySet(), HealthSet()
    for batch in batches:
        given_results = results(batch)
        assert counts.count(given_results, WINDOWS, ()) is given_results
        count_turns(expected, batch, WINDOWS, SLOS)
        count_delays(delays, batch, [1] * len(batch))
    assert counts.take() == (expected, delays)
