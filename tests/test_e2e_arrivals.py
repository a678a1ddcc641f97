"""Whole runs whose load changes or ends by itself: steps, counts, caps, on the simulator."""

import json
from typing import Any

import pytest
from e2e_runs import (
    Ended,
    Place,
    Scene,
    Stage,
    check_books,
    check_files,
    marks_of,
    scenario,
    scenes,
)

from inferload.workload.arrivals import Schedule, unit_process
from inferload.workload.curves import FOREVER, Curve, flat

pytestmark = pytest.mark.timeout(180)


def played(place: Place, mode: str, **changes: Any) -> Ended:
    """A run of the scenario, headless, to its own end."""
    simulator = place.simulator()
    file = scenario(place.folder, **changes)
    fleet = place.fleet(mode, "--host", simulator.url, "--scenario", str(file))
    return Ended(place.run_dir, fleet.ended(), fleet.text, simulator.stats()["requests"])


# -- steps


def stepped_rate(place: Place, mode: str) -> Ended:
    """Three steps of a second each, behind a warm-up at the first one's rate."""
    steps = [{"sessions_per_s": rate, "for_s": 1} for rate in (10, 40, 20)]
    return played(
        place,
        mode,
        arrivals={"kind": "constant", "profile": {"kind": "steps", "steps": steps}},
        workload__output_tokens=2,
        phases={"warmup_s": 0.5, "measure_s": 3, "drain_s": 20},
    )


@scenes(stepped_rate, ("local",), ("processes",))
def test_each_step_has_its_sessions_its_window_and_its_figures(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    check_files(ended.run_dir)
    check_books(ended)
    steps = ended.summary["steps"]
    assert [(one["step"], one["sessions_per_s"], one["window_s"]) for one in steps] == [
        (0, 10, pytest.approx(1)),
        (1, 40, pytest.approx(1)),
        (2, 20, pytest.approx(1)),
    ]
    # 5 arrivals in the warm-up; equal intervals, so that no step can have one more than its share but at its edges.
    assert [one["sessions"]["planned"] for one in steps] == pytest.approx([10, 40, 20], abs=1)
    assert sum(one["sessions"]["planned"] for one in steps) == ended.summary["sessions"]["planned"]
    assert sum(one["turns"]["ok"] for one in steps) == ended.summary["turns"]["ok"]
    rows = [row for row in ended.turns if row["phase"] == "measure"]
    assert [sum(row["step"] == step for row in rows) for step in range(3)] == [one["turns"]["sent"] for one in steps]
    assert {row["step"] for row in ended.turns if row["phase"] == "warmup"} == {None}
    curve = Curve([flat(1.5, 10), flat(1, 40), flat(FOREVER, 20)])
    plan = Schedule(unit_process("constant", 0), 1.0, curve=curve)
    expected_s = {}
    while (arrival := plan.next()) is not None and arrival.due_s < 3.5:
        expected_s[f"s{arrival.index}"] = arrival.due_s
    manifest = json.loads((ended.run_dir / "run.json").read_text())
    start_ns = manifest["phases"][0]["start_wall_ns"]
    anchors = {worker["name"]: worker["anchor"]["wall_ns"] for worker in manifest["workers"]}
    found_s = {row["session_id"]: (row["planned_ns"] + anchors[row["worker"]] - start_ns) / 1e9 for row in ended.turns}
    assert set(found_s) == set(expected_s)
    assert max(abs(found_s[name] - expected_s[name]) for name in found_s) < 0.1
    said = [one["text"] for one in marks_of(ended.run_dir) if one["kind"] == "step"]
    assert said == ["step 0 begins: 10 sessions/s", "step 1 begins: 40 sessions/s", "step 2 begins: 20 sessions/s"]
    assert "Steps" in (ended.run_dir / "report.md").read_text()


def stepped_users(place: Place, mode: str) -> Ended:
    """One user, then four, then two."""
    steps = [{"users": users, "for_s": 1.5} for users in (1, 4, 2)]
    return played(
        place,
        mode,
        arrivals={"kind": "closed", "users": 4, "spawn_per_s": 50, "profile": {"kind": "steps", "steps": steps}},
        workload__output_tokens=4,
        phases={"measure_s": 4.5, "drain_s": 20},
    )


@scenes(stepped_users, ("local",), ("processes",))
def test_users_come_and_go_as_planned(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    check_books(ended)
    steps = ended.summary["steps"]
    assert [one["users"] for one in steps] == [1, 4, 2]
    turns = sorted(ended.turns, key=lambda row: row["sent_ns"])
    for one in steps:
        sent = [row for row in turns if row["step"] == one["step"]]
        assert sent
        # In the second half of a step all who go have gone: of their turns so many lie side by side.
        middle = (min(row["planned_ns"] for row in sent) + max(row["planned_ns"] for row in sent)) // 2
        late = [row for row in sent if row["planned_ns"] > middle]
        beside = max(sum(a["sent_ns"] <= b["sent_ns"] < a["closed_ns"] for a in late) for b in late)
        assert beside <= one["users"] or scene.arguments[0] == "processes"
    assert steps[1]["turns"]["ok"] > steps[0]["turns"]["ok"]
    assert ended.summary["turns"]["unfinished"] == ended.summary["turns"]["failed"] == 0
