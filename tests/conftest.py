"""Fixtures that more than one test module uses."""

import gc
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forge
import gevent
import hypothesis
import pytest
import simulator_process
import vllm_servers
from api_cases import FLAGS, SPECULATION
from e2e_runs import RunCase, RunPool
from inferload.deploy.launcher.server_state import LocalServer
from otlp_collector import Collector
from simulator_process import Simulator

from inferload import cli
from inferload.campaign.machine.machine_evidence import kernel_stamps
from inferload.client.connection.tcp_info import SO_TIMESTAMPNS

# Locust patches the standard library on import: not in the test process, but in the processes that tests start.
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
import locust  # noqa: F401

del os.environ["LOCUST_SKIP_MONKEY_PATCH"]

# Started programs inherit it: under nohup SIGHUP is ignored, and Locust would ignore it too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ["LC_ALL"] = "C.UTF-8"  # pages are in the language of the locale

# Without limits on the time of examples, because of busy machines. The same examples in every run; `make soak` draws more, and
# others each time. Its failures become explicit `@example`s.
EXPLORING = os.environ.get("INFERLOAD_SOAK") == "1"
hypothesis.settings.register_profile(
    "inferload",
    deadline=None,
    derandomize=not EXPLORING,
    max_examples=300 if EXPLORING else 20,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("inferload")

LONG_FLOAT = re.compile(r"\d+\.\d{12,}(?:e[+-]?\d+)?")
GOLDEN = Path(__file__).parent / "golden"


def pytest_collection_finish() -> None:
    gc.freeze()  # nearly all objects: collections of the tests and of the tested code need not scan them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="update tests/golden from the output of the code")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function: `golden("plan-chat.txt", text)` compares the text with the file in tests/golden.

    Floats have twelve digits at most: the last ones of a fit or a quantile depend on the processor for which numpy was built.
    """

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        text = LONG_FLOAT.sub(lambda found: repr(float(f"{float(found[0]):.12g}")), text)
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; --update-golden if the new text is right"

    return check


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function: `command("compare", a, b, code=4)` runs inferload, checks the exit code, and returns output and errors."""

    def run(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        found, shown = cli.main([str(word) for word in words]), "".join(capsys.readouterr())
        assert found == code, shown
        return shown

    return run


@pytest.fixture(scope="session")
def stamping() -> Iterator[None]:
    """Kernel receive timestamps: they start shortly after the first socket has requested them."""
    with socket.socket() as requesting:
        requesting.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        with gevent.Timeout(20):
            while kernel_stamps().stamped == 0:
                gevent.sleep(0.01)
        yield


@pytest.fixture
def simulator() -> Iterator[Callable[..., Simulator]]:
    """A factory: `simulator("--ttft-ms", "5")` starts a server on a free port, which ends with the test."""
    started: list[Simulator] = []

    def start(*flags: str) -> Simulator:
        started.append(simulator_process.start(*flags))
        return started[-1]

    yield start
    for each in started:
        simulator_process.stop(each)


@pytest.fixture
def forked_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that the tested code starts with `sys.executable` are forks, without the CPU time of their imports."""
    monkeypatch.setattr(sys, "executable", forge.LOCUST.proxy())


@pytest.fixture
def forked_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for programs without Locust: reports, comparisons, scrapes."""
    monkeypatch.setattr(sys, "executable", forge.COMMANDS.proxy())


@pytest.fixture(scope="session")
def run_pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPool]:
    """Runs of the selected end-to-end tests, executed concurrently from the first such test on."""
    pool = RunPool(request.session.items, tmp_path_factory.mktemp("e2e"))
    yield pool
    pool.close()


@pytest.fixture
def ended(run_pool: RunPool, run_case: RunCase) -> Any:
    """Result of the run of a test with `run_cases`. A traceback in its output fails the test, but for `raises` cases."""
    result = run_pool.result(run_case)
    text = getattr(result, "text", "")
    assert hasattr(run_case.execute, "raises") or "Traceback" not in text, text
    return result


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[LocalServer]:
    """vLLM on the CPU with the tiny model; fails if it is not installed."""
    with vllm_servers.serving() as (server,):
        yield server


@pytest.fixture(scope="session")
def span_collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="session")
def vllm_features(span_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """vLLM with a short context, parsers, drafts, the adapters a1 and a2, and traces as in docs/how-to/opentelemetry.md."""
    flags = (*FLAGS, *SPECULATION, *vllm_servers.adapters(tmp_path_factory.mktemp("adapters"), "a1", "a2"))
    flags += ("--otlp-traces-endpoint", f"{span_collector.url}/v1/traces")
    exporter = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_SERVICE_NAME": "vllm"}
    with vllm_servers.serving(*flags, **exporter) as (server,):
        yield server


@pytest.fixture(scope="session")
def vllm_small() -> Iterator[LocalServer]:
    """vLLM with few sequences, small steps and a small cache; forced tool calls end."""
    limits = ("--max-num-seqs", "4", "--max-num-batched-tokens", "512", "--max-model-len", "2048")
    with vllm_servers.serving(*limits, "--num-gpu-blocks-override", "40", *vllm_servers.TOOLS) as (server,):
        yield server
