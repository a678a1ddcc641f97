"""Counting of turns in batches against counting each turn."""

from array import array
from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from records import MS, S, turn, turns

from inferload.measure.client_health import HealthSet
from inferload.measure.clock import Anchor
from inferload.measure.record import Failure, PhaseWindow, TurnRecord
from inferload.measure.slo import Slo
from inferload.measure.tally import TallySet
from inferload.measure.tally_batch import count_delays, count_turns
from inferload.measure.turn_columns import TurnColumns, to_table
from inferload.results.slo_text import LIMITS

SLO = Slo(ttft_ms=200, tpot_ms=50, e2e_ms=None, itl_ms=300, from_plan=False)
WINDOWS = (
    PhaseWindow("warmup", 0, 10 * S),
    PhaseWindow("measure", 10 * S, 20 * S, 0),
    PhaseWindow("measure", 20 * S, 40 * S, 1),
    PhaseWindow("drain", 40 * S),
)
PAUSES = ((11 * S, 11 * S + 300 * MS),)


@st.composite
def plain_turns(draw: st.DrawFn) -> TurnRecord:
    """Generate successful turns near the boundaries of phases."""
    sent_ns = draw(st.sampled_from([5, 10, 15, 20, 40])) * S + draw(st.integers(-400, 400)) * MS
    offsets = sorted(draw(st.lists(st.integers(1, 900 * MS), min_size=1, max_size=6)))
    return turn(
        planned_ns=sent_ns - draw(st.integers(0, 3)) * MS,
        sent_ns=sent_ns,
        written_ns=sent_ns + 5,
        first_event_ns=sent_ns + offsets[0],
        first_ns=sent_ns + offsets[0],
        first_visible_ns=sent_ns + offsets[-1],
        last_ns=sent_ns + offsets[-1],
        closed_ns=sent_ns + offsets[-1] + draw(st.integers(0, MS)),
        event_ns=array("q", offsets),
        output_tokens=draw(st.sampled_from([len(offsets), len(offsets), 7])),
        max_tokens=draw(st.none() | st.integers(1, 9)),
        connect_ns=draw(st.none() | st.integers(1, 50 * MS)),
        turn_index=draw(st.integers(0, 1)),
        step=draw(st.none() | st.integers(0, 1)),
        phase=draw(st.sampled_from(["warmup", "measure"])),
        server_queue_ms=draw(st.none() | st.floats(0, 9)),
        delay_ns=array("q", offsets),
    )


many = st.lists(turns() | plain_turns() | plain_turns(), max_size=12)


@given(many, st.none() | st.just(SLO))
def test_counting_a_batch_equals_counting_each_turn(records: list[TurnRecord], slo: Slo | None) -> None:
    one_by_one, together = TallySet(), TallySet()
    for record in records:
        one_by_one.count_turn(record, WINDOWS, slo, PAUSES)
    count_turns(together, records, WINDOWS, defaultdict(lambda: slo), PAUSES)
    assert together == one_by_one


@given(many, st.builds(Slo, *[st.none() | st.floats(1, 400)] * 4, from_plan=st.booleans()))
def test_a_turn_misses_the_limits_that_it_misses_alone(records: list[TurnRecord], slo: Slo) -> None:
    """Any turns and limits: a missed limit hides no other one."""
    for record in records:
        alone = {
            name: replace(Slo(from_plan=slo.from_plan), **{name: getattr(slo, name)}).missed(record) for name in LIMITS
        }
        known = {name for missed in alone.values() for name in missed or ()}
        missed = slo.missed(record)
        assert (set(missed) if missed is not None else None) == (known if known or None not in alone.values() else None)
        assert slo.met(record) == (None if missed is None else not missed)
    tallies = TallySet()
    count_turns(tallies, records, WINDOWS, defaultdict(lambda: slo))
    total = tallies.total()
    assert total.slo_met + max(total.slo_missed.values(), default=0) <= total.slo_judged
    assert total.slo_judged <= total.slo_met + sum(total.slo_missed.values())


def test_only_unusual_turns_are_counted_singly() -> None:
    records = [turn(planned_ns=index * S, sent_ns=index * S + MS) for index in range(3)]
    folded: list[TurnRecord] = []

    class Watching(TallySet):
        def count_turn(self, record: TurnRecord, *_rest: object) -> None:
            folded.append(record)

    count_turns(Watching(), [*records, turn(failure=Failure.CUT)], WINDOWS, {"chat": None})
    assert [record.failure for record in folded] == [Failure.CUT]


@given(many)
def test_counting_delays_of_a_batch_equals_counting_each(records: list[TurnRecord]) -> None:
    one_by_one, together = HealthSet(), HealthSet()
    for number, record in enumerate(records):
        one_by_one.count_delays(record, number)
    count_delays(together, records, range(len(records)))
    assert together == one_by_one


@given(many, many)
def test_columns_of_a_batch_equal_columns_of_each_turn(first: list[TurnRecord], second: list[TurnRecord]) -> None:
    one_by_one, together = TurnColumns(), TurnColumns()
    for record in first + second:
        one_by_one.extend([record])
    together.extend(first)
    together.extend(second)
    assert len(together) == len(first + second)
    assert to_table(together, Anchor(0, 0), "w").equals(to_table(one_by_one, Anchor(0, 0), "w"))
    assert np.array_equal(
        to_table(together, Anchor(0, 0), "w")["planned_ns"].to_numpy(), [record.planned_ns for record in first + second]
    )
