"""Counting of turns in batches against counting each turn in plain Python."""

from array import array
from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from records import MS, S, turn, turns
from turn_reference import count_turn, counted, met, missed

from inferload.base.clock import Anchor
from inferload.figures.counting import count_delays, count_turns, keyed
from inferload.figures.limits.slo import LIMITS, Slo
from inferload.figures.turn_batch import TurnBatch
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PHASES, PhaseWindow, TurnRecord
from inferload.turns.sketch import Sketch
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns, to_table

SLO = Slo({"ttft_ms": 200, "tpot_ms": 50, "itl_ms": 300})
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


slos = st.builds(
    Slo, st.dictionaries(st.sampled_from([*LIMITS]), st.floats(1, 400), min_size=1), from_plan=st.booleans()
)


@given(many, st.none() | st.just(SLO) | slos)
def test_counting_a_batch_equals_counting_each_turn(records: list[TurnRecord], slo: Slo | None) -> None:
    together, one_by_one = TallySet(), TallySet()
    count_turns(together, keyed(records), WINDOWS, defaultdict(lambda: slo), PAUSES)
    assert together == counted(records, WINDOWS, slo, PAUSES)
    for record in records:
        count_turn(one_by_one, record, WINDOWS, slo, PAUSES)
    assert together == one_by_one


@given(many, slos)
def test_a_turn_misses_the_limits_that_it_misses_alone(records: list[TurnRecord], slo: Slo) -> None:
    """Any turns and limits: a missed limit hides no other one."""
    for record in records:
        alone = {name: missed(Slo({name: limit}, slo.from_plan), record) for name, limit in slo.limits.items()}
        known = {name for late in alone.values() for name in late or ()}
        judged = slo.judge(TurnBatch.of_records([record]))
        assert {name for name, late in judged.missed.items() if late[0]} == known
        assert bool(judged.known[0]) == (bool(known) or None not in alone.values())
        assert bool(judged.met[0]) == (met(slo, record) is True)
    tallies = TallySet()
    count_turns(tallies, keyed(records), WINDOWS, defaultdict(lambda: slo))
    total = tallies.total()
    assert total.slo_met + max(total.slo_missed.values(), default=0) <= total.slo_judged
    assert total.slo_judged <= total.slo_met + sum(total.slo_missed.values())


@given(many)
def test_counting_delays_of_a_batch_equals_counting_each(records: list[TurnRecord]) -> None:
    health = HealthSet()
    count_delays(health, records, range(len(records)))
    for phase in PHASES:
        delays = [delay / MS for record in records if record.phase == phase for delay in record.delay_ns or ()]
        total, expected = health.total(phase), Sketch()
        expected.add_many(np.array(delays))
        assert total.delay_ms == expected
        assert total.reads_stamped == len(delays)
        assert total.reads_unstamped == sum(n for n, record in enumerate(records) if record.phase == phase)


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
