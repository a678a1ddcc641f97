"""Runs against vLLM on the CPU: records, timeline and server agree."""

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import locust_process
import numpy as np
import pytest
import vllm_servers
from inferload.analysis.data import frames
from inferload.analysis.data.breakdown import PARTS, bands
from inferload.analysis.report.reconcile import reconcile
from inferload.deploy.launcher.server_state import LocalServer

from inferload.results.open_run import OpenRun
from inferload.servers.scrapes_file import read_scrapes
from inferload.servers.series import ServerSeries, by_target

pytestmark = pytest.mark.vllm

TRUTH = {
    **{"workload__turns": 3, "workload__think_time_s": 0.1},
    **{"workload__prompt_tokens": {"dist": "uniform", "min": 100, "max": 300}},
    **{"workload__output_tokens": {"dist": "uniform", "min": 24, "max": 64}},
    **{"arrivals": {"kind": "closed", "users": 6, "spawn_per_s": 6}},
    **{"phases": {"warmup_s": 2, "measure_s": 20, "drain_s": 60}},
    **{"request": {"continuous_usage": True}, "server": {"interval_s": 0.25}},
}


@pytest.fixture(scope="module")
def run_on(vllm_server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that runs the scenario with two workers and returns the run directory."""

    def run(*options: str) -> Path:
        return vllm_servers.run(vllm_server, tmp_path_factory.mktemp("runs"), "--processes", "2", *options, **TRUTH)

    return run


@pytest.fixture(scope="module")
def run_dir(run_on: Callable[..., Path]) -> Path:
    return run_on()


@pytest.fixture(scope="module")
def turns(run_dir: Path) -> list[dict[str, Any]]:
    return locust_process.turns_of(run_dir)


@pytest.fixture(scope="module")
def server(run_dir: Path) -> ServerSeries:
    """Series of the server over the whole run."""
    (series,) = by_target(read_scrapes(run_dir)).values()
    return series


def total(turns: list[dict[str, Any]], column: str) -> int:
    return sum(turn[column] for turn in turns)


def test_every_turn_is_recorded_once(run_dir: Path, turns: list[dict[str, Any]]) -> None:
    summary = locust_process.summary_of(run_dir)
    everything = summary["turns"]["by_phase"]["all"]
    (row,) = [r for r in locust_process.csv_rows(run_dir / "locust_stats.csv") if r["Type"] == "TURN"]
    assert len(turns) > 20
    assert max(Counter(turn["turn_id"] for turn in turns).values()) == 1
    assert {turn["worker"] for turn in turns} == {"w0", "w1"}
    assert everything["ok"] == len(turns) == int(row["Request Count"])
    assert (everything["failed"], everything["unfinished"]) == (0, 0)
    assert len({turn["request_id"] for turn in turns}) == len(turns)
    assert summary["run"]["engine"].startswith("vllm 0.")


def test_tokens_are_those_counted_by_the_server(turns: list[dict[str, Any]], server: ServerSeries) -> None:
    assert all(turn["output_tokens"] == turn["max_tokens"] for turn in turns)  # lengths are forced
    assert server.grown("vllm:generation_tokens_total")[-1] == total(turns, "output_tokens")
    assert server.grown("vllm:prompt_tokens_total")[-1] == total(turns, "input_tokens")
    for turn in turns:
        assert turn["event_tokens"] is not None
        assert len(turn["event_tokens"]) == len(turn["event_ns"])
        assert sum(turn["event_tokens"]) == turn["output_tokens"]
        assert turn["event_ns"] == sorted(turn["event_ns"])


def test_cached_tokens_sum_to_the_cache_hits_of_the_server(turns: list[dict[str, Any]], server: ServerSeries) -> None:
    assert server.grown("vllm:prefix_cache_hits_total")[-1] == total(turns, "cached_tokens") > 0
    assert server.grown("vllm:prefix_cache_queries_total")[-1] == total(turns, "input_tokens")


def test_the_counts_of_the_timeline_are_those_of_the_server(
    run_dir: Path, server: ServerSeries, vllm_server: LocalServer
) -> None:
    with (run_dir / "timeline.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("generation_tokens", "prompt_tokens"):
        metric = f"vllm:{name}_total"
        scraped, grown = server.summed(metric), server.grown(metric)
        assert scraped is not None
        assert grown is not None
        assert scraped[-1] == vllm_servers.value(vllm_server, f"{metric}{{")
        known = [row for row in rows if row[name]]  # without the last second, in which the scrapes end
        bounds_ns = [float(known[0]["wall_s"]) * 1e9, (float(known[-1]["wall_s"]) + 1) * 1e9]
        first, last = (int(at) - 1 for at in np.searchsorted(server.wall_ns, bounds_ns, side="right"))
        assert sum(int(row[name]) for row in known) == round(grown[last] - grown[first]) > 0
        assert 0 <= server.wall_ns[-1] - bounds_ns[1] < 1e9  # only the second in which the scrapes end is unknown


def test_each_turn_has_the_times_reported_by_the_server(turns: list[dict[str, Any]]) -> None:
    for turn in turns:
        client_ms = (turn["first_ns"] - turn["sent_ns"]) / 1e6
        assert turn["server_queue_ms"] is not None
        assert turn["server_ttft_ms"] > 0
        # It begins after the queue; together the server cannot have taken longer than its client waited.
        assert turn["server_queue_ms"] + turn["server_ttft_ms"] <= client_ms
        assert turn["sent_ns"] <= turn["written_ns"]
        assert turn["sent_ns"] <= turn["first_event_ns"] <= turn["first_ns"] <= turn["last_ns"] <= turn["closed_ns"]


def test_the_parts_of_turns_and_the_counts_of_both_sides_add_up(run_dir: Path) -> None:
    reconciled = reconcile(frames.load(OpenRun(run_dir)))
    assert {check.check: check.outcome for check in reconciled.checks} == dict.fromkeys(
        ("parts of a turn", "requests", "prompt tokens", "output tokens"), "adds up"
    )
    assert reconciled.per_turn
    for band in bands(reconciled.parts):
        assert sum(band.means[part] or 0.0 for part in PARTS) == pytest.approx(band.total_ms)


def test_reports_of_vllm_do_not_mention_the_simulator(run_dir: Path) -> None:
    text = (run_dir / "report.md").read_text()
    assert "vllm 0." in text
    assert "imulator" not in text


def test_a_second_run_has_no_cache_hits_of_the_first(run_on: Callable[..., Path], turns: list[dict[str, Any]]) -> None:
    again = locust_process.turns_of(run_on("--run-time", "3"))
    input_tokens = {turn["turn_id"]: turn["input_tokens"] for turn in turns}
    first = [turn for turn in again if turn["turn_index"] == 0]
    # The same seed sends the same prompts.
    assert [turn["input_tokens"] for turn in first] == [input_tokens[turn["turn_id"]] for turn in first]
    assert {turn["cached_tokens"] for turn in first} == {0}
