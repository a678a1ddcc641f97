"""Fixtures that more than one test module uses."""

from collections.abc import Callable, Iterator

import pytest
import simulator_process
from simulator_process import Simulator


@pytest.fixture
def simulator() -> Iterator[Callable[..., Simulator]]:
    """A factory: `simulator("--ttft-ms", "5")` is a running server on a free port; all end with the test."""
    started: list[Simulator] = []

    def start(*flags: str) -> Simulator:
        started.append(simulator_process.start(*flags))
        return started[-1]

    yield start
    for each in started:
        simulator_process.stop(each)
