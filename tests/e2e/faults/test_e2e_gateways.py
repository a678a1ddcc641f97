"""Runs through real proxies and routers: the preflight passes, every turn reaches a server once, and lost cache hits are found."""

import contextlib
import json
from collections.abc import Callable

import gateways
import pytest
from balancer import RequestBalancer
from e2e_runs import FinishedRun, RunCase, Sandbox, check_counts, run_cases, scenario, wait_until
from gateways import Started
from inferload.analysis.diagnosis.routing import LOSES_HITS, STAYS

from inferload.figures.pages.metric_names import ROUTER_ATTEMPTS, ROUTER_REQUESTS
from inferload.servers.scrapes_file import read_scrapes
from inferload.servers.series import by_target

PHASES = {"warmup_s": 0, "measure_s": 1.5, "drain_s": 30}
# A gateway before two servers.
BETWEEN: dict[str, Callable[..., Started]] = {
    "nginx": gateways.nginx,
    "nginx that holds": lambda folder, servers: gateways.nginx(folder, servers, holding=True),
    "haproxy": gateways.haproxy,
    "haproxy by connection": lambda folder, servers: gateways.haproxy(folder, servers, mode="tcp"),
    "caddy": gateways.caddy,
    "envoy": gateways.envoy,
    "traefik": gateways.traefik,
    "sglang-router": gateways.sglang_router,
    "vllm-router": lambda folder, servers: gateways.vllm_router(folder, servers, policy="cache_aware"),
}


def through(sandbox: Sandbox, name: str, named: bool) -> FinishedRun:
    """Run through a gateway. `named`: the command line names the model."""
    simulators = [sandbox.simulator() for _ in range(2)]
    model = ("--model", "simulator") if named else ()
    file = scenario(sandbox.folder, phases=PHASES)
    with (BETWEEN | {"LiteLLM": gateways.litellm})[name](
        sandbox.folder / "gateway", [each.port for each in simulators]
    ) as gateway:
        pages = [gateway.page, *(f"{each.url}/metrics" for each in simulators)] if gateway.page else ["none"]
        words = ["--host", gateway.url, "--scenario", str(file), "--on-invalid", "warn"]
        words += [word for page in pages for word in ("--metrics-url", page)]
        fleet = sandbox.fleet("local", *words, *model)
        code = fleet.exit_code()
    counts = [each.stats()["requests"] for each in simulators]
    both = {key: counts[0][key] + counts[1][key] for key in ("started", "finished")}
    return FinishedRun(sandbox.run_dir, code, fleet.text, both)


def check(ended: FinishedRun) -> None:
    """Check that all turns were answered, and that the servers received each once."""
    assert ended.code == 0, ended.text
    assert ended.summary["run"]["model"] == "simulator"
    assert ended.summary["turns"]["ok"] > 0
    assert ended.summary["turns"]["failed"] == 0
    check_counts(ended)


@run_cases(through, gateways=[*((name, False) for name in BETWEEN), ("sglang-router", True), ("vllm-router", True)])
def test_a_run_passes_through(ended: FinishedRun, run_case: RunCase) -> None:
    name, named = run_case.arguments
    check(ended)
    unlisted = "the list of models names none; simulator answers" in ended.text
    assert unlisted == (name == "sglang-router" and not named), ended.text
    for series in by_target(read_scrapes(ended.run_dir)).values() if "router" in name else ():
        if series.page is not None and series.page.key == name:  # scraped since the preflight
            assert series.grown(ROUTER_REQUESTS)[-1] == series.grown(ROUTER_ATTEMPTS)[-1] == len(ended.turns)
            break
    else:
        assert "router" not in name, "its own page"


@run_cases(through, gateways=[("LiteLLM", False), ("LiteLLM", True)])
def test_a_run_passes_through_litellm(ended: FinishedRun, run_case: RunCase) -> None:
    """It lists no model."""
    check(ended)
    assert ("does not list model simulator" in ended.text) == run_case.arguments[1]


def held(sandbox: Sandbox, no_delay: bool) -> FinishedRun:
    """Run through haproxy before a server whose gaps are longer than the 200 ms for which it holds each event."""
    server = sandbox.simulator("--ttft-ms", "50", "--itl-ms", "300")
    workload = {"kind": "chat", "turns": 1, "prompt_tokens": 20, "output_tokens": 7}
    arrivals = {"kind": "closed", "users": 12, "spawn_per_s": 12}
    file = scenario(sandbox.folder, workload=workload, arrivals=arrivals, phases=PHASES)
    with gateways.haproxy(sandbox.folder / "gateway", [server.port], no_delay=no_delay) as gateway:
        words = ("--host", gateway.url, "--scenario", str(file), "--metrics-url", f"{server.url}/metrics")
        fleet = sandbox.fleet("local", *words, "--on-invalid", "warn")
        code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text)


@run_cases(held, gateways=[(False,), (True,)])
def test_a_hold_of_each_event_is_found_by_the_last_gap(ended: FinishedRun, run_case: RunCase) -> None:
    reasons = {reason["code"] for reason in ended.summary["verdict"]["reasons"]}
    assert ("held_gaps" in reasons) != run_case.arguments[0]
    assert not reasons & {"held_stream", "more_requests", "completed_cuts", "other_usage", "refused_idle"}


# -- prefix-cache hits behind a balancer

TALK = {
    "workload": {"kind": "chat", "turns": 5, "prompt_tokens": 200, "output_tokens": 16, "think_time_s": 0.1},
    # Enough for a mean, if requests overtake each other on the way.
    "arrivals": {"kind": "constant", "sessions_per_s": 24},
    "phases": {"warmup_s": 0, "measure_s": 4, "drain_s": 30},
    "server": {"interval_s": 0.25},
}
SESSION, SERVER = "X-Session-ID", "X-Server"


def balanced(sandbox: Sandbox, by_session: bool, named: bool) -> FinishedRun:
    """Run conversations through a balancer before two servers. `by_session`: it keeps them; `named`: it names the servers."""
    simulators = [sandbox.simulator("--num-gpu-blocks", "20000") for _ in range(2)]
    request = {"affinity_header": SESSION} | ({"server_header": SERVER} if named else {})
    file = scenario(sandbox.folder, **TALK, request=request)
    options = {"affinity_header": SESSION if by_session else "", "server_header": SERVER if named else ""}
    ports = [each.port for each in simulators]
    pages = [word for each in simulators for word in ("--metrics-url", f"{each.url}/metrics")]
    with (
        gateways.haproxy(sandbox.folder / "gateway", ports, no_delay=True, **options)
        if by_session or named
        else contextlib.closing(RequestBalancer(ports))
    ) as gateway:
        words = ("--host", gateway.url, "--scenario", str(file), *pages, "--on-invalid", "warn")
        fleet = sandbox.fleet("local", *words, report=True)
        code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text)


@run_cases(balanced, (False, False), gateways=[(False, True), (True, False), (True, True)])
def test_hits_that_a_balancer_loses_are_found(ended: FinishedRun, run_case: RunCase) -> None:
    by_session, named = run_case.arguments
    assert ended.code == 0, ended.text
    findings = json.loads((ended.run_dir / "diagnosis.json").read_text())["run"]["findings"]
    found = {finding["code"]: finding for finding in findings if finding["code"] in (LOSES_HITS, STAYS)}
    assert list(found) == [STAYS if by_session else LOSES_HITS], (findings, ended.summary["cache"])
    (finding,) = found.values()
    assert finding["probable"] == (not by_session and not named)
    assert any("came to another server" in sentence for sentence in finding["sentences"]) == named
    assert (LOSES_HITS in ended.text) == (not by_session)
    cache = ended.summary["cache"]
    assert cache["counted"]["queries"] == cache["expected"]["input_tokens"]
    assert cache["routed"]["servers"] == 2
    if by_session:
        assert cache["counted"]["hit_rate"] == pytest.approx(cache["routed"]["stay_hit_rate"], abs=0.02)
    else:
        assert cache["counted"]["hit_rate"] == pytest.approx(cache["routed"]["in_turn_hit_rate"], abs=0.05)


# -- failures


def failing(sandbox: Sandbox, name: str) -> FinishedRun:
    """Run through a router whose server fails for some requests."""
    server = sandbox.simulator("--ttft-ms", "5", "--itl-ms", "5")
    file = scenario(sandbox.folder, phases=PHASES | {"measure_s": 4}, arrivals__users=2)
    with BETWEEN[name](sandbox.folder / "gateway", [server.port]) as gateway:
        words = ("--host", gateway.url, "--scenario", str(file), "--metrics-url", f"{server.url}/metrics")
        fleet = sandbox.fleet("local", *words, "--model", "simulator", "--on-invalid", "warn")
        wait_until(lambda: server.stats()["requests"]["finished"] > 20, "turns of the load", 30)
        server.chaos(kind="status", count=200, status=500)
        code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text)


@run_cases(failing, gateways=[("vllm-router",), ("sglang-router",)])
def test_answers_of_a_circuit_breaker_are_found(ended: FinishedRun, run_case: RunCase) -> None:
    """A router answers 503 itself for a minute after some failures."""
    reasons = {reason["code"] for reason in ended.summary["verdict"]["reasons"]}
    assert "refused_idle" in reasons
    assert not reasons & {"completed_cuts", "other_usage", "more_requests", "held_gaps"}
