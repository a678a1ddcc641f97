"""Runs through real proxies and routers: the preflight passes, and every turn reaches a server once."""

from collections.abc import Callable

import gateways
import pytest
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario
from gateways import Started

PHASES = {"warmup_s": 0, "measure_s": 1.5, "drain_s": 30}
# A gateway before two servers.
BETWEEN: dict[str, Callable[..., Started]] = {
    "nginx": gateways.nginx,
    "nginx that holds": lambda folder, servers: gateways.nginx(folder, servers, holding=True),
    "haproxy": gateways.haproxy,
    "haproxy by connection": lambda folder, servers: gateways.haproxy(folder, servers, mode="tcp"),
    "caddy": gateways.caddy,
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
        words = ("--host", gateway.url, "--scenario", str(file), "--metrics-url", "none", "--on-invalid", "warn")
        fleet = sandbox.fleet("local", *words, *model)
        code = fleet.exit_code()
    counts = [each.stats()["requests"] for each in simulators]
    both = {key: counts[0][key] + counts[1][key] for key in ("started", "finished")}
    return FinishedRun(sandbox.run_dir, code, fleet.text, both)


def check(ended: FinishedRun) -> None:
    """Check that all turns were answered, and that the servers received each once."""
    assert ended.idle_code == 0, ended.text
    assert ended.summary["run"]["model"] == "simulator"
    assert ended.summary["turns"]["ok"] > 0
    assert ended.summary["turns"]["failed"] == 0
    check_counts(ended)


@run_cases(through, *((name, False) for name in BETWEEN), ("sglang-router", True), ("vllm-router", True))
def test_a_run_passes_through(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    name, named = run_case.arguments
    check(ended)
    unlisted = "the list of models names none; simulator answers" in ended.text
    assert unlisted == (name == "sglang-router" and not named), ended.text


@pytest.mark.soak
@run_cases(through, ("LiteLLM", False), ("LiteLLM", True))
def test_a_run_passes_through_litellm(run_pool: RunPool, run_case: RunCase) -> None:
    """It lists no model."""
    ended: FinishedRun = run_pool.result(run_case)
    check(ended)
    assert ("does not list model simulator" in ended.text) == run_case.arguments[1]
