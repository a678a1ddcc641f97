"""A client whose core has too little CPU time for the load reports it: such a run is never valid."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import locust_process
import pytest
from e2e_runs import mark, scenario, wait_for_measure_phase, wait_until
from locust_process import summary_of
from paths import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.cases import Case
from benchmarks.server import PacedServer

STREAMS = 200
# Busy processes that share the client's core. 200 streams of 100 tokens/s take a fifth to a half of a core. The client gets a
# seventeenth: the load is at least four times what it can process.
COMPANIONS = 16

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="client and server need a core each")


@contextlib.contextmanager
def crowd(core: int) -> Iterator[None]:
    """Run busy processes on a core, each in its own session, so that each has its own share."""
    busy = ["timeout", "60", "sh", "-c", "while :; do :; done"]
    hogs = [
        subprocess.Popen(["taskset", "-c", str(core), *busy], start_new_session=True, stdin=subprocess.DEVNULL)
        for _ in range(COMPANIONS)
    ]
    try:
        yield
    finally:
        for hog in hogs:
            os.killpg(hog.pid, 9)
            hog.wait()


@pytest.mark.parametrize("reader", ["native", pytest.param("python", marks=pytest.mark.soak)])
def test_a_run_on_an_overloaded_client_core_is_not_valid(tmp_path: Path, reader: str) -> None:
    own, other = sorted(os.sched_getaffinity(0))[:2]
    # It needs little CPU time. A slower server would reduce the load, and the client would measure correctly.
    subprocess.run(["make", "-s", "bench-programs"], cwd=ROOT, check=True)
    with PacedServer(Case("overload", "200 streams"), core=other) as server:
        run_overloaded(tmp_path, reader, server.url, own)


def run_overloaded(tmp_path: Path, reader: str, url: str, own: int) -> None:
    file = scenario(
        tmp_path,
        arrivals__users=STREAMS,
        arrivals__spawn_per_s=STREAMS,
        workload__output_tokens=100,
        phases={"warmup_s": 0, "measure_s": 4, "drain_s": 3},
    )
    arguments = f"--headless --host {url} --scenario {file} --run-dir {tmp_path / 'run'} --no-report".split()
    run = locust_process.start(*arguments, cwd=tmp_path, env={"INFERLOAD_READER": reader})
    try:
        os.sched_setaffinity(run.process.pid, {own})
        wait_for_measure_phase(tmp_path / "run")
        with crowd(own):
            since_s = time.monotonic()
            wait_until(lambda: mark(tmp_path / "run", "phase", "drain"), "the end of the measure phase")
            crowded_s = time.monotonic() - since_s
        code = run.exit_code(120)
    finally:
        run.kill()
    verdict = summary_of(tmp_path / "run")["verdict"]
    assert verdict["measurement"] in ("suspect", "invalid"), (crowded_s, verdict)
    codes = {reason["code"] for reason in verdict["reasons"]}
    assert codes & {"client_delay", "client_lag", "loop_lag", "client_pause", "cpu"}, verdict
    assert (code == 3) == (verdict["measurement"] == "invalid"), run.text
