"""Refusal of input before a run, in one line that names subject, value if any, and remedy."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gevent
import pytest
import trustme
import virtual
from e2e_runs import scenario
from ports import unused_port
from scripted_server import ScriptedServer, chunk, one_model, page, send
from simulator_process import Simulator

from inferload.base.errors import UsageError
from inferload.base.tls import TlsSettings
from inferload.client.client import Credentials
from inferload.client.connection.target import Target
from inferload.run.master.lifecycle.preflight import preflight
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ProcessSettings
from inferload.scenario import scenario as scenarios

# -- options and files


def run_dir_full(folder: Path) -> list[str]:
    (folder / "run").mkdir()
    (folder / "run" / "precious.txt").write_text("do not touch")
    return []


def run_dir_below_a_file(folder: Path) -> list[str]:
    (folder / "run").write_text("a file")
    return ["--run-dir", str(folder / "run" / "run")]


def file_cut_off(folder: Path) -> dict[str, Any]:
    (folder / "talks.json").write_text('[{"conversations": [{"from": "human", "value": "Hel')
    return {"workload": {"kind": "chat", "source": {"kind": "sharegpt", "path": "talks.json"}}}


# The name of a scenario, changes of one, or options that are refused; parts of the message.
OPTIONS: dict[str, tuple[Callable[[Path], str | dict[str, Any] | list[str]], tuple[str, ...]]] = {
    "unknown key": (
        lambda _: {"arrivals": {"kind": "closed", "usres": 4, "spawn_per_s": 1}},
        ("scenario.yaml:", "usres", "unknown key; did you mean users?"),
    ),
    "negative rate": (
        lambda _: {"arrivals": {"kind": "poisson", "sessions_per_s": -1}},
        ("scenario.yaml:", "sessions_per_s", "must be greater than 0, is -1"),
    ),
    "unknown scenario": (lambda _: "smoek", ("smoek", "smoke")),
    "run directory with files": (run_dir_full, ("run directory", "not empty", "--run-dir")),
    "run directory below a file": (run_dir_below_a_file, ("run directory", "--run-dir")),
    "run directory that cannot be written": (
        lambda _: ["--run-dir", "/proc/run"],
        ("run directory /proc/run", "cannot be written", "--run-dir"),
    ),
    "more users than open files": (
        lambda _: {"arrivals": {"kind": "closed", "users": 10_000_000, "spawn_per_s": 50}},
        ("users in one process", "ulimit -n"),
    ),
    "negative users": (lambda _: ["-u", "-3"], ("users", "-3")),
    "Secret that is not mounted": (
        lambda _: ["--api-key-file", "/secrets/mine/api-key"],
        ("--api-key-file /secrets/mine/api-key: No such file or directory", "create its Secret"),
    ),
    "file cut off": (file_cut_off, ("talks.json:1: ", "the file ends within a conversation", "is it whole?")),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_invalid_input_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    make, parts = OPTIONS[name]
    made = make(tmp_path)
    file = scenario(tmp_path, **made) if isinstance(made, dict) else made if isinstance(made, str) else "smoke"
    words = ["--termination-message", str(tmp_path / "message"), *(made if isinstance(made, list) else [])]
    run = virtual.run(tmp_path, file, *words)
    complaints = [line for line in run.text.splitlines() if line.startswith("inferload: ") or "/ERROR/" in line]
    assert len(complaints) == 1, run.text
    for part in parts:
        assert part in complaints[0]
    assert "Traceback" not in run.text, run.text
    assert run.code == 2, run.text
    reason = complaints[0].partition("inferload: " if complaints[0].startswith("inferload: ") else "end_report: ")[2]
    assert (tmp_path / "message").read_text() == f"inferload: not started: {reason}\n"
    files = [path.name for path in run.run_dir.iterdir()] if run.run_dir.is_dir() else []
    assert files == (["precious.txt"] if name == "run directory with files" else [])


# -- servers

ENDLESS_BYTES = 64 * 1024 * 1024  # limit of a reply whose connection is not closed


def endless(sock: socket.socket, _request: bytes) -> None:
    """Send a chunked reply until the client closes the connection."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(ENDLESS_BYTES // 65536):
        sock.sendall(chunk(bytes(65536)))


class Asked:
    """What a run asks: the server's URL, the page of its metrics, the model, and the key."""

    def __init__(self, url: str, metrics: str | None = None, model: str | None = None, key: str | None = None) -> None:
        pages = None if metrics is None else (metrics,)
        parsed = scenarios.load("smoke")
        self.spec = RunSpec(parsed, "smoke", (Target.parse(url),), model, pages, 1, 1.0, {})
        self.own = ProcessSettings(Credentials(key), (), TlsSettings(), None)


class Servers:
    """Servers of a test."""

    def __init__(self, simulator: Callable[..., Simulator], stack: ExitStack) -> None:
        self.simulator = simulator
        self._stack = stack

    def scripted(self, script: Callable[[socket.socket, bytes], None]) -> str:
        return self._stack.enter_context(closing(ScriptedServer([script]))).url

    def with_certificate(self) -> str:
        with trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.tempfile() as certificate:
            return self.simulator("--tls-cert", certificate).url

    def with_html(self) -> str:
        simulator = self.simulator()
        simulator.chaos(kind="html", count=1)
        return simulator.url


@pytest.fixture
def servers(simulator: Callable[..., Simulator]) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(simulator, stack)


DEEP = b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
SERVERS: dict[str, tuple[Callable[[Servers], Asked], tuple[str, ...]]] = {
    "unknown host": (lambda _: Asked("http://nowhere.invalid:8000"), ("nowhere.invalid", "host right?")),
    "refused connection": (
        lambda _: Asked(f"http://127.0.0.1:{unused_port()}"),
        ("127.0.0.1:", "refused", "is the server started"),
    ),
    "untrusted certificate": (lambda s: Asked(s.with_certificate()), ("https://127.0.0.1:", "certificate")),
    "key missing": (
        lambda s: Asked(s.simulator("--api-key", "sk-right").url),
        ("/v1/models", "401", "requires a key", "--api-key-file", "OPENAI_API_KEY"),
    ),
    "unknown model": (
        lambda s: Asked(s.simulator("--model", "tiny").url, model="huge"),
        ("no streamed answer from model huge", "404", "the server lists tiny", "--model"),
    ),
    "HTML page": (
        lambda s: Asked(s.scripted(send(page("<html>hi</html>", kind="text/html")))),
        ("/v1/models", "text/html instead of a list of models", "OpenAI-compatible"),
    ),
    "deep JSON": (
        lambda s: Asked(s.scripted(send(page(DEEP)))),
        ("/v1/models: application/json instead of a list of models", "OpenAI-compatible"),
    ),
    "endless list of models": (
        lambda s: Asked(s.scripted(endless)),
        ("/v1/models: the reply is longer than 33,554,432 bytes", "OpenAI-compatible"),
    ),
    "endless metrics": (
        lambda s: Asked(s.simulator().url, f"{s.scripted(endless)}/metrics"),
        ("/metrics: the reply is longer than 33,554,432 bytes", "--metrics-url none"),
    ),
    "HTML answer": (
        lambda s: Asked(s.with_html()),
        ("no streamed answer from model simulator", "text/html", "let `stream: true` pass"),
    ),
    "whole answer": (
        lambda s: Asked(s.scripted(one_model(send(page({"model": "m", "choices": [], "max_tokens": 1}))))),
        ("no streamed answer from model m", "application/json", "let `stream: true` pass"),
    ),
    "no metrics server": (
        lambda s: Asked(s.simulator().url, f"http://127.0.0.1:{unused_port()}/metrics"),
        ("--metrics-url http://127.0.0.1:", "refused", "--metrics-url none"),
    ),
    "other page as metrics": (
        lambda s: Asked(url := s.simulator().url, f"{url}/v1/models"),
        ("/v1/models", "not a Prometheus page", "name the right page"),
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_cannot_be_used_is_refused_in_one_line(name: str, servers: Servers) -> None:
    make, parts = SERVERS[name]
    asked = make(servers)
    with gevent.Timeout(60), pytest.raises(UsageError) as raised:
        preflight(asked.spec, asked.own)
    text = str(raised.value)
    assert "\n" not in text
    for part in parts:
        assert part in text
