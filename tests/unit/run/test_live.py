"""Live figures of a run, with a stub of the run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from inferload.base.rundir import Mark
from inferload.run.live.live_recorder import Instant
from inferload.run.live.recorder import Recorder
from inferload.run.live.series import RECENT
from inferload.run.master import live as live_run
from inferload.run.master.live import LiveRun
from inferload.run.process.run_spec import RunOptions, resolve


class Roster(list[Any]):
    """Stub of the workers of a run."""

    gone = ()


def ended_run() -> Any:
    return SimpleNamespace(
        run_id="r",
        spec=resolve(RunOptions("smoke", "http://127.0.0.1:1")),
        preflight=SimpleNamespace(engine=None, metrics_urls=(), facts=SimpleNamespace(model="m")),
        recorder=Recorder(),
        directory=SimpleNamespace(path=Path("runs/r")),
        windows=[],
        stop=SimpleNamespace(is_set=lambda: True),
        steadiness=SimpleNamespace(now=None),
        roster=Roster([None]),
    )


def test_the_elapsed_time_of_an_ended_run_includes_a_pause_of_the_master(tmp_path: Path) -> None:
    live = LiveRun(ended_run())
    for at_s in (1.0, 2.0, 73.0, 73.4):  # no points in the pause
        live.recorder.close_second(at_s, Instant(0, 0, 0))
    live.close()
    live.ended(SimpleNamespace(run_dir=tmp_path))  # type: ignore[arg-type]
    assert live._about()["elapsed_s"] == 73.4


def test_a_document_of_the_whole_run_has_all_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended_run()
    run.phases = SimpleNamespace(elapsed_s=lambda: 0.0, now=lambda: "drain")
    run.own = SimpleNamespace(writing="writing the report")
    run.marks = SimpleNamespace(entries=[Mark(wall_ns=number, kind="stop", text="x") for number in range(5)])
    monkeypatch.setattr(live_run, "counts_so_far", lambda run: None)
    monkeypatch.setattr(live_run, "left_s", lambda run: None)
    live = LiveRun(run)
    for second in range(1, RECENT + 200):
        live.recorder.close_second(float(second), Instant(0, 0, 0))
    assert live.document()["run"]["phase"] == "drain"
    live.close()
    assert live.document()["run"]["phase"] == "writing the report"
    newest = live.document(after=live.recorder.series.sequence - 1, marks_after=3)
    assert (newest["series"]["whole"], len(newest["marks"]), newest["marks_to"]) == (False, 2, 5)
    whole = live.document(after=0, marks_after=3)
    assert (whole["series"]["whole"], len(whole["marks"]), whole["marks_to"]) == (True, 5, 5)


def test_the_document_has_the_limits_of_slo_and_gates_for_the_charts() -> None:
    run = ended_run()
    scenario = run.spec.scenario.changed({"gates": ["p95(itl_ms) < 30"], "slo.ttft_ms": 900})
    run.spec = replace(run.spec, scenario=scenario)
    live = LiveRun(run)
    live.close()
    assert [(limit.measure, limit.limit_ms, limit.text) for limit in live._limits] == [
        ("ttft_ms", 900.0, "SLO: TTFT <= 900 ms"),
        ("itl_ms", 30.0, "p95(itl_ms) < 30"),
    ]
