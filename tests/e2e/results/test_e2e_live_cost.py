"""Cost of the live view: CPU time of the master with three open pages, and latencies of the run (make soak)."""

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import locust_process
import psutil
import pytest
from e2e_runs import wait_for_measure_phase
from locust_process import summary_of
from paths import ROOT
from ports import unused_port

sys.path.insert(0, str(ROOT))

from benchmarks.cases import Case
from benchmarks.server import PacedServer

STREAMS = 1000
PAGES = 3
SPAN_S = 15.0
CPU_LIMIT = 0.05  # of a core
CASE = Case("watched", "1,000 streams", gap_ms=20, tokens=200, spread=True)


class Poller:
    """Sends the requests of PAGES open pages one after the other, each for the points after its last ones."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._query: dict[str, str] = {}
        self.polls = 0

    def poll(self) -> None:
        document = json.loads(self._get(f"/inferload/live?{urlencode(self._query)}"))
        self._get("/inferload/status")
        after = {"after": str(document["series"]["sequence"]), "marks": str(document["marks_to"])}
        self._query = {"run": document["run"]["id"], **after}
        self.polls += 1

    def _get(self, address: str) -> bytes:
        self._connection.request("GET", address, headers={"Accept-Encoding": "gzip"})
        return self._connection.getresponse().read()


def cpu_share(pid: int, poller: Poller | None) -> float:
    """Return the share of a core of a process over SPAN_S, with the polls of pages at their interval of a second."""
    process = psutil.Process(pid)
    before, start_s = process.cpu_times(), time.monotonic()
    for number in range(round(SPAN_S * PAGES)):
        if poller is not None:
            poller.poll()
        time.sleep(max(0.0, start_s + (number + 1) / PAGES - time.monotonic()))
    after, spent_s = process.cpu_times(), time.monotonic() - start_s
    return (after.user + after.system - before.user - before.system) / spent_s


@pytest.mark.soak
def test_three_open_pages_cost_little_of_the_master_and_do_not_change_latencies(tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "bench-programs"], cwd=ROOT, check=True)
    file, port = tmp_path / "scenario.yaml", unused_port()
    document = {
        "schema": 1,
        "name": "watched",
        "workload": {"kind": "chat", "turns": 1, "think_time_s": 0, "prompt_tokens": 20, "output_tokens": CASE.tokens},
        "arrivals": {"kind": "closed", "users": STREAMS, "spawn_per_s": STREAMS / CASE.turn_s},
        "phases": {"warmup_s": 10, "measure_s": 2 * SPAN_S + 10, "drain_s": 20},
    }
    file.write_text(json.dumps(document))
    with PacedServer(CASE, core=1) as server:
        web = ("--web-host", "127.0.0.1", "--web-port", str(port), "--autostart", "--autoquit", "0")
        words = ("--processes", "1", "--no-report", "--on-invalid", "warn", "--run-dir", str(tmp_path / "run"))
        run = locust_process.start(*web, *words, "--scenario", str(file), "--host", server.url, cwd=tmp_path)
        try:
            wait_for_measure_phase(tmp_path / "run")
            unwatched = cpu_share(run.process.pid, None)
            poller = Poller(port)
            watched = cpu_share(run.process.pid, poller)
            assert run.exit_code(120) == 0, run.text[-3000:]
        finally:
            run.kill()
    print(f"master: {unwatched:.1%} of a core without pages, {watched:.1%} with {PAGES} pages")
    assert poller.polls == round(SPAN_S * PAGES)
    assert watched - unwatched < CPU_LIMIT
    latency = summary_of(tmp_path / "run")["latency"]
    assert latency["ttft_ms"]["p50"] == pytest.approx(CASE.ttft_ms, rel=0.01)
    assert latency["itl_ms"]["p50"] == pytest.approx(CASE.gap_ms, rel=0.01)
