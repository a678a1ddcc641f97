"""Offered and achieved sessions, Little's law, tokens per turn: consistent in random runs; errors are reported."""

from array import array
from collections import defaultdict

import msgspec
import pytest
import recomputed
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from records import MS, S, turn

from inferload.base.clock import Anchor
from inferload.campaign.attainment import slo
from inferload.campaign.attainment.window import of_turns
from inferload.figures.counting import count_turns, keyed
from inferload.results import summary
from inferload.results.verdict import phase_evidence
from inferload.results.verdict.evidence import RunFacts, token_balance
from inferload.results.verdict.validity import judge
from inferload.turns.client_health import HealthSet
from inferload.turns.record import Failure, Phase, PhaseWindow, TurnRecord
from inferload.turns.tally import Tally, TallySet, count_faults
from inferload.turns.turn_columns import TurnColumns, to_table

WINDOWS = (
    PhaseWindow("warmup", 0, 10 * S),
    PhaseWindow("measure", 10 * S, 40 * S),
    PhaseWindow("drain", 40 * S, 90 * S),
)
SECONDS: dict[Phase, float] = {"warmup": 10.0, "measure": 30.0, "drain": 50.0}
MANIFEST = {
    "anchor": {"mono_ns": 0, "wall_ns": 0},
    "workers": [{"name": "w1", "anchor": {"mono_ns": 0}, "clock_offset_ns": 0}],
    "phases": [{"phase": "measure", "start_wall_ns": 10 * S, "end_wall_ns": 40 * S}],
}


def phase_of(at_ns: int) -> Phase:
    return next(window.phase for window in WINDOWS if window.holds(at_ns))


def answered(turn_id: str, planned_ns: int, lasts: tuple[int, int, int] = (50 * MS, 50 * MS, 20)) -> TurnRecord:
    """Return a turn with an event for each token. `turn_id`: session/index. `lasts`: TTFT, ITL, tokens."""
    (session, _, index), (ttft_ns, itl_ns, tokens) = turn_id.rpartition("/"), lasts
    events = array("q", [ttft_ns + index * itl_ns for index in range(tokens)])
    sent_ns, last_ns = planned_ns + MS, planned_ns + MS + events[-1]
    return turn(
        turn_id=turn_id,
        session_id=session,
        turn_index=int(index),
        phase=phase_of(planned_ns),
        planned_ns=planned_ns,
        sent_ns=sent_ns,
        written_ns=sent_ns,
        first_event_ns=sent_ns + ttft_ns,
        first_ns=sent_ns + ttft_ns,
        first_visible_ns=sent_ns + ttft_ns,
        last_ns=last_ns,
        closed_ns=last_ns + MS,
        event_ns=events,
        output_tokens=tokens,
    )


@st.composite
def sessions(draw: st.DrawFn) -> list[TurnRecord]:
    """Generate a session of 1 to 3 turns that may extend into the next phases; the first may have sub-agents."""
    number, at_ns = draw(st.integers(0, 10**6)), draw(st.integers(0, 40 * S - 1))
    generated: list[TurnRecord] = []
    for index in range(draw(st.integers(1, 3))):
        lasts = draw(st.integers(0, 2 * S)), draw(st.integers(0, 300 * MS)), draw(st.integers(1, 20))
        generated.append(answered(f"s{number}/{index}", at_ns, lasts))
        agents = range(draw(st.integers(0, 2)) if index == 0 else 0)
        generated += [answered(f"s{number}/{agent}/0", generated[0].closed_ns, lasts) for agent in agents]
        at_ns = max(record.closed_ns for record in generated) + draw(st.integers(0, S))
        if at_ns >= 40 * S:  # no turn begins in the drain
            break
    failure = draw(st.sampled_from([None, None, None, Failure.CUT, Failure.UNFINISHED]))
    generated[-1] = replace(generated[-1], failure=failure)
    return generated


def counted(runs: list[list[TurnRecord]]) -> TallySet:
    """Return the tallies of these sessions, counted as by a worker."""
    tallies = TallySet()
    for records in runs:
        tallies.at(records[0].phase, "chat").sessions_planned += 1
        tallies.at(records[0].phase, "chat").sessions_started += 1
        for record in records:
            tallies.at(record.phase, "chat").turns_begun += 1
    count_turns(tallies, keyed([record for records in runs for record in records]), WINDOWS, defaultdict(lambda: None))
    return tallies


def steady(rate: int = 4) -> list[list[TurnRecord]]:
    """Return one-turn sessions at a constant rate, each of 1 s and 20 tokens."""
    starts = range(0, 40 * S, S // rate)
    return [[answered(f"s{number}/0", at_ns)] for number, at_ns in enumerate(starts)]


def queued() -> list[list[TurnRecord]]:
    """Return sessions at 4/s to a server that processes 2/s in sequence: half of them end in the drain."""
    generated, free_ns = [], 0
    for number in range(160):
        planned_ns = number * S // 4
        begin_ns = max(planned_ns, free_ns)
        free_ns = begin_ns + S // 2
        generated.append([answered(f"s{number}/0", planned_ns, (begin_ns - planned_ns + 25 * MS, 25 * MS, 20))])
    return generated


def codes(tallies: TallySet) -> set[str]:
    judged = judge(phase_evidence.evidence_by_phase(tallies, HealthSet(), SECONDS, RunFacts(stamps=None)))
    return {reason.code for reason in judged.reasons if reason.phase == "measure"}


def test_a_run_without_turns_has_no_warning_on_receive_timestamps() -> None:
    assert phase_evidence._stamps(HealthSet()) is None
    assert codes(TallySet()).isdisjoint({"user_stamps", "stamps_missing"})


@given(st.lists(sessions(), min_size=1, max_size=30, unique_by=lambda records: records[0].session_id))
def test_rates_of_random_runs_are_consistent(runs: list[list[TurnRecord]]) -> None:
    tallies, columns = counted(runs), TurnColumns()
    columns.extend([record for records in runs for record in records])
    table = to_table(columns, Anchor(0, 0), "w1")
    rows = table.to_pylist()
    measured = tallies.total("measure")
    figures = summary.figures_of(measured, SECONDS["measure"])
    document = msgspec.to_builtins(figures) | {"window_s": SECONDS["measure"]}
    recomputed.check_rates(document, MANIFEST, rows, {})
    searched = of_turns(table, {"w1": -10 * S}, SECONDS["measure"], slo.parse("p95(ttft_ms) < 800"))
    assert searched.turns_per_s == pytest.approx(document["rates"]["turns_per_s"])
    assert count_faults(tallies) == []
    for phase_entry in phase_evidence.evidence_by_phase(tallies, HealthSet(), SECONDS, RunFacts(stamps=None)):
        assert (token_balance(phase_entry) or 0.0) < 1e-9
        window = next(window for window in WINDOWS if window.phase == phase_entry.phase)
        assert abs(
            in_flight_s(tallies.total(phase_entry.phase)) - turns_s(tallies.total(phase_entry.phase))
        ) <= crossing_s(rows, window)


def in_flight_s(tally: Tally) -> float:
    return tally.window_in_flight_ns / S


def turns_s(tally: Tally) -> float:
    return tally.turn_ns / S


def crossing_s(rows: list[recomputed.Row], window: PhaseWindow) -> float:
    """Return the tolerance of Little's law: the total time (s) of turns in flight at an end of the window."""
    ends = (window.start_ns, window.end_ns)
    across = [
        row for row in rows if any(row["planned_ns"] <= end < row["closed_ns"] for end in ends if end is not None)
    ]
    return sum(row["closed_ns"] - row["sent_ns"] for row in across) / S + 1e-9


@pytest.mark.parametrize(
    ("counter", "code"),
    [
        ("window_output_tokens", "token_balance"),
        ("window_ended_tokens", "token_balance"),
        ("window_turns", "token_balance"),
        ("window_in_flight_ns", "littles_law"),
        ("turn_ns", "littles_law"),
        ("window_sessions", "count_mismatch"),
        ("turns_begun", "count_mismatch"),
    ],
)
def test_double_counting_is_a_reason(counter: str, code: str) -> None:
    tallies = counted(steady())
    assert codes(tallies) == set()
    tally = tallies.at("measure", "chat")
    setattr(tally, counter, 2 * getattr(tally, counter))
    assert code in codes(tallies)


def test_drain_turns_counted_in_the_window_are_a_reason() -> None:
    tallies = counted(queued())
    assert codes(tallies) == set()
    tallies.at("measure", "chat").window_turns += tallies.at("drain", "chat").window_turns
    assert codes(tallies) == {"token_balance"}


def test_sub_agents_and_warm_up_sessions_are_in_neither_rate() -> None:
    """One session per second with two turns and three sub-agents; warm-up sessions extend into the measure phase."""
    runs = []
    for number in range(40):
        first = answered(f"s{number}/0", number * S)
        agents = [answered(f"s{number}/{agent}/0", first.closed_ns) for agent in range(3)]
        later = answered(f"s{number}/1", agents[0].closed_ns)
        runs.append([record for record in (first, *agents, later) if record.planned_ns < 40 * S])
    rates = summary.figures_of(counted(runs).total("measure"), SECONDS["measure"]).rates
    assert (rates["offered_sessions_per_s"], rates["achieved_sessions_per_s"]) == (1.0, 1.0)
    assert rates["turns_per_s"] == pytest.approx(5, rel=0.05)
