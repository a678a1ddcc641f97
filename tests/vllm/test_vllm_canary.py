"""Good answers of vLLM under load are never called wrong, though batches may change them."""

from pathlib import Path

import pytest
import vllm_servers
from inferload.deploy.launcher.server_state import LocalServer
from locust_process import summary_of

pytestmark = pytest.mark.vllm

CLOSED = {"kind": "closed", "users": 8, "spawn_per_s": 8}


def test_no_answer_of_vllm_is_wrong(vllm_server: LocalServer, tmp_path: Path) -> None:
    phases = {"measure_s": 60, "turns": 120, "drain_s": 60}
    run_dir = vllm_servers.run(vllm_server, tmp_path, arrivals=CLOSED, phases=phases, canary={"share": 0.8})
    canary = summary_of(run_dir)["canary"]
    assert canary["asked"] > 60
    assert canary["wrong"] == 0, canary["examples"]
    assert canary["by_class"]["ok"] > canary["asked"] / 2
