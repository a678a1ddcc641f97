"""A LoadTestShape in an open loop: its users scale the rate, and its end is the end of the run."""

import json
from pathlib import Path

import pytest
from e2e_runs import (
    FinishedRun,
    RunCase,
    RunPool,
    Sandbox,
    check_counts,
    check_files,
    expected_exit_code,
    mark,
    run_cases,
    scenario,
)

pytestmark = pytest.mark.soak

# Its time starts when all users run, independent of the preparation of the run.
SHAPE = """
import time
from locust import LoadTestShape
from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    pass


class TwoSteps(LoadTestShape):
    since = None

    def tick(self):
        if self.since is None and self.get_current_user_count() == 10:
            self.since = time.monotonic()
        at_s = 0 if self.since is None else time.monotonic() - self.since
        return (10, 10) if at_s < 4 else (30, 30) if at_s < 8 else None
"""


def shaped(sandbox: Sandbox, mode: str) -> FinishedRun:
    simulator = sandbox.simulator()
    locustfile = sandbox.folder / "shape.py"
    locustfile.write_text(SHAPE)
    arrivals = {"kind": "constant", "sessions_per_s": 10}
    file: Path = scenario(sandbox.folder, arrivals=arrivals, workload__output_tokens=2, phases__measure_s=300)
    fleet = sandbox.fleet(mode, "--host", simulator.url, "--scenario", str(file), locustfile=locustfile)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(shaped, ("local",), ("processes",))
def test_a_load_shape_scales_the_arrival_rate(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    changed, drained = mark(ended.run_dir, "users"), mark(ended.run_dir, "phase", "drain")
    begun = mark(ended.run_dir, "phase", "measure")
    assert changed is not None, ended.text
    assert begun is not None
    assert drained is not None
    assert changed["text"] == "users changed by the LoadTestShape: 10 -> 30, so arrivals.sessions_per_s is 30"
    assert changed["by"] == "shape"
    assert "by the LoadTestShape" in dict(json.loads((ended.run_dir / "run.json").read_text())["load"]["rows"])
    before_s, after_s = changed["t_s"] - begun["t_s"], drained["t_s"] - changed["t_s"]
    assert before_s + after_s < 60, "the end of the shape is not the end of the run"
    assert ended.summary["sessions"]["planned"] == pytest.approx(10 * before_s + 30 * after_s, abs=3)
    assert mark(ended.run_dir, "stop") is not None
    check_files(ended.run_dir)
    check_counts(ended)
    assert ended.code == expected_exit_code(ended)
