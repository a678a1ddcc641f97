"""Metrics of --export-metrics: values from tallies, series of a run, the page, and the wait for the last scrape."""

import socket
import time
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement, pairwise
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from ports import unused_port
from prometheus_client.parser import text_string_to_metric_families
from records import merged, turn, turns
from turn_reference import count_all

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.run.exporter import exporter as exporters
from inferload.run.exporter.exporter import Exporter
from inferload.run.exporter.metrics import METRICS, RunState, page, table
from inferload.run.process.listen_address import ListenAddress, check_free
from inferload.turns.client_health import HealthSet
from inferload.turns.record import Failure, PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
WINDOWS = (PhaseWindow("measure", 0, None),)
SCRAPE = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS": "1"}


def state(tallies: TallySet, **changes: Any) -> RunState:
    values: dict[str, Any] = {
        "run_id": "r1",
        "scenario": "chat",
        "model": "m",
        "engine": "vllm 0.32.0",
        "version": "0.1.0",
        "started": [("measure", "chat")],
        "tallies": tallies,
        "health": HealthSet(),
        "phase": "measure",
        "in_flight": 3,
        "users": 4,
        "offered_sessions_per_s": 2.0,
        "achieved_sessions_per_s": None,
        "measurement": None,
        "outcome": None,
    }
    return RunState(**values | changes)


def tallies_of(turns: Iterable[TurnRecord]) -> TallySet:
    tallies, records = TallySet(), list(turns)
    for record in records:
        tallies.at(record.phase, record.class_name, record.step).turns_begun += 1
    count_all(tallies, records, WINDOWS, None)
    return tallies


def series_of(text: str) -> Series:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(series) == len(samples), "two samples of one series"
    return series


def total(series: Series, name: str, **labels: str) -> float:
    values = [value for (at, own), value in series.items() if at == name and labels.items() <= dict(own).items()]
    assert values, (name, labels)
    return sum(values)


@given(st.lists(turns(), max_size=20))
def test_counters_and_histograms_equal_the_tallies(records: list[TurnRecord]) -> None:
    tallies = tallies_of(records)
    series = series_of(page(state(tallies)))
    counted = tallies.total()
    assert total(series, "inferload_turns_begun_total") == counted.turns_begun
    for name in ("ok", "failed", "unfinished"):
        assert total(series, "inferload_turns_total", state=name) == getattr(counted, name)
    assert total(series, "inferload_failures_total") == counted.failed
    for name, measure in (("ttft", "ttft_ms"), ("itl", "itl_ms"), ("tpot", "tpot_ms"), ("e2e", "e2e_ms")):
        sketch = counted.sketch(measure)
        assert total(series, f"inferload_{name}_seconds_count") == sketch.count
        assert total(series, f"inferload_{name}_seconds_bucket", le="+Inf") == sketch.count
        assert total(series, f"inferload_{name}_seconds_sum") == pytest.approx(sketch.total / 1000)


@given(st.lists(turns(), max_size=12), st.lists(turns(), max_size=12))
def test_no_counter_and_no_bucket_decreases(before: list[TurnRecord], after: list[TurnRecord]) -> None:
    earlier = tallies_of(before)
    later = merged(earlier, tallies_of(after))
    cumulative = ("_total", "_bucket", "_count")
    old, new = series_of(page(state(earlier))), series_of(page(state(later)))
    known = {key for key in old if key[0].endswith(cumulative)}
    assert all(new[key] >= old[key] for key in known & new.keys())
    tokens = {key for key in known - new.keys() if "tokens" not in key[0]}
    assert not tokens, "series of a run stay, except tokens that no turn reported"


def test_buckets_are_cumulative_with_inclusive_bounds() -> None:
    series = series_of(page(state(tallies_of([turn(), turn(first_ns=turn().sent_ns + 300_000_000)]))))
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in series.items()
        if name == "inferload_ttft_seconds_bucket" and dict(labels)["class"] == "chat"
    }
    ordered = [buckets[bound] for bound in sorted(buckets, key=float)]
    assert all(low <= high for low, high in pairwise(ordered))
    assert [buckets[bound] for bound in ("0.04", "0.06", "0.25", "0.5", "+Inf")] == [0, 1, 1, 2, 2]  # 50 ms, 300 ms


def test_series_exist_from_the_start_except_for_unknown_values() -> None:
    begun = series_of(page(state(TallySet())))
    for metric in METRICS:
        names = {name for name, _labels in begun}
        name = f"{metric.name}_bucket" if metric.type == "histogram" else metric.name
        unknown = metric.scope == "worker" or metric.name == "inferload_achieved_sessions_per_second"
        assert (name in names) is not unknown, name
    assert total(begun, "inferload_failures_total", failure="http_429") == 0
    assert total(begun, "inferload_verdict") == total(begun, "inferload_outcome") == 0
    silent = series_of(page(state(tallies_of([turn(output_tokens=None, event_tokens=None)]))))
    assert not [key for key in silent if key[0] == "inferload_output_tokens_total"]
    assert total(silent, "inferload_prompt_tokens_total") == 100
    ended = series_of(page(state(TallySet(), phase=None, measurement="suspect", outcome="stopped early")))
    assert total(ended, "inferload_verdict", verdict="suspect") == total(ended, "inferload_verdict") == 1
    assert total(ended, "inferload_outcome", outcome="stopped early") == total(ended, "inferload_outcome") == 1
    assert total(ended, "inferload_run_phase") == 0


def test_load_steps_are_added_and_classes_separate() -> None:
    failed = turn(class_name="agent", failure=Failure.HTTP_429, status=429)
    series = series_of(page(state(tallies_of([turn(step=0), turn(step=1), failed]))))
    assert total(series, "inferload_turns_total", **{"class": "chat"}, state="ok", phase="measure") == 2
    assert total(series, "inferload_failures_total", **{"class": "agent"}, failure="http_429") == 1
    assert total(series, "inferload_output_tokens_total", **{"class": "chat"}) == 10


def test_labels_are_escaped_and_redacted() -> None:
    redact = Redaction(["sk-0123456789"]).document
    hostile = state(tallies_of([turn(class_name='a"b\\c\nd{}')]), model="for sk-0123456789", redact=redact)
    text = page(hostile)
    assert "sk-0123456789" not in text
    assert total(series_of(text), "inferload_turns_total", **{"class": 'a"b\\c\nd{}'}, state="ok") == 1


def test_the_documentation_has_every_metric() -> None:
    assert (ROOT / "docs" / "how-to" / "prometheus.md").read_text(encoding="utf-8").endswith(f"\n\n{table()}")


# -- the page


class Runs:
    """Stub of a controller with its latest run."""

    def __init__(self) -> None:
        self.run: Any = None

    def latest(self) -> Any:
        return self.run

    def begin(self, run_id: str) -> None:
        self.run = SimpleNamespace(run_id=run_id, summary=None)

    def end(self) -> None:
        self.run.summary = {}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(exporters, "state", lambda run, users: state(TallySet(), run_id=run.run_id, users=users))
    return Runs()


def get(exporter: Exporter, environ: dict[str, str]) -> tuple[str, str]:
    statuses: list[str] = []
    body = exporter.page(environ, lambda status, headers: statuses.append(status))
    return statuses[0], b"".join(body).decode()


def test_the_page_has_only_the_latest_run(runs: Runs) -> None:
    exporter = Exporter(runs.latest, lambda: 7)
    assert get(exporter, SCRAPE) == ("200 OK", "")
    assert get(exporter, {**SCRAPE, "PATH_INFO": "/"})[0] == "404 Not Found"
    runs.begin("first")
    assert total(series_of(get(exporter, SCRAPE)[1]), "inferload_users", run="first") == 7
    runs.end()
    assert 'run="first"' in get(exporter, SCRAPE)[1]
    runs.begin("second")
    text = get(exporter, SCRAPE)[1]
    assert 'run="second"' in text
    assert 'run="first"' not in text


def scrapes(exporter: Exporter, pauses_s: Sequence[float], environ: dict[str, str] = SCRAPE) -> None:
    for pause_s in pauses_s:
        get(exporter, environ)
        gevent.sleep(pause_s)


def test_the_exporter_waits_for_a_scrape_after_the_end(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(runs.latest, lambda: 0)
    runs.begin("first")
    scrapes(exporter, (0, 0))
    exporter._scrapes_ns[0] -= 10 * NS_PER_S
    runs.end()
    scraper = gevent.spawn_later(1, get, exporter, SCRAPE)  # later than the interval
    exporter.wait_for_last_scrape()
    assert scraper.dead
    exporter.wait_for_last_scrape()  # it was scraped: no further wait
    assert "not scraped" not in caplog.text


def test_a_scrape_that_arrived_during_a_pause_of_the_master_ends_the_wait(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed_ns = 0
    monkeypatch.setattr(exporters, "now_ns", lambda: now_ns() + passed_ns)
    exporter = Exporter(runs.latest, lambda: 0)
    port = unused_port()
    exporter.listen(ListenAddress.parse("--export-metrics", str(port)))
    runs.begin("first")
    scrapes(exporter, (0, 0))
    exporter._scrapes_ns[0] -= 10 * NS_PER_S
    runs.end()

    def pause() -> None:
        nonlocal passed_ns
        with socket.create_connection(("127.0.0.1", port)) as scraper:
            header = "X-Prometheus-Scrape-Timeout-Seconds: 1"
            scraper.sendall(f"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n\r\n".encode())
            passed_ns = 60 * NS_PER_S
            time.sleep(0.2)  # blocks the event loop: the request and the end of the wait are due together
            gevent.sleep(5)

    pausing = gevent.spawn(pause)
    exporter.wait_for_last_scrape()
    pausing.kill()
    assert "not scraped" not in caplog.text


@pytest.mark.parametrize("closed", [False, True], ids=["no scrape", "a scrape whose connection was closed"])
def test_the_wait_for_a_scrape_times_out(
    runs: Runs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    monkeypatch.setattr(exporters, "_LEAST_SLACK_S", 0.1)
    exporter = Exporter(runs.latest, lambda: 0)
    runs.begin("first")
    scrapes(exporter, (0.2, 0))
    runs.end()
    if closed:  # the server drops a response at a failed write
        next(iter(exporter.page(SCRAPE, lambda status, headers: None)))
    with gevent.Timeout(5):
        exporter.wait_for_last_scrape()
    assert "the final metrics of the run were not scraped" in caplog.text


@pytest.mark.parametrize("environ", [{"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET"}, {**SCRAPE, "PATH_INFO": "/"}])
def test_a_reader_that_is_no_scraper_is_not_waited_for(runs: Runs, environ: dict[str, str]) -> None:
    exporter = Exporter(runs.latest, lambda: 0)
    runs.begin("first")
    scrapes(exporter, (60e-3, 0), environ)
    runs.end()
    with gevent.Timeout(0.05):
        exporter.wait_for_last_scrape()


# -- the address


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        ("9646", "127.0.0.1", 9646, "http://127.0.0.1:9646/metrics"),
        ("0.0.0.0:80", "0.0.0.0", 80, "http://0.0.0.0:80/metrics"),
        ("node-3.lan:9646", "node-3.lan", 9646, "http://node-3.lan:9646/metrics"),
        ("[::1]:65535", "::1", 65535, "http://[::1]:65535/metrics"),
    ],
)
def test_listen_addresses_are_parsed(text: str, host: str, port: int, url: str) -> None:
    address = ListenAddress.parse("--export-metrics", text)
    assert (address.host, address.port, address.url) == (host, port, url)


@pytest.mark.parametrize("text", ["", "host", "host:", ":9646", "0", "65536", "::1:9646", "http://a:1", "-1", "٣"])
def test_invalid_listen_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an address; write it as 9646"):
        ListenAddress.parse("--export-metrics", text)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_on_one_address_is_in_use_on_all(host: str) -> None:
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^--web-port {port}: Address already in use; name a free port"):
            check_free([ListenAddress("--web-port", "", port)])
    check_free([ListenAddress("--web-port", "", port)])


@pytest.mark.parametrize("host", ["", "127.0.0.1", "0.0.0.0", "::1", "localhost"])
def test_a_client_that_polls_the_port_is_not_connected_by_the_check(host: str) -> None:
    address = ListenAddress("--web-port", host, unused_port())
    with address.bound(), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("::1" if host == "::1" else "127.0.0.1", address.port))


@pytest.mark.parametrize("pair", [*combinations_with_replacement(["", "0.0.0.0", "127.0.0.1", "127.0.0.2"], 2)])
def test_addresses_that_overlap_are_refused(pair: tuple[str, str]) -> None:
    port = unused_port()
    first, second = ListenAddress("--web-port", pair[0], port), ListenAddress("--export-metrics", pair[1], port)
    if set(pair) == {"127.0.0.1", "127.0.0.2"}:
        check_free([first, second])
        return
    with pytest.raises(UsageError, match=r"^--export-metrics .*: Address already in use; name a free port"):
        check_free([first, second])


def test_an_address_in_use_is_an_error(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ListenAddress.parse("--export-metrics", str(taken.getsockname()[1]))
        text = f"--export-metrics {address.text}: Address already in use; name a free port of this machine"
        with pytest.raises(UsageError, match=text):
            check_free([address])
        with pytest.raises(UsageError, match=text):
            Exporter(runs.latest, lambda: 0).listen(address)
    check_free([address])
    with pytest.raises(UsageError, match="name a free port of this machine"):
        check_free([ListenAddress.parse("--export-metrics", "192.0.2.1:9646")])
