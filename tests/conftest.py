"""Fixtures that more than one test module uses."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import hypothesis
import pytest
import simulator_process
import sshd
from e2e_runs import RunPool
from inferload.deploy.launcher import launch, probe
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec
from simulator_process import Simulator

from inferload.client.connection.python_connection import SO_TIMESTAMPNS
from inferload.machine import network_checks

# Locust patches the standard library when it is imported; in the tests' own process nothing may be patched, and in a
# process that a test starts everything must be.
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
import locust  # noqa: F401

del os.environ["LOCUST_SKIP_MONKEY_PATCH"]

# Programs that the tests start inherit it: under nohup it is ignored, and Locust would ignore it too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine is no fault of what is tested: hypothesis' limits on the time of an example and of its making are off.
# The same examples in every run, fewer than usual; `make soak` draws others each time, and more. A failure found there is
# kept as an explicit `@example`.
EXPLORING = os.environ.get("INFERLOAD_SOAK") == "1"
hypothesis.settings.register_profile(
    "inferload",
    deadline=None,
    derandomize=not EXPLORING,
    max_examples=300 if EXPLORING else 40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("inferload")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew from what the code says")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A check: `golden("plan-chat.txt", text)` holds the text against the file of that name in tests/golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; --update-golden where the new text is right"

    return check


@pytest.fixture(scope="session")
def stamping() -> Iterator[None]:
    """The kernel stamps packets while a socket anywhere wants it, and begins to a moment after the first one does."""
    with socket.socket() as wants:
        wants.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        with gevent.Timeout(20):
            while network_checks.kernel_stamps().stamped == 0:
                gevent.sleep(0.01)
        yield


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


@pytest.fixture(scope="session")
def run_pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPool]:
    """Runs of the selected end-to-end tests, executed concurrently from the first such test on."""
    pool = RunPool(request.session.items, tmp_path_factory.mktemp("e2e"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.SshServer]:
    """A real sshd on this machine, which only the tests get into."""
    with sshd.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[LocalServer]:
    """Real vLLM on the CPU with the tiny model; fails, and does not skip, where it is not installed."""
    _, cores = launch.split_cores(launch.available_cores())
    with local.serving(ServerSpec(engine="vllm-cpu", port=probe.free_port(), cores=cores)) as server:
        yield server
