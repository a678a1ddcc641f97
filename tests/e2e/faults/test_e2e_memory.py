"""A worker's memory over ten minutes of a thousand streams (make soak)."""

import json
import subprocess
import sys
import time
from pathlib import Path

import locust_process
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.cases import Case
from benchmarks.server import PacedServer

STREAMS = 1000
MEASURE_S = 600
LIMIT_MB = 300


def resident_mb(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@pytest.mark.soak
@pytest.mark.timeout(MEASURE_S + 300)
def test_memory_is_constant_with_a_thousand_streams(tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "bench-programs"], cwd=ROOT, check=True)
    file = tmp_path / "scenario.yaml"
    document = {
        "schema": 1,
        "name": "memory",
        "workload": {"kind": "chat", "turns": 1, "prompt_tokens": 200, "output_tokens": 100},
        "arrivals": {"kind": "closed", "users": STREAMS, "spawn_per_s": 100},
        "phases": {"warmup_s": 0, "measure_s": MEASURE_S, "drain_s": 60},
    }
    file.write_text(json.dumps(document))  # JSON is YAML
    with PacedServer(Case("slow", "slow", gap_ms=50), core=1) as server:
        words = f"--headless --scenario {file} --host {server.url} --on-invalid warn --no-report".split()
        run = locust_process.start(*words, cwd=tmp_path)
        try:
            run.wait_for_line("Ramping")
            begun_s, samples_mb = time.monotonic(), []
            while time.monotonic() < begun_s + MEASURE_S - 10:
                samples_mb.append(resident_mb(run.process.pid))
                time.sleep(5)  # interval of the samples
            assert run.exit_code(240) == 0, run.text[-3000:]
        finally:
            run.kill()
    third = len(samples_mb) // 3
    print(f"resident: {max(samples_mb[:third]):.0f} MB in the first third, {max(samples_mb[-third:]):.0f} in the last")
    assert max(samples_mb) < LIMIT_MB
    assert max(samples_mb[-third:]) < 1.05 * max(samples_mb[:third])
