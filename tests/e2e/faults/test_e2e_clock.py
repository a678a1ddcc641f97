"""Steps of the wall clock during a run."""

import struct
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest
import simulator_process
from e2e_runs import (
    ITL_MS,
    FinishedRun,
    Fleet,
    check_counts,
    mark,
    marks_of,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import csv_rows, start
from paths import SUPPORT
from ports import unused_port

pytestmark = pytest.mark.soak

SOURCE = SUPPORT / "clockstep.c"
WORKERS, USERS, MEASURE_S = 2, 6, 8
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that replaces the system's clock functions."""
    built = tmp_path_factory.mktemp("clockstep") / "clockstep.so"
    subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", "-o", built, SOURCE, "-ldl"], check=True)
    return built


@pytest.mark.parametrize("reader", ["native", "python"])
@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S, 0.3])
def test_a_step_of_the_wall_clock_is_marked_and_changes_no_measure(
    preloaded: Path, tmp_path: Path, by_s: float, reader: str
) -> None:
    step, run_dir, port = tmp_path / "step", tmp_path / "run", unused_port()
    step.write_bytes(bytes(16))
    file = scenario(
        tmp_path, workload__output_tokens=8, arrivals__users=USERS, phases={"measure_s": MEASURE_S, "drain_s": 20}
    )
    simulator = simulator_process.start("--ttft-ms", "20", "--itl-ms", str(ITL_MS))
    words = ("--headless", "--host", simulator.url, "--scenario", str(file), "--run-dir", str(run_dir), "--processes")
    ports = ("--master-bind-host", "127.0.0.1", "--master-bind-port", str(port), "--master-port", str(port))
    env = {"LD_PRELOAD": str(preloaded), "INFERLOAD_CLOCKSTEP": str(step), "INFERLOAD_READER": reader}
    fleet = Fleet(start(*words, str(WORKERS), *ports, cwd=tmp_path, env=env))
    try:
        wait_for_measure_phase(run_dir)
        finished = simulator.stats()["requests"]["finished"]
        wait_until(lambda: simulator.stats()["requests"]["finished"] > finished + 2 * USERS, "some turns")
        with step.open("r+b") as page:
            page.write(struct.pack("qq", round(by_s * 1e9), time.time_ns()))
        ended = FinishedRun(run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])
    finally:
        fleet.master.kill()
        simulator_process.stop(simulator)

    check_counts(ended)
    summary = ended.summary
    reasons = [reason for reason in summary["verdict"]["reasons"] if reason["code"] == "clock_step"]
    assert [reason["phase"] for reason in reasons] == ["measure"], ended.text
    assert reasons[0]["value"] == WORKERS
    assert {entry["worker"] for entry in marks_of(run_dir) if entry["kind"] == "clock_step"} == {"w0", "w1"}
    assert mark(run_dir, "clock_step")["by_s"] == pytest.approx(by_s, abs=0.25)  # two clocks, read one after the other

    assert summary["window_s"] == MEASURE_S
    latency = summary["latency"]
    # A measure that follows the wall clock would be an hour off, or too short by 0.3 s; a busy machine only makes it longer.
    assert latency["ttft_ms"]["min"] >= 20
    assert latency["itl_ms"]["min"] >= 0
    assert max(latency["itl_ms"]["max"], latency["ttft_ms"]["max"], summary["client"]["delay_ms"]["max"]) < HOUR_S * 500
    assert summary["turns"]["ok"] > 20

    at_s = [entry["t_s"] for entry in marks_of(run_dir)]
    assert 0 <= min(at_s) <= max(at_s) < HOUR_S / 2
    phases = [entry["t_s"] for entry in marks_of(run_dir) if entry["kind"] == "phase"]
    assert MEASURE_S - 0.01 <= phases[-1] - phases[-2] < HOUR_S / 2
    history = [row for row in csv_rows(run_dir / "locust_stats_history.csv") if row["Name"] == "Aggregated"]
    stamps = [int(row["Timestamp"]) for row in history]
    assert all(0 <= later - earlier < HOUR_S / 2 for earlier, later in pairwise(stamps))
    turns = {row["Name"]: row for row in csv_rows(run_dir / "locust_stats.csv") if row["Type"] == "TURN"}["chat"]
    assert float(turns["Requests/s"]) > summary["rates"]["turns_per_s"] / 100
    seconds = csv_rows(run_dir / "timeline.csv")
    assert len(seconds) < HOUR_S / 2
    assert sum(row["phase"] == "measure" for row in seconds) in (MEASURE_S, MEASURE_S + 1)
    shown = [int(row["turns_ended"]) for row in seconds if row["phase"] == "measure"]
    assert sum(shown) >= 0.9 * summary["turns"]["ok"]
    assert sum(row["requests_running"] != "" for row in seconds) >= MEASURE_S
