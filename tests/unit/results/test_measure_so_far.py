"""The live view's statement on the measurement: the verdict's own rules on the evidence so far."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from records import turns

from inferload.base.escaping import escaped
from inferload.figures.counting import count_delays, count_turns, keyed
from inferload.results.live_display import Course, frame
from inferload.results.progress_lines import Snapshot, lines
from inferload.results.rolling_stats import Recent
from inferload.results.verdict.evidence import Evidence, RunFacts
from inferload.results.verdict.phase_evidence import MeasureSoFar, evidence_by_phase
from inferload.results.verdict.reasons import RULES
from inferload.results.verdict.validity import SoFar, judge, judge_so_far
from inferload.run.live.tables import SoFar as CountsSoFar
from inferload.run.live.tables import badge_so_far
from inferload.turns.client_health import Beat, HealthSet
from inferload.turns.record import PHASES, PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet

AT_END = {rule.code for rule in RULES if rule.at_end}
WINDOWS = (PhaseWindow("warmup", 0, 10**9), PhaseWindow("measure", 10**9, 60 * 10**9), PhaseWindow("drain", 60 * 10**9))
FACTS = st.builds(
    RunFacts,
    stamps=st.sampled_from([None, "kernel", "user"]),
    workers=st.integers(1, 3),
    lost_workers=st.integers(0, 1),
    report_gaps=st.integers(0, 1),
    clock_uncertainty_ms=st.none() | st.floats(0, 20),
    adaptations_left_out=st.sampled_from([(), ("batches: slower",)]),
)
BEATS = st.builds(
    Beat,
    loop_lags_ms=st.lists(st.floats(0, 200), max_size=9),
    gc_pauses_ms=st.lists(st.floats(0, 400), max_size=2),
    cpu_s=st.floats(0, 1),
    wall_s=st.just(1.0),
    stolen_s=st.none() | st.floats(0, 0.5),
    read_pauses_ms=st.none() | st.lists(st.floats(0, 1500), max_size=2),
    clock_stepped_ns=st.sampled_from([0, 0, 10**9]),
)
REPORTS = st.lists(
    st.tuples(
        st.sampled_from(["w0", "w1"]),
        st.sampled_from(PHASES),
        st.lists(turns(), max_size=6),
        st.lists(BEATS, max_size=2),
        st.integers(0, 4),  # sessions dropped
        st.lists(st.floats(0, 30), max_size=20),  # client delays
    ),
    max_size=8,
)
Report = tuple[str, Any, list[TurnRecord], list[Beat], int, list[float]]


def counted(report: Report) -> tuple[TallySet, HealthSet]:
    """Return the counts of a report."""
    worker, phase, records, beats, dropped, delays_ms = report
    tallies, health = TallySet(), HealthSet()
    for record in records:
        tallies.at(record.phase, record.class_name).turns_begun += 1
    count_turns(tallies, keyed(records), WINDOWS, {"chat": None, "agent": None})
    count_delays(health, records, [1] * len(records))
    tallies.at(phase, "chat").sessions_planned += dropped
    tallies.at(phase, "chat").sessions_dropped += dropped
    for beat in beats:
        health.at(worker, phase).beat(beat, 2)
    health.at(worker, phase).delay_ms.add_many(np.array(delays_ms, dtype=float))
    return tallies, health


@given(REPORTS, st.floats(0.5, 60), FACTS)
def test_the_live_word_is_the_level_of_the_verdicts_rules(
    reports: list[Report], window_s: float, facts: RunFacts
) -> None:
    live, tallies, health = MeasureSoFar(), TallySet(), HealthSet()
    for report in reports:
        delta = counted(report)
        live.add(*delta)
        tallies.absorb(delta[0])
        health.absorb(delta[1])
    said = live.verdict(health, window_s, facts)
    verdict = judge(evidence_by_phase(tallies, health, {"measure": window_s}, facts))
    reasons = {(r.code, r.level, r.text) for r in verdict.reasons if r.phase == "measure" and r.code not in AT_END}
    assert {(reason.code, reason.level, reason.text) for reason in said.reasons} == reasons
    levels = {level for _, level, _ in reasons}
    assert said.measurement == ("invalid" if "invalid" in levels else "suspect" if levels else "valid")
    assert said.words == {"valid": "valid so far"}.get(said.measurement, f"would be {said.measurement}")


# Evidence of the client alone that breaks one rule.
BROKEN = {
    "client_delay": {"delay_p99_ms": 12.0, "itl_ms": 10.0},
    "client_lag": {"lag_mean_ms": 400.0, "turn_mean_s": 1.0},
    "loop_lag": {"loop_lag_p99_ms": 60.0},
    "client_pause": {"pause_max_ms": 2000.0},
    "cpu": {"cpu_share": 0.99},
    "steal": {"steal_share": 0.3},
    "gc_pause": {"gc_pause_max_ms": 300.0},
    "dropped_sessions": {"sessions_planned": 10, "sessions_dropped": 5},
    "lost_worker": {"lost_workers": 1},
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_client_that_would_make_the_measurement_invalid_is_named_on_every_live_display(code: str) -> None:
    said = judge_so_far(Evidence("measure", **BROKEN[code]))  # type: ignore[arg-type]
    assert (said.measurement, said.reasons[0].code) == ("invalid", code)
    assert said.text.startswith(f"measurement would be invalid: {code}: ")
    now = Snapshot("measure", 5.0, 55.0, None, 4, 0, Recent().figures(0.0), measurement=said)
    assert lines(now, 400)[-1] == escaped(said.text)
    shown = frame(now, _course(now), (), 400)
    assert any(said.text in line for line in shown)
    assert not any("passing so far" in line for line in shown)
    assert any("would be invalid" in line for line in shown)
    badge = badge_so_far(CountsSoFar(TallySet(), HealthSet(), "measure", 5.0), (), (), measurement=said)
    assert badge["state"] == "doubtful"
    assert badge["reasons"][0].startswith(f"would be invalid: {code}: ")


def _course(now: Snapshot) -> Course:
    course = Course()
    course.add(now)
    return course


def test_a_valid_measurement_is_stated_as_valid_so_far() -> None:
    said = judge_so_far(Evidence("measure", turns_begun=3, workers=1))
    assert said == SoFar("valid")
    now = Snapshot("measure", 5.0, 55.0, None, 4, 0, Recent().figures(0.0), measurement=said)
    assert lines(now, 100)[-1] == "measurement valid so far"
    assert any("passing so far" in line for line in frame(now, _course(now), (), 100))


@example(Evidence("measure", turns_begun=50, turns_unfinished=0, sessions_planned=50, sessions_begun=0))
@given(st.builds(Evidence, phase=st.just("measure"), turns_begun=st.integers(0, 99), turns_finished=st.integers(0, 9)))
def test_turns_in_flight_do_not_make_a_measurement_doubtful(evidence: Evidence) -> None:
    """Of a run in progress, turns have not ended yet, and sessions count as achieved when their first turn ends."""
    assert judge_so_far(evidence).measurement == "valid"
