"""Two vLLM on the CPU behind a router: counts of each and of both together; one that stops or is killed is named."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import disturbances
import gateways
import locust_process
import pytest
import vllm_servers
from disturbances import Disturbance
from e2e_runs import Sandbox, wait_until
from gateways import Started
from inferload.deploy.launcher.server_state import LocalServer

from inferload.figures.servers.server_figures import FINISHED, GENERATION_TOKENS, PROMPT_TOKENS
from inferload.servers.bottleneck.peers import silence_s
from inferload.servers.scrapes_file import read_scrapes
from inferload.servers.series import by_target

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(600)]

# Figures of a server in the summary, with the counters of its page.
COUNTED = {
    FINISHED.key: "vllm:request_success_total",
    PROMPT_TOKENS.key: "vllm:prompt_tokens_total",
    GENERATION_TOKENS.key: "vllm:generation_tokens_total",
}

# No session starts in the last seconds of the measure phase, so that its counts are those of the whole run.
COUNTS = """
schema: 1
name: routed
workload:
  kind: chat
  turns: 2
  think_time_s: 0.1
  prompt_tokens: {dist: uniform, min: 60, max: 200}
  output_tokens: {dist: uniform, min: 8, max: 24}
arrivals:
  kind: constant
  profile: {kind: points, between: hold, points: [{time_s: 0, sessions_per_s: 3}, {time_s: 7, sessions_per_s: 0}]}
phases: {measure_s: 12, drain_s: 60}
"""
USERS = """
schema: 1
name: routed
workload: {kind: chat, prompt_tokens: 60, output_tokens: 16}
arrivals: {kind: closed, users: 4, spawn_per_s: 10}
phases: {measure_s: 300, drain_s: 60}
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LocalServer]]:
    with vllm_servers.serving(count=2) as started:
        yield started


def counters(server: LocalServer) -> dict[str, int]:
    """Return the counters of a server's page by key of the figure."""
    return {key: round(vllm_servers.value(server, f"{name}{{")) for key, name in COUNTED.items()}


def words_of(folder: Path, text: str, servers: list[LocalServer]) -> list[str]:
    """Write a scenario; return the options of a run of it that scrapes these servers."""
    (folder / "scenario.yaml").write_text(text)
    pages = [word for server in servers for word in ("--metrics-url", f"{server.url}/metrics")]
    return [*pages, "--scenario", str(folder / "scenario.yaml"), "--on-invalid", "warn"]


@pytest.mark.parametrize("router", [gateways.sglang_router, gateways.vllm_router])
def test_counts_of_each_server_and_of_both_are_their_own(
    servers: list[LocalServer], tmp_path: Path, router: Callable[..., Started]
) -> None:
    run_dir, before = tmp_path / "run", [counters(server) for server in servers]
    with router(tmp_path / "router", [server.port for server in servers]) as gateway:
        words = words_of(tmp_path, COUNTS, servers)
        process = locust_process.start(
            "--headless", "--host", gateway.url, "--run-dir", str(run_dir), *words, cwd=tmp_path
        )
        try:
            assert process.exit_code(150) == 0, process.text
        finally:
            process.kill()
    summary, series = locust_process.summary_of(run_dir), by_target(read_scrapes(run_dir))
    everything, preflight = summary["turns"]["by_phase"]["all"], 0
    entries = {entry["target"]: entry for entry in summary["servers"]}
    assert entries.keys() == {server.url for server in servers}
    for server, earlier in zip(servers, before, strict=True):
        own, entry, grown = counters(server), entries[server.url], series[server.url]
        for key, name in COUNTED.items():
            column = grown.grown(name)
            assert column is not None
            in_run = round(float(column[-1] - column[0]))
            assert entry[key] == in_run > 0, (server.url, key)
            asked = own[key] - earlier[key] - in_run  # before the first scrape
            assert asked >= 0
            preflight += asked if key == FINISHED.key else 0
    targets = json.loads((run_dir / "run.json").read_text())["targets"]
    assert 1 <= preflight <= sum(target["before_load"]["requests"] for target in targets)
    for key, total in (
        (FINISHED.key, "ok"),
        (PROMPT_TOKENS.key, "input_tokens"),
        (GENERATION_TOKENS.key, "output_tokens"),
    ):
        assert sum(entry[key] for entry in entries.values()) == everything[total]
    assert everything["ok"] == everything["sent"] == 2 * 3 * 7
    checks = vllm_servers.reconciled(run_dir)
    of_all = [checks[f"{name} of all servers"] for name in ("requests", "prompt tokens", "output tokens")]
    assert [check["outcome"] for check in of_all] == ["adds up"] * 3, checks


@pytest.mark.parametrize(
    ("kind", "router"),
    [
        ("stopped", gateways.sglang_router),
        ("slowed", gateways.vllm_router),
        ("killed", gateways.vllm_router),  # the last: it ends a server
    ],
)
def test_a_disturbed_server_is_named(
    servers: list[LocalServer], tmp_path: Path, kind: Disturbance, router: Callable[..., Started]
) -> None:
    disturb = {"stopped": disturbances.stopped, "slowed": disturbances.held, "killed": disturbances.killed}[kind]
    sandbox, disturbed = Sandbox(tmp_path), servers[1]
    begun = [counters(server)[FINISHED.key] for server in servers]

    def finished() -> list[int]:
        return [counters(server)[FINISHED.key] - earlier for server, earlier in zip(servers, begun, strict=True)]

    with router(tmp_path / "router", [server.port for server in servers]) as gateway:
        try:
            fleet = sandbox.fleet(
                "local", "--host", gateway.url, *words_of(tmp_path, USERS, servers), web=True, report=True
            )
            fleet.wait_for_page()
            assert fleet.post("/swarm", user_count=4, spawn_rate=10)["success"]
            wait_until(lambda: min(finished()) >= (2 if kind == "slowed" else 12), "turns of both")
            disturbance = disturb(lambda number: os.killpg(disturbed.pid, number))
            found = disturbances.named(fleet, sandbox.run_dir, disturbed.url, kind, disturbance)
        finally:
            sandbox.close()
    gaps_s = {
        server["target"]: server["longest_gap_s"] or 0.0
        for server in locust_process.summary_of(sandbox.run_dir)["servers"]
    }
    # On a busy machine only the live view tells the servers apart: the page of the other one may not answer for as long, and the
    # means of a whole run hide a server that was slow for a part of it (test_e2e_disturbed_replicas.py has a report of that).
    if kind != "slowed" and max(gap_s for target, gap_s in gaps_s.items() if target != disturbed.url) <= silence_s(()):
        disturbances.check(found, disturbed.url, kind)
