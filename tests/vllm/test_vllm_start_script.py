"""start.sh with vLLM on the CPU: it serves, and `down` ends all processes after a crash of the first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from inferload.deploy.launcher import probe
from inferload.deploy.servers import engines
from paths import ROOT
from ports import unused_port

START = ROOT / "deploy" / "start.sh"

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(900)]


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_start_script_serves_and_down_stops_all_processes_after_a_crash(tmp_path: Path) -> None:
    binaries, port = engines.vllm_venv() / "bin", unused_port()
    model = engines.tiny_model(binaries / "python", "tiny")
    environment = {**engines.VLLM_CPU_ENVIRONMENT, **os.environ}
    environment |= {"INFERLOAD_STATE": str(tmp_path), "VLLM": str(binaries / "vllm")}
    environment |= {"INFERLOAD": str(Path(sys.executable).with_name("inferload"))}

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(START), *words, "--port", str(port)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    settings = [word for setting in ("load-format=dummy", "enforce-eager=true") for word in ("--set", setting)]
    up = start("tiny-all", "--model-path", str(model), "--ready-s", "800", *settings)
    assert up.returncode == 0, up.stderr
    probe.first_token("127.0.0.1", port)
    assert probe.model("127.0.0.1", port) == "tiny"
    leader = int(up.stdout.partition("(pid ")[2].partition(")")[0])
    group = [psutil.Process(leader), *psutil.Process(leader).children(recursive=True)]
    assert len(group) > 1, "the engine is a separate process"
    os.kill(leader, signal.SIGKILL)
    assert start("down").stdout == f"vllm on port {port}: stopped\n"
    assert [process for process in group if alive(process)] == []
    assert probe.is_free("127.0.0.1", port)
