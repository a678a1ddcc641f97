"""Live points and tables against the summary of the same turns, and server figures against counted scrapes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import S, turn, turns
from turn_reference import count_all

from inferload.figures.limits.slo import Slo
from inferload.figures.pages import metric_names as names
from inferload.figures.servers import server_figures
from inferload.figures.servers.server_figures import HIT_RATE, KV_CACHE_USAGE, PREEMPTIONS, RUNNING, WAITING
from inferload.results.documents.summary_document import Run
from inferload.results.documents.verdict_document import Verdict
from inferload.results.rolling_stats import SPAN_S, Recent
from inferload.results.summary import build
from inferload.results.summary_input import Counted, Gating, SummaryInput, Surroundings
from inferload.run.live import tables
from inferload.run.live.live_recorder import MOST_TARGETS, Instant, LiveRecorder
from inferload.run.live.recorder import MOST_CLASSES, RecentHealth, Recorder
from inferload.run.live.tables import SoFar
from inferload.turns.client_health import Beat, HealthSet
from inferload.turns.record import Failure, PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet

WINDOWS = (PhaseWindow("measure", 0, 60 * S), PhaseWindow("drain", 60 * S))
GATES = (
    "p99(ttft_ms) < 1",
    "failed_ratio < 0.5",
    "p50(itl_ms) < 1000",
    "mean(kv_cache_usage) < 0.9",
    "turns_per_s{rag} > 0",
)


def delta_of(records: list[TurnRecord]) -> TallySet:
    tallies = TallySet()
    for record in records:
        tallies.at(record.phase, record.class_name).sessions_planned += 1
        tallies.at(record.phase, record.class_name).sessions_started += 1
        tallies.at(record.phase, record.class_name).turns_begun += 1
    count_all(tallies, records, WINDOWS, Slo({"ttft_ms": 100.0}))
    return tallies


def newest(recorder: LiveRecorder) -> dict[str, Any]:
    points = recorder.series.newest(1, recorder.series.columns)
    return {name: values[0] for name, values in points.columns.items()}


def line(wall_ns: int, up: bool = True, **readings: float) -> Mapping[str, Any]:
    """Return a line of the scraper; keys are the names in metric_names in lower case."""
    return {
        "wall_ns": wall_ns,
        "up": up,
        "gauges": {getattr(names, key.upper()): value for key, value in readings.items()},
    }


@given(st.lists(st.lists(turns(), max_size=4), max_size=8))
def test_points_are_the_rolling_figures_and_failures_add_up(reports: list[list[TurnRecord]]) -> None:
    recorder, recent, failed = LiveRecorder(Recorder()), Recent(), 0
    for second, records in enumerate(reports):
        delta = delta_of(records)
        recorder.reports.add(second + 0.5, delta, HealthSet())
        recent.add(second + 0.5, delta)
        recorder.close_second(second + 1.0, Instant(3, 5, 0))
        failed += delta.total().failed
        figures, point = recent.figures(second + 1.0), newest(recorder)
        for name, value in ((name, figures[name]) for name in ("ttft_ms_p95", "e2e_ms_p50", "turns_per_s")):
            assert point[name] == (None if value is None else pytest.approx(value, rel=1e-3))
        assert (point["in_flight"], point["users"]) == (3, 5)
    assert sum(recorder.failures.values()) == failed
    columns = [name for name in recorder.series.columns if name.startswith("failed:")]
    points = recorder.series.after(0, columns)
    assert points is not None
    assert sum(value or 0 for values in points.columns.values() for value in values) == failed


@given(st.lists(turns(), max_size=12))
def test_tables_so_far_are_those_of_the_summary(records: list[TurnRecord]) -> None:
    tallies = delta_of(records)
    data = SummaryInput(
        Surroundings(Run(), None),
        Counted(tallies, HealthSet(), {"measure": 60.0}),
        Verdict(measurement="valid"),
        gating=Gating(GATES),
    )
    document = build(data)
    counts = SoFar(tallies, HealthSet(), "measure", 60.0, GATES)
    so_far = counts.results()
    assert tables.class_rows(so_far) == tables.class_rows(document)
    for early, final in zip(tables.gates_so_far(counts, so_far), tables.gates_of(document.verdict.gates), strict=True):
        assert early["gate"] == final["gate"]
        if early["value"] is not None:
            assert (early["value"], early["passed"]) == (final["value"], final["passed"])
        else:
            assert final["value"] is None


def test_gates_have_no_value_in_the_warm_up() -> None:
    counts = SoFar(delta_of([turn()]), HealthSet(), "warmup", 5.0, GATES)
    assert {gate["passed"] for gate in tables.gates_so_far(counts, counts.results())} == {None}


def test_the_badge_of_a_run_that_fails_is_not_good() -> None:
    failed = turn(failure=Failure.HTTP_5XX, status=500, first_ns=None, last_ns=None, output_tokens=None)
    counts = SoFar(delta_of([turn(), failed]), HealthSet(), "measure", 5.0)
    counts.tallies.at("measure", "chat").turns_begun += 1  # a turn in flight
    badge = tables.badge_so_far(counts, [], [])
    assert badge["state"] == "failing"
    assert badge["reasons"] == ["1 of 2 turns failed: http_5xx 1"]
    others = tables.badge_so_far(
        SoFar(delta_of([turn()]), HealthSet(), "measure", 5.0), [], [], ["1 of 2 other requests failed"]
    )
    assert (others["state"], others["reasons"]) == ("failing", ["1 of 2 other requests failed"])
    gates = [{"gate": "p99(ttft_ms) < 1", "passed": False}]
    assert tables.badge_so_far(counts, gates, [])["state"] == "failing"
    assert tables.badge_so_far(counts, [{"gate": "g", "passed": True}], [])["state"] == "doubtful"


def test_the_badge_of_an_overloaded_run_or_one_with_a_lost_worker_is_doubtful() -> None:
    tallies = delta_of([turn()])
    assert tables.badge_so_far(SoFar(tallies, HealthSet(), "measure", 5.0), [], [])["state"] == "running"
    lost = tables.badge_so_far(SoFar(tallies, HealthSet(), "measure", 5.0), [], ["w1"])
    assert (lost["state"], lost["reasons"]) == ("doubtful", ["worker w1 lost: its part of the load is missing"])
    tallies.at("measure", "chat").sessions_planned += 4
    tallies.at("measure", "chat").sessions_dropped += 3
    tallies.at("measure", "chat").sessions_at_limit += 3
    dropped = tables.badge_so_far(SoFar(tallies, HealthSet(), "measure", 5.0), [], [])
    assert dropped["state"] == "doubtful"
    assert dropped["reasons"] == ["3 of 5 planned sessions dropped, 3 of them at max_in_flight: overloaded"]


def test_slo_attainment_is_that_of_the_last_minute() -> None:
    recorder = LiveRecorder(Recorder())
    assert recorder.slo_attainment() is None
    recorder.reports.add(0.5, delta_of([turn(first_ns=S + 300_000_000), turn(), turn(), turn()]), HealthSet())
    recorder.close_second(1.0, Instant(0, 0, 0))
    assert recorder.slo_attainment() == 0.75
    recorder.close_second(62.0, Instant(0, 0, 0))
    assert recorder.slo_attainment() is None


def test_slo_attainment_is_known_after_a_pause_of_the_master() -> None:
    recorder = LiveRecorder(Recorder())
    for second in (*range(20), *range(90, 95)):  # no points in a pause of 70 s
        recorder.reports.add(second + 0.5, delta_of([turn()]), HealthSet())
        recorder.close_second(second + 1.0, Instant(0, 0, 0))
    assert recorder.slo_attainment() == 1.0
    assert recorder.series.newest_s == 95.0


def test_server_figures_are_differences_of_counters() -> None:
    recorder = LiveRecorder(Recorder())
    for second in range(4):
        scrape = line(
            second * S,
            kv_cache_usage=0.25,
            running=3,
            prefix_hits=30 * second,
            prefix_queries=40 * second,
            preemptions=second * second,
        )
        other = line(second * S, kv_cache_usage=0.5, running=1)
        recorder.close_second(second + 1.0, Instant(0, 0, second * S, {"a": scrape, "b": other}))
    point = newest(recorder)
    assert tuple(point[row.key] for row in (KV_CACHE_USAGE, RUNNING, HIT_RATE, PREEMPTIONS)) == (0.5, 4, 0.75, 5)
    assert (point[f"{KV_CACHE_USAGE.key}@target:a"], point[f"{RUNNING.key}@target:b"]) == (0.25, 1)
    assert WAITING.key not in point


def health_of(worker: str, delays_ms: list[float], cpu_s: float, wall_s: float = 1.0) -> HealthSet:
    health = HealthSet()
    window = health.at(worker, "measure")
    window.delay_ms.add_many(np.array(delays_ms))
    window.beat(Beat((), (), cpu_s, wall_s, None))
    return health


def test_gpu_use_of_several_targets_is_the_highest() -> None:
    recorder = LiveRecorder(Recorder())
    scrapes = {"a": line(S, gpu_use=90, gpu_power=300), "b": line(S, gpu_use=10, gpu_power=100)}
    recorder.close_second(1.0, Instant(0, 0, S, scrapes))
    points = recorder.series.newest(1, ("gpu_use", "gpu_power_w"))
    assert points.columns == {"gpu_use": [0.9], "gpu_power_w": [400]}


def test_the_bottleneck_has_delay_and_load_of_the_client_over_the_last_seconds() -> None:
    recorder, scrape = LiveRecorder(Recorder()), {"running": 1, "waiting": 0}

    def codes(seconds: range, delay_ms: float, cpu_s: float) -> list[object]:
        for second in seconds:
            recorder.reports.add(second + 0.5, delta_of([turn()]), health_of("w1", [delay_ms] * 50, cpu_s))
            recorder.reports.add(second + 0.5, TallySet(), health_of("w2", [0.1], 0.1))
            instant = Instant(0, 0, second * S, {"a": line(second * S, **scrape)})
            recorder.close_second(second + 1.0, instant)
        return [(state["code"], state["evidence"]) for state in recorder.bottlenecks()]

    (calm,) = codes(range(20), 0.1, 0.2)
    assert calm[0] == "kept-up"
    (busy,) = codes(range(20, 40), 0.1, 0.95)
    assert busy == ("client-bound", "the busiest client process used 95 % of a core")
    (slow,) = codes(range(40, 60), 60.0, 0.2)
    assert slow == ("client-bound", "client delay p99 is 59.9 ms, the typical gap of a stream 10 ms")
    assert codes(range(60, 80), 0.1, 0.2)[0][0] == "kept-up"


def scraped(second: int, ttft_ms: float) -> dict[str, float]:
    """Readings of a server that finished five requests a second."""
    total, count = (reading.name for reading in server_figures.TTFT.formula.readings)
    return {
        total: 0.005 * ttft_ms * second,
        count: 5 * second,
        names.FINISHED: 5 * second,
        names.RUNNING: 2,
        names.WAITING: 0,
    }


@given(st.lists(st.tuples(st.floats(0, 3 * SPAN_S), st.integers(1, 4)), max_size=30), st.floats(0, 4 * SPAN_S))
def test_the_load_of_the_client_is_that_of_the_whole_seconds_before(
    beats: list[tuple[float, int]], later_s: float
) -> None:
    recent = RecentHealth()
    at_s = max([0.0, *(begun_s for begun_s, _ in beats)]) + later_s
    for begun_s, cpu_s in sorted(beats):
        health = HealthSet()
        health.at("w0", "measure").beat(Beat([], [], float(cpu_s), 4.0, None))
        recent.add(begun_s, health)
    within = [cpu_s for begun_s, cpu_s in beats if int(at_s) - SPAN_S <= int(begun_s) < int(at_s)]
    expected = sum(within) / (4 * len(within)) if within else None
    assert recent.figures(at_s)[1] == expected


def test_a_server_that_differs_from_its_peers_is_named_during_the_run() -> None:
    recorder = LiveRecorder(Recorder())

    def outliers_at(seconds: range, slow_ms: float, stopped_s: int | None = None) -> list[tuple[object, object]]:
        for second in seconds:
            answered = second if stopped_s is None else min(second, stopped_s)
            scrapes = {
                "a": {"wall_ns": second * S, "up": True, "gauges": scraped(second, 50.0)},
                "b": {"wall_ns": answered * S, "up": True, "gauges": scraped(answered, slow_ms)},
            }
            recorder.close_second(second + 1.0, Instant(0, 0, second * S, scrapes))
        return [(state["target"], state["now"]) for state in recorder.bottlenecks() if state["code"] == "outlier"]

    assert outliers_at(range(12), 55.0) == []
    assert outliers_at(range(12, 16), 55.0, stopped_s=12) == []
    (silent,) = outliers_at(range(16, 18), 55.0, stopped_s=12)
    assert silent == ("b", "its metrics page did not answer for 5 s while its peers answered")
    assert outliers_at(range(18, 20), 55.0) == []
    ((target, text),) = outliers_at(range(20, 80), 750.0)
    assert target == "b"
    assert str(text).startswith("engine TTFT ")


@pytest.mark.parametrize("last_s", [0, 1, 11])
def test_a_server_that_ended_stays_named_until_the_end_of_the_run(last_s: int) -> None:
    """The last scrape that it answered may be before the load, whose first point is at 1 s."""

    def scrapes(second: int) -> dict[str, dict[str, Any]]:
        up = second <= last_s
        return {
            "a": {"wall_ns": second * S, "up": True, "gauges": scraped(second, 50.0)},
            "b": {"wall_ns": second * S, "up": up, "gauges": scraped(second, 50.0) if up else {}},
            "gpus": {"wall_ns": second * S, "up": up, "gauges": {}},
        }

    recorder = LiveRecorder(Recorder())
    recorder.begin(scrapes(0))
    last_looks = (4, 29, 35, 600) if last_s == 0 else (4, 29, 35)
    for second in range(1, last_s + last_looks[-1] + 1):
        recorder.close_second(second, Instant(0, 0, second * S, scrapes(second)))
        if second - last_s in last_looks:
            found = [
                (state["target"], state["since_s"]) for state in recorder.bottlenecks() if state["code"] == "outlier"
            ]
            assert found == [("b", last_s + 4.0)]


@pytest.mark.parametrize(
    ("failure", "status", "refused"),
    [
        (Failure.HTTP_5XX, 500, False),
        (Failure.HTTP_429, 429, False),
        (Failure.HTTP_4XX, 408, False),
        (Failure.HTTP_4XX, 425, False),
        (Failure.HTTP_4XX, 400, True),
        (Failure.HTTP_4XX, 422, True),
    ],
)
def test_no_server_keeps_up_while_turns_fail_but_refused_ones(failure: Failure, status: int, refused: bool) -> None:
    recorder = LiveRecorder(Recorder())
    nothing = {"first_ns": None, "last_ns": None, "output_tokens": None}
    unfinished = turn(failure=Failure.UNFINISHED, status=400, **nothing)  # has a status, and did not fail
    failed = [turn(failure=failure, status=status, **nothing), unfinished]
    for second in range(10):
        recorder.reports.add(second + 0.5, delta_of(failed if second == 9 else [turn()] * 3), HealthSet())
        instant = Instant(0, 0, second * S, {"a": line(second * S, running=1, waiting=0)})
        recorder.close_second(second + 1.0, instant)
        kept_up = second >= 4 and (second < 9 or refused)
        assert [state["code"] for state in recorder.bottlenecks()] == (["kept-up"] if kept_up else [])


def test_stale_scrapes_restarted_counters_and_servers_that_are_down_are_unknown() -> None:
    recorder = LiveRecorder(Recorder())
    recorder.close_second(1.0, Instant(0, 0, S, {"a": line(S, running=1, preemptions=9)}))
    recorder.close_second(2.0, Instant(0, 0, 2 * S, {"a": line(2 * S, running=1, preemptions=2)}))
    assert newest(recorder).get("preemptions") is None
    assert newest(recorder)[RUNNING.key] == 1
    recorder.close_second(3.0, Instant(0, 0, 30 * S, {"a": line(2 * S, running=1)}))
    assert newest(recorder)[RUNNING.key] is None
    recorder.close_second(4.0, Instant(0, 0, 30 * S, {"a": line(30 * S, up=False, running=1)}))
    assert newest(recorder)[RUNNING.key] is None


def test_the_number_of_columns_is_bounded() -> None:
    recorder = LiveRecorder(Recorder())
    for number in range(3 * MOST_CLASSES):
        recorder.reports.add(0.5, delta_of([turn(class_name=f"c{number}")]), HealthSet())
    scrapes = {f"t{number}": line(0, running=1) for number in range(3 * MOST_TARGETS)}
    recorder.close_second(1.0, Instant(0, 0, 0, scrapes))
    assert len(recorder.classes) == MOST_CLASSES
    assert len(recorder.targets) == MOST_TARGETS
    assert newest(recorder)["turns_per_s"] == 3 * MOST_CLASSES


def test_several_servers_behind_one_address_have_a_line_and_no_figures() -> None:
    recorder = LiveRecorder(Recorder())
    for second in range(8):
        state = {} if second < 6 else {"replicas": 2}
        figures = {"running": 1, "waiting": 0, "preemptions": second} if second < 6 else {}
        scrapes = {"a": {**line(second * S, **figures), **state}, "b": line(second * S, running=2, waiting=0)}
        recorder.reports.add(second + 0.5, delta_of([turn()] * 3), HealthSet())
        recorder.close_second(second + 1.0, Instant(0, 0, second * S, scrapes))
        assert [state["target"] for state in recorder.bottlenecks()] == [["a", "b"], ["b"]][second >= 6][
            : 2 * (second >= 4)
        ]
        several = ["2 servers behind a: name each with --metrics-url; server figures are left out"]
        assert recorder.left_out() == (several if second >= 6 else [])
    assert newest(recorder)[RUNNING.key] == 2
    assert newest(recorder)[f"{RUNNING.key}@target:a"] is None
