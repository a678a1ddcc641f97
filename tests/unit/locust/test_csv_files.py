"""CSV files in Locust's format against Locust's own tables."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import locust.stats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from locust.env import Environment

from inferload.base import clock, rundir
from inferload.locust_adapters import csv_files
from inferload.locust_adapters.statistics import TurnFailed
from inferload.results.verdict.first_errors import Kind
from inferload.turns.record import Failure

KINDS = st.tuples(
    st.sampled_from(sorted(failure.value for failure in Failure if failure is not Failure.REJECTED)),
    st.none() | st.integers(100, 599),
    st.sampled_from(["chat", "agent"]) | st.text(max_size=8),
)


@given(st.lists(st.floats(0.01, 1e5), max_size=60))
def test_percentiles_equal_locusts(values_ms: list[float]) -> None:
    entry = locust.stats.RequestStats(use_response_times_cache=False).get("chat", "TURN")
    for value in values_ms:
        entry.log(value, 0)
    expected = [entry.get_response_time_percentile(q) for q in csv_files.PERCENTILES]
    shown = csv_files._percentiles(entry)
    assert shown == (pytest.approx(expected, abs=0.0006) if values_ms else ["N/A"] * len(expected))


@pytest.mark.parametrize("ahead_s", [0, -3600, 3600])
def test_rates_are_independent_of_worker_wall_clocks(monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    wall_s, mono_ns = [1_000_000.0], [5 * clock.NS_PER_S]
    monkeypatch.setattr(csv_files, "now_ns", lambda: mono_ns[0])
    monkeypatch.setattr(locust.stats, "time", SimpleNamespace(time=lambda: wall_s[0]))
    stats = locust.stats.RequestStats(use_response_times_cache=False)
    stats.clear_all()
    rates = csv_files.Rates(stats)
    for _second in range(40):
        wall_s[0] += 1.0
        mono_ns[0] += clock.NS_PER_S
        with monkeypatch.context() as there:
            there.setattr(locust.stats, "time", SimpleNamespace(time=lambda: wall_s[0] + ahead_s))
            of_worker = locust.stats.RequestStats(use_response_times_cache=False)
            for _ in range(4):
                of_worker.log_request("TURN", "chat", 10.0, 0)
        stats.get("chat", "TURN").extend(of_worker.get("chat", "TURN"))
        stats.total.extend(of_worker.total)
        rates.sample()
    for entry in (stats.get("chat", "TURN"), stats.total):
        assert rates.total(entry) == pytest.approx((4.0, 0.0), rel=0.03)
        assert rates.current(entry) == pytest.approx((4.0, 0.0), rel=0.03)


def test_a_lone_surrogate_in_a_text_does_not_end_the_run(tmp_path: Path) -> None:
    """Half of a character comes from JSON such as that of a cut answer; UTF-8 cannot represent it."""
    half = json.loads('"\\ud83d"')
    environment = Environment()
    environment.create_local_runner()
    error = AssertionError(f"unexpected answer {half}")
    for name, exception in ((f"/{half}", None), ("~", error)):
        environment.events.request.fire(
            request_type="GET", name=name, response_time=5, response_length=0, exception=exception
        )
    environment.runner.log_exception("local", str(error), f"traceback {half}")
    writer = csv_files.HistoryWriter(tmp_path, environment, clock.Anchor.take())
    writer.finish({})
    assert writer.errors == []
    for file in (rundir.LOCUST_STATS, rundir.LOCUST_HISTORY):
        assert row(tmp_path / file)["Name"] == "/\\ud83d"
    assert "unexpected answer \\ud83d" in row(tmp_path / rundir.LOCUST_FAILURES)["Error"]
    exception = row(tmp_path / rundir.LOCUST_EXCEPTIONS)
    assert (exception["Message"], exception["Traceback"]) == ("unexpected answer \\ud83d", "traceback \\ud83d")


@given(st.dictionaries(KINDS, st.text(), min_size=1, max_size=12))
def test_each_row_of_failures_has_the_first_message_of_its_own_kind(messages: dict[Kind, str]) -> None:
    """Any classes of failure, statuses and classes of turns: no row has the message of another."""
    environment = Environment()
    for failure, status, turn_class in messages:
        environment.stats.log_error("TURN", turn_class, TurnFailed(f"{failure} {status or ''}".strip()))
    environment.stats.log_error("TURN", "chat", TurnFailed("rejected: not an answer"))
    rows = [csv_files._failure_row(error, messages) for error in environment.stats.errors.values()]
    assert {(row[1], row[-1]) for row in rows} == {
        *((turn_class, text) for (_, _, turn_class), text in messages.items()),
        ("chat", ""),
    }


def row(path: Path) -> dict[str, str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.DictReader(file))
