"""Deployments of vLLM on the CPU whose counters have other meanings: data parallel, the Rust front end, pooling."""

import os
from pathlib import Path
from typing import Any

import pytest
import vllm_servers
from e2e_runs import wait_until
from inferload.deploy.launcher.server_state import LocalServer
from locust_process import summary_of, turns_of
from test_vllm_server import leave

from inferload.scenario.schema.endpoints import OF_TEXTS, WITH_QUERY

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(900)]

TURNS = {"kind": "chat", "prompt_tokens": 300, "output_tokens": 12, "turns": 2, "system_prompt_tokens": 300}
TEXTS = {"kind": "texts", "texts_per_request": {"dist": "uniform", "min": 1, "max": 4}, "text_tokens": 30}


def ran(server: LocalServer, folder: Path, users: int) -> dict[str, Any]:
    run_dir = vllm_servers.run(server, folder, workload=TURNS, phases__sessions=10, arrivals__users=users)
    vllm_servers.check_counts(run_dir)
    return summary_of(run_dir)


def rates(summary: dict[str, Any]) -> list[float]:
    return [summary["cache"][of]["hit_rate"] for of in ("expected", "counted", "per_turn")]


def test_each_engine_has_its_own_prefix_cache(tmp_path: Path) -> None:
    with vllm_servers.serving("--data-parallel-size", "2") as (server,):
        summary = ran(server, tmp_path, users=1)
    assert [engine["engine"] for engine in summary["servers"][0]["engines"]] == ["0", "1"]
    expected, counted, per_turn = rates(summary)
    assert counted == per_turn < expected  # the turns of a session alternate
    assert any("2 engines with a cache each" in note for note in summary["cache"]["expected"]["notes"])


@pytest.mark.skipif("VLLM_RUST_FRONTEND_PATH" not in os.environ, reason="names vllm-rs, of a wheel of vLLM for CUDA")
def test_the_rust_front_end_counts_otherwise(tmp_path: Path) -> None:
    rust = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": os.environ["VLLM_RUST_FRONTEND_PATH"]}
    with vllm_servers.serving(without="--enable-per-request-metrics", **rust) as (server,):
        summary = ran(server, tmp_path, users=4)
        _, counted, per_turn = rates(summary)
        assert summary["cache"]["per_turn"]["turns"] == summary["turns"]["sent"]  # also those without a hit
        assert counted == per_turn > 0
        found = vllm_servers.doctor(server)
        assert ", Rust front end" in found
        assert "cache_config_info" in found  # is missing
        assert "use a supported engine" not in found
        finished = "vllm:request_success_total{"
        before = vllm_servers.value(server, finished)
        leave(server)  # counted as aborted; with the Python front end it is not counted
        wait_until(lambda: vllm_servers.value(server, finished) > before, "the aborted request is counted")


def test_each_pooling_endpoint_is_measured_and_reconciled(tmp_path: Path) -> None:
    with vllm_servers.serving("--runner", "pooling", "--convert", "embed") as (server,):
        for endpoint in OF_TEXTS:
            request = {"endpoint": endpoint}
            changes = {"workload": TEXTS, "phases__sessions": 40, "request": request}
            run_dir = vllm_servers.run(server, tmp_path / endpoint, **changes)
            summary, rows = summary_of(run_dir), turns_of(run_dir)
            assert summary["turns"]["failed"] == 0
            assert {row["output_tokens"] for row in rows} == {None}
            assert all(row["sent_ns"] < row["first_event_ns"] <= row["last_ns"] == row["closed_ns"] for row in rows)
            texts = sum(row["texts"] for row in rows) + (len(rows) if endpoint in WITH_QUERY else 0)
            assert summary["servers"][0]["requests_finished"] <= texts
            checks = vllm_servers.reconciled(run_dir)
            assert [checks[name]["outcome"] for name in ("requests", "prompt tokens")] == ["adds up"] * 2, checks
        assert "a pooling server: embeddings, rerank, score, pooling answer" in vllm_servers.doctor(server)
