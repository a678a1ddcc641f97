"""A client whose core has too little CPU time for the load reports it: such a run is never valid."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
# 200 streams of 100 tokens/s take a fifth to a half of a core. A client that has a seventeenth of one can process a quarter of
# the load at most.
COMPANIONS = 16
TURN_S = 0.003  # about a time slice

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="client and server need a core each")


@contextlib.contextmanager
def crowd(core: int, _pid: int) -> Iterator[None]:
    """Run busy processes on the client's core, each in its own session, so that each has its own share."""
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


@contextlib.contextmanager
def turns(_core: int, pid: int) -> Iterator[None]:
    """Let the client run as among companions that take no CPU time: it is stopped for as many times as long as it ran."""
    ended = threading.Event()

    def alternate() -> None:
        while not ended.is_set():
            since_s = time.monotonic()
            time.sleep(TURN_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(COMPANIONS * (time.monotonic() - since_s))
            os.kill(pid, signal.SIGCONT)

    alternating = threading.Thread(target=alternate)
    alternating.start()
    try:
        yield
    finally:
        ended.set()
        alternating.join()


Companions = Callable[[int, int], contextlib.AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("reader", "companions"),
    [
        ("native", turns),
        *(pytest.param(reader, crowd, marks=pytest.mark.soak) for reader in ("native", "python")),
    ],
)
def test_a_run_on_an_overloaded_client_core_is_not_valid(tmp_path: Path, reader: str, companions: Companions) -> None:
    own, other = sorted(os.sched_getaffinity(0))[:2]
    # It needs little CPU time. A slower server would reduce the load, and the client would measure correctly.
    subprocess.run(["make", "-s", "bench-programs"], cwd=ROOT, check=True)
    with PacedServer(Case("overload", "200 streams"), core=other) as server:
        run_overloaded(tmp_path, reader, server.url, own, companions)


def run_overloaded(tmp_path: Path, reader: str, url: str, own: int, companions: Companions) -> None:
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
        with companions(own, run.process.pid):
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
