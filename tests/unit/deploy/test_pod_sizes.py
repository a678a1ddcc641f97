"""Sizes of the pods of a run: bounds, their growth with the load, and the measured costs in the documentation."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.render import pod_sizes
from inferload.deploy.render.pod_sizes import Sizes, sizes
from paths import ROOT

from inferload.campaign.machine import calibration
from inferload.campaign.machine.calibration import Calibration, Machine, ReferencePace, RunFigures
from inferload.scenario import scenario as scenarios
from inferload.workload.plan.planned_load import SampleSize

CLOSED = """
schema: 1
name: closed
workload: {kind: chat, turns: 3, think_time_s: 1, prompt_tokens: 50, output_tokens: 100}
arrivals: {kind: closed, users: 10, spawn_per_s: 10}
phases: {warmup_s: 10, measure_s: 60, drain_s: 10}
"""
OPEN = CLOSED.replace("{kind: closed, users: 10, spawn_per_s: 10}", "{kind: constant, sessions_per_s: 2}")
LIVE = CLOSED.replace("{kind: chat, turns: 3, think_time_s: 1, prompt_tokens: 50, output_tokens: 100}", "{kind: tasks}")


@pytest.fixture(scope="module", autouse=True)
def bare(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """No calibration, and few drawn sessions, which are all alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(pod_sizes, "SAMPLE", SampleSize(20, 100))
        yield


def sized(text: str, workers: int = 1, **changes: Any) -> Sizes:
    paths = {path.replace("__", "."): value for path, value in changes.items()}
    return sizes(scenarios.from_text(text, "run.yaml").changed(paths), workers)


def needed(size: pod_sizes.PodSize) -> float:
    """Return the unbounded CPU of a rule."""
    return float(re.search(r"= ([\d.,e-]+);", size.rule)[1].replace(",", ""))  # type: ignore[index]


def test_the_lines_have_the_sums(golden: Callable[[str, str], None]) -> None:
    parts = [
        *sized(CLOSED, 2).lines,
        "",
        *sized(OPEN, 1, arrivals__sessions_per_s=200).lines,
        "",
        *sized(LIVE, 1).lines,
    ]
    golden("pod-sizes.txt", "\n".join(parts) + "\n")


def test_the_cpu_time_of_an_open_loop_is_that_of_its_turns_and_tokens() -> None:
    """Six turns a second of 100 tokens: 600 tokens/s, of which 16.9 us each are published."""
    assert needed(sized(OPEN).worker) == pytest.approx(2 * 600 * 16.9e-6, rel=0.005)
    assert needed(sized(OPEN, 3).worker) == pytest.approx(2 * 200 * 16.9e-6, rel=0.005)


def test_a_closed_loop_sends_as_fast_as_its_pauses_and_the_assumed_answers_permit() -> None:
    """Three answers of 50 ms and 100 times 10 ms, two pauses of 1 s."""
    rate = 10 * 300 / (3 * 1.05 + 2)
    assert needed(sized(CLOSED).worker) == pytest.approx(2 * rate * 16.9e-6, rel=0.005)
    rate = 10 * 100 / 1.05
    assert needed(sized(CLOSED, workload__think_time_s=0).worker) == pytest.approx(2 * rate * 16.9e-6, rel=0.005)


LOADS = st.lists(st.integers(1, 4000), min_size=2, max_size=2).map(sorted)


@given(LOADS, st.integers(1, 50))
@pytest.mark.parametrize(
    ("text", "key"),
    [(CLOSED, "arrivals__users"), (OPEN, "arrivals__sessions_per_s"), (LIVE, "arrivals__users")],
    ids=["closed", "open", "live"],
)
def test_sizes_grow_with_the_load_and_shrink_with_workers(text: str, key: str, load: list[int], workers: int) -> None:
    low, high = (sized(text, workers, **{key: each}) for each in load)
    more = sized(text, workers + 1, **{key: load[1]})
    for one, other in ((low.worker, high.worker), (more.worker, high.worker), (high.master, more.master)):
        assert 0.25 <= one.cpu_cores <= other.cpu_cores <= 1
        assert 256 <= one.memory_mib <= other.memory_mib
        assert one.memory_mib % 64 == 0
    assert low.master.memory_mib <= high.master.memory_mib
    assert needed(more.worker) <= needed(high.worker)


@given(st.integers(1, 4000), st.integers(1, 20))
def test_the_named_number_of_workers_is_enough_and_one_less_is_not(users: int, workers: int) -> None:
    found = sized(OPEN, workers, arrivals__sessions_per_s=users)
    warning = re.search(r"--workers (\d+)$", found.lines[-1])
    assert (warning is None) == (needed(found.worker) <= 1)
    if warning is not None:
        assert "warning" not in sized(OPEN, int(warning[1]), arrivals__sessions_per_s=users).lines[-1]
        assert "warning" in sized(OPEN, int(warning[1]) - 1, arrivals__sessions_per_s=users).lines[-1]


def test_the_highest_rate_of_a_profile_and_the_sent_class_of_a_mix_count() -> None:
    steps = {"kind": "steps", "steps": [{"sessions_per_s": rate, "for_s": 20} for rate in (1, 8, 2)]}
    profile = sized(OPEN, arrivals__sessions_per_s=None, arrivals__profile=steps)
    assert needed(profile.worker) == needed(sized(OPEN, arrivals__sessions_per_s=8).worker)
    chat = scenarios.from_text(OPEN, "run.yaml").as_data()["workload"]
    classes = [{"name": "a", "share": 0.25, "workload": chat}, {"name": "b", "share": 0.75, "workload": chat}]
    mix = {"kind": "mix", "only": "a", "classes": classes}
    assert needed(sized(OPEN, workload=mix).worker) == needed(sized(OPEN, arrivals__sessions_per_s=0.5).worker)


def test_the_busiest_ten_seconds_of_recorded_starts_count(tmp_path: Path) -> None:
    times = tmp_path / "times.txt"
    times.write_text("".join(f"{at_s}\n" for at_s in (0, 30, 31, 32, 33, 34, 50)))
    trace = sized(OPEN, arrivals={"kind": "trace", "path": str(times)})
    assert needed(trace.worker) == needed(sized(OPEN, arrivals__sessions_per_s=0.5).worker)


def test_a_load_without_arrivals_in_its_time_has_the_least_sizes() -> None:
    found = sized(OPEN, arrivals__sessions_per_s=0.001, phases__warmup_s=0)
    assert (found.worker.cpu_cores, found.worker.memory_mib, found.master.cpu_cores) == (0.25, 320, 0.25)


def test_a_run_without_an_end_has_memory_for_the_most_that_is_held() -> None:
    endless = sized(OPEN, phases__measure_s=None).master
    assert endless.memory_mib == sized(OPEN, phases__measure_s=1e8).master.memory_mib
    assert "500,000 turns" in endless.rule
    assert "10,000,000 output tokens" in endless.rule


def test_sub_agents_of_a_closed_loop_run_beside_the_session() -> None:
    """Of the steps of the agent, all but the last start two sub-agents, which send one turn each."""
    subagents = {"share": 1, "count": 2, "prompt_tokens": 10, "steps": 1}
    tools = [{"name": "search", "time_s": 0, "result_tokens": 10}]
    agent = {
        "kind": "agent",
        "steps": 3,
        "prompt_tokens": 10,
        "output_tokens": 100,
        "tools": tools,
        "subagents": subagents,
    }
    turns_per_s = 10 * (3 + 2 * 2) / (3 * 1.05)
    assert needed(sized(CLOSED, workload=agent).worker) == pytest.approx(2 * turns_per_s * 1690e-6, rel=0.005)


def test_long_requests_need_memory() -> None:
    short, long = (sized(CLOSED, arrivals__users=100, workload__prompt_tokens=n).worker for n in (50, 50_000))
    mean = 50_000 * 2  # of three requests with their history
    assert long.memory_mib - short.memory_mib == pytest.approx(2 * 100 * mean * 14 / 2**20, abs=64)


def test_a_stored_calibration_changes_the_cpu_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pace = ReferencePace()
    figures = RunFigures(
        measurement="valid",
        output_tok_per_s=pace.tok_per_s(100),
        ttft_mean_ms=50.0,
        itl_p99_ms=20.0,
        cpu_share=2 * 16.9e-6 * pace.tok_per_s(100),
        server_late_mean_ms=0.0,
        server_late_p99_ms=0.0,
    )
    points = [calibration.size_result(100, pace, figures)]
    stored = Calibration.of("2026-11-30T06:00:00+00:00", Machine("bench", "", 2), {}, pace, points)
    assert stored is not None
    file = calibration.store(stored, tmp_path / "inferload")
    assert needed(sized(OPEN).worker) == pytest.approx(4 * 600 * 16.9e-6, rel=0.005)
    assert "x 2 by the calibration of bench" in sized(OPEN).lines[0]
    none_true = {**json.loads(file.read_text()), "streams": None}
    for damaged in ("{", "[]", "{}", json.dumps(none_true)):
        file.write_text(damaged)
        assert needed(sized(OPEN).worker) == pytest.approx(2 * 600 * 16.9e-6, rel=0.005)
        assert "calibration" not in sized(OPEN).lines[0]


def test_the_costs_are_those_of_the_documentation() -> None:
    accuracy = (ROOT / "docs" / "background" / "accuracy.md").read_text(encoding="utf-8")
    case = accuracy.partition("## spread:")[2].partition("## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in case.splitlines() if line.startswith("|")
    ]
    row = next(
        dict(zip(lines[0], line, strict=True))
        for line in lines
        if line[0].startswith("inferload (") and line[1] == "300"
    )
    token_us, turn_us = float(row["CPU streaming (us/token)"]), float(row["CPU beside reading (us/turn)"])
    assert (token_us, turn_us) == (pod_sizes.TOKEN_US, pod_sizes.TURN_US)
    assert f"{pod_sizes.TURN_TOKENS} tokens per turn in 100 events" in case
    page = (ROOT / "docs" / "how-to" / "machines.md").read_text(encoding="utf-8")
    cpu_s, of_s = re.search(r"([\d.]+) s of load\ntook ([\d.]+) s of CPU time", page).groups()[::-1]  # type: ignore[union-attr]
    assert pytest.approx(float(cpu_s) / float(of_s) / 100, rel=0.02) == pod_sizes.MASTER_CORES
    table = page.partition("## CPU and memory of pods")[2].partition("## ")[0]
    for text in (
        f"{token_us} us per output token with {pod_sizes.TURN_TOKENS} tokens a turn, of which {turn_us:g} us",
        f"| {pod_sizes.WORKER_MB} MB |",
        f"| {pod_sizes.SESSION_KB} kB per open session |",
        f"| {pod_sizes.INPUT_B} B per input token of it |",
        f"| {pod_sizes.MASTER_CORES} cores per worker |",
        f"| {pod_sizes.MASTER_MB} MB |",
        f"| {pod_sizes.TURN_KB} kB per turn, up to {pod_sizes.MOST_TURNS:,} |",
        f"| {pod_sizes.EVENT_B} B per output token, up to {pod_sizes.MOST_EVENTS // 1_000_000} million |",
        f"TTFT {pod_sizes.TTFT_S * 1e3:g} ms and a token every {pod_sizes.GAP_S * 1e3:g} ms are assumed",
        f"one turn of {pod_sizes.UNKNOWN[1]} tokens after {pod_sizes.UNKNOWN[2]:,}",
    ):
        assert text in table
