"""Rates and overload of whole runs against a simulator of known capacity."""

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_runs import Ended, Place, Scene, Stage, check_books, check_files, scenario, scenes, waits

PLACES, TTFT_MS, ITL_MS, TOKENS = 4, 50, 20, 18
CAPACITY_PER_S = PLACES / ((TTFT_MS + ITL_MS * (TOKENS - 1)) / 1e3)
MEASURE_S = 5

pytestmark = pytest.mark.timeout(180)


def loaded(place: Place, mode: str, kind: str, load: float) -> Ended:
    """An open loop at `load` times the capacity of the simulator, with a drain that suffices."""
    pace = ("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--max-num-seqs", str(PLACES))
    simulator = place.simulator(*pace, paced=False)
    file = scenario(
        place.folder,
        arrivals={"kind": kind, "sessions_per_s": load * CAPACITY_PER_S},
        workload__output_tokens=TOKENS,
        phases={"warmup_s": 1, "measure_s": MEASURE_S, "drain_s": 60},
        gates=["turns_per_s > 15"],
    )
    fleet = place.fleet(mode, "--host", simulator.url, "--scenario", str(file))
    return Ended(place.run_dir, fleet.ended(), fleet.text, simulator.stats()["requests"])


@waits
def overloaded(place: Place, mode: str, kind: str) -> Ended:
    return loaded(place, mode, kind, 4)


def half_loaded(place: Place, mode: str, kind: str) -> Ended:
    return loaded(place, mode, kind, 0.5)


def ended_by_hand(run: Path, rows: list[dict[str, Any]]) -> float:
    """Turns per second that ended well between the ends of the measure phase."""
    manifest = json.loads((run / "run.json").read_text())
    phase = next(one for one in manifest["phases"] if one["phase"] == "measure")
    anchors = {one["name"]: one["anchor"]["wall_ns"] - one["wall_offset_ns"] for one in manifest["workers"]}
    closed = [row["closed_ns"] + anchors[row["worker"]] for row in rows if row["failure"] is None]
    inside = [at for at in closed if phase["start_wall_ns"] <= at < phase["end_wall_ns"]]
    return len(inside) / ((phase["end_wall_ns"] - phase["start_wall_ns"]) / 1e9)


@scenes(overloaded, ("local", "poisson"), ("processes", "constant"))
def test_overload_is_reported_and_rates_are_those_served(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    check_files(ended.run_dir)
    check_books(ended)
    summary = ended.summary
    rates, reasons = summary["rates"], summary["verdict"]["reasons"]
    assert rates["turns_per_s"] == pytest.approx(ended_by_hand(ended.run_dir, ended.turns), rel=0.03)
    assert rates["turns_per_s"] < 1.2 * CAPACITY_PER_S
    assert rates["offered_sessions_per_s"] > 3 * rates["turns_per_s"]
    assert reasons[0]["code"] == "overload"
    assert "turns/s offered" in reasons[0]["text"]
    assert not any(reason["code"] == "littles_law" for reason in reasons)
    assert summary["verdict"]["measurement"] == "suspect"
    assert not summary["verdict"]["gates"][0]["passed"], "a gate on the served rate must not pass on the offered one"
    assert ended.code == 1
    assert "overload: overloaded:" in ended.text
    assert summary["outcome"]["headline"].startswith("failed: 1 of 1 gate failed")
    assert summary["outcome"]["headline"] in ended.text.splitlines()


@scenes(half_loaded, ("local", "constant"), ("processes", "poisson"))
def test_below_the_capacity_no_overload_is_reported(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    check_files(ended.run_dir)
    check_books(ended)
    rates = ended.summary["rates"]
    assert rates["turns_per_s"] == pytest.approx(ended_by_hand(ended.run_dir, ended.turns), rel=0.03)
    assert "overload" not in [reason["code"] for reason in ended.summary["verdict"]["reasons"]]
    assert ended.summary["turns"]["failed"] == 0
