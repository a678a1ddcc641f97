"""Tallies against the turns that they count, and merging."""

import json
from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import MS, S, merged, turn, turns
from turn_reference import VALUES, count_turn, met

from inferload.figures.counting import count_turns, keyed
from inferload.figures.limits.slo import Slo
from inferload.turns.record import PHASES, Failure, PhaseWindow, TurnRecord
from inferload.turns.tally import Tally, TallySet, count_faults

SLO = Slo({"ttft_ms": 200, "tpot_ms": 50, "itl_ms": 300})
WINDOWS = (PhaseWindow("warmup", 0, 10 * S), PhaseWindow("measure", 10 * S, 40 * S), PhaseWindow("drain", 40 * S))

FEW = settings(max_examples=25)
many_turns = st.lists(turns(), max_size=4)


def folded(records: Sequence[TurnRecord], slo: Slo | None = SLO) -> TallySet:
    tallies = TallySet()
    for record in records:
        tallies.at(record.phase, record.class_name, record.step).turns_begun += 1
        count_turn(tallies, record, WINDOWS, slo)
    return tallies


@FEW
@given(many_turns, many_turns)
def test_merging_equals_counting_all_turns_in_one_tally(a: list[TurnRecord], b: list[TurnRecord]) -> None:
    left, right = folded(a), folded(b)
    assert merged(left, right) == merged(right, left) == folded(a + b)
    assert left == folded(a)
    assert right == folded(b)


@FEW
@given(many_turns, many_turns, many_turns)
def test_merging_is_associative(a: list[TurnRecord], b: list[TurnRecord], c: list[TurnRecord]) -> None:
    x, y, z = folded(a), folded(b), folded(c)
    assert merged(merged(x, y), z) == merged(x, merged(y, z))


@FEW
@given(many_turns, many_turns)
def test_deltas_add_up_to_the_total(a: list[TurnRecord], b: list[TurnRecord]) -> None:
    worker, master = TallySet(), TallySet()
    for part in (a, b):
        for record in part:
            worker.at(record.phase, record.class_name, record.step).turns_begun += 1
            count_turn(worker, record, WINDOWS, SLO)
        message = json.dumps(worker.take().to_wire())
        master.absorb(TallySet.from_wire(json.loads(message)))
        assert worker == TallySet()
    assert master == folded(a + b)


@FEW
@given(st.lists(turns(), min_size=1, max_size=8))
def test_every_turn_is_counted_once(records: list[TurnRecord]) -> None:
    tallies = folded(records)
    total = tallies.total()
    for phase in PHASES:
        achieved = tallies.total(phase).window_sessions
        tallies.at(phase, "chat").sessions_planned += achieved
        tallies.at(phase, "chat").sessions_started += achieved
    assert count_faults(tallies) == []
    assert total.ok == sum(record.ok for record in records)
    assert total.unfinished == sum(not record.finished for record in records)
    failures = Counter(record.failure.value for record in records if record.failure and record.finished)
    assert total.by_failure == failures
    assert total.failed == failures.total()
    assert total.by_status == Counter(record.status for record in records if record.status is not None)
    for name in ("output_tokens", "input_tokens", "cached_tokens"):
        reported = [getattr(record, name) for record in records if getattr(record, name) is not None]
        assert getattr(total, name) == sum(reported)
        assert getattr(total, name + "_from") == len(reported)


@FEW
@given(st.lists(turns(), min_size=1, max_size=8))
def test_sketches_have_the_values_of_answered_turns(records: list[TurnRecord]) -> None:
    sketches = folded(records).total().sketches
    answered = [record for record in records if record.ok]
    for name, values_of in VALUES.items():
        values = [value for record in answered for value in values_of(record)]
        if not values:
            assert name not in sketches
            continue
        sketch = sketches[name]
        assert (sketch.count, sketch.min, sketch.max) == (len(values), min(values), max(values))
        assert sketch.mean == pytest.approx(np.mean(values), abs=1e-6)


@FEW
@given(st.lists(turns(), min_size=1, max_size=8))
def test_counts_by_window_add_up_to_the_turns(records: list[TurnRecord]) -> None:
    total = folded(records).total()
    counted = [r for r in records if r.event_tokens is not None or r.output_tokens is not None]
    events = [(r, len(r.event_ns)) for r in records if r.event_ns is not None]
    assert total.window_events == total.events == sum(n for _, n in events)
    assert total.window_events_uncounted == sum(n for r, n in events if r not in counted)
    assert total.window_output_tokens == sum(
        sum(r.event_tokens) if r.event_tokens is not None else r.output_tokens or 0 for r, _ in events
    )
    begun = [r for r in records if r.first_ns is not None]
    assert total.window_input_tokens == sum(r.input_tokens or 0 for r in begun)
    assert (total.window_firsts, total.window_firsts_uncounted) == (
        len(begun),
        sum(r.input_tokens is None for r in begun),
    )
    assert total.window_in_flight_ns == total.turn_ns
    assert total.window_turns == sum(r.ok for r in records if r.sent_ns is not None)
    assert total.window_sessions <= sum(r.turn_index == 0 for r in records)


@given(st.lists(turns(), max_size=8))
def test_an_end_counts_in_its_window(records: list[TurnRecord]) -> None:
    slo = Slo({"ttft_ms": 300})
    tallies = TallySet()
    for record in records:
        count_turn(tallies, record, WINDOWS, slo)
    for window in WINDOWS:
        ended = [r for r in records if r.ok and r.sent_ns is not None and window.holds(r.closed_ns)]
        tally = tallies.total(window.phase)
        assert (tally.window_turns, tally.window_slo_judged) == (len(ended), len(ended))
        assert tally.window_slo_met == sum(bool(met(slo, record)) for record in ended)


@given(turns())
def test_an_event_counts_in_its_window(record: TurnRecord) -> None:
    tallies = folded([record])
    offsets = record.event_ns or array("q")
    assert record.sent_ns is not None or not offsets
    for window in WINDOWS:
        inside = [k for k, offset in enumerate(offsets) if window.holds((record.sent_ns or 0) + offset)]
        tally = tallies.total(window.phase)
        assert tally.window_events == len(inside)
        if record.event_tokens is not None:
            assert tally.window_output_tokens == sum(record.event_tokens[k] for k in inside)


def test_tokens_are_divided_between_windows() -> None:
    """Ten events, one per second; 25 tokens; the boundary is between the fourth and fifth event."""
    offsets = array("q", [k * S for k in range(10)])
    record = turn(
        sent_ns=0,
        planned_ns=0,
        phase="warmup",
        event_ns=offsets,
        first_ns=0,
        last_ns=9 * S,
        output_tokens=25,
        closed_ns=9 * S,
    )
    tallies = TallySet()
    count_turn(tallies, record, [PhaseWindow("warmup", 0, 4 * S), PhaseWindow("measure", 4 * S, None)], None)
    warm, measured = tallies.total("warmup"), tallies.total("measure")
    assert (warm.window_output_tokens, measured.window_output_tokens) == (10, 15)
    assert (warm.window_input_tokens, measured.window_input_tokens) == (100, 0)
    assert (warm.window_in_flight_ns, measured.window_in_flight_ns) == (4 * S, 5 * S)
    assert (warm.ok, measured.ok) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"sent_ns": 5 * S - 1}, "warmup"),
        ({"sent_ns": 5 * S}, None),  # planned in the warm-up, begun after it: achieved in no phase
        ({"sent_ns": 5 * S, "planned_ns": 5 * S}, "measure"),
        ({"sent_ns": 5 * S, "planned_ns": 5 * S, "session_id": "s1/search"}, None),  # a sub-agent of session s1
        ({"sent_ns": 5 * S, "connect_ns": 10 * MS}, "warmup"),  # the time to connect is not a delay of the client
        ({"sent_ns": None, "failure": Failure.CONNECT}, "warmup"),
        ({"sent_ns": 5 * S, "turn_index": 1}, None),
    ],
)
def test_a_session_is_achieved_if_planned_and_begun_in_a_window(changes: dict[str, object], phase: str | None) -> None:
    instants = {"planned_ns": 4 * S, "closed_ns": 9 * S, "first_ns": 6 * S, "last_ns": 6 * S}
    record = turn(**{**instants, "phase": "warmup", **changes})
    tallies = TallySet()
    count_turn(tallies, record, [PhaseWindow("warmup", 0, 5 * S), PhaseWindow("measure", 5 * S)], None)
    begun = {at[0]: tally.window_sessions for at, tally in tallies.items() if tally.window_sessions}
    assert begun == ({} if phase is None else {phase: 1})


def test_a_session_counts_in_its_planned_step() -> None:
    """Steps are in one phase: a session sent after the end of its step is counted."""
    late = turn(planned_ns=10 * S - MS, sent_ns=10 * S + MS, closed_ns=11 * S, first_ns=11 * S, last_ns=11 * S)
    steps = (PhaseWindow("measure", 0, 10 * S, 0), PhaseWindow("measure", 10 * S, 20 * S, 1))
    tallies, many = TallySet(), TallySet()
    count_turn(tallies, late, steps, None)
    count_turns(many, keyed([late]), steps, {"chat": None})
    assert tallies == many
    assert (tallies.at("measure", "chat", 0).window_sessions, tallies.at("measure", "chat", 1).window_sessions) == (
        1,
        0,
    )


def test_a_failed_turn_has_no_sketch_values_or_stalls() -> None:
    slow = array("q", [0, 400 * MS])
    failed = folded([turn(failure=Failure.CUT, event_ns=slow)]).total()
    assert (failed.failed, failed.sketches, failed.turns_with_stall, failed.longest_stall_ms) == (1, {}, 0, None)
    answered = folded([turn(event_ns=slow), turn(event_ns=array("q", [0, 250 * MS]))]).total()
    assert (answered.turns_with_stall, answered.longest_stall_ms) == (1, 400)


@pytest.mark.parametrize(
    ("slo", "changes", "expected"),
    [
        (Slo({"ttft_ms": 50}), {}, True),
        (Slo({"ttft_ms": 49.9}), {}, False),
        (Slo({"ttft_ms": 51}, from_plan=True), {}, False),  # 50 ms from the send, 52 ms from the plan
        (Slo({"ttft_ms": 52}, from_plan=True), {}, True),
        (Slo({"e2e_ms": 89}), {}, False),
        (Slo({"tpot_ms": 10}), {}, True),
        (Slo({"tpot_ms": 9.9}), {}, False),
        (Slo({"tpot_ms": 9.9}), {"event_ns": array("q", [50 * MS]), "output_tokens": 1}, True),  # one token has no TPOT
        (Slo({"tpot_ms": 9.9}), {"output_tokens": None}, None),  # the token count is unknown
        (Slo({"itl_ms": 10}), {}, True),
        (Slo({"itl_ms": 9}), {}, False),
        (Slo({"itl_ms": 20}), {"event_ns": array("q", [0, *range(10 * MS, 100 * MS, MS), 200 * MS])}, False),
        (
            Slo({"itl_ms": 20}),
            {"event_ns": array("q", [*range(0, 150 * MS, MS), 250 * MS])},
            True,
        ),  # 1 of 150 is above p99
        (Slo(), {"failure": Failure.CUT}, False),
        (Slo({"ttft_ms": 50}), {"first_ns": None}, False),
        (
            Slo({"ttft_ms": 50, "tpot_ms": 1}),
            {"finish_reason": "cancelled"},
            True,
        ),  # within the limits until it was cancelled
        (Slo({"ttft_ms": 49}), {"finish_reason": "cancelled"}, False),
        (Slo({"ttft_ms": 50}), {"finish_reason": "cancelled", "first_ns": None}, False),  # cancelled without a token
        (Slo({"e2e_ms": 100}), {"finish_reason": "cancelled", "first_ns": None}, True),
        # The end of a cancelled turn is its cancellation, after its last output.
        (Slo({"e2e_ms": 399}), {"finish_reason": "cancelled", "closed_ns": S + 402 * MS}, False),
        (Slo({"e2e_ms": 400}), {"finish_reason": "cancelled", "closed_ns": S + 402 * MS}, True),
    ],
)
def test_slo_of_one_turn(slo: Slo, changes: dict[str, object], expected: bool | None) -> None:
    record = turn(**changes)
    tally = folded([record], slo).total()
    assert (tally.slo_judged, tally.slo_met) == (expected is not None, expected is True)


def test_without_an_slo_no_turn_is_judged() -> None:
    tally = folded([turn()], None).total()
    assert (tally.slo_judged, tally.slo_met) == (0, 0)


def test_totals_by_class_and_step() -> None:
    tallies = folded([turn(), turn(class_name="agent", step=1), turn(class_name="agent", step=0, phase="warmup")])
    assert list(tallies.by_class()) == ["agent", "chat"]
    assert {name: tally.ok for name, tally in tallies.by_class("measure").items()} == {"agent": 1, "chat": 1}
    assert {step: tally.ok for step, tally in tallies.by_step("measure").items()} == {1: 1}
    assert tallies.by_step("warmup")[0].ok == 1
    assert tallies.total().ok == 3
    assert tallies.total("drain") == Tally()


def test_count_mismatches_are_listed() -> None:
    tallies = TallySet()
    tallies.at("measure", "chat").sessions_planned += 5
    tallies.at("measure", "chat").sessions_started += 3
    tallies.at("measure", "chat").sessions_dropped += 2
    tallies.at("measure", "chat").sessions_completed += 3
    tallies.at("measure", "chat").turns_begun += 1
    count_turn(tallies, turn(), WINDOWS, None)
    assert count_faults(tallies) == []
    tallies.at("measure", "chat").sessions_dropped += 1
    tallies.at("drain", "chat").turns_begun += 1
    tallies.at("warmup", "chat").sessions_completed += 1
    assert [fault.split(":")[0] for fault in count_faults(tallies)] == ["warmup", "measure", "drain"]
    assert "5 sessions were planned, but 3 dropped and 3 started" in count_faults(tallies)[1]
    assert "1 turns were begun, but 0 ended well" in count_faults(tallies)[2]


def test_sessions_not_begun_by_a_lost_worker_are_dropped() -> None:
    tallies = TallySet()
    tallies.at("measure", "chat").sessions_planned += 5
    tallies.at("measure", "chat").sessions_started += 2
    tallies.at("measure", "chat").sessions_dropped += 1
    tallies.at("measure", "agent").sessions_planned += 3
    tallies.at("measure", "agent").sessions_started += 3
    assert tallies.drop_waiting() == 2
    assert count_faults(tallies) == []
    assert tallies.by_class("measure")["chat"].sessions_dropped == 3
    assert tallies.drop_waiting() == 0


@pytest.mark.parametrize(
    ("pauses", "server", "client"),
    [
        ([], (1, 400), 0),
        ([(S + 60 * MS, S + 120 * MS)], (1, 400), 0),  # the client paused for a small part of the stall
        ([(S + 70 * MS, S + 440 * MS)], (0, None), 1),
        ([(S + 0 * MS, S + 200 * MS), (S + 300 * MS, S + 500 * MS)], (0, None), 1),
        ([(S + 700 * MS, S + 1100 * MS)], (1, 400), 0),  # the pause is after the stall
    ],
)
def test_a_stall_during_a_client_pause_is_attributed_to_the_client(
    pauses: list[tuple[int, int]], server: tuple[int, int | None], client: int
) -> None:
    record = turn(
        event_ns=array("q", [50 * MS, 60 * MS, 460 * MS]), sent_ns=S, last_ns=S + 460 * MS, closed_ns=S + 460 * MS
    )
    tallies = TallySet()
    count_turn(tallies, record, [], None, pauses)
    tally = tallies.total()
    assert (tally.turns_with_stall, tally.longest_stall_ms) == server
    assert tally.turns_with_client_stall == client
    assert tally.sketches["itl_ms"].max == 400  # the measured interval is unchanged


def test_the_keys_of_counts_json_do_not_change() -> None:
    tallies = TallySet()
    tallies.at("measure", "chat").turns_delayed = 1
    tallies.at("measure", "chat").delayed_ns = 7
    ((_phase, _name, _step, wire),) = tallies.to_wire()["tallies"]
    assert wire["counts"] == {"turns_held": 1, "held_ns": 7}
    assert TallySet.from_wire(tallies.to_wire()) == tallies
