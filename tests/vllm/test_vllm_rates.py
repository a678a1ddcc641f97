"""Rates and overload of open loops on vLLM, at multiples of the capacity measured in a closed loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e_runs import Sandbox
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from rates_at import Cell, capacity_per_s, cells, check_as_recorded, run_on

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SEQUENCES, TOKENS = 4, 2
TURNS = 200  # at capacity in the measure phase; with fewer a small overload is within the noise
FACTORS = (0.5, 0.9, 1.5, 4.0)
SHORT = {(0.5, "constant", "processes"), (1.5, "poisson", "local")}


@pytest.fixture(scope="module")
def capacity(vllm_small: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Turns per second of a closed loop. Other work on the machine changes it, so it sets the load and proves nothing."""
    with staged(tmp_path_factory.mktemp("capacity")) as sandbox:
        return capacity_per_s(sandbox, vllm_small.url, 4 * SEQUENCES, TOKENS, 6)


@contextmanager
def staged(folder: Path) -> Iterator[Sandbox]:
    """Return a sandbox whose programs do not use the server's cores."""
    sandbox, (client_cores, _) = Sandbox(folder), launch.split_cores(launch.available_cores())
    try:
        with launch.on_cores(client_cores):
            yield sandbox
    finally:
        sandbox.close()


@pytest.mark.parametrize("cell", cells(SHORT, FACTORS))
def test_rates_and_overload_at_a_multiple_of_the_capacity(
    vllm_small: LocalServer, capacity: float, tmp_path: Path, cell: Cell
) -> None:
    factor, kind, mode = cell
    arrivals = {"kind": kind, "sessions_per_s": round(factor * capacity, 3)}
    measure_s = min(40.0, max(20.0, TURNS / capacity))
    with staged(tmp_path / "run") as sandbox:
        ended = run_on(sandbox, vllm_small.url, mode, arrivals, TOKENS, warmup_s=2, measure_s=measure_s, drain_s=4)
    check_as_recorded(ended)
