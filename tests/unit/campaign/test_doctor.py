"""The doctor: checks of this machine and of servers."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ports import unused_port
from simulator_process import Simulator

from inferload import cli
from inferload.campaign.machine import checks, network_checks
from inferload.campaign.machine.checks import MachineCheck, Package, Stamps, Ticks
from inferload.cli import machine, server_checks
from inferload.cli.doctor import text_of

# -- assessment of readings


@pytest.mark.parametrize(
    ("version", "required", "fits"),
    [
        ("2.47.0", ">=2.47,<2.48", True),
        ("2.47", ">=2.47.0", True),
        ("2.48.0", ">=2.47,<2.48", False),
        ("2.9", ">=2.47", False),
        ("2.48", "<2.48.0", False),
        ("26.9.0", ">=26.4", True),
        ("3.0.0rc1", ">=2.2", True),
        ("1.0", "", True),
    ],
)
def test_installed_versions_are_compared_with_requirements(version: str, required: str, fits: bool) -> None:
    assert checks.packages([Package("numpy", required, version)]).status == ("ok" if fits else "fail")


def test_a_missing_or_outdated_package_fails() -> None:
    packages = [
        Package("locust", ">=2.47,<2.48", "2.46.1"),
        Package("gevent", ">=26", None),
        Package("numpy", "", "2.1"),
    ]
    check = checks.packages(packages)
    assert check.status == "fail"
    assert "missing: gevent" in check.found
    assert "locust 2.46.1 (required: >=2.47,<2.48)" in check.found
    assert "numpy" not in check.found
    assert checks.packages(packages[2:]).status == "ok"


@pytest.mark.parametrize(
    ("soft", "hard", "status", "streams"),
    [
        (20_000, 20_000, "ok", "19900 streams"),
        (1024, 524_288, "ok", "9900 streams"),  # Locust raises the limit to 10,000
        (1024, 4096, "warn", "924 streams"),  # the hard limit is lower
        (128, 128, "fail", "28 streams"),
        (-1, -1, "ok", "no limit"),
        (1024, -1, "ok", "9900 streams"),
    ],
)
def test_the_open_file_limit_is_given_in_streams(soft: int, hard: int, status: str, streams: str) -> None:
    check = checks.open_files(soft, hard)
    assert (check.status, streams in check.found) == (status, True), check


@pytest.mark.parametrize(
    ("usable", "quota", "status"), [(2, None, "ok"), (1, None, "warn"), (8, 1.5, "warn"), (8, 4.0, "ok")]
)
def test_one_core_is_a_warning(usable: int, quota: float | None, status: str) -> None:
    assert checks.cores(usable, 8, quota).status == status


def test_other_machine_checks() -> None:
    assert checks.python((3, 11, 2)).status == "ok"
    assert checks.python((3, 10, 9)).status == "fail"
    assert checks.ports(32_768, 60_999).status == "ok"
    assert checks.ports(60_000, 60_999).status == "warn"
    assert checks.clock(40).status == "ok"
    assert "with real-time priority" in checks.reader("native", "", "", realtime=True).found
    assert "without real-time priority" in checks.reader("native", "", "", realtime=False).found
    assert checks.reader("python", "", "make setup", realtime=True).status == "warn"
    assert checks.clock(1_000_000).status == "warn"
    assert checks.memory(8_000, 16_000).status == "ok"
    assert checks.memory(300, 16_000).status == "warn"
    assert checks.loop_timers([0.1] * 100).status == "ok"
    assert checks.loop_timers([0.1] * 97 + [20.0] * 3).status == "warn"
    assert checks.loop_timers([]).status == "fail"


@pytest.mark.parametrize(
    ("stamps", "status"),
    [
        (Stamps(20, 20, 4_000), "ok"),
        (Stamps(20, 5, 4_000), "warn"),
        (Stamps(20, 0), "warn"),
        (Stamps(0, 0, why="Protocol not available"), "warn"),
    ],
)
def test_missing_kernel_timestamps_are_a_warning(stamps: Stamps, status: str) -> None:
    check = checks.kernel_stamps(stamps)
    assert check.status == status
    assert stamps.why in check.found


def test_steal_is_the_share_between_two_readings() -> None:
    before, after = Ticks.parse("cpu  100 0 0 800 0 0 0 0 0 0\ncpu0 1"), Ticks.parse("cpu  150 0 0 825 0 0 0 25 50 0")
    assert before is not None
    assert after == Ticks(25, 1000)  # guest time is in user time already
    check = checks.steal(before, after)
    assert check.status == "warn"
    assert "25 % during this check" in check.found
    assert checks.steal(before, before).status == "ok"
    assert checks.steal(None, after).status == "ok"


@given(st.text())
def test_an_invalid_stat_line_is_none(text: str) -> None:
    ticks = Ticks.parse(text)
    assert ticks is None or text.startswith("cpu")


def test_only_a_failure_changes_the_exit_code() -> None:
    fine, odd, bad = MachineCheck("ok", "a", ""), MachineCheck("warn", "b", ""), MachineCheck("fail", "c", "")
    assert [checks.exit_code(results) for results in ([], [fine, odd], [fine, bad, odd])] == [0, 0, 2]


def test_the_text_has_a_line_and_a_remedy_for_each_check() -> None:
    text = text_of([MachineCheck("ok", "clock", "fine"), MachineCheck("warn", "open files", "few", "raise it")])
    lines = [line.split() for line in text.splitlines()]
    assert lines == [["ok", "clock", "fine"], ["warn", "open", "files", "few"], ["->", "raise", "it"]]


# -- this machine


@pytest.mark.skipif(sys.platform != "linux", reason="SO_TIMESTAMPNS is Linux's")
def test_this_kernel_timestamps_loopback_reads() -> None:
    stamps = network_checks.kernel_stamps()
    assert stamps.reads == 20
    assert stamps.stamped > 10
    assert stamps.age_ns is not None
    assert stamps.age_ns > 0


def test_reads_are_counted_from_the_first_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    ages_ns = chain([None] * 30, repeat(5_000))
    monkeypatch.setattr(network_checks, "_stamp_age_ns", lambda *_sockets: next(ages_ns))
    assert network_checks.kernel_stamps() == Stamps(20, 20, 5_000)


def test_the_event_loop_timer_is_measured_for_the_given_time() -> None:
    late_ms = network_checks.timer_lateness_ms(0.1)
    assert late_ms
    assert min(late_ms) >= 0


def test_every_check_has_a_line_on_this_machine() -> None:
    whats = [check.what for check in machine.check()]
    assert len(whats) == len(set(whats))
    needed = {
        "Python",
        "packages",
        "open files",
        "cores",
        "kernel stamps",
        "reader",
        "clock",
        "steal",
        "event loop",
        "memory",
    }
    assert needed <= set(whats)


def test_every_package_of_the_metadata_is_checked() -> None:
    packages = {package.name: package for package in machine.packages()}
    assert packages["locust"].required
    assert packages["locust"].version
    assert "inferload" in packages
    assert "pytest" not in packages  # only in an extra


# -- servers


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Return (exit code, server checks by subject, printed text)."""
    code = cli.main(["doctor", "--json", *arguments])
    printed = capsys.readouterr().out
    return code, {check["what"]: check for check in json.loads(printed)["server"]}, printed


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LOOK_S", 0.05)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_the_simulator_passes_all_server_checks(
    simulator: Callable[..., Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = doctor(capsys, "--host", simulator("--ttft-ms", "5", "--itl-ms", "10").url)
    assert code == 0
    assert {what: check["status"] for what, check in lines.items()} == dict.fromkeys(lines, "ok")
    assert lines["engine"]["found"] == "simulator 0.32.0"
    assert {"TLS", "model", "usage", "running usage", "own times", "cached tokens", "cache_salt", "/tokenize"} <= set(
        lines
    )
    assert "22 of 26 names; missing: spec_decode_*" in lines["metrics"]["found"]


def test_each_metrics_page_of_a_file_is_checked(
    simulator: Callable[..., Simulator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server = simulator("--ttft-ms", "5", "--itl-ms", "10")
    file = tmp_path / "pages"
    file.write_text(f"{server.url}/metrics\n{server.url}/v1/models\n")
    cli.main(["doctor", "--json", "--host", server.url, "--metrics-url", str(file)])
    checks = json.loads(capsys.readouterr().out)["server"]
    assert [check["status"] for check in checks if check["what"] == "metrics"] == ["ok", "warn"]
    assert cli.main(["doctor", "--host", server.url, "--metrics-url", "gone"]) == 2
    assert "--metrics-url gone: not an http or https address" in capsys.readouterr().err


def test_disabled_server_options_are_reported_without_the_key(
    simulator: Callable[..., Simulator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--no-enable-per-request-metrics", "--no-enable-prompt-tokens-details", "--api-key", "sesame-9"]
    server = simulator("--ttft-ms", "5", "--itl-ms", "10", *flags)
    code, lines, _ = doctor(capsys, "--host", server.url)
    assert code == 2
    assert list(lines) == ["server"]
    assert "--api-key-file" in lines["server"]["remedy"]
    key = tmp_path / "key"
    key.write_text("sesame-9\n")
    code, lines, printed = doctor(capsys, "--host", server.url, "--api-key-file", str(key))
    assert code == 0
    assert "sesame-9" not in printed
    off = {what for what, check in lines.items() if check["status"] == "warn"}
    assert off == {"own times", "cached tokens"}
    assert "--enable-per-request-metrics" in lines["own times"]["remedy"]


def test_an_unreachable_host_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = doctor(capsys, "--host", f"http://127.0.0.1:{unused_port()}")
    assert code == 2
    assert list(lines) == ["server"]
    assert lines["server"]["status"] == "fail"
    assert "refused" in lines["server"]["found"]
    assert lines["server"]["remedy"]


def test_an_invalid_host_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--host", "server:8000"]) == 2
    assert "http://" in capsys.readouterr().err


class Bare(BaseHTTPRequestHandler):
    """A server that streams and refuses all unknown fields."""

    streams = True
    limit = ("max_tokens", 1)  # key of the limit that it takes, and its smallest value

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, "application/json", b'{"data": [{"id": "m"}]}')
        else:
            self._answer(404, "text/plain", b"no")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key, least = self.limit
        known = {"model", "messages", key, "stream", "stream_options"}
        if self.path != "/v1/chat/completions" or set(body) - known or len(body["stream_options"]) > 1:
            self._answer(400, "application/json", b'{"error": "unknown field"}')
        elif body[key] < least:
            self._answer(400, "application/json", b'{"error": "integer below minimum value"}')
        elif not self.streams:
            self._answer(200, "application/json", b'{"choices": []}')
        else:
            event = b'data: {"choices": [{"delta": {"content": "one "}, "finish_reason": null}]}\n\n'
            self.stream(event * 2 + b"data: [DONE]\n\n")

    def stream(self, body: bytes) -> None:
        self._answer(200, "text/event-stream", body)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def bare() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bare)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_minimal_server_gets_warnings_with_remedies(bare: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = doctor(capsys, "--host", bare)
    assert code == 0
    fine = {what for what, check in lines.items() if check["status"] == "ok"}
    assert fine == {"server", "TLS", "model", "streaming"}
    assert all(check["remedy"] for what, check in lines.items() if what not in fine)


def test_a_server_with_another_limit_of_answers_is_checked(
    bare: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bare, "limit", ("max_completion_tokens", 16))
    code, lines, _ = doctor(capsys, "--host", f"{bare}/v1/chat/completions", "--model", "unlisted")
    assert code == 0
    assert lines["streaming"]["status"] == "ok"
    assert "max_completion_tokens" in lines["limit"]["found"]
    assert lines["model"]["status"] == "warn"
    assert "does not list model unlisted" in lines["model"]["found"]


@pytest.mark.parametrize(("held", "status"), [(0, "ok"), (3, "ok"), (100, "warn")])
def test_a_stream_is_held_if_it_is_held_each_time(
    bare: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, held: int, status: str
) -> None:
    events = [b'data: {"choices": [{"delta": {"content": "one "}, "finish_reason": null}]}\n\n'] * 16
    sent = count()

    def stream(self: Bare, _body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        together = len(events) if next(sent) < held else 1
        for first in range(0, len(events), together):
            self.wfile.write(b"".join(events[first : first + together]))
            time.sleep(0.02)
        self.wfile.write(b"data: [DONE]\n\n")

    monkeypatch.setattr(Bare, "stream", stream)
    _, lines, _ = doctor(capsys, "--host", bare)
    assert lines["streaming"]["status"] == status


def test_a_server_that_does_not_stream_fails(
    bare: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bare, "streams", False)
    code, lines, _ = doctor(capsys, "--host", bare)
    assert code == 2
    assert lines["streaming"]["status"] == "fail"


def test_a_metrics_page_without_required_metrics_is_a_warning() -> None:
    known = set(network_checks.known_metrics())
    vllm, sglang = (network_checks.MetricsPage(name, frozenset(known)) for name in ("vllm", "sglang"))
    assert server_checks.of_metrics("u", vllm).status == "ok"
    assert server_checks.of_metrics("u", sglang).found == "u, names of sglang: 12 of 12"
    without = network_checks.MetricsPage("vllm", frozenset(known - {network_checks.NEEDED_METRICS[0]}))
    assert server_checks.of_metrics("u", without).status == "warn"
    assert set(network_checks.NEEDED_METRICS) <= known
