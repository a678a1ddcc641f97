"""Speed of the simulator: a thousand streams on one core, and an hour in simulated time (make soak)."""

import subprocess
import sys
import time

import numpy as np
import pytest
import simulator_process
from paths import ROOT
from simulator_process import Simulator

sys.path.insert(0, str(ROOT))

from inferload.deploy.simulator.core.hardware import Build
from inferload.deploy.simulator.core.offline import Offline, OfflineRequest, simulate

from benchmarks.server import PROGRAMS

STREAMS, ITL_MS = 1000, 20.0
WINDOW_S = 10.0
HOUR_S, REQUESTS_PER_S = 3600.0, 50.0

pytestmark = pytest.mark.soak


def running(simulator: Simulator) -> int:
    return int(simulator.json("GET", "/simulator/stats")["requests"]["running"])


def test_a_thousand_streams_need_less_than_a_core() -> None:
    subprocess.run(["make", "-s", "bench-programs"], cwd=ROOT, check=True)
    pace = ("--ttft-ms", "50", "--itl-ms", str(ITL_MS), "--max-num-seqs", str(STREAMS), "--num-gpu-blocks", "400000")
    simulator = simulator_process.start("--served-model-name", "paced", *pace)
    load = ("--streams", STREAMS, "--turns", 1, "--tokens", 6000, "--spread-ms", 4000, "--rest-us", 300)
    words = [str(word) for word in (PROGRAMS / "reader", "--port", simulator.port, *load)]
    reader = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 60
        while running(simulator) < STREAMS:
            assert time.monotonic() < deadline_s
            time.sleep(0.5)  # interval of the checks
        time.sleep(5)  # recovery from the start of the streams
        before = simulator.json("POST", "/simulator/stats/reset")
        time.sleep(WINDOW_S)
        stats = simulator.json("GET", "/simulator/stats")
        assert running(simulator) == STREAMS
    finally:
        reader.kill()
        reader.wait()
        simulator_process.stop(simulator)
    late = stats["lateness_ms"]
    events = late["count"] + stats["blocked_events"]
    events_per_s, cpu_us = events / stats["since_s"], (stats["cpu_s"] - before["cpu_s"]) / events * 1e6
    print(f"{events_per_s:.0f} events/s, {cpu_us:.1f} us of CPU time each, lateness mean {late['mean']:.2f} ms")
    assert cpu_us < ITL_MS * 1000 / STREAMS  # less than a core at the nominal rate, also where others delay it


def test_an_hour_of_simulated_time_takes_little_cpu_time() -> None:
    rng, count = np.random.default_rng(1), int(REQUESTS_PER_S * HOUR_S / 6)
    at_s = np.cumsum(rng.exponential(1 / REQUESTS_PER_S, count))
    prompts = np.clip(rng.lognormal(np.log(300), 0.8, count), 10, 8000).astype(int)
    outputs = np.clip(rng.lognormal(np.log(180), 0.7, count), 1, 2000).astype(int)
    arrivals = [OfflineRequest(float(t), int(o), int(p)) for t, o, p in zip(at_s, outputs, prompts, strict=True)]
    start_s = time.process_time()
    results = simulate(arrivals, Offline.preset("h200-qwen3-32b", Build(tensor_parallel=8), seed=1))
    cpu_s = time.process_time() - start_s
    print(f"{results.steps.end_s[-1]:.0f} s simulated in {cpu_s:.1f} s CPU time")
    assert not np.isnan(results.e2e_s).any()
    assert cpu_s < results.steps.end_s[-1] / 20
