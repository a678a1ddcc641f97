"""A warm-up that lasts until the TTFT is steady, on a server that begins slowly."""

import json

import pytest
from e2e_runs import Ended, Place, Scene, Stage, check_books, mark, scenario, scenes

pytestmark = pytest.mark.soak


def settling(place: Place) -> Ended:
    simulator = place.simulator()
    file = scenario(place.folder, phases={"warmup_s": 120, "warmup_until": "steady", "measure_s": 3, "drain_s": 20})
    fleet = place.fleet("processes", "--host", simulator.url, "--scenario", str(file))
    return Ended(place.run_dir, fleet.ended(), fleet.text, simulator.stats()["requests"])


@scenes(settling, ())
def test_the_measure_phase_begins_when_ttft_is_steady(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert "Traceback" not in ended.text, ended.text
    told = mark(ended.run_dir, "warmup_over")
    assert told is not None
    assert told["text"].startswith("TTFT is steady")
    assert mark(ended.run_dir, "steady") is not None
    manifest = json.loads((ended.run_dir / "run.json").read_text())
    warmup_s = (manifest["phases"][0]["end_wall_ns"] - manifest["phases"][0]["start_wall_ns"]) / 1e9
    assert 15 < warmup_s < 120
    assert manifest["steady_s"] is not None
    assert ended.summary["window_s"] == 3
    check_books(ended)
