"""A replica behind a proxy that stops, ends or is slow is named during the run and in its report."""

from contextlib import AbstractContextManager, closing
from typing import Any

import disturbances
import gateways
from balancer import RequestBalancer
from disturbances import Disturbance, Named
from e2e_runs import RunCase, Sandbox, run_cases, scenario, wait_until
from simulator_process import Simulator

SEQUENCES = 4  # that a replica runs at once; the users of the run need three
OTHERS = {
    "model": "simulator",
    "messages": [{"role": "user", "content": "I, too"}],
    "max_tokens": 20,
    "ignore_eos": True,
}
FINISHED = 12  # requests of each replica before the disturbance: means of fewer than ten are not compared


def disturbance(kind: Disturbance, replica: Simulator) -> AbstractContextManager[None]:
    """Return what disturbs a replica. A simulator is slow by a queue: its own times are planned, so it does not see a pause."""
    send = replica.process.send_signal
    if kind == "stopped":
        return disturbances.stopped(send)
    if kind == "killed":
        return disturbances.killed(send)
    return disturbances.loaded(lambda: replica.call("POST", "/v1/chat/completions", OTHERS), 3 * SEQUENCES)


def disturbed(sandbox: Sandbox, kind: Disturbance) -> tuple[Named, str]:
    """Run with one of two replicas disturbed; return what is said, and the target of the replica."""
    simulators = [sandbox.simulator("--max-num-seqs", str(SEQUENCES)) for _ in range(2)]
    file = scenario(sandbox.folder, arrivals__users=6)
    ports = [each.port for each in simulators]
    with (
        gateways.nginx(sandbox.folder / "gateway", ports)
        if kind == "killed"
        else closing(RequestBalancer(ports)) as gateway
    ):
        pages = [word for each in simulators for word in ("--metrics-url", f"{each.url}/metrics")]
        words = ("--host", gateway.url, *pages, "--scenario", str(file), "--on-invalid", "warn")
        fleet = sandbox.fleet("local", *words, web=True, report=True)
        fleet.wait_for_page()
        assert fleet.post("/swarm", user_count=6, spawn_rate=50)["success"]
        wait_until(
            lambda: all(each.stats()["requests"]["finished"] >= FINISHED for each in simulators), "turns of both"
        )
        assert disturbances.outliers(fleet) == {}
        found = disturbances.named(fleet, sandbox.run_dir, simulators[1].url, kind, disturbance(kind, simulators[1]))
    return found, simulators[1].url


@run_cases(disturbed, ("stopped",), ("slowed",), gateways=[("killed",)])
def test_a_disturbed_replica_is_named(ended: Any, run_case: RunCase) -> None:
    found, target = ended
    (kind,) = run_case.arguments
    disturbances.check(found, target, kind)
