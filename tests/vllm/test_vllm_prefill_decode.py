"""Two vLLM on the CPU with the NixlConnector, one for prefill and one for decode, behind a proxy."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import vllm_servers
from e2e_runs import wait_until
from inferload.deploy.launcher.server_state import LocalServer
from paths import TESTS
from ports import unused_port

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(1800)]

CHATS = {
    "workload": {
        **{"kind": "chat", "turns": 3, "think_time_s": 0.1},
        **{"prompt_tokens": {"dist": "uniform", "min": 200, "max": 400}, "output_tokens": 8},
    },
    "arrivals": {"kind": "closed", "users": 2, "spawn_per_s": 10},
    "phases": {"sessions": 6, "warmup_s": 0, "measure_s": 200, "drain_s": 60},
}


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@contextmanager
def pair() -> Iterator[tuple[LocalServer, list[LocalServer]]]:
    """Run the servers and the proxy, which is returned as a server first."""
    own = [
        (
            "--kv-transfer-config",
            json.dumps({"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}),
        )
        for role in ("kv_producer", "kv_consumer")
    ]
    with vllm_servers.serving(each=own) as servers:
        port, script = unused_port(), TESTS / "support" / "prefill_decode_proxy.py"
        words = [sys.executable, str(script), *(str(each) for each in (port, *(server.port for server in servers)))]
        proxy = subprocess.Popen(words)
        try:
            wait_until(partial(is_open, port), "the proxy", 60)
            yield replace(servers[1], port=port), servers
        finally:
            proxy.terminate()
            proxy.wait()


def test_a_pair_counts_each_request_once(tmp_path: Path) -> None:
    with pair() as (proxy, servers):
        pages = [f"--metrics-url={server.url}/metrics" for server in servers]
        run_dir = vllm_servers.run(proxy, tmp_path / "run", *pages, **CHATS)
    summary = json.loads((run_dir / "summary.json").read_text())
    prefill, decode = sorted(
        summary["servers"], key=lambda server: [each.url for each in servers].index(server["target"])
    )
    assert (prefill["role"], prefill["role_from"]) == ("prefill", "series")
    assert (decode["role"], decode["role_from"]) == ("decode", "series")
    checks = vllm_servers.reconciled(run_dir)
    names = [f"{name} at {decode['target']}" for name in ("requests", "prompt tokens", "output tokens")]
    assert {checks[name]["outcome"] for name in names} == {"adds up"}, checks
    assert decode["transfer"]["count"] > 0
    assert prefill["transfer"] is None  # its counters of transfers stay 0: decode fetches
    counted = summary["cache"]["counted"]
    # Hits are those of prefill: each prompt is looked up there once, and a block is computed once at most.
    assert counted["queries"] == pytest.approx(summary["cache"]["expected"]["input_tokens"], rel=0.2)
    diagnosis = json.loads((run_dir / "diagnosis.json").read_text())
    codes = {each["code"] for server in diagnosis["servers"] for each in server["findings"]}
    codes |= {each["code"] for each in diagnosis["run"]["findings"]}
    assert not codes & {"before-server", "outlier", "queue-bound"}, diagnosis["lines"]
