"""The doctor: checks of this machine and of servers."""

import json
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, ClassVar

import pytest
from packaging.requirements import Requirement
from ports import unused_port
from simulator_process import Simulator

from inferload import cli
from inferload.base import clock
from inferload.base.errors import UsageError
from inferload.campaign.machine import machine_evidence, server_evidence
from inferload.campaign.machine.checks import MACHINE, METRICS, NEEDED_METRICS, CheckResult, results
from inferload.campaign.machine.machine_evidence import MachineEvidence, Stamps
from inferload.campaign.machine.server_evidence import MetricsPage
from inferload.cli.doctor import text_of
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.first_turn import FirstTurn, SentTurns, prove
from inferload.figures.pages.page_kinds import DCGM, KINDS, LLAMA_CPP, SGLANG, VLLM, VLLM_ROUTER, PageKind, of_engine
from inferload.scenario.schema.request import RequestOptions

# -- assessment of readings

GOOD = MachineEvidence(timers_late_ms=[0.1] * 100)


def of_machine(what: str, **readings: Any) -> CheckResult:
    """Return the result of a check of this machine with other readings."""
    (found,) = results([row for row in MACHINE if row.what == what], replace(GOOD, **readings))
    return found


def installed(version: str | None, required: str, name: str = "numpy") -> dict[str, Any]:
    return {"packages": [(Requirement(name + required), version)]}


Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")
BEFORE, AFTER = Times(100, 0, 0, 800, 0, 0, 0, 0, 0, 0), Times(150, 0, 0, 825, 0, 0, 0, 25, 50, 0)


@pytest.mark.parametrize(
    ("what", "readings", "status", "part"),
    [
        ("packages", installed("2.47.0", ">=2.47,<2.48"), "ok", "numpy 2.47.0"),
        ("packages", installed("2.47", ">=2.47.0"), "ok", ""),
        ("packages", installed("2.48.0", ">=2.47,<2.48"), "fail", "numpy 2.48.0 (required: <2.48,>=2.47)"),
        ("packages", installed("2.9", ">=2.47"), "fail", ""),
        ("packages", installed("2.48", "<2.48.0"), "fail", ""),
        ("packages", installed("26.9.0", ">=26.4"), "ok", ""),
        ("packages", installed("3.0.0rc1", ">=2.2"), "ok", ""),
        ("packages", installed("1.0", ""), "ok", ""),
        ("packages", installed(None, ">=26", "gevent"), "fail", "missing: gevent"),
        ("open files", {"open_files": (20_000, 20_000)}, "ok", "19900 streams"),
        ("open files", {"open_files": (1024, 524_288)}, "ok", "9900 streams"),  # Locust raises the limit to 10,000
        ("open files", {"open_files": (1024, 4096)}, "warn", "924 streams"),  # the hard limit is lower
        ("open files", {"open_files": (128, 128)}, "fail", "28 streams"),
        ("open files", {"open_files": (-1, -1)}, "ok", "no limit"),
        ("open files", {"open_files": (1024, -1)}, "ok", "9900 streams"),
        # Guest time is in user time already.
        ("steal", {"times_before": BEFORE, "times_after": AFTER}, "warn", "25 % during this check, 2.5 % since boot"),
        ("steal", {"times_before": BEFORE, "times_after": BEFORE}, "ok", ""),
        ("steal", {"times_after": (1, 2)}, "ok", "not known on this system"),
        ("cores", {"cores": (2, 8, None)}, "ok", "2 of 8"),
        ("cores", {"cores": (1, 8, None)}, "warn", "1 of 8"),
        ("cores", {"cores": (8, 8, 1.5)}, "warn", "8 of 8, with a quota of 1.5"),
        ("cores", {"cores": (8, 8, 4.0)}, "ok", "8 of 8, with a quota of 4"),
        ("Python", {"python": (3, 11, 2)}, "ok", "3.11.2"),
        ("Python", {"python": (3, 10, 9)}, "fail", "3.10.9"),
        ("local ports", {"ports": (32_768, 60_999)}, "ok", "28232 connections"),
        ("local ports", {"ports": (50_001, 60_000)}, "ok", "10000 connections"),
        ("local ports", {"ports": (50_002, 60_000)}, "warn", "9999 connections"),
        ("clock", {"clock_step_ns": 40}, "ok", "steps of 40 ns"),
        ("clock", {"clock_step_ns": 1_000_000}, "warn", "steps of 1000000 ns"),
        ("reader", {"reader": "native", "realtime": True}, "ok", "with real-time priority"),
        ("reader", {"reader": "native", "realtime": False}, "ok", "without real-time priority"),
        ("reader", {"reader": "python"}, "warn", "within the event loop"),
        ("memory", {"memory_mb": (8_000, 16_000)}, "ok", "8,000 MB of 16,000 MB free"),
        ("memory", {"memory_mb": (300, 16_000)}, "warn", "300 MB"),
        ("event loop", {}, "ok", "0.10 ms (most of 100)"),
        ("event loop", {"timers_late_ms": [0.1] * 97 + [20.0] * 3}, "warn", "0.10 ms (median), 20.00 ms"),
        ("event loop", {"timers_late_ms": []}, "fail", "never fired"),
        ("kernel stamps", {"stamps": Stamps(20, 20, 4_000)}, "ok", "on 20 of 20 loopback reads, read 4 us after"),
        ("kernel stamps", {"stamps": Stamps(20, 5, 4_000)}, "warn", "on 5 of 20"),
        ("kernel stamps", {"stamps": Stamps(20, 0)}, "warn", "none on 20 reads"),
        (
            "kernel stamps",
            {"stamps": Stamps(0, 0, why="Protocol not available")},
            "warn",
            "none (Protocol not available)",
        ),
    ],
)
def test_a_check_judges_its_reading(what: str, readings: dict[str, Any], status: str, part: str) -> None:
    found = of_machine(what, **readings)
    assert (found.status, part in found.found) == (status, True), found


def test_ports_that_the_system_does_not_report_are_not_checked() -> None:
    assert "local ports" not in [found.what for found in results(MACHINE, replace(GOOD, ports=None))]


def test_the_text_has_a_line_and_a_remedy_for_each_check() -> None:
    text = text_of([CheckResult("ok", "clock", "fine"), CheckResult("warn", "open files", "few", "raise it")])
    lines = [line.split() for line in text.splitlines()]
    assert lines == [["ok", "clock", "fine"], ["warn", "open", "files", "few"], ["->", "raise", "it"]]


# -- this machine


@pytest.mark.skipif(sys.platform != "linux", reason="SO_TIMESTAMPNS is Linux's")
def test_this_kernel_timestamps_loopback_reads() -> None:
    stamps = machine_evidence.kernel_stamps()
    assert stamps.reads == 20
    assert stamps.stamped > 10
    assert stamps.age_ns is not None
    assert stamps.age_ns > 0


def test_reads_are_counted_from_the_first_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    ages_ns = chain([None] * 30, repeat(5_000))
    monkeypatch.setattr(machine_evidence, "_stamp_age_ns", lambda *_sockets: next(ages_ns))
    monkeypatch.setattr(machine_evidence, "_ENABLED_WITHIN_NS", 3600 * clock.NS_PER_S)  # on a busy machine too
    assert machine_evidence.kernel_stamps() == Stamps(20, 20, 5_000)


def test_the_event_loop_timer_is_measured_for_the_given_time() -> None:
    late_ms = machine_evidence.timer_lateness_ms(0.1)
    assert late_ms
    assert min(late_ms) >= 0


def test_every_check_has_a_line_on_this_machine() -> None:
    whats = [found.what for found in results(MACHINE, MachineEvidence())]
    assert set(whats) >= {row.what for row in MACHINE} - {"local ports"}


def test_every_package_of_the_metadata_is_checked() -> None:
    packages = {required.name: (required, version) for required, version in machine_evidence.packages()}
    required, version = packages["locust"]
    assert required.specifier
    assert version
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
    monkeypatch.setattr(machine_evidence, "LOOK_S", 0.05)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_the_simulator_passes_all_server_checks(
    simulator: Callable[..., Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = doctor(capsys, "--host", simulator("--ttft-ms", "5", "--itl-ms", "10").url)
    assert code == 0
    ignored = {what for what, check in lines.items() if check["status"] != "ok"}
    assert ignored == {"stop", "logprobs"}
    assert lines["engine"]["found"] == "simulator 0.32.0"
    assert {"TLS", "model", "usage", "running usage", "own times", "cached tokens", "cache_salt", "/tokenize"} <= set(
        lines
    )
    assert "24 of 28 names; missing: spec_decode_*" in lines["metrics"]["found"]


def test_behind_a_gateway_the_metrics_page_tells_the_simulator(
    simulator: Callable[..., Simulator], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts_of = server_evidence.facts_of
    monkeypatch.setattr(server_evidence, "facts_of", lambda *given: replace(facts_of(*given), engine="unknown"))
    _, lines, _ = doctor(capsys, "--host", simulator("--ttft-ms", "5", "--itl-ms", "10").url)
    assert lines["engine"]["found"].startswith("simulator")


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
    assert off == {"own times", "cached tokens", "stop", "logprobs"}
    assert lines["cache_salt"]["found"].startswith("not known: cached tokens are not reported")
    assert "--enable-per-request-metrics" in lines["own times"]["remedy"]


def test_a_host_that_cannot_be_asked_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = doctor(capsys, "--host", f"http://127.0.0.1:{unused_port()}")
    assert (code, list(lines), lines["server"]["status"]) == (2, ["server"], "fail")
    assert "refused" in lines["server"]["found"]
    assert lines["server"]["remedy"]
    assert cli.main(["doctor", "--host", "server:8000"]) == 2
    assert "http://" in capsys.readouterr().err


def test_direct_compares_with_the_only_model_of_the_other_address(
    simulator: Callable[..., Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    tiny, huge = (simulator("--ttft-ms", "1", "--itl-ms", "1", "--model", name).url for name in ("tiny", "huge"))
    assert cli.main(["doctor", "--json", "--host", tiny, "--direct", huge]) == 0
    between = {check["what"]: check["found"] for check in json.loads(capsys.readouterr().out)["between"]}
    assert (between["model"], between["usage"]) == ("tiny (direct: huge)", "the same")
    assert cli.main(["doctor", "--json", "--host", tiny, "--direct", f"http://127.0.0.1:{unused_port()}"]) == 2
    (check,) = json.loads(capsys.readouterr().out)["between"]
    assert (check["what"], "refused" in check["found"]) == ("direct", True)


class Bare(BaseHTTPRequestHandler):
    """A server that streams and refuses all unknown fields."""

    streams = True
    limit = ("max_tokens", 1)  # key of the limit that it takes, and its smallest value
    pages: ClassVar[dict[str, str]] = {"/v1/models": '{"data": [{"id": "m"}]}'}

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        if self.path in self.pages:
            self._answer(200, "application/json", self.pages[self.path].encode())
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

    def version_string(self) -> str:
        return "nginx/1.31.3"


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
    limits = {"max_tokens", "max_completion_tokens"}
    assert fine == {"server", "TLS", "model", "streaming", "as an SDK", "gateway"} | limits
    assert lines["gateway"]["found"] == "nginx 1.31.3"
    assert lines["ignore_eos"]["found"].startswith("refused: ")
    assert lines["cached tokens"]["remedy"].endswith(", or nginx 1.31.3 drops it (--direct shows that)")
    assert all(check["remedy"] for what, check in lines.items() if what not in fine)


def test_a_server_with_another_limit_or_without_streams_is_checked(
    bare: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bare, "limit", ("max_completion_tokens", 16))
    code, lines, _ = doctor(capsys, "--host", f"{bare}/v1/chat/completions", "--model", "unlisted")
    assert (code, lines["streaming"]["status"]) == (0, "ok")
    assert lines["max_tokens"]["found"].startswith("refused: ")
    assert lines["max_completion_tokens"]["found"].startswith("not known: the answer ended with 2 events")
    assert lines["model"]["status"] == "warn"
    assert "does not list model unlisted" in lines["model"]["found"]
    monkeypatch.setattr(Bare, "streams", False)
    code, lines, printed = doctor(capsys, "--host", bare, "--direct", bare)
    assert (code, lines["streaming"]["status"]) == (2, "fail")
    assert json.loads(printed)["between"][0]["found"] == "not compared: --host gives no streamed answer"


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


def test_a_pooling_server_is_named(
    bare: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def post(self: Bare) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status = 200 if self.path == "/v1/embeddings" else 404
        self._answer(status, "application/json", b'{"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3}}')

    monkeypatch.setattr(Bare, "do_POST", post)
    code, lines, _ = doctor(capsys, "--host", bare)
    assert (code, lines["streaming"]["status"]) == (0, "ok")
    assert "a pooling server: embeddings answer" in lines["streaming"]["found"]
    target = Target.parse(bare)
    document = {"model": "m", "messages": [], "max_tokens": 1, "stream": True}
    settings = ClientSettings(target, "m")
    with pytest.raises(UsageError, match=r"a pooling server: embeddings answer.*HTTP 404.*a scenario of texts"):
        prove(settings, FirstTurn(document, RequestOptions()), SentTurns())


SLOTS = '{"build_info": "b9", "default_generation_settings": {"n_ctx": 512}}'


@pytest.mark.parametrize(
    "case",
    [
        ("vllm", {"/version": '{"version": "0.32.0"}'}, "vllm 0.32.0", "m"),
        ("vllm", {}, "unknown", "m"),
        ("sglang", {}, "sglang", "m"),
        ("llamacpp", {"/props": SLOTS}, "llama.cpp b9", "m, 512 tokens at most"),
        ("llamacpp", {"/props": "[]"}, "llama.cpp", "m"),
        ("openai", {"/version": '{"version": "2.1"}'}, "unknown; version 2.1", "m"),
    ],
)
def test_the_engine_is_known_by_the_owner_of_its_models(
    bare: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, dict[str, str], str, str],
) -> None:
    owner, pages, engine, model = case
    models = json.dumps({"data": [{"id": "m", "owned_by": owner}]})
    monkeypatch.setattr(Bare, "pages", {"/v1/models": models, **pages})
    _, lines, _ = doctor(capsys, "--host", bare)
    assert (lines["engine"]["found"], lines["model"]["found"]) == (engine, model)
    kind = of_engine(engine)
    remedies = " ".join(check["remedy"] for check in lines.values())
    switches = {
        switch
        for each in KINDS
        for switch in each.switches.values()
        if f"{switch} " in f"{remedies} ".replace(",", " ")
    }
    assert switches == (set() if kind is None else {*kind.switches.values()}), "only the engine's own"


KNOWN = MetricsPage("u").known


@pytest.mark.parametrize(
    ("kind", "missing", "remarks", "status", "text"),
    [
        (VLLM, (), (), "ok", ": 28 of 28 names"),
        (VLLM, NEEDED_METRICS[:1], (), "warn", ": 27 of 28 names; missing: num_requests_running"),
        (VLLM, (), ("2 lines are no samples",), "warn", ": 28 of 28 names; 2 lines are no samples"),
        (VLLM_ROUTER, (), (), "ok", ": a page of vllm-router, older sglang-router, which is no server's: "),
        (SGLANG, (), (), "ok", ", names of SGLang: 13 of 13"),
        (LLAMA_CPP, (), (), "ok", ", names of llama.cpp: 9 of 9; llama.cpp does not publish kv_cache_usage_perc,"),
        (DCGM, (), (), "ok", ": DCGM exporter"),
        (None, (), (), "warn", ": 40 series of no known engine"),
    ],
)
def test_a_metrics_page_is_judged_by_the_metrics_that_the_report_needs(
    kind: PageKind | None, missing: tuple[str, ...], remarks: tuple[str, ...], status: str, text: str
) -> None:
    published = frozenset(KNOWN) if kind in (VLLM, None) else kind.metrics
    (result,) = results(METRICS, MetricsPage("u", kind, published - {*missing}, remarks=remarks, series=40))
    assert (result.status, result.found[: len(text) + 1]) == (status, f"u{text}")
    assert bool(remarks) == ("the server's own page" in result.remedy)
    assert set(NEEDED_METRICS) <= set(KNOWN)
