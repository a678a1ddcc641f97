"""vLLM on the CPU: servers, their pages, and runs against them.

`make test-vllm` starts three servers, fixtures of tests/conftest.py. Tests that need another one are soak tests.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import locust_process
from e2e_runs import scenario
from inferload.deploy.launcher import launch, probe
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec, command_of, tiny_model, vllm_venv
from inferload.deploy.variants.variant import Variant
from ports import unused_port
from simulator_process import Simulator

READY_S = 400.0  # of two that start at the same time on two cores
RUN_S = 600.0  # of a run with its report; the longest has phases of 260 s
BLOCK = 128  # tokens of a block of the prefix cache
# For forced calls: the answer of a model with random weights ends only with a strict grammar.
TOOLS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)
_ADAPTERS = """
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
def serving(
    *extra: str,
    count: int = 1,
    model: str = "tiny",
    variant: Variant | None = None,
    without: str = "",
    each: Sequence[tuple[str, ...]] = (),
    **variables: str,
) -> Iterator[list[LocalServer]]:
    """Run servers with these flags, without one of the usual ones, and with these variables; they start at the same time.

    `each`: further flags of each of them; each of these has a side channel for KV transfer.
    """
    _, cores = launch.split_cores(launch.available_cores())
    started: list[LocalServer] = []
    try:
        for own in each or [()] * count:
            side = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(unused_port())}
            pinned = cores if count == 1 and not each and "--data-parallel-size" not in extra else None
            spec = ServerSpec("vllm-cpu", model, port=unused_port(), cores=pinned, extra=extra + own, variant=variant)
            command = command_of(spec)
            argv = tuple(word for word in command.argv if word != without)
            command = replace(
                command, argv=argv, environment={**command.environment, **variables, **(side if each else {})}
            )
            started.append(local.start(spec, command))
        for server in started:
            launch.wait(server, READY_S)
        yield started
    finally:
        for server in started:
            launch.stop(server)


def adapters(folder: Path, *names: str) -> tuple[str, ...]:
    """Write LoRA adapters of the tiny model; return the flags of a server that has one slot for them."""
    python = vllm_venv() / "bin" / "python"
    folders = [str(folder / name) for name in names]
    subprocess.run([str(python), "-c", _ADAPTERS, str(tiny_model(python, "tiny")), *folders], check=True)
    modules = (f"{name}={path}" for name, path in zip(names, folders, strict=True))
    return ("--enable-lora", "--max-loras", "1", "--max-lora-rank", "8", "--lora-modules", *modules)


def page(server: LocalServer | Simulator) -> str:
    return probe.text("127.0.0.1", server.port, "/metrics")


def value(server: LocalServer | Simulator, name: str) -> float:
    """Return the sum of the samples whose name and labels begin so."""
    return sum(float(line.rpartition(" ")[2]) for line in page(server).splitlines() if line.startswith(name))


def run(on: LocalServer, folder: Path, *words: str, locustfile: Path | None = None, **changes: Any) -> Path:
    """Run a scenario with these changes, or a locustfile, on the cores of the client; return the run directory."""
    folder.mkdir(exist_ok=True)
    if changes:
        words += ("--scenario", str(scenario(folder, **changes)))
    words += ("--headless", "--host", on.url, "--run-dir", str(folder / "run"), "--on-invalid", "warn")
    client_cores, _ = launch.split_cores(launch.available_cores())
    with launch.on_cores(client_cores):
        process = locust_process.start(*words, cwd=folder, locustfile=locustfile)
    try:
        assert process.exit_code(RUN_S) == 0, process.text
    finally:
        process.kill()
    return folder / "run"


def reconciled(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the checks of the counts of both sides by name."""
    return {check["check"]: check for check in json.loads((run_dir / "reconcile.json").read_text())["checks"]}


def check_counts(run_dir: Path) -> None:
    """Check that requests and tokens of both sides add up."""
    checks = reconciled(run_dir)
    assert {checks[name]["outcome"] for name in ("requests", "prompt tokens", "output tokens")} == {"adds up"}, checks


def doctor(server: LocalServer) -> str:
    command = [sys.executable, "-m", "inferload", "doctor", "--host", server.url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
