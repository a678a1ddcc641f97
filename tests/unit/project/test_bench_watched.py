"""`make bench-watched`: its table, the marks of exceeded limits, and the requests of its polling clients."""

import http.server
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from paths import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import live_table
from benchmarks.cases import Case
from benchmarks.clients import Load, web_call
from benchmarks.live_pages import LIVE, POLLS, NoPages, Poll, PollingPages, _path
from benchmarks.live_table import BROWSERS, NONE, POLLED, LiveRound, hour_three
from benchmarks.live_view import RunUsage, share
from benchmarks.reported import Reported
from benchmarks.watched import ProcessUsage

CASE = Case("watched", "", ttft_ms=50, gap_ms=20)
REPORTED = Reported(
    ttft_p50_ms=50, ttft_p99_ms=51, itl_p50_ms=20, itl_p99_ms=20.1, turns=100, failed=0, verdict="valid"
)
ROUND = LiveRound(NONE, 0, 10.0, REPORTED, master=0.02, worker=0.5, pages_cpu=None, server_late_p99_ms=0.1)
POLLS_OF_3 = tuple(Poll(float(s), LIVE, 2000 + s) for s in range(10) for _ in range(3))


def with_pages(kind: str = POLLED, master: float = 0.04, **reported: Any) -> LiveRound:
    return replace(ROUND, kind=kind, pages=3, master=master, reported=replace(REPORTED, **reported), polls=POLLS_OF_3)


def results(rounds: list[LiveRound], kind: str = POLLED) -> dict[str, str]:
    return {row.measure.name: row.result for row in live_table.comparisons(CASE, rounds, kind) if row.measure.limit}


def test_differences_within_the_limits_are_met() -> None:
    rounds = [ROUND, with_pages(ttft_p99_ms=51.4, itl_p99_ms=19.95), with_pages(BROWSERS, itl_p50_ms=20.1)]
    assert set(results(rounds).values()) == set(results(rounds, BROWSERS).values()) == {"met"}
    assert live_table.missed(CASE, rounds, []) == []


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ({"ttft_p50_ms": 50.6}, "TTFT p50 (ms)"),
        ({"ttft_p99_ms": 50.4}, "TTFT p99 (ms)"),  # a lower value also changes the accuracy
        ({"itl_p50_ms": 20.3}, "ITL p50 (ms)"),
        ({"itl_p99_ms": 19.8}, "ITL p99 (ms)"),
    ],
)
def test_a_change_of_a_latency_above_one_percent_of_its_true_value_is_marked(
    reported: dict[str, float], name: str
) -> None:
    rounds = [ROUND, with_pages(), with_pages(BROWSERS, **reported)]
    assert [row for row, result in results(rounds, BROWSERS).items() if result == "EXCEEDED"] == [name]
    (text,) = live_table.missed(CASE, rounds, [])
    assert text.startswith(f"browsers: {name}: difference ")
    row = next(line for line in live_table.table(CASE, rounds).splitlines() if line.startswith(f"| {name} "))
    assert row.count("EXCEEDED") == row.count("met") == 1


def test_cpu_of_the_master_above_five_percent_of_a_core_is_marked_and_a_decrease_is_not() -> None:
    name = "CPU of the master (% of a core)"
    assert results([ROUND, with_pages(master=0.069)])[name] == "met"
    assert results([ROUND, with_pages(master=0.0)])[name] == "met"
    assert results([replace(ROUND, master=0.09), with_pages(master=0.01)])[name] == "met"
    rounds = [ROUND, with_pages(master=0.0725)]
    assert results(rounds)[name] == "EXCEEDED"
    assert live_table.missed(CASE, rounds, []) == [f"polling clients: {name}: difference +5.25, limit 5"]


def test_a_difference_below_the_spread_without_pages_is_undecided() -> None:
    other = replace(ROUND, reported=replace(REPORTED, ttft_p99_ms=55))
    rounds = [ROUND, with_pages(ttft_p99_ms=52), other, with_pages(ttft_p99_ms=52), ROUND]
    row = live_table.comparisons(CASE, rounds, POLLED)[1]
    assert (row.without, row.with_pages, row.difference, row.spread) == (51, 52, 2.0, 8.0)  # medians; % of 50 ms
    assert row.result == "undecided"
    assert live_table.missed(CASE, rounds, []) == []
    far = [ROUND, with_pages(ttft_p99_ms=60), other, ROUND]
    assert live_table.comparisons(CASE, far, POLLED)[1].result == "EXCEEDED"


def test_pages_that_polled_too_seldom_meet_no_limit() -> None:
    idle = replace(with_pages(), polls=POLLS_OF_3[:21])
    assert set(results([ROUND, idle]).values()) == {"undecided"}
    assert set(results([ROUND, idle, with_pages(), with_pages()]).values()) == {"met"}
    assert "EXCEEDED" in results([ROUND, replace(idle, master=0.2)]).values()


def test_a_value_that_is_not_reported_is_unknown() -> None:
    rounds = [ROUND, with_pages(ttft_p50_ms=None)]
    assert results(rounds)["TTFT p50 (ms)"] == "unknown"
    assert live_table.missed(CASE, rounds, []) == ["polling clients: TTFT p50 (ms): unknown"]


def test_the_table_has_both_kinds_of_pages() -> None:
    rounds = [ROUND, with_pages(), replace(with_pages(BROWSERS), pages_cpu=0.25)]
    head, _, *rows = live_table.table(CASE, rounds).splitlines()
    cells = {row[0]: row[1:] for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in rows)}
    assert ("3 polling clients" in head, "3 browsers" in head) == (True, True)
    assert cells["TTFT p50 (ms)"][:4] == ["50.00", "50.00", "+0.00 %", "met"]
    assert cells["CPU of the master (% of a core)"][:4] == ["2.0", "4.0", "+2.00", "met"]
    assert cells["CPU of the pages (% of a core)"][4] == "25.0"
    assert cells["polls of a page (1/s)"][1] == "1.00"
    assert cells["largest poll (kB)"][:2] == ["-", "2.0"]
    assert {len(row) for row in cells.values()} == {len(head.split("|")) - 3}


def test_rounds_that_are_not_comparable_have_remarks() -> None:
    assert live_table.remarks([ROUND, with_pages()]) == []
    late = replace(ROUND, server_late_p99_ms=2.5)
    idle = replace(with_pages(BROWSERS, failed=2, verdict="suspect (lag)"), polls=POLLS_OF_3[:21])
    assert live_table.remarks([late, idle]) == [
        "round 1 (none): server late, p99 2.5 ms",
        "round 2 (browsers): pages polled only 0.70 times/s",
        "round 2 (browsers): 2 turns failed",
        "round 2 (browsers): verdict suspect (lag)",
    ]


def test_a_poll_in_hour_three_is_below_its_limit_and_a_larger_one_is_marked() -> None:
    sizes = hour_three({"run": {"id": "r"}, "series": None})
    assert [size.holds for size in sizes] == [True] * 3
    assert 0.1 < sizes[0].kilobytes < sizes[1].kilobytes < sizes[2].kilobytes
    large = hour_three({"text": "x" * 60_000})
    assert [size.holds for size in large] == [True, True, False]
    text = live_table.page(CASE, [ROUND, with_pages()], large, {"cpu": "two cores"}, ["how"])
    assert re.search(r"^\| page opened \| 1[0-9]{2}\.\d \| 100 \| EXCEEDED \|$", text, re.MULTILINE)
    assert [each.partition(", ")[0] for each in live_table.missed(CASE, [], large)] == ["poll in hour three"]


def test_polls_of_a_phase() -> None:
    polls = [Poll(at_s, LIVE, 1) for at_s in (9.9, 10.0, 19.9, 20.0)]
    assert [poll.at_s for poll in live_table.in_phase(polls, 10.0, 20.0)] == [10.0, 19.9]
    assert _path("http://127.0.0.1:1/inferload/live?run=a") == LIVE


def test_cpu_shares_of_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {1: b"locust", 2: b"locust", 3: b"scraper"}
    monkeypatch.setattr("benchmarks.live_view._command_line", commands.__getitem__)
    usage = RunUsage(Busy())
    usage.add([])
    for at_s, master_s, worker_s in ((9.0, 0.0, 1.0), (11.0, 1.0, 2.0), (12.0, 1.1, 2.5), (21.0, 2.0, 7.0)):
        monkeypatch.setattr("time.time", lambda now_s=at_s: now_s)
        usage.add([ProcessUsage(1, master_s, 0), ProcessUsage(2, worker_s, 0), ProcessUsage(3, worker_s, 0)])
    assert share(usage.master_s, 10.0, 20.0) == pytest.approx((1.9 - 0.5) / 10)
    assert share(usage.worker_s, 11.0, 21.0) == pytest.approx(0.5)
    assert usage.pages_s == [(9.0, 7.0), (21.0, 7.0)]  # read at most every 5 s
    for begin_s, end_s in ((8.0, 20.0), (10.0, 22.0)):
        assert share(usage.master_s, begin_s, end_s) is None
    assert share([], 10.0, 20.0) is None


class Busy(NoPages):
    """Pages with a known CPU time."""

    def cpu_s(self) -> float:
        return 7.0


# -- polling clients


def test_the_intervals_are_those_of_the_page() -> None:
    web = ROOT / "inferload" / "locust" / "web"
    interval = re.search(r"const POLL_MS = (\d+);", (web / "live.js").read_text())
    assert interval is not None
    assert POLLS[LIVE] * 1000 == int(interval[1])
    again = re.search(
        r'fetch\("\./(inferload/status)"\).*setTimeout\(refresh, (\d+)\)', (web / "run_line.js").read_text(), re.S
    )
    assert again is not None
    assert POLLS[again[1]] * 1000 == int(again[2])


@pytest.fixture
def web_ui() -> Iterator[tuple[int, list[str]]]:
    """A web UI with a run that gains a point per request: its port, and the requested addresses."""
    addresses: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            addresses.append(self.path)
            points = sum(LIVE in address for address in addresses)
            document = {
                "run": {"id": "run 1", "over": False},
                "series": {"sequence": points},
                "marks_to": 7,
                "rows": [1],
            }
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port, addresses
        server.shutdown()
        thread.join()


def test_a_polling_client_continues_from_the_points_it_has(
    web_ui: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, addresses = web_ui
    for path in POLLS:
        monkeypatch.setitem(POLLS, path, 0.01)
    pause, deadline_s = threading.Event(), time.monotonic() + 20
    with PollingPages(1) as pages:
        pages.open(port)
        while len({poll.path for poll in pages.polls()}) < len(POLLS) and time.monotonic() < deadline_s:
            pause.wait(0.02)
    polls = pages.polls()
    assert {poll.path for poll in polls} == set(POLLS)
    assert min(poll.bytes for poll in polls) > len('{"run": {}}')
    queries = [parse_qs(urlsplit(address).query) for address in addresses if LIVE in address]
    assert queries.count({}) == 1  # the first request
    later = [query for query in queries if query]
    assert all((query["run"], query["marks"]) == (["run 1"], ["7"]) for query in later)
    assert [int(query["after"][0]) for query in later] == list(range(1, len(later) + 1))
    assert pages.document() is not None


def test_the_load_has_a_web_ui_and_a_warm_up(tmp_path: Any) -> None:
    call = web_call(Load(CASE, "http://127.0.0.1:1", 1, 50, tmp_path, tmp_path), 8123, 20.0)
    assert {"--autostart", "--processes", "8123"} < set(call.argv)
    assert "--headless" not in call.argv
    scenario = yaml.safe_load((tmp_path / "scenario.yaml").read_text())
    assert (scenario["phases"]["warmup_s"], scenario["arrivals"]["users"]) == (20, 50)
