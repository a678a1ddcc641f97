"""The benchmark server, its reader, and the evaluation of client results."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import bench, table
from benchmarks.cases import CASES, Case
from benchmarks.clients import INFERLOAD, PEERS, READER, Load
from benchmarks.reported import (
    BenchRow,
    Reported,
    Spent,
    Streaming,
    UsageSample,
    beside_reading_us,
    marks,
    peak_while_streaming,
    streaming,
)
from benchmarks.server import PROGRAMS, Certificate, PacedServer, ServerError, make_certificate
from benchmarks.watched import on_cores, run_watched

COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine")
TINY = Case("tiny", "two short turns", ttft_ms=60, gap_ms=10, tokens=20, turns=2, turns_for_p99=0)


@pytest.fixture(scope="module")
def programs() -> Path:
    """Build both C programs with the command of `make bench`. Return their folder."""
    command = ["make", "--no-print-directory", f"CC={COMPILER}", "bench-programs"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr, built.stderr
    return PROGRAMS


@pytest.fixture
def server(programs: Path) -> Iterator[PacedServer]:
    with PacedServer(TINY, core=1) as running:
        yield running


def post(server: PacedServer, path: str, body: Any, timeout_s: float = 20) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
    reply = connection.getresponse()
    response = reply.status, reply.read().decode()
    connection.close()
    return response


def events_of(text: str) -> list[Any]:
    payloads = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert payloads[-1] == "[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]]


def read(server: PacedServer, *flags: str) -> dict[str, Any]:
    command = [str(PROGRAMS / "reader"), "--port", str(server.port), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def punctual_ttft_ms(measured: dict[str, Any], stats: dict[str, Any]) -> float:
    """Return the mean TTFT that the reader measured, without the server's lateness."""
    ttft_ms: float = measured["ttft_ms"]["mean"] - stats["lateness_ms"]["first"]["mean"]
    return ttft_ms


@needs_compiler
@pytest.mark.usefixtures("stamping")
@pytest.mark.parametrize("stamps", ["user", "kernel"])
def test_reader_and_server_agree_on_events_and_times(server: PacedServer, stamps: str) -> None:
    server.reset()
    measured = read(server, "--streams", "20", "--turns", "3", "--tokens", "20", "--stamps", stamps)
    stats = server.stats()
    assert (measured["turns"], measured["failed"], measured["events"], measured["tokens"]) == (60, 0, 1200, 1200)
    assert (stats["turns"], stats["aborted"], stats["events_sent"], stats["tokens_sent"]) == (60, 0, 1200, 1200)
    assert measured["ttft_ms"]["count"] == 60
    assert measured["itl_ms"]["count"] == 60 * 19
    assert stats["lateness_ms"]["all"]["count"] + stats["blocked"] == 1200
    assert stats["lateness_ms"]["first"]["count"] == 60
    assert stats["unstamped_requests"] == 0
    # The server never sends early, and reports its lateness.
    ttft_ms, gaps_ms = measured["ttft_ms"]["mean"], 19 * measured["itl_ms"]["mean"]
    assert ttft_ms / TINY.ttft_ms > 0.999
    assert (ttft_ms + gaps_ms) / (TINY.ttft_ms + 19 * TINY.gap_ms) > 0.999
    if stamps == "user":  # these include the lateness of the reader
        assert 3 * (ttft_ms + gaps_ms) <= measured["measured_s"] * 1e3 + 1
    else:
        assert punctual_ttft_ms(measured, stats) / TINY.ttft_ms < 1.6
        late_ms = stats["lateness_ms"]["first"]["max"] + stats["lateness_ms"]["gap"]["max"]
        assert abs(gaps_ms - 19 * TINY.gap_ms) < 0.3 * 19 * TINY.gap_ms + late_ms


@needs_compiler
def test_the_stream_has_the_events_of_chat_completions(server: PacedServer) -> None:
    status, text = post(server, "/v1/chat/completions", {"stream": True, "max_tokens": 5})
    events = events_of(text)
    assert status == 200
    assert [len(event["choices"]) for event in events] == [1, 1, 1, 1, 1, 0]
    assert all(event["object"] == "chat.completion.chunk" and event["id"] == events[0]["id"] for event in events)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [event["choices"][0]["finish_reason"] for event in events[:5]] == [None] * 4 + ["length"]
    assert all(re.fullmatch(r" [a-z]{4}", event["choices"][0]["delta"]["content"]) for event in events[:5])
    assert all(event["usage"] is None for event in events[:5])
    assert events[5]["usage"]["completion_tokens"] == 5


@needs_compiler
@pytest.mark.parametrize("position", ["first", "last"])
def test_max_tokens_is_found_anywhere_in_a_large_request(server: PacedServer, position: str) -> None:
    limit, message = '"max_tokens": 3', '"messages": [{"role": "user", "content": "' + "word " * 100_000 + '"}]'
    parts = [limit, message] if position == "first" else [message, limit]
    body = ("{" + ", ".join(['"stream": true', *parts]) + "}").encode()
    _, text = post(server, "/v1/chat/completions", body)
    assert events_of(text)[-1]["usage"]["completion_tokens"] == 3
    assert server.stats()["body_bytes"] == len(body)


@needs_compiler
def test_events_can_have_several_tokens(programs: Path) -> None:
    case = Case("eight", "", ttft_ms=1, gap_ms=1, tokens=20, tokens_per_event=8)
    with PacedServer(case, core=1) as running:
        _, text = post(running, "/v1/chat/completions", {"stream": True})
        events = events_of(text)
        words = [len(event["choices"][0]["delta"]["content"].split()) for event in events[:-1]]
        stats = running.stats()
    assert words == [8, 8, 4]
    assert events[-1]["usage"]["completion_tokens"] == 20
    assert (stats["events_sent"], stats["tokens_sent"]) == (3, 20)


@needs_compiler
def test_other_paths_of_the_server(server: PacedServer) -> None:
    assert server.call("GET", "/v1/models")["data"][0]["id"] == "paced"
    assert server.call("GET", "/version") == {"version": "paced"}
    status, text = post(server, "/tokenize", {"prompt": 'one two\none "two"'})
    document = json.loads(text)
    assert (status, document["count"]) == (200, 4)
    assert document["tokens"][0] == document["tokens"][2] != document["tokens"][1]
    assert post(server, "/v1/chat/completions", {"max_tokens": 2})[0] == 400  # no stream
    assert post(server, "/v1/embeddings", {})[0] == 404
    with pytest.raises(ValueError, match="Expecting value"):
        server.call("GET", "/metrics")  # a Prometheus page


@needs_compiler
def test_a_disconnected_client_is_counted(server: PacedServer) -> None:
    body = b'{"stream": true}'
    with socket.create_connection(("127.0.0.1", server.port)) as leaving:
        leaving.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        assert leaving.recv(100).startswith(b"HTTP/1.1 200")
    _, text = post(server, "/v1/chat/completions", {"stream": True, "max_tokens": 4})
    stats = server.stats()
    assert len(events_of(text)) == 5
    assert (stats["turns"], stats["aborted"], stats["running"]) == (1, 1, 0)


@needs_compiler
def test_invalid_requests_are_refused(server: PacedServer) -> None:
    for text in (b"nonsense\r\n\r\n", b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"x" * 20_000):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as bad:
            bad.sendall(text)
            assert b" 400 " in bad.recv(200)
    assert server.call("GET", "/stats")["running"] == 0


@needs_compiler
@pytest.mark.usefixtures("stamping")
def test_the_spread_changes_only_the_end_of_the_first_turn(programs: Path) -> None:
    case = Case("spread", "", ttft_ms=20, gap_ms=5, tokens=4, spread=True, turns=2)
    assert case.spread_ms == pytest.approx(35)
    with PacedServer(case, core=1) as running:
        measured = read(running, "--streams", "20", "--turns", "2", "--tokens", "4", "--stamps", "kernel")
        stats = running.stats()
        spread = measured["measured_s"] / (2 * case.turn_s)
    assert measured["ttft_ms"]["mean"] / case.ttft_ms > 0.99
    assert punctual_ttft_ms(measured, stats) / case.ttft_ms < 2.5
    assert spread > 1.2  # the second turn of the last of 20 streams is delayed by most of a turn


@needs_compiler
def test_counters_are_printed_at_the_end_and_help_lists_options(programs: Path) -> None:
    source = (ROOT / "benchmarks" / "paced_server.c").read_text()
    shown = subprocess.run(
        [str(programs / "paced_server"), "--help"], capture_output=True, text=True, check=True
    ).stdout
    flags = set(re.findall(r'strcmp\(flag, "(--[a-z-]+)"\)', source)) - {"--help"}
    assert len(flags) > 8
    assert {flag for flag in flags if flag not in shown} == set()
    command = [str(programs / "paced_server"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ended:
        assert ended.stdout is not None
        assert re.fullmatch(r"paced_server on http://127\.0\.0\.1:\d+\n", ended.stdout.readline())
        ended.terminate()
        counts = json.loads(ended.communicate(timeout=20)[0])
    assert ended.returncode == 0
    assert counts["lateness_ms"]["all"] == {
        "count": 0,
        "mean": None,
        "p50": None,
        "p99": None,
        "max": None,
    }
    for flags_wrong in (["--tokens", "none"], ["--nonsense", "1"], ["--tokens"]):
        wrong = subprocess.run(
            [str(programs / "paced_server"), *flags_wrong], capture_output=True, text=True, check=False
        )
        assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command on this machine")
    return make_certificate(tmp_path)


@needs_compiler
@pytest.mark.usefixtures("stamping")
def test_tls(programs: Path, certificate: Certificate) -> None:
    try:
        running = PacedServer(TINY, core=1, certificate=certificate)
    except ServerError:
        pytest.skip("built without OpenSSL's headers")
    with running:
        measured = read(running, "--streams", "5", "--turns", "2", "--tokens", "20", "--tls", "1", "--stamps", "kernel")
        stats = running.stats()
    assert stats["tokens_sent"] == 200
    assert (measured["turns"], measured["failed"], measured["tokens"]) == (10, 0, 200)
    assert measured["ttft_ms"]["mean"] / TINY.ttft_ms > 0.99
    assert punctual_ttft_ms(measured, stats) / TINY.ttft_ms < 1.6


@needs_compiler
def test_a_round_with_the_reader_writes_its_page(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CASES, "tiny", TINY)
    absent = replace(PEERS["vllm-rs"], missing=lambda: "not installed: make bench-peers")
    monkeypatch.setitem(bench.CLIENTS, "vllm-rs", absent)
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    flags = ["--cases", "tiny", "--sizes", "3", "--clients", "reader", "vllm-rs"]
    assert bench.main([*flags, "--write", str(page), "--json", str(figures)]) == 0
    text = page.read_text()
    assert "vllm-rs bench serve: not installed: make bench-peers" in text
    row = json.loads(figures.read_text())["rows"][0]
    assert (row["client"], row["streams"], row["reported"]["turns"]) == ("C reader", 3, 6)
    assert row["server"]["tokens_sent"] == 120
    assert f"{bench.CLIENTS['aiperf'].name}: not requested (--clients)" in text
    assert str(tmp_path) not in text


def test_the_last_line_of_a_client_is_stripped_of_colours(tmp_path: Path) -> None:
    log = tmp_path / "output.txt"
    log.write_text("begun\n\x1b[0;36m(pid 7)\x1b[0m \x1b[32mINFO\x1b[0m ready\n\x1b[0m\n")
    assert bench._last_line(log) == "(pid 7) INFO ready"


@needs_compiler
def test_a_failed_client_has_a_row_with_its_error(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "tiny", TINY)
    monkeypatch.setitem(bench.CLIENTS, "reader", replace(READER, result="results.json"))
    page = tmp_path / "page.md"
    flags = ["--cases", "tiny", "--sizes", "2", "--clients", "reader", "--json", str(tmp_path / "figures.json")]
    assert bench.main([*flags, "--write", str(page)]) == 1
    assert "no results: exit code 0 (FileNotFoundError)" in page.read_text()


def test_cpu_of_all_client_processes_counts_and_late_ones_are_ended(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    argv = [sys.executable, "-c", parent]
    counts = {"tokens_sent": 0, "cpu_s": 0.0}
    watched = partial(run_watched, cores=(0,), server_stats=lambda: counts)
    spent = watched(argv, {}, log=tmp_path / "a.txt", timeout_s=60)
    assert spent.exit_code == 0
    assert spent.cpu_s > 0.29
    argv = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    late = watched(argv, {}, log=tmp_path / "b.txt", timeout_s=0.1)
    assert late.exit_code == -9


def test_the_streaming_phase_of_a_run_is_measured() -> None:
    samples = [
        UsageSample(float(s), tokens, s * 0.1, s * 0.5, s * 0.25, 10.0 + s)
        for s, tokens in enumerate([0, 0, 50, 250, 500, 750, 1000, 1000])
    ]
    middle = streaming(samples)
    assert middle == Streaming(2.0, 500, server_cpu_s=pytest.approx(0.2), cpu_s=1.0, reading_s=0.5, memory_mb=14.0)
    assert (middle.cpu_us_per_token, middle.cpu_share, middle.tokens_per_s) == (2000.0, 0.5, 250.0)
    assert (
        peak_while_streaming(samples) == 16.0
    )  # the sample of the last tokens; later memory growth is not attributed to the client
    assert streaming(samples[:3]) is None
    assert streaming([]) is None
    assert peak_while_streaming([]) is None


def middle_of(seconds: float, tokens: float, cpu_s: float, reading_s: float = 0, server_cpu_s: float = 1) -> Streaming:
    return Streaming(seconds, round(tokens), server_cpu_s, cpu_s, reading_s, memory_mb=80)


def row_with(
    part: Streaming | None, server_late_ms: float = 0.1, failed: int = 0, verdict: str | None = None
) -> BenchRow:
    spent = Spent(exit_code=0, wall_s=10, cpu_s=5, streaming=part, peak_mb=100)
    reported = Reported(ttft_mean_ms=51, ttft_p99_ms=55, itl_p99_ms=11, turns=600, failed=failed, verdict=verdict)
    return BenchRow(
        "base", "some client", "1.0", 100, reported, spent, {"lateness_ms": {"all": {"p99": server_late_ms}}}
    )


def test_clients_that_did_not_keep_up_are_marked() -> None:
    case = CASES["base"]
    true_rate = case.tokens_per_s(100)
    good = middle_of(10, 10 * true_rate, cpu_s=4)
    assert marks(row_with(good), case) == ()
    slow = middle_of(10, 6 * true_rate, cpu_s=4)
    assert marks(row_with(slow), case) == ("did not keep up: 60% of the true token rate",)
    assert beside_reading_us(row_with(good), 100) is None  # of other clients
    own = middle_of(1, 1_000, cpu_s=0.01, reading_s=0.006)
    assert beside_reading_us(row_with(own), 100) == pytest.approx(400)
    full = middle_of(10, 9.5 * true_rate, cpu_s=9.9)
    assert marks(row_with(full), case) == ("did not keep up: 99% of its core",)
    both = replace(case, client_cores=2)  # the server used a tenth of one of them
    assert marks(row_with(full), both) == ()
    assert marks(row_with(middle_of(10, 10 * true_rate, cpu_s=18.81)), both) == ("did not keep up: 99% of its cores",)
    assert marks(row_with(None), case) == ("too short for CPU and rate",)
    marked = marks(row_with(good, server_late_ms=2.5, failed=3, verdict="suspect (lag)"), case)
    assert marked == ("server late: p99 2.5 ms", "3 turns failed", "verdict: suspect (lag)")
    large = BenchRow("bodies", "some client", "1.0", 100, Reported(), server={"turns": 4, "body_bytes": 2_000_000})
    assert "bodies of 500 kB" in marks(large, CASES["bodies"])


def test_a_row_has_the_share_of_the_true_rate_and_the_load_of_the_server() -> None:
    case = CASES["base"]
    text = table.case_table(case, [row_with(middle_of(10, 6 * case.tokens_per_s(100), cpu_s=4, server_cpu_s=2.5))])
    head, _, cells = ([cell.strip() for cell in line.split("|")] for line in text.splitlines()[-3:])
    row = dict(zip(head, cells, strict=True))
    wanted = {"of the true rate (%)": "60", "memory streaming (MB)": "80", "peak memory (MB)": "100"}
    assert wanted | {"server CPU (% of a core)": "25"} == {
        name: row[name] for name in (*wanted, "server CPU (% of a core)")
    }


def test_peers_run_in_the_first_case_for_each_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aiperf", "vllm-rs"):
        monkeypatch.setitem(bench.CLIENTS, name, replace(PEERS[name], missing=lambda: None))
    words = ["--cases", "base", "minute", "cores", "--clients", "aiperf", "vllm-rs", "inferload-processes"]
    arguments = bench._parser().parse_args([*words, "--sizes", "100", "600"])
    runs, absent = bench._plan([CASES[name] for name in arguments.cases], arguments)
    planned = [(case.name, client.name.split()[0], size) for case, client, size in runs]
    assert planned == [
        *(("base", client, size) for client in ("AIPerf", "vllm-rs") for size in (100, 600)),
        *(("minute", "vllm-rs", size) for size in (100, 600)),
        *(("cores", client, 100) for client in ("AIPerf", "vllm-rs", "inferload,")),
    ]
    assert absent["AIPerf, in minute"] == "not requested (--everywhere)"
    assert absent["inferload, two processes, in base, minute"] == "the client has one core"
    assert bench._duration(runs).startswith("9 runs, about 5 min;")


def test_distances_are_relative_to_the_reader() -> None:
    case = CASES["base"]
    figure = table.MEASURES[0]
    assert figure.name == "TTFT mean"
    assert table.points(figure, case, Reported(ttft_mean_ms=55), Reported(ttft_mean_ms=50.5)) == pytest.approx(9.0)
    assert table.points(figure, case, Reported(ttft_mean_ms=48), Reported(ttft_mean_ms=50)) == pytest.approx(4.0)
    assert table.points(figure, case, Reported(), Reported(ttft_mean_ms=50)) is None
    reader = BenchRow("base", table.READER_NAME, "", 100, Reported(ttft_mean_ms=50.5, ttft_p99_ms=51, itl_p99_ms=10))
    distances = table.distance_table(case, [reader, row_with(None)])
    assert "| TTFT mean: some client | 1.0 |" in distances
    assert "| TTFT mean: target of inferload | 1 |" in distances
    assert table.distance_table(case, [row_with(None)]) == ""


def test_the_turn_duration_of_a_case() -> None:
    assert CASES["base"].turn_s == pytest.approx(1.04)
    assert CASES["eight"].events == 100
    assert CASES["long"].turn_s == pytest.approx(10.03)
    assert CASES["base"].turns_of(100) == 11
    assert CASES["base"].turns_of(1000) == 6
    assert CASES["base"].turns_of(1) == 28  # at most 30 s
    assert CASES["bodies"].sizes((100, 300, 600)) == (100, 300)


def load_of(name: str, tmp_path: Path) -> Load:
    return Load(CASES[name], "http://127.0.0.1:9", 9, 100, tmp_path, tmp_path / "tokenizer")


@pytest.mark.parametrize("name", list(CASES))
def test_the_scenario_for_inferload_is_valid(name: str, tmp_path: Path) -> None:
    from inferload.scenario import scenario

    load = load_of(name, tmp_path)
    argv, _ = INFERLOAD.call(load)
    loaded = scenario.from_text((tmp_path / "scenario.yaml").read_text(), "scenario.yaml")
    assert loaded.arrivals.users == 100
    assert loaded.workload.output_tokens.value == CASES[name].tokens
    assert argv[argv.index("--run-dir") + 1] == str(tmp_path / "run")


RESULTS = {
    "vllm-rs": ("result.json", {"mean_ttft_ms": 51, "p99_ttft_ms": 60, "p50_itl_ms": 10, "p99_itl_ms": 12, "completed": 600,
                                "failed": 1, "duration": 6.5}),
    "aiperf": ("profile_export_aiperf.json", {"time_to_first_token": {"avg": 51, "p99": 60},
                                              "inter_chunk_latency": {"p50": 10, "p99": 12}, "request_count": {"avg": 600.0},
                                              "error_request_count": {"avg": 1.0}, "benchmark_duration": {"avg": 6.5}}),
    "guidellm": ("result.json", {"benchmarks": [{"duration": 6.5, "metrics": {
        "time_to_first_token_ms": {"successful": {"mean": 51, "percentiles": {"p50": 50, "p99": 60}}},
        "inter_token_latency_ms": {"successful": {"mean": 10, "percentiles": {"p50": 10, "p99": 12}}},
        "request_totals": {"successful": 600, "errored": 1}}}]}),
    "genai-bench": ("result/D20_100_num_concurrency_100_time_6s.json", {"aggregated_metrics": {
        "stats": {"ttft": {"mean": 0.051, "p99": 0.060}}, "num_completed_requests": 600, "num_error_requests": 1,
        "run_duration": 6.5}}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(RESULTS))
def test_result_files_of_peers_are_read_in_milliseconds(name: str, tmp_path: Path) -> None:
    path, document = RESULTS[name]
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(json.dumps(document))
    reported = PEERS[name].parse(load_of("base", tmp_path))
    assert (reported.ttft_mean_ms, reported.ttft_p99_ms, reported.turns, reported.failed, reported.measured_s) == (
        51,
        60,
        600,
        1,
        6.5,
    )
    assert (reported.itl_p50_ms, reported.itl_p99_ms) == ((None, None) if name == "genai-bench" else (10, 12))


def test_a_result_without_a_number_of_turns_is_none(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"mean_ttft_ms": 51, "completed": None}))
    with pytest.raises(KeyError, match="completed"):
        PEERS["vllm-rs"].parse(load_of("base", tmp_path))


@pytest.mark.parametrize("command", ["arrivals", "compare", "peers", "client"])
def test_one_command_has_all_benchmarks(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([command, "--help"])
    assert ended.value.code == 0
    assert f"make bench-{command}" in capsys.readouterr().out


@pytest.mark.parametrize("name", list(PEERS))
def test_commands_of_peers_have_the_load(name: str, tmp_path: Path) -> None:
    command = " ".join(PEERS[name].call(load_of("base", tmp_path))[0])
    for part in ("http://127.0.0.1:9", "100", "1100", str(tmp_path / "tokenizer")):
        assert part in command


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all there is")
def test_a_client_has_its_own_core() -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {second})
    try:
        with on_cores(first):
            child = subprocess.run(
                [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"],
                capture_output=True,
                text=True,
                check=True,
            )
        assert os.sched_getaffinity(0) == {second}
    finally:
        os.sched_setaffinity(0, before)
    assert child.stdout.strip() == str({first})
