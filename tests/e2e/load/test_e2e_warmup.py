"""A warm-up that lasts until the TTFT is steady."""

import json

import pytest
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, mark, run_cases, scenario

pytestmark = pytest.mark.soak


def settling(sandbox: Sandbox) -> FinishedRun:
    simulator = sandbox.simulator()
    file = scenario(sandbox.folder, phases={"warmup_s": 120, "warmup_until": "steady", "measure_s": 3, "drain_s": 20})
    fleet = sandbox.fleet("processes", "--host", simulator.url, "--scenario", str(file))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(settling, ())
def test_the_measure_phase_begins_when_ttft_is_steady(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    warmup_over = mark(ended.run_dir, "warmup_over")
    assert warmup_over is not None
    assert warmup_over["text"].startswith("TTFT is steady")
    assert mark(ended.run_dir, "steady") is not None
    manifest = json.loads((ended.run_dir / "run.json").read_text())
    warmup_s = (manifest["phases"][0]["end_wall_ns"] - manifest["phases"][0]["start_wall_ns"]) / 1e9
    assert 15 < warmup_s < 120
    assert manifest["steady_s"] is not None
    assert ended.summary["window_s"] == 3
    check_counts(ended)
