"""Validity: each reason at its limit, and the verdict."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from paths import ROOT
from records import MS, S, turn
from turn_reference import count_turn

from inferload.results.documents.figures_document import Growth
from inferload.results.verdict import validity
from inferload.results.verdict.evidence import Between, Evidence, GpuClock, RunFacts, ScrapeGap
from inferload.results.verdict.phase_evidence import evidence_by_phase
from inferload.results.verdict.reasons import RULES
from inferload.results.verdict.validity import judge
from inferload.turns.client_health import Beat, HealthSet
from inferload.turns.tally import TallySet

GOOD = Evidence(
    phase="measure",
    workers=2,
    turns_begun=1000,
    turns_finished=1000,
    sessions_planned=2000,
    sessions_begun=2000,
    delay_p99_ms=0.5,
    itl_ms=10.0,
    loop_lag_p99_ms=1.0,
    cpu_share=0.3,
    steal_share=0.0,
    gc_pause_max_ms=3.0,
    stamped_share=0.99,
    stamps="kernel",
    lost_workers=0,
    report_gaps=0,
    clock_uncertainty_ms=0.2,
    server_restarts=0,
    warm_cache_share=0.0,
    window_s=60.0,
    turn_mean_s=1.2,
    in_flight_mean=20.0,
    rate_times_time=20.5,
    server_in_flight_mean=19.0,
    turns_per_s=2.0,
    tokens_per_turn=10.0,
    streamed_tokens=1200,
)

Changes = dict[str, Any]


def grew(**changes: Any) -> Changes:
    return {"growth": replace(Growth(60.0, 10.0, 9.9, 0.5, -0.1, 1.1, "kept up"), **changes)}


def between(**counts: float) -> Changes:
    return {"between": Between(**counts)}


def held(events: float, delay_ms: float | None = 0.0) -> Changes:
    return {"events_per_arrival": events, "delay_p99_ms": delay_ms}


def sessions(begun: int, **others: int) -> Changes:
    return {"sessions_begun": begun, **others}


def test_a_good_run_is_valid() -> None:
    verdict = judge([GOOD])
    assert (verdict.measurement, verdict.reasons) == ("valid", [])


# code, evidence just within every limit, just suspect, just invalid (None: no case of that level)
EDGES: list[tuple[str, Changes, Changes | None, Changes | None]] = [
    ("no_turns", {"turns_finished": 1}, None, {"turns_finished": 0}),
    ("overload", grew(), grew(growth_per_s=0.51, state="overloaded"), None),
    ("overload", grew(), grew(growth_per_s=5.0, state="unsettled", step=2), None),
    ("client_delay", {"delay_p99_ms": 5.0}, {"delay_p99_ms": 5.01}, {"delay_p99_ms": 10.01}),
    ("client_delay", {"delay_p99_ms": 500.0, "itl_ms": None}, None, None),
    # A delay below 1 ms changes no latency, and a late client joins events itself.
    ("client_delay", {"delay_p99_ms": 0.99, "itl_ms": 0.2}, None, None),
    ("client_delay", {"delay_p99_ms": 1.0, "itl_ms": 2.0}, {"delay_p99_ms": 1.0, "itl_ms": 1.9}, None),
    # What joins events makes gaps short: the servers' own gaps bound them.
    ("client_delay", {"delay_p99_ms": 4.0, "itl_ms": 0.01, "server_itl_ms": 10.0}, None, None),
    ("client_delay", {"delay_p99_ms": 4.0, "itl_ms": 0.0}, None, None),
    ("held_stream", held(2.0), held(2.01), None),
    ("held_stream", held(2.3, 4.0), None, None),
    ("held_stream", held(20.0, None), None, None),
    ("held_stream", held(7.0) | {"tokens_per_event": 1 / 7}, None, None),  # its parts
    ("held_gaps", between(held_ms=45.0, gap_ms=300.0), between(held_ms=46.0, gap_ms=300.0), None),
    ("more_requests", between(sent=100, arrived=101), between(sent=1000, arrived=1002), None),
    ("completed_cuts", between(ok=6, cut=0), between(ok=6, cut=5), None),
    ("other_usage", *(between(output_tokens=count, generated_tokens=1000) for count in (1020, 979)), None),
    ("refused_idle", between(turns=1000, refused_idle=1), between(turns=1000, refused_idle=2), None),
    ("client_lag", *({"lag_mean_ms": lag_ms, "turn_mean_s": 1.0} for lag_ms in (50.0, 51.0, 251.0))),
    ("loop_lag", {"loop_lag_p99_ms": 5.0}, {"loop_lag_p99_ms": 5.1}, {"loop_lag_p99_ms": 50.1}),
    ("client_pause", {"pause_max_ms": 250.0}, {"pause_max_ms": 251.0}, {"pause_max_ms": 1001.0}),
    ("cpu", {"cpu_share": 0.85}, {"cpu_share": 0.86}, {"cpu_share": 0.98}),
    ("steal", {"steal_share": 0.05}, {"steal_share": 0.06}, {"steal_share": 0.21}),
    ("gc_pause", {"gc_pause_max_ms": 50.0}, {"gc_pause_max_ms": 51.0}, {"gc_pause_max_ms": 251.0}),
    ("dropped_sessions", *(sessions(2000 - dropped, sessions_dropped=dropped) for dropped in (2, 3, 101))),
    (
        "at_limit",
        {"turns_delayed": 10, "delayed_mean_ms": 400.0, "lag_mean_ms": 401.0},
        {"turns_delayed": 11, "sessions_at_limit": 10, "sessions_dropped": 10, "sessions_begun": 1990},
        None,
    ),
    ("offered_vs_achieved", sessions(1980), sessions(1979), sessions(1899)),
    # A delayed turn explains no session that started late for another reason.
    ("offered_vs_achieved", sessions(1900, sessions_postponed=80), sessions(1979, turns_delayed=10), None),
    ("offered_vs_achieved", sessions(1900, sessions_postponed=80), None, sessions(1800, sessions_postponed=99)),
    ("offered_vs_achieved", sessions(8, sessions_planned=10), None, sessions(7, sessions_planned=10)),
    ("lost_worker", {}, None, {"lost_workers": 1}),
    ("report_gap", {}, None, {"report_gaps": 1}),
    ("lost_records", {}, None, {"lost_records": 3, "lost_records_why": "worker w0: /run/turns: No space left"}),
    ("write_error", {}, {"write_errors": ("/run/marks.jsonl: No space left on device",)}, None),
    ("locust_adaptation", {}, {"adaptations_left_out": ("buckets: percentiles are rounded",)}, None),
    ("clock_skew", {"clock_uncertainty_ms": 5.0}, {"clock_uncertainty_ms": 500.0}, None),
    ("clock_step", {}, {"clock_steps": 1, "clock_stepped_s": -3600.0}, None),
    ("unfinished_drain", {}, {"turns_unfinished": 1}, {"turns_unfinished": 51}),
    ("unfinished_drain", {}, {"turns_unfinished": 50}, None),
    ("count_mismatch", {}, None, {"count_faults": ("measure: 2 turns were begun, but 1 ended",)}),
    ("server_restart", {}, None, {"server_restarts": 1}),
    ("gpu_clock", *({"gpu_clock": GpuClock("http://a:9400", "1", 1000.0, last)} for last in (900.0, 899.0)), None),
    ("scrape_gap", *({"scrape_gap": ScrapeGap("http://a:8000", gap_s, 5.0)} for gap_s in (5.0, 55.0)), None),
    ("warm_cache", {"warm_cache_share": 0.01}, {"warm_cache_share": 1.0}, None),
    (
        "token_balance",
        {"streamed_tokens": 1000, "edge_tokens": 80},
        {"streamed_tokens": 1000, "edge_tokens": 79},
        {"streamed_tokens": 1000, "edge_tokens": 199, "turns_per_s": 4.0},
    ),
    ("token_balance", {"streamed_tokens": None, "turns_per_s": 34.0}, None, None),  # the token count is unknown
    ("littles_law", {"rate_times_time": 26.0}, {"rate_times_time": 27.0}, None),
    ("littles_law", {"server_in_flight_mean": 15.1}, {"server_in_flight_mean": 14.9}, None),
    # The window is too short for a decision.
    ("littles_law", {"rate_times_time": 60.0, "window_s": 11.0, "streamed_tokens": 220}, None, None),
    ("littles_law", {"in_flight_mean": 1.0, "rate_times_time": 1.9, "server_in_flight_mean": None}, None, None),
    ("stamps_missing", {"stamped_share": 0.5}, {"stamped_share": 0.49}, None),
    ("user_stamps", {}, {"stamps": "user", "stamped_share": 0.0}, None),
]


@pytest.mark.parametrize(("code", "within", "suspect", "invalid"), EDGES)
def test_each_reason_at_its_limit(code: str, within: Changes, suspect: Changes | None, invalid: Changes | None) -> None:
    assert judge([replace(GOOD, **within)]).measurement == "valid"
    for level, changes in (("suspect", suspect), ("invalid", invalid)):
        if changes is not None:
            verdict = judge([replace(GOOD, **changes)])
            assert [reason.code for reason in verdict.reasons] == [code]
            reason = verdict.reasons[0]
            assert (verdict.measurement, reason.level) == (level, level)
            assert list(reason.__struct_fields__) == ["code", "phase", "level", "value", "limit", "text"]
            assert "?" not in reason.text


def test_every_rule_is_tested_at_each_of_its_levels() -> None:
    for rule in RULES:
        edges = [edge for edge in EDGES if edge[0] == rule.code]
        of_level = tuple(any(edge[level] for edge in edges) for level in (2, 3))
        assert of_level == tuple(limit is not None for limit in rule.limits), rule.code


def test_unknown_evidence_gives_no_reason() -> None:
    assert judge([Evidence(phase="measure", turns_begun=1, turns_finished=1)]).measurement == "valid"


def test_only_the_measure_phase_decides() -> None:
    warm_up = replace(GOOD, phase="warmup", loop_lag_p99_ms=80.0, turns_finished=0)
    verdict = judge([warm_up, replace(GOOD, cpu_share=0.9)])
    assert verdict.measurement == "suspect"
    assert [(reason.code, reason.phase) for reason in verdict.reasons] == [("cpu", "measure"), ("loop_lag", "warmup")]
    assert verdict.by_phase == {"warmup": "invalid", "measure": "suspect"}


def test_a_run_without_a_measure_phase_is_invalid() -> None:
    verdict = judge([replace(GOOD, phase="warmup")])
    assert (verdict.measurement, [reason.code for reason in verdict.reasons]) == ("invalid", ["no_turns"])
    assert verdict.by_phase == {"warmup": "valid", "measure": "invalid"}


def test_the_text_of_a_reason_has_figure_and_remedy() -> None:
    assert judge([replace(GOOD, delay_p99_ms=14.02, cpu_share=0.03)]).reasons[0].text == (
        "the client added at least 14 ms to 1 % of the gaps, whose median is 10 ms; no worker used half a core: stop other "
        "processes on the machine, or use one without the server"
    )


@pytest.mark.parametrize("code", ["client_delay", "loop_lag", "client_pause", "cpu"])
def test_reasons_that_depend_on_the_reader_name_the_python_one(code: str) -> None:
    late = replace(GOOD, delay_p99_ms=9.0, loop_lag_p99_ms=90.0, pause_max_ms=2000.0, cpu_share=0.99)
    for reader in ("python (TLS)", "native for http://a; python (TLS) for https://b"):
        (reason,) = (found for found in judge([replace(late, reader=reader)]).reasons if found.code == code)
        assert f", reader: {reader}; " in reason.text
    assert not any("reader" in reason.text for reason in judge([replace(late, reader="native")]).reasons)


@given(st.none() | st.floats(0, 1), st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 10))
def test_more_workers_are_no_remedy_for_late_workers_with_idle_cores(
    cpu_share: float | None, delay_ms: float, loop_lag_ms: float, lag_ms: float
) -> None:
    late = replace(GOOD, delay_p99_ms=delay_ms, loop_lag_p99_ms=loop_lag_ms, lag_mean_ms=lag_ms, cpu_share=cpu_share)
    texts = [
        reason.text for reason in judge([late]).reasons if reason.code in ("client_delay", "client_lag", "loop_lag")
    ]
    assert all(("more workers" in text) == (cpu_share is None or cpu_share >= 0.5) for text in texts)


def test_large_figures_are_not_abbreviated() -> None:
    text = judge([replace(GOOD, lag_mean_ms=664.3, turn_mean_s=1.0304)]).reasons[0].text
    assert text.startswith("turns were sent 664 ms late on average, and last 1,030 ms;")
    text = judge([replace(GOOD, clock_steps=1, clock_stepped_s=-3600.0)]).reasons[0].text
    assert "by -3,600.0 s in total" in text


def test_evidence_is_from_tallies_and_client_health() -> None:
    tallies, health = TallySet(), HealthSet()
    for number in range(20):
        tallies.at("measure", "chat").sessions_planned += 1
        tallies.at("measure", "chat").sessions_started += 1
        tallies.at("measure", "chat").turns_begun += 1
        count_turn(tallies, turn(turn_id=f"t{number}"), (), None)
    health.at("w1", "measure").beat(Beat([1.0, 2.0] * 50, [0.5], 0.5, 1.0, 0.02), processors=2)
    health.at("w2", "measure").beat(Beat([9.0] * 50, [], 0.9, 1.0, 0.2), processors=2)
    tallies.at("drain", "chat").turns_begun += 1
    facts = RunFacts(stamps="kernel", workers=2, lost_workers=1, clock_uncertainty_ms=0.4)
    evidence = {
        entry.phase: entry for entry in evidence_by_phase(tallies, health, {"measure": 60.0, "drain": 5.0}, facts)
    }
    measured = evidence["measure"]
    assert (measured.turns_begun, measured.turns_finished, measured.sessions_planned) == (20, 20, 20)
    assert (measured.loop_lag_p99_ms, measured.cpu_share, measured.steal_share) == (9.0, 0.9, 0.1)
    assert measured.rate_times_time == pytest.approx(20 * 93 * MS / S / 60)
    assert measured.delay_p99_ms is None
    assert len(measured.count_faults) == 1
    assert (evidence["drain"].lost_workers, evidence["drain"].count_faults) == (None, ())
    reasons = [reason.code for reason in judge(list(evidence.values())).reasons if reason.phase == "measure"]
    assert {*reasons} >= {"lost_worker", "count_mismatch", "offered_vs_achieved", "loop_lag"}
    assert reasons[0] == "lost_worker"  # the cause of others


@pytest.mark.parametrize(
    ("loop_lag_ms", "blamed"),
    [pytest.param(0.2, False, id="the server is slow to connect"), pytest.param(60.0, True, id="this client is")],
)
def test_slow_connects_are_not_client_delay(loop_lag_ms: float, blamed: bool) -> None:
    tallies, health = TallySet(), HealthSet()
    sent_ns = turn().sent_ns
    assert sent_ns is not None
    for number in range(20):
        tallies.at("measure", "chat").turns_begun += 1
        late = turn(turn_id=f"t{number}", planned_ns=sent_ns - 102 * MS, connect_ns=100 * MS)
        count_turn(tallies, late, (), None)
    health.at("w1", "measure").beat(Beat([loop_lag_ms] * 50, [], 0.1, 1.0, None, read_pauses_ms=[]))
    (measured,) = evidence_by_phase(tallies, health, {"measure": 60.0}, RunFacts(stamps="kernel"))
    assert ("client_lag" in {reason.code for reason in judge([measured]).reasons}) == blamed


@pytest.mark.parametrize(("upload_ms", "lag_ms"), [(1, None), (20, 40.0)])
def test_event_loop_lag_counts_only_if_it_delays_turns(upload_ms: int, lag_ms: float | None) -> None:
    tallies, health = TallySet(), HealthSet()
    sent_ns = turn().sent_ns
    assert sent_ns is not None
    count_turn(tallies, turn(written_ns=sent_ns + upload_ms * MS), (), None)
    health.at("w1", "measure").beat(Beat([40.0] * 50, [], 0.5, 1.0, None, read_pauses_ms=[300.0]))
    (measured,) = evidence_by_phase(tallies, health, {"measure": 60.0}, RunFacts(stamps="kernel"))
    assert (measured.loop_lag_p99_ms, measured.pause_max_ms) == (lag_ms, 300.0)


@pytest.mark.parametrize(
    ("late", "count", "blamed"),
    [
        (1, 1, False),
        (1, 20, False),
        (2, 20, True),  # the p99 is at least the second largest of 20, with 98 % confidence
        (20, 20, True),
        (8, 500, False),
        (11, 500, True),
        (10, 1000, False),  # enough samples: the p99 itself decides
        (11, 1000, True),
    ],
)
def test_a_few_late_samples_prove_no_late_p99(late: int, count: int, blamed: bool) -> None:
    tallies, health = TallySet(), HealthSet()
    tallies.at("measure", "chat").turns_begun += 1
    count_turn(tallies, turn(), (), None)
    client = health.at("w1", "measure")
    values = [0.05] * (count - late) + [60.0] * late
    client.beat(Beat(values, [], 0.1, 1.0, None))
    client.delay_ms.add_many(np.array(values))
    client.reads_stamped = count
    (measured,) = evidence_by_phase(tallies, health, {"measure": 60.0}, RunFacts(stamps="kernel"))
    codes = {reason.code for reason in judge([measured]).reasons}
    assert codes == ({"client_delay", "loop_lag"} if blamed else set())


def test_the_validity_page_is_generated_from_the_table() -> None:
    page = (ROOT / "docs/reference/validity.md").read_text(encoding="utf-8")
    assert page == validity.document(page), "python -m inferload.results.verdict.validity"
    assert "| `no_turns` |" in page
