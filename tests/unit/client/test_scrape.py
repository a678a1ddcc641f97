"""The scraper process and `inferload scrape`: stored metrics, failures, and signals."""

import argparse
import gzip
import itertools
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scraper_child
import scrapes
import scripted_server
import trustme
from hypothesis import given
from hypothesis import strategies as st
from paths import SUPPORT
from ports import unused_port
from scripted_server import ScriptedServer, send
from simulator_process import Simulator
from summaries import server_documents as servers_block

from inferload import cli
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.rundir import SERVER_METRICS
from inferload.base.tls import TlsSettings
from inferload.cli.scrape import ScrapeProgress, _seconds
from inferload.client.client import Credentials
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.metric_names import SCRAPE_DURATION
from inferload.run.master.lifecycle.scraper_process import Scraping
from inferload.run.process.settings import ProcessSettings
from inferload.servers import scrapes_file
from inferload.servers.exposition import PromParser, Sample
from inferload.servers.scrape_http import MAX_PAGE_BYTES, MetricsClient, MetricsUrl
from inferload.servers.scraper import (
    PROBES,
    Scrape,
    ScrapeBuffer,
    ScrapeJob,
    clients_of,
    line_of,
    readings,
    scrape_all,
)
from inferload.servers.scraping import Lines
from inferload.servers.series import by_target

pytestmark = pytest.mark.usefixtures("forked_commands")

PAGE = """\
# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{{engine="0",model_name="m"}} 3.0
vllm:num_requests_running{{engine="1",model_name="m"}} 4.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.75
vllm:generation_tokens_total{{engine="0",model_name="m"}} {count}.0
vllm:generation_tokens_created{{engine="0",model_name="m"}} 1.7e+09
process_cpu_seconds_total 1.5
process_resident_memory_bytes 1e+08
"""


class MetricsServer(ScriptedServer):
    """A metrics page whose counter is the number of GETs; `trouble` selects a fault of each reply."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.trouble = ""
        super().__init__([self._answer], tls)

    @property
    def count(self) -> int:
        return len(self.requests)

    def _answer(self, sock: socket.socket, _request: bytes) -> None:
        body = b"<html>hello</html>" if self.trouble == "html" else PAGE.format(count=self.count).encode()
        zipped, status = self.trouble == "gzip", 503 if self.trouble == "status" else 200
        reply = scripted_server.page(
            gzip.compress(body) if zipped else body, status, lines="Content-Encoding: gzip\r\n" if zipped else ""
        )
        sock.sendall(reply[:-60] if self.trouble == "cut" else reply)
        if self.trouble in ("cut", "close"):
            sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def page() -> Iterator[MetricsServer]:
    server = MetricsServer()
    yield server
    server.close()


class Child:
    """A scraper process, which has not imported gevent, and its output."""

    def __init__(self, run: Path, *arguments: str, key: str | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
        environment |= {"OPENAI_API_KEY": key} if key else {}
        command = [sys.executable, "-m", scraper_child.__name__, "--out", str(run / SERVER_METRICS), *arguments]
        pipe = subprocess.PIPE
        self.run = run
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=SUPPORT
        )

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        document: dict[str, Any] = json.loads(self.process.stdout.readline())
        return document

    def line_where(self, up: bool) -> dict[str, Any]:
        return next(line for line in iter(self.line, None) if line["up"] is up)

    def end(self, how: str = "stdin") -> tuple[int, str, pa.Table]:
        """Return the exit code, stderr and the scrapes."""
        if how == "sigterm":
            self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors, scrapes.table_of(self.run)


@pytest.mark.parametrize("how", ["stdin", "sigterm"])
def test_relevant_metrics_are_stored_and_a_last_scrape_is_made_at_the_end(
    tmp_path: Path, page: MetricsServer, how: str
) -> None:
    url = f"http://127.0.0.1:{page.port}"
    child = Child(tmp_path, "--interval-s", "0.05", "--target", f"{url}/metrics", key="sesame")
    lines = [child.line() for _ in range(4)]
    child.process.send_signal(signal.SIGINT)
    code, errors, table = child.end(how)
    assert (code, errors) == (0, "")
    assert all(line["up"] and line["target"] == url for line in lines)
    figures = {
        names.RUNNING: 7,
        f"{names.RUNNING}@0": 3,
        f"{names.RUNNING}@1": 4,
        names.KV_CACHE_USAGE: 0.75,
        names.GENERATION_TOKENS: 1,
        names.PROCESS_CPU: 1.5,
        "engines": 2,
    }
    assert lines[0]["gauges"] == figures
    assert all(b"Authorization: Bearer sesame\r\n" in request for request in page.requests)
    assert page.connections == min(page.count, PROBES)
    metrics = set(table["metric"].to_pylist())
    assert metrics == {
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:generation_tokens_total",
        "process_cpu_seconds_total",
        SCRAPE_DURATION,
    }
    rows = [row for row in table.to_pylist() if row["metric"] == "vllm:generation_tokens_total"]
    assert [row["value"] for row in rows] == list(range(1, page.count + 1))
    assert rows[0]["labels"] == '{"engine":"0","model_name":"m"}'
    assert [row["wall_ns"] for row in rows][:4] == [line["wall_ns"] for line in lines]
    assert [path.name for path in (tmp_path / SERVER_METRICS).iterdir()] == [scrapes_file.JOINED]


def test_an_unavailable_page_is_a_gap_with_two_log_lines(tmp_path: Path, page: MetricsServer) -> None:
    child = Child(tmp_path, "--interval-s", "0.05", "--target", f"http://127.0.0.1:{page.port}/metrics")
    child.line_where(up=True)
    errors = []
    for trouble in ("status", "html", "cut"):
        page.trouble = trouble
        errors.append(child.line_where(up=False)["error"])
        page.trouble = ""
        child.line_where(up=True)
    code, logged, table = child.end()
    assert code == 0
    assert [word in error for word, error in zip(("503", "HTML, not a", "cut off"), errors, strict=True)] == [True] * 3
    assert logged.count("no metrics:") == 3
    assert logged.count("metrics are back") == 3
    rows = [row for row in table.to_pylist() if row["metric"] == "vllm:generation_tokens_total"]
    assert len(rows) < page.count


def test_a_closed_idle_connection_is_no_failure(tmp_path: Path, page: MetricsServer) -> None:
    page.trouble = "close"
    child = Child(tmp_path, "--interval-s", "0.05", "--target", f"http://127.0.0.1:{page.port}")
    assert [child.line()["up"] for _ in range(4)] == [True] * 4
    assert child.end()[1] == ""


def test_a_compressed_page_is_read(page: MetricsServer) -> None:
    (client,) = clients_of([f"http://127.0.0.1:{page.port}"], TlsSettings(), None)
    page.trouble = "gzip"
    assert client.get(5) == PAGE.format(count=1)


def test_a_hanging_target_does_not_delay_another(tmp_path: Path, page: MetricsServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        targets = [f"http://127.0.0.1:{port}/metrics" for port in (silent.getsockname()[1], page.port)]
        child = Child(tmp_path, "--interval-s", "0.05", "--target", targets[0], "--target", targets[1])
        targets_seen = [child.line()["target"] for _ in range(8)]
        assert targets_seen == [targets[1].removesuffix("/metrics")] * 8
    code, _, table = child.end()  # the closed listener fails the scrape in progress
    assert code == 0
    assert set(table["target"].to_pylist()) == {targets_seen[0]}


def test_a_closed_stdout_does_not_delay_scrapes(tmp_path: Path, page: MetricsServer) -> None:
    child = Child(tmp_path, "--interval-s", "0.05", "--target", f"http://127.0.0.1:{page.port}")
    assert child.process.stdout is not None
    child.process.stdout.close()
    while page.count < 5:
        threading.Event().wait(0.01)
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(20) == 0
    assert len(scrapes.table_of(tmp_path)) == page.count * 7


@pytest.mark.parametrize("trusted", ["ca-file", "insecure", "not"])
def test_certificates_are_checked_unless_insecure(tmp_path: Path, trusted: str) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    options = {"ca-file": ["--ca-file", str(tmp_path / "ca.pem")], "insecure": ["--insecure"], "not": []}[trusted]
    server = MetricsServer(context)
    try:
        child = Child(tmp_path, *options, "--interval-s", "0.05", "--target", f"https://localhost:{server.port}")
        first = child.line()
        assert first["up"] is (trusted != "not")
        assert ("certificate" in first.get("error", "")) is (trusted == "not")
        assert child.end()[0] == 0
    finally:
        server.close()


@pytest.mark.parametrize(
    ("url", "files", "message"),
    [
        ("server:8000", TlsSettings(), "not an http or https address"),
        ("http://me:secret@server/metrics", TlsSettings(), "contains a user or password"),
        ("http://server/metrics", TlsSettings(ca_file=Path("nowhere.pem")), "--ca-file nowhere.pem"),
    ],
)
def test_bad_pages_and_files_are_refused(url: str, files: TlsSettings, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        clients_of([url], files, None)
    assert "secret" not in str(raised.value)


def test_targets_are_named_without_the_metrics_path() -> None:
    assert MetricsUrl.parse("http://a:8000/metrics").target == "http://a:8000"
    assert MetricsUrl.parse("http://a:8000").path == "/metrics"
    assert MetricsUrl.parse("https://a/prefix/metrics").target == "https://a/prefix"
    assert MetricsUrl.parse("http://a:9400/prom?x=1").target == "http://a:9400/prom?x=***"  # a value may be a key
    with pytest.raises(UsageError, match="not a port"):
        MetricsUrl.parse("http://a:notaport/metrics")


def test_the_size_of_the_cache_is_that_of_the_smallest_engine() -> None:
    config = 'vllm:cache_config_info{engine="%s",kv_cache_max_concurrency="%s",kv_cache_size_tokens="%s"} 1'
    usage = [f'vllm:kv_cache_usage_perc{{engine="{engine}"}} 0.{engine}' for engine in (0, 1)]
    page = [config % (0, "2.5", "4000"), config % (1, "3.0", "3000"), *usage]
    known = {"kv_cache_size_tokens": 3000, "kv_cache_max_concurrency": 2.5}
    assert readings(PromParser().parse("\n".join([*page, ""]))) == known | {names.KV_CACHE_USAGE: 0.1, "engines": 2}
    for text in ("None", "", "nan", "-1", "1e400", "9" * 400):
        assert readings(PromParser().parse(config % (0, text, text) + "\n")) == {}


def test_nan_values_are_left_out_of_the_line() -> None:
    scrape = Scrape(1, "t", 2, 0, [Sample("vllm:kv_cache_usage_perc", (), float("nan"))])
    assert json.loads(line_of(scrape))["gauges"] == {"engines": 1}


def test_lines_of_many_engines_to_a_stalled_parent_arrive_whole_or_not_at_all() -> None:
    reasons = [f'{names.WAITING_BY_REASON}{{engine="%s",reason="{reason}"}}' for reason in ("capacity", "deferred")]
    series = [*(f'{metric}{{engine="%s"}}' for metric in (names.RUNNING, names.WAITING)), *reasons]
    page = "".join(f"{each % engine} 12345.678\n" for engine in range(40) for each in series)
    line = line_of(Scrape(1, "http://server:8000", 2, 0, PromParser().parse(page)))
    reader, writer = os.pipe()
    lines, arrived = Lines(writer), b""
    for number in range(60):
        lines.send(line.replace('"wall_ns": 1', f'"wall_ns": {number}'))
        if number % 10 == 0:
            arrived += os.read(reader, 1 << 20)
    os.close(writer)
    with open(reader, "rb") as rest:
        found = [json.loads(each) for each in (arrived + rest.read()).split(b"\n")[:-1]]
    assert 5 < len(found) < 60
    assert [each["wall_ns"] for each in found] == sorted({each["wall_ns"] for each in found})
    assert {sum("@" in name for name in each["gauges"]) for each in found} == {4 * 40}


def test_the_lock_of_threads_that_write_and_greenlets_that_scrape_is_a_native_one() -> None:
    """A waiting greenlet may miss the release of a lock of gevent's by another thread: "this operation would block forever"."""
    program = "from gevent import monkey; monkey.patch_all(); from inferload.servers.scraping import Lines; print(Lines(1)._lock)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "unlocked _thread.lock" in ended.stdout, ended.stdout + ended.stderr


def scrapes_at(*walls: int) -> scrapes_file.ScrapeColumns:
    columns = scrapes_file.ScrapeColumns()
    for wall in walls:
        columns.append(wall, "t", "vllm:a", (("engine", "0"),), float(wall))
        columns.append(wall, "t", f"vllm:b{wall}", (), float("nan"))
    return columns


def test_a_crash_while_joining_parts_duplicates_nothing(tmp_path: Path) -> None:
    folder = tmp_path / SERVER_METRICS
    folder.mkdir()
    parts = [
        scrapes_file.write_part(folder, scrapes_file.next_number(folder), scrapes_at(*walls).to_table())
        for walls in ((1, 2), (3,), (4, 5, 6))
    ]
    before = scrapes.table_of(tmp_path)
    removed = parts[1].read_bytes()
    scrapes_file.join_parts(folder)
    parts[1].write_bytes(removed)  # as after a crash before this part was removed
    (folder / "part-00009.parquet.tmp").write_bytes(b"cut short")
    assert str(scrapes.table_of(tmp_path).to_pylist()) == str(before.to_pylist())
    assert len(before) == 12
    assert scrapes_file.next_number(folder) == 3
    scrapes_file.write_part(folder, 3, scrapes_at(7).to_table())
    scrapes_file.join_parts(folder)
    assert [row["wall_ns"] for row in scrapes.table_of(tmp_path, ["vllm:a"]).to_pylist()] == [1, 2, 3, 4, 5, 6, 7]
    assert pq.read_schema(folder / scrapes_file.JOINED).names == scrapes_file.SCHEMA.names


def test_partial_files_of_a_killed_scraper_are_removed(tmp_path: Path, page: MetricsServer) -> None:
    folder = tmp_path / SERVER_METRICS
    folder.mkdir()
    scrapes_file.write_part(folder, 0, scrapes_at(1, 2).to_table())
    own = ProcessSettings(Credentials(), (), TlsSettings(), None)
    scraping = Scraping(folder, (f"http://127.0.0.1:{page.port}/metrics",), 1.0, own, Anchor.take())
    try:
        os.kill(scraping.pid, signal.SIGKILL)
        scraping._ended.wait(10)
        for name in ("all.parquet.tmp", "part-00001.parquet.tmp"):
            (folder / name).write_bytes(b"cut short")
    finally:
        scraping.stop()
    assert [path.name for path in folder.iterdir()] == ["part-00000.parquet"]
    assert len(scrapes.table_of(tmp_path, ["vllm:a"])) == 2


def test_calls_that_wait_for_the_disk_are_made_apart(tmp_path: Path) -> None:
    calls: list[Callable[..., object]] = []

    def apart(call: Callable[..., object], *arguments: object) -> object:
        calls.append(call)
        return call(*arguments)

    buffer = ScrapeBuffer(apart=apart, columns=scrapes_at(1, 2))
    job = ScrapeJob([], 1.0, tmp_path / SERVER_METRICS, Anchor.take())
    scrape_all(job, buffer, lambda _timeout_s: True)
    assert calls == [scrapes_file.write_part, scrapes_file.join_parts]
    assert len(scrapes.table_of(tmp_path, ["vllm:a"])) == 2


def test_no_scrapes_are_an_empty_table(tmp_path: Path) -> None:
    assert scrapes.table_of(tmp_path).schema == scrapes_file.SCHEMA
    assert len(ScrapeBuffer().take()) == 0


@pytest.fixture
def served(simulator: Callable[..., Simulator]) -> Simulator:
    return simulator("--ttft-ms", "1", "--itl-ms", "1")


def ask(server: Simulator, times: int) -> tuple[int, int]:
    """Send `times` turns; return their prompt and output tokens."""
    usages = []
    for number in range(times):
        message = {"role": "user", "content": "word " * (40 + number)}
        body = {"model": "simulator", "messages": [message], "max_tokens": 5, "ignore_eos": True}
        usages.append(server.json("POST", "/v1/chat/completions", body)["usage"])
    return sum(usage["prompt_tokens"] for usage in usages), sum(usage["completion_tokens"] for usage in usages)


def test_scraped_counters_equal_the_requested_tokens(tmp_path: Path, served: Simulator) -> None:
    child = Child(tmp_path, "--interval-s", "0.05", "--target", f"{served.url}/metrics")
    assert child.line()["gauges"][names.RUNNING] == 0
    before = ask(served, 4)
    while child.line()["gauges"][names.GENERATION_TOKENS] != before[1]:
        pass
    served.chaos(kind="restart_counters")
    after = ask(served, 2)
    code, _, table = child.end()
    assert code == 0
    series = by_target([table])[served.url]
    assert series.grown(names.PROMPT_TOKENS)[-1] == before[0] + after[0]
    assert series.grown(names.GENERATION_TOKENS)[-1] == before[1] + after[1]
    assert series.summed(names.GENERATION_TOKENS)[-1] == after[1]
    assert series.grown(names.TTFT + "_count")[-1] == 6
    walls = table["wall_ns"].to_numpy()
    (entry,) = servers_block(table, int(walls.min()), int(walls.max()) + 1)
    assert (entry["restarts"], entry["requests_finished"], entry["generation_tokens"]) == (1, 6, before[1] + after[1])
    assert entry["kv_cache_size_tokens"] == 131072
    assert entry["waiting_by_reason"].keys() == {"capacity", "deferred"}
    assert entry["prefix_cache_queries_at_first_scrape"] == 0
    assert entry["ttft_ms"]["count"] == 6


def test_an_endless_page_is_refused_by_its_size() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    server = ScriptedServer([send(head + bytes(MAX_PAGE_BYTES + 65536), close=True)])
    client = MetricsClient(MetricsUrl.parse(server.url), None, None)
    with pytest.raises(ValueError, match=r"^/metrics: the reply is longer than 33,554,432 bytes$"):
        client.get(20)
    client.close()
    server.close()


@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"])
def test_a_slow_page_times_out(part: bytes) -> None:
    ended = threading.Event()

    def trickle(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(part)
        while not ended.wait(0.05):
            sock.sendall(b"y")

    server = ScriptedServer([trickle])
    client = MetricsClient(MetricsUrl.parse(server.url), None, None)
    with pytest.raises(OSError, match=r"^no answer within 0.5 s$"):
        client.get(0.5)
    ended.set()
    client.close()
    server.close()


# -- inferload scrape


def command(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """Start `inferload scrape` without stdin, as a service does."""
    words = [sys.executable, "-m", "inferload", "scrape", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, **more)


def scrapes_of(folder: Path) -> pa.Table:
    """Return the joined scrapes of a folder."""
    assert [path.name for path in folder.iterdir()] == [scrapes_file.JOINED]
    return pq.read_table(folder / scrapes_file.JOINED)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_scrape_runs_without_stdin_until_a_signal(tmp_path: Path, page: MetricsServer, how: signal.Signals) -> None:
    folder = tmp_path / "metrics"
    process = command(f"http://127.0.0.1:{page.port}", "--out", str(folder), "--interval", "0.05")
    while page.count < 5:
        assert process.poll() is None
        threading.Event().wait(0.01)
    process.send_signal(how)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert re.fullmatch(rf"{folder}: 0:0\d · {page.count} scrapes, 0 failed · 1 of 1 targets up\n", out)
    counters = [row for row in scrapes_of(folder).to_pylist() if row["metric"] == "vllm:generation_tokens_total"]
    assert [row["value"] for row in counters] == list(range(1, page.count + 1))


def test_scrape_ends_after_its_duration(tmp_path: Path, served: Simulator) -> None:
    prompt_tokens, output_tokens = ask(served, 3)
    folder = tmp_path / "metrics"
    process = command(served.url, "--out", str(folder), "--interval", "0.05", "--duration", "0.4")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert "0 failed · 1 of 1 targets up" in out
    series = by_target([scrapes_of(folder)])[served.url]
    assert (series.summed(names.PROMPT_TOKENS)[-1], series.summed(names.GENERATION_TOKENS)[-1]) == (
        prompt_tokens,
        output_tokens,
    )


def test_a_page_without_any_scrape_is_exit_code_1(tmp_path: Path, page: MetricsServer) -> None:
    urls = [f"http://127.0.0.1:{port}" for port in (unused_port(), page.port)]
    process = command(*urls, "--out", str(tmp_path / "m"), "--interval", "0.05", "--duration", "0.3")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"{urls[0]}: no metrics: Connection refused" in out
    assert "1 of 2 targets up" in out
    assert err == f"scraper: {urls[0]}: no metrics: Connection refused\n"
    assert set(scrapes_of(tmp_path / "m")["target"].to_pylist()) == {urls[1]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["server:8000", "--out", "new"], "not an http or https address"),
        (["http://server", "--out", "full"], "--out full: not an empty directory; name another, or remove it"),
        (["http://server", "--out", "full/file"], "--out full/file: not an empty directory"),
        (["http://server", "--out", "new", "--interval", "0.01"], "'0.01': not a number of seconds, 0.05 to 3600"),
        (["http://server", "--out", "new", "--duration", "nan"], "'nan': not a number of seconds, 0.05 to 1e+08"),
        (["http://server", "--out", "new", "--api-key-file", "none"], "none"),
        (["http://server"], "--out"),
    ],
)
def test_invalid_arguments_of_scrape_are_refused(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    try:
        code = cli.main(["scrape", *arguments])
    except SystemExit as leaving:  # of the parser
        code = leaving.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "full" / "file").read_text() == "mine"


@given(st.floats(allow_nan=True))
def test_only_finite_times_in_range_are_accepted(value: float) -> None:
    for maximum in (3600, 1e8):
        if 0.05 <= value <= maximum:
            assert _seconds(0.05, maximum, str(value)) == value
        else:
            with pytest.raises(argparse.ArgumentTypeError, match="not a number of seconds"):
                _seconds(0.05, maximum, str(value))


def test_gpu_use_of_the_live_display_is_the_highest_as_in_the_summary() -> None:
    page = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 100\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 20\n'
    assert readings(PromParser().parse(page)) == {names.GPU_USE: 100}


def test_a_new_connection_shows_the_servers_behind_a_balancer_per_connection(
    page: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (client,) = clients_of([f"http://127.0.0.1:{page.port}"], TlsSettings(), None)
    for _ in range(3):
        client.get(5)
    assert page.connections == 1
    monkeypatch.setattr("inferload.servers.scrape_http.RECONNECT_S", 0.0)
    for _ in range(3):
        client.get(5)
    assert page.connections == 4
    client.close()


def test_the_lines_of_an_address_with_several_servers_have_no_gauges(tmp_path: Path) -> None:
    starts = itertools.cycle((100, 200))

    def answer(connection: socket.socket, _request: bytes) -> None:
        body = f"process_start_time_seconds {next(starts)}\nvllm:num_requests_running 3\n".encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    server = ScriptedServer([answer])
    child = Child(tmp_path, "--interval-s", "0.05", "--target", server.url)
    lines = [child.line() for _ in range(4)]
    code, _, table = child.end()
    server.close()
    assert code == 0
    assert [line["replicas"] for line in lines] == [1, 1, 2, 2]
    assert [line["gauges"] for line in lines[1:3]] == [{names.RUNNING: 3}, {}]
    assert by_target([table])[server.url].replicas == 2


def test_inferload_scrape_names_an_address_with_several_servers(tmp_path: Path) -> None:
    progress = ScrapeProgress(["http://a", "http://b"])
    for number in range(4):
        progress.add(Scrape(number, "http://a", 1, 0, [], replicas=min(number + 1, 2)))
        progress.add(Scrape(number, "http://b", 1, 0, []))
    several = "2 servers behind http://a: name each with --metrics-url; server figures are left out"
    assert progress.summary(tmp_path).splitlines()[1:] == [several]


def test_inferload_scrape_shows_its_progress_while_the_first_scrape_of_a_page_ends() -> None:
    progress = ScrapeProgress(["http://a", "http://b"])
    reads: list[int] = []

    class Ending:
        """Newest scrape of a page; while the line reads it, a thread adds the first one of another page."""

        target = "http://a"

        @property
        def error(self) -> None:
            reads.append(1)
            if len(reads) == 2:  # the first read is that of `add`
                progress.add(Scrape(1, "http://b", 1, 0, []))

    progress.add(Ending())
    assert "2 of 2 targets up" in progress.line()


def test_inferload_scrape_takes_a_file_of_pages(tmp_path: Path, page: MetricsServer) -> None:
    (tmp_path / "pages.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{page.port}"]}]))
    process = command("pages.json", "--out", "new", "--duration", "0.3", "--interval", "0.05", cwd=tmp_path)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert "1 of 1 targets up" in out
