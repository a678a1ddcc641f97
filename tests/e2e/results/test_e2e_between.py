"""Causes between client and server, on real proxies, routers and a network with a round trip: what a run says of each."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gateways
import pytest
from balancer import RequestBalancer
from delayed_link import FAR, NEAR, delayed_link
from e2e_runs import FinishedRun, RunCase, Sandbox, mostly_idle, run_cases, scenario
from gateways import Started
from inferload.analysis.report import report
from locust_process import ROOT

from inferload.results.open_run import OpenRun
from inferload.servers.bottleneck.peers import OUTLIER
from inferload.servers.bottleneck.rules import BETWEEN

TTFT_MS, ITL_MS, SLOW_TTFT_MS = 300, 10, 1500
PACE = ("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS))
# With 1,000 ms, delays of a busy machine are below a tenth of TTFT, where no rule applies; with gaps of 40 ms, they join fewer
# events than a proxy that holds them.
SLOW_PACE = ("--ttft-ms", "1000", "--itl-ms", "40")
LOAD = {
    "workload__prompt_tokens": 20,
    "workload__output_tokens": 48,
    "phases": {"warmup_s": 1, "measure_s": 6, "drain_s": 30},
    "server": {"interval_s": 0.25},
}
# What is in front of one server, and the cause that the run must name; None: nothing between changes the times.
CASES: dict[str, tuple[Callable[[Path, list[int]], Started | contextlib.closing[RequestBalancer]], str | None]] = {
    "a proxy that holds": (lambda _, to: contextlib.closing(RequestBalancer(to, held_bytes=4096)), "stream-held"),
    "haproxy": (gateways.haproxy, "stream-held"),
    "haproxy, small segments": (lambda *to: gateways.haproxy(*to, segment_bytes=1448), "stream-held"),
    "nginx that holds": (lambda *to: gateways.nginx(*to, holding=True), "stream-held"),
    "haproxy with a queue": (
        lambda *to: gateways.haproxy(*to, no_delay=True, server_options="maxconn 2"),
        "before-server",
    ),
    "haproxy, no delay": (lambda *to: gateways.haproxy(*to, no_delay=True), None),
    "nginx": (gateways.nginx, None),
    "caddy": (gateways.caddy, None),
    "vllm-router": (gateways.vllm_router, None),
}
ROUTERS: dict[str, Callable[[Path, list[int]], Started | contextlib.closing[RequestBalancer]]] = {
    "a balancer": lambda _, to: contextlib.closing(RequestBalancer(to)),
    "sglang-router": gateways.sglang_router,
    "vllm-router": gateways.vllm_router,
    "haproxy": lambda *to: gateways.haproxy(*to, no_delay=True),
}


def document(ended: FinishedRun, name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((ended.run_dir / name).read_text())
    return read


def run(sandbox: Sandbox, host: str, pages: list[str], users: int = 6) -> FinishedRun:
    file = scenario(sandbox.folder, arrivals__users=users, **LOAD)
    words = [word for page in pages for word in ("--metrics-url", f"{page}/metrics")]
    words += ["--host", host, "--model", "simulator", "--scenario", str(file), "--on-invalid", "warn"]
    fleet = sandbox.fleet("local", *words, report=True)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@mostly_idle
def behind(sandbox: Sandbox, name: str) -> FinishedRun:
    server = sandbox.simulator(*SLOW_PACE, paced=False)
    with CASES[name][0](sandbox.folder / "gateway", [server.port]) as gateway:
        return run(sandbox, gateway.url, [server.url])


@run_cases(behind, ("a proxy that holds",), gateways=[(name,) for name in CASES if not name.startswith("a ")])
def test_what_is_between_is_named_and_the_client_is_not_blamed(ended: FinishedRun, run_case: RunCase) -> None:
    assert ended.code == 0, ended.text
    (server,) = document(ended, "diagnosis.json")["servers"]
    expected = CASES[run_case.arguments[0]][1]
    causes = [finding["code"] for finding in server["findings"] if finding["code"] in BETWEEN]
    assert causes == ([] if expected is None else [expected]), json.dumps(server, indent=1)
    if expected is not None:
        assert server["primary"] in {expected, *busy(ended)}
        assert "client-bound" not in {finding["code"] for finding in server["findings"]} - busy(ended)
    held = [reason["code"] for reason in ended.summary["verdict"]["reasons"] if reason["code"] == "held_stream"]
    assert bool(held) == (expected == "stream-held")
    assert (ended.summary["rates"]["events_per_arrival"] > 2) == (expected == "stream-held")


def busy(ended: FinishedRun) -> set[str]:
    """Return the cause of a busy test machine, if the verdict says that it was one."""
    codes = {reason["code"] for reason in ended.summary["verdict"]["reasons"] if reason["phase"] == "measure"}
    return {"client-bound"} if codes & {"cpu", "client_lag", "client_delay", "loop_lag"} else set()


@mostly_idle
def routed(sandbox: Sandbox, name: str) -> FinishedRun:
    """Run through a router over two servers, one of them slow."""
    quick, slow = (
        sandbox.simulator("--ttft-ms", str(ttft_ms), "--itl-ms", str(ITL_MS), paced=False)
        for ttft_ms in (TTFT_MS, SLOW_TTFT_MS)
    )
    with ROUTERS[name](sandbox.folder / "gateway", [quick.port, slow.port]) as gateway:
        ended = run(sandbox, gateway.url, [quick.url, slow.url], users=10)
    ended.seen.update(quick=quick.url, slow=slow.url)
    return ended


@run_cases(routed, ("a balancer",), gateways=[(name,) for name in ROUTERS if not name.startswith("a ")])
def test_a_slow_replica_is_named_and_the_other_is_not(ended: FinishedRun) -> None:
    diagnosis = document(ended, "diagnosis.json")
    outlier = next(finding for finding in diagnosis["run"]["findings"] if finding["code"] == OUTLIER)
    assert outlier["sentences"][0].startswith(f"{ended.seen['slow']}: engine TTFT 1,5")
    assert diagnosis["brief"].startswith(f"{OUTLIER}: {ended.seen['slow']}: ")
    quick = next(server for server in diagnosis["servers"] if server["target"] == ended.seen["quick"])
    assert not {finding["code"] for finding in quick["findings"]} & {"front-end-bound", *BETWEEN}
    checks = {check["check"]: check["outcome"] for check in document(ended, "reconcile.json")["checks"]}
    sums = ("requests of all servers", "prompt tokens of all servers", "output tokens of all servers")
    assert [checks[name] for name in sums] == ["adds up"] * 3, checks


@mostly_idle
def across(sandbox: Sandbox, round_trip_ms: int) -> FinishedRun:
    """Run across a network: client and server in a namespace, with a link between their addresses."""
    file = scenario(sandbox.folder, arrivals__users=4, **LOAD)
    server = ("-m", "inferload.deploy.simulator", "--host", NEAR, "--port", "8100", "--exit-after-s", "600", *PACE)
    host = f"http://{FAR}:8100"
    words = ("-f", str(ROOT / "locustfiles/chat.py"), "--headless", "--host", host, "--scenario", str(file))
    with delayed_link(round_trip_ms / 1e3) as link:
        simulator = subprocess.Popen(link.inside([sys.executable, *server]), stdout=subprocess.PIPE)
        try:
            assert simulator.stdout is not None
            assert b"http://" in simulator.stdout.readline()
            words += ("--run-dir", str(sandbox.run_dir), "--on-invalid", "warn", "--no-report")
            locust = [sys.executable, "-m", "locust", *words]
            ended = subprocess.run(
                link.inside(locust), cwd=sandbox.folder, capture_output=True, text=True, check=False, timeout=300
            )
        finally:
            simulator.kill()
            simulator.communicate()
    report.make(OpenRun(sandbox.run_dir))
    return FinishedRun(sandbox.run_dir, ended.returncode, ended.stdout + ended.stderr)


@run_cases(across, (150,), gateways=[(400,)])
def test_the_round_trip_of_the_network_is_named(ended: FinishedRun, run_case: RunCase) -> None:
    (round_trip_ms,) = run_case.arguments
    (server,) = document(ended, "diagnosis.json")["servers"]
    assert "network-bound" in {finding["code"] for finding in server["findings"]}, ended.text
    assert "front-end-bound" not in {finding["code"] for finding in server["findings"]}
    measured = ended.summary["latency"]["round_trip_ms"]["p50"]
    assert measured == pytest.approx(round_trip_ms, rel=0.3)
    assert ended.summary["latency"]["ttft_ms"]["p50"] >= TTFT_MS + 0.9 * round_trip_ms
