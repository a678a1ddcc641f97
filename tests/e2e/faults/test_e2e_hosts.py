"""Master and workers on two hosts: network namespaces and separate directories."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import locust_process
import pytest
import recomputed
from e2e_runs import PATIENCE_S, FinishedRun, check_complete, scenario
from locust_process import ROOT

pytestmark = pytest.mark.soak

MASTER_IP, WORKER_IP = "10.213.7.1", "10.213.7.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Create two connected network namespaces."""
    if os.geteuid() != 0:
        pytest.skip("creating network namespaces requires root")
    names = tuple(f"inferload-{host}-{os.getpid()}" for host in ("a", "b"))
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable-a", "netns", names[0], "type", "veth", "peer", "name", "cable-b", "netns", names[1])
        for name, end, address in ((names[0], "cable-a", MASTER_IP), (names[1], "cable-b", WORKER_IP)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names[0], names[1]
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


@contextlib.contextmanager
def started(host: str, folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program on a host, in its own folder."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        ["ip", "netns", "exec", host, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_workers_on_another_host_send_their_records(hosts: tuple[str, str], tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    arrivals = {"kind": "poisson", "sessions_per_s": 20}
    file = scenario(tmp_path, arrivals=arrivals, workload__output_tokens=4, phases={"measure_s": 12, "drain_s": 20})
    python, locustfile = sys.executable, str(ROOT / "locustfiles" / "chat.py")
    server = ("-m", "inferload.deploy.simulator", "--host", MASTER_IP, "--port", "18100", "--exit-after-s", "120")
    master = ("--headless", "--master", "--expect-workers", "2", "--host", f"http://{MASTER_IP}:18100", "--no-report")
    master = (*master, "--scenario", str(file), "--run-dir", "/proc/self/cwd/run")  # in the folder of each host
    worker = ("--worker", "--processes", "2", "--master-host", MASTER_IP)
    with started(hosts[0], here, python, *server, "--ttft-ms", "20", "--itl-ms", "5") as simulator:
        assert simulator.stdout is not None
        simulator.stdout.readline()
        with (
            started(hosts[0], here, python, "-m", "locust", "-f", locustfile, *master) as leading,
            started(hosts[1], there, python, "-m", "locust", "-f", locustfile, *worker) as working,
        ):
            text, _ = leading.communicate(timeout=2 * PATIENCE_S)
            working.wait(30)
    run_dir = here / "run"
    summary, manifest = locust_process.summary_of(run_dir), json.loads((run_dir / "run.json").read_text())
    assert [worker["lost"] for worker in manifest["workers"]] == [False, False]
    assert [worker["at_hand"] for worker in manifest["workers"]] == [worker["turns"] for worker in manifest["workers"]]
    assert summary["percentiles_from"] == "records", text
    rows = locust_process.turns_of(run_dir)
    assert len(rows) == summary["turns"]["by_phase"]["all"]["sent"]
    assert {row["worker"] for row in rows} == {"w0", "w1"}
    recomputed.check(summary, manifest, rows, {})
    check_complete(FinishedRun(run_dir, leading.returncode, text))
    assert list(there.rglob("*.parquet")) == []


# Locustfile of a worker with parts so large that sending one takes seconds.
LARGE_PARTS = """
from inferload.run.worker import turn_writer as turnwriter
from inferload.users import ScenarioUser

turnwriter.PART_S = 15.0


class ChatUser(ScenarioUser):
    pass
"""


def test_records_over_a_slow_link_delay_no_report(hosts: tuple[str, str], tmp_path: Path) -> None:
    """The server is on the worker's host: only messages to the master use the link of 64 kB/s."""
    locustfile = tmp_path / "large_parts.py"
    locustfile.write_text(LARGE_PARTS)
    for name, end in zip(hosts, ("cable-a", "cable-b"), strict=True):
        tbf = ("tbf", "rate", "512kbit", "burst", "8kb", "limit", "1mb")
        subprocess.run(
            ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", end, "root", *tbf],
            check=True,
            capture_output=True,
        )
    here, there = tmp_path / "here", tmp_path / "there"
    load = {"arrivals__users": 24, "workload__output_tokens": 200, "phases": {"measure_s": 20, "drain_s": 20}}
    file = scenario(tmp_path, **load)
    locust = (sys.executable, "-m", "locust", "-f", str(locustfile))
    server = ("-m", "inferload.deploy.simulator", "--host", WORKER_IP, "--port", "18100", "--exit-after-s", "180")
    master = ("--headless", "--master", "--expect-workers", "1", "--host", f"http://{WORKER_IP}:18100", "--no-report")
    master = (*master, "--scenario", str(file), "--run-dir", "/proc/self/cwd/run", "--metrics-url", "none")
    with started(hosts[1], there, sys.executable, *server, "--ttft-ms", "20", "--itl-ms", "10") as simulator:
        assert simulator.stdout is not None
        simulator.stdout.readline()
        with (
            started(hosts[0], here, *locust, *master) as leading,
            started(hosts[1], there, *locust, "--worker", "--master-host", MASTER_IP) as working,
        ):
            text, _ = leading.communicate(timeout=3 * PATIENCE_S)
            working.wait(30)
    run_dir = here / "run"
    (worker,) = json.loads((run_dir / "run.json").read_text())["workers"]
    sent_bytes = sum(path.stat().st_size for path in (run_dir / "turns").iterdir())
    assert sent_bytes > 100_000, "too little to fill the link for 3 s"
    assert (worker["lost"], worker["missing_reports"]) == (False, 0)
    assert worker["longest_silence_s"] < 3, text
    assert worker["at_hand"] == worker["turns"]
    assert locust_process.summary_of(run_dir)["percentiles_from"] == "records", text
