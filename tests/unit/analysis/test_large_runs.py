"""Reports of runs that do not fit into memory: sums of all turns, latencies of a sample of sessions, and the marks on them."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import large_run
import numpy as np
import pyarrow as pa
import pytest
import synthetic_run as synthetic
from inferload.analysis.charts.charts import pictures
from inferload.analysis.data import frames, timeline, turn_files
from inferload.analysis.data.breakdown import parts
from inferload.analysis.data.data_quality import warnings
from inferload.analysis.data.frame import Frame, known
from inferload.analysis.data.frames import RunFrames
from inferload.analysis.data.partial_run import Notes
from inferload.analysis.data.turn_files import in_sample
from inferload.analysis.diagnosis.client_view import Queue
from inferload.analysis.diagnosis.whole_run import failed_turns
from inferload.analysis.interop import vllm_bench
from inferload.analysis.report import reconcile, report, slowest

from inferload.base import rundir
from inferload.results.open_run import OpenRun
from inferload.turns.record import CANCELLED

TURNS = 4000
EVERY = 4
MARK = f"1 in {EVERY} sessions"
LATENCIES = [f"{name}_ms_{quantile}" for name in ("ttft", "itl", "tpot", "e2e") for quantile in ("p50", "p95")]
LIMIT_MB = 1000
HOUR_LIMIT_S, PAGE_LIMIT_MB = 30.0, 5.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("large") / "run"
    large_run.write(run_dir, TURNS, workers=2)  # so that sessions reach the turns of their sub-agents
    rundir.write_json(run_dir / rundir.SUMMARY, synthetic.SUMMARY)
    return run_dir


@pytest.fixture(scope="module")
def whole(path: Path) -> RunFrames:
    return frames.load(OpenRun(path))


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_files, "MOST_TURNS", TURNS // EVERY)


@pytest.fixture
def sampled(path: Path, low_limit: None) -> RunFrames:
    return frames.load(OpenRun(path))


def of_session(turns: Frame) -> dict[str, list[str]]:
    sessions: dict[str, list[str]] = {}
    for session, turn in zip(turns["session_id"], turns["turn_id"], strict=True):
        sessions.setdefault(session.partition("/")[0], []).append(turn)
    return {session: sorted(turns) for session, turns in sessions.items()}


def assert_equal(table: Frame, expected: Frame) -> None:
    """Counts of two timelines are equal."""
    counted = [name for name in expected if name not in LATENCIES]
    assert {"turns_started", "turns_ended", "turns_failed", "in_flight", "output_tok", "users"} <= set(counted)
    for name in counted:
        np.testing.assert_array_equal(table[name], expected[name], name)


def test_a_sample_has_all_turns_of_its_sessions(whole: RunFrames, sampled: RunFrames) -> None:
    assert whole.sample is None
    assert str(sampled.sample) == MARK
    everything, chosen = of_session(whole.turns), of_session(sampled.turns)
    assert sum("/" in session for session in sampled.turns["session_id"]) > 10
    assert chosen.items() <= everything.items()
    assert len(chosen) == pytest.approx(len(everything) / EVERY, rel=0.2)
    assert len(sampled.events.at_s) < len(whole.events.at_s) / 2
    assert (np.diff(sampled.events.at_s) >= 0).all()


def test_many_events_are_sampled_too(path: Path, whole: RunFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_files, "MOST_EVENTS", len(whole.events.at_s))
    assert frames.load(OpenRun(path)).sample is None
    monkeypatch.setattr(turn_files, "MOST_EVENTS", len(whole.events.at_s) - 1)
    assert str(frames.load(OpenRun(path)).sample) == "1 in 2 sessions"


def test_counts_of_the_timeline_are_of_all_turns(whole: RunFrames, sampled: RunFrames) -> None:
    expected, table = timeline.build(whole), timeline.build(sampled)
    assert set(table[timeline.SAMPLED]) == {MARK}
    assert_equal(table, expected)
    assert expected["turns_started"].sum() == TURNS
    assert timeline.SAMPLED not in expected
    for name in LATENCIES:
        assert (known(table[name]) <= known(expected[name])).all()
        assert not np.array_equal(table[name], expected[name], equal_nan=True)


def test_sums_and_the_slowest_turns_are_of_all_turns(whole: RunFrames, sampled: RunFrames) -> None:
    expected, reconciled = reconcile.reconcile(whole), reconcile.reconcile(sampled)
    (span,) = reconciled.spans
    assert span.requests.client is not None
    assert span.requests.client + sum(span.unsure.values()) == TURNS
    assert (reconciled.spans, reconciled.checks[1:]) == (expected.spans, expected.checks[1:])
    assert reconciled.checks[0].text == f"From {MARK}. {expected.checks[0].text}"
    assert slowest.table(sampled) == slowest.table(whole)
    assert sampled.end_s == whole.end_s
    assert warnings(sampled) == warnings(whole)


def test_sums_of_batches_are_those_of_the_whole() -> None:
    rows = 40
    texts = {"failure": np.full(rows, None), "finish_reason": np.full(rows, "stop", dtype=object)}
    turns = Frame({**texts, "input_tokens": np.full(rows, 10), "output_tokens": np.full(rows, 7)})
    sums = reconcile._SpanSums()
    for start in range(0, rows, 7):
        sums.add(turns[start : start + 7])
    assert sums == reconcile._SpanSums(rows, 400, 280, unsure=Counter())
    for column, text, kind in (("failure", "cut", reconcile.FAILED), ("finish_reason", CANCELLED, CANCELLED)):
        other = replace(sums, unsure=Counter())
        other.add(turns[-1:].with_columns({"output_tokens": [np.nan], column: np.array([text], dtype=object)}))
        assert other == reconcile._SpanSums(rows, 410, None, unsure=Counter({kind: 1}))


def test_failures_of_a_killed_run_are_of_all_turns(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = shutil.copytree(path, tmp_path / "killed")
    (killed / rundir.SUMMARY).unlink()
    expected = frames.load(OpenRun(killed))
    monkeypatch.setattr(turn_files, "MOST_TURNS", TURNS // EVERY)
    run = frames.load(OpenRun(killed))
    assert failed_turns(run) == failed_turns(expected)
    turns = failed_turns(run).turns
    assert (turns.ok, turns.failed, turns.by_failure) == (TURNS - 12, 12, {"cut": 8, "http_5xx": 4})
    assert run.turns_until_s == expected.turns_until_s
    assert_equal(timeline.build(run), timeline.build(expected))


def test_an_unreadable_file_is_left_out_of_sample_and_sums(path: Path, tmp_path: Path, low_limit: None) -> None:
    damaged = shutil.copytree(path, tmp_path / "damaged")
    file = damaged / rundir.TURNS / "w1-all.parquet"
    file.write_bytes(b"PAR1" + bytes(2000) + file.read_bytes()[2004:])  # its metadata, at the end, is whole
    run = frames.load(OpenRun(damaged))
    assert "turns/w1-all.parquet cannot be read and is left out" in run.notes
    assert set(run.turns["worker"]) == {"w0"}
    assert timeline.build(run)["turns_started"].sum() == TURNS // 2


def test_every_part_of_the_report_from_a_sample_says_so(path: Path, low_limit: None) -> None:
    files = report.make(OpenRun(path))
    page, text = files.html.read_text(), files.markdown.read_text()
    note = f"the run has {TURNS:,} turns: charts of turns, percentiles by second"
    assert note in page
    assert note in text
    section = text.partition("## Latency breakdown by total")[2].partition("## ")[0]
    assert f"From {MARK}." in section
    assert json.loads((path / rundir.RECONCILE).read_text())["bands_from"] == MARK
    diagnosis = json.loads((path / rundir.DIAGNOSIS).read_text())
    assert [server["client_figures_from"] for server in diagnosis["servers"]] == [MARK]
    assert "latencies_from" in files.timeline.read_text().partition("\n")[0]


def test_charts_of_turns_are_marked(whole: RunFrames, sampled: RunFrames) -> None:
    def notes_of(run: RunFrames) -> dict[str, str]:
        problems = Notes()
        drawn = pictures(run, timeline.build(run), parts(run.turns), problems).drawn
        assert problems.all() == ()
        return {picture.key: picture.note for picture in drawn}

    notes = notes_of(sampled)
    assert set(notes) == {"over-time", "spectrum", "where-from", "prompts", "itl-heat", "lanes"}
    assert all(note.startswith(f"From {MARK}. ") for note in notes.values())
    assert "Counts and rates are of all turns" in notes["over-time"]
    assert not [note for note in notes_of(whole).values() if "sessions" in note]


def test_the_export_for_vllm_bench_has_all_turns(path: Path, tmp_path: Path, low_limit: None) -> None:
    run = frames.load(OpenRun(path), whole=True)
    document = vllm_bench.document(replace(run, summary=None))
    assert document["num_prompts"] == TURNS


def test_the_head_of_the_queue_of_a_sample_is_nearest_to_the_head() -> None:
    sent_s = np.arange(100.0)
    queue = Queue(sent_s, np.full(100, 1000.0), sent_s, 1000.0)
    at_s, waiting = np.array([99.5, 99.5]), np.array([40.0, 1.0])
    assert queue.heads(at_s, waiting).tolist() == [60.0, 99.0]
    some = replace(queue, sent_s=sent_s[::10], until_s=queue.until_s[::10], tokens=sent_s[::10], scale=10.0)
    np.testing.assert_equal(some.heads(at_s, waiting), [60.0, np.nan])


def cost(*words: str | Path) -> tuple[float, float]:
    """Run a command of inferload; return its CPU time in seconds and its peak memory in MB."""
    command = [sys.executable, "-m", "inferload", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    cpu_s, memory_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000
    print(f"{words[0]}: {memory_mb:.0f} MB, {cpu_s:.0f} s CPU time")
    assert os.waitstatus_to_exitcode(status) == 0
    return cpu_s, memory_mb


def started(run: Path) -> int:
    """Return the turns of a timeline."""
    return sum(int(row["turns_started"]) for row in csv.DictReader((run / rundir.TIMELINE).open()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_report_and_comparison_of_ten_million_turns_need_little_memory(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    turns = large_run.write(run, 10_000_000).turns
    rundir.write_json(run / rundir.SUMMARY, synthetic.SUMMARY)
    shutil.copytree(run, other, copy_function=os.link)
    for words in (("report", run), ("compare", run, other)):
        assert cost(*words)[1] < LIMIT_MB
    assert started(run) == turns


@pytest.mark.soak
def test_the_report_of_an_hour_is_quick_and_small(tmp_path: Path) -> None:
    turns = large_run.write(tmp_path, 100_000, turns_per_s=100_000 / 3600, events=(50, 150)).turns
    rundir.write_json(tmp_path / rundir.SUMMARY, synthetic.SUMMARY)
    cpu_s, memory_mb = cost("report", tmp_path)
    assert cpu_s < HOUR_LIMIT_S
    assert memory_mb < LIMIT_MB
    assert (tmp_path / rundir.REPORT_HTML).stat().st_size / 1e6 < PAGE_LIMIT_MB
    assert started(tmp_path) == turns


@pytest.mark.parametrize("users", [1, 3, 40])
def test_turns_of_tasks_are_sampled_one_by_one(users: int) -> None:
    """A user of tasks has one session for the whole run: whole sessions would be all turns of the run, or none."""
    of_user = np.arange(4000) % users
    ids = {
        "session_id": [f"t{user}" for user in of_user],
        "turn_id": [f"t{user}.{n}" for n, user in enumerate(of_user)],
    }
    assert in_sample(pa.table(ids), 4).mean() == pytest.approx(0.25, rel=0.1)


def test_a_sample_without_turns_has_a_timeline(path: Path, low_limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_files, "in_sample", lambda turns, every: np.zeros(len(turns), dtype=bool))
    sampled = frames.load(OpenRun(path))
    assert len(sampled.turns) == 0
    assert timeline.build(sampled)["turns_ended"].sum() > 0
