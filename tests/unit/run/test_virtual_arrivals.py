"""Runs on a virtual clock: load shapes, a steady warm-up, steps, ends by count, a limit of sessions in flight, and replays."""

import json
from pathlib import Path
from typing import Any

import pytest
import virtual
from arrival_times import unit_process
from burst_arrivals import registered
from e2e_runs import check_files, expected_exit_code, mark, marks_of, scenario
from locust_process import most_at_once
from paths import DATA, ROOT, SUPPORT

from inferload.scenario.schema.load.rate_curves import FOREVER, RateCurve, flat
from inferload.workload.arrivals import Schedule

SAMPLE = ROOT / "scenarios" / "traces" / "mooncake-sample.jsonl"
CLOSED = {"kind": "closed", "users": 4, "spawn_per_s": 50}


def executed(folder: Path, *options: str, **changes: Any) -> virtual.VirtualRun:
    """Run the scenario to its end, without a reason against it."""
    run = virtual.run(folder, scenario(folder, **changes), "--details", *options)
    run.check_counts()
    return run


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


def test_a_load_shape_scales_the_arrival_rate_and_its_end_is_that_of_the_run(tmp_path: Path) -> None:
    locustfile = tmp_path / "shape.py"
    locustfile.write_text(SHAPE)
    arrivals = {"kind": "constant", "sessions_per_s": 10}
    file = scenario(tmp_path, arrivals=arrivals, workload__output_tokens=2, phases__measure_s=300)
    run = virtual.run(tmp_path, file, locustfile=locustfile)
    run.check_counts()
    check_files(run.run_dir)
    begun, drained = (mark(run.run_dir, "phase", phase) for phase in ("measure", "drain"))
    changed, stop = mark(run.run_dir, "users"), mark(run.run_dir, "stop")
    assert begun is not None
    assert changed is not None, run.text
    assert drained is not None
    assert stop is not None
    assert changed["text"] == "users changed by the LoadTestShape: 10 -> 30, so arrivals.sessions_per_s is 30"
    assert changed["by"] == "shape"
    assert "by the LoadTestShape" in dict(run.manifest["load"]["rows"])
    before_s, after_s = changed["t_s"] - begun["t_s"], drained["t_s"] - changed["t_s"]
    assert before_s + after_s == pytest.approx(8, abs=1.1)  # Locust asks a shape once a second
    assert run.summary["sessions"]["planned"] == pytest.approx(10 * before_s + 30 * after_s, abs=1)
    assert run.code == expected_exit_code(run) == 0, run.text


def test_the_measure_phase_begins_when_ttft_is_steady(tmp_path: Path) -> None:
    run = executed(
        tmp_path, arrivals__users=1, phases={"warmup_s": 120, "warmup_until": "steady", "measure_s": 3, "drain_s": 20}
    )
    warmup_over = mark(run.run_dir, "warmup_over")
    assert warmup_over is not None
    assert warmup_over["text"].startswith("TTFT is steady")
    assert mark(run.run_dir, "steady") is not None
    warmup = run.manifest["phases"][0]
    assert 15 < (warmup["end_wall_ns"] - warmup["start_wall_ns"]) / 1e9 < 120
    assert run.manifest["steady_s"] is not None
    assert run.summary["window_s"] == 3
    assert not run.codes


def test_each_step_has_its_own_sessions_window_and_measures(tmp_path: Path) -> None:
    steps = [{"sessions_per_s": rate, "for_s": 1} for rate in (10, 40, 20)]
    run = executed(
        tmp_path,
        *("--report", "--abort-on", "failed_ratio > 0.5 for 2s"),  # which never holds
        arrivals={"kind": "constant", "profile": {"kind": "steps", "steps": steps}},
        workload__output_tokens=2,
        phases={"warmup_s": 0.5, "measure_s": 3, "drain_s": 20},
    )
    check_files(run.run_dir)
    summary, rows = run.summary, run.turns
    steps = summary["steps"]
    assert [(step["step"], step["sessions_per_s"], step["window_s"]) for step in steps] == [
        (0, 10, 1),
        (1, 40, 1),
        (2, 20, 1),
    ]
    assert [step["growth"]["step"] for step in steps] == [0, 1, 2]
    assert [step["sessions"]["planned"] for step in steps] == [10, 40, 20]
    assert summary["sessions"]["planned"] == 70
    assert sum(step["turns"]["ok"] for step in steps) == summary["turns"]["ok"]
    measured = [row for row in rows if row["phase"] == "measure"]
    assert [sum(row["step"] == step["step"] for row in measured) for step in steps] == [
        step["turns"]["sent"] for step in steps
    ]
    assert {row["step"] for row in rows if row["phase"] == "warmup"} == {None}
    plan = Schedule(unit_process("constant", 0), 1.0, curve=RateCurve([flat(1.5, 10), flat(1, 40), flat(FOREVER, 20)]))
    expected_s = {}
    while (arrival := plan.next()) is not None and arrival.due_s < 3.5:
        expected_s[f"s{arrival.index}"] = pytest.approx(arrival.due_s, abs=1e-8)
    assert {row["session_id"]: run.after_start_s(row["planned_ns"]) for row in rows} == expected_s
    assert all(row["planned_ns"] == row["sent_ns"] for row in rows)
    assert (run.code, mark(run.run_dir, "abort_on"), summary["verdict"]["gates"]) == (0, None, [])
    assert summary["growth"]["state"] == "kept up"
    assert summary["growth"]["kept_up_per_s"] == pytest.approx(40, abs=1)
    texts = [mark["text"] for mark in marks_of(run.run_dir) if mark["kind"] == "step"]
    assert texts == ["step 0 begins: 10 sessions/s", "step 1 begins: 40 sessions/s", "step 2 begins: 20 sessions/s"]
    assert "| 1: 40 sessions/s |" in (run.run_dir / "report.md").read_text()
    assert "\nSteps" in run.text


def test_users_start_and_stop_as_planned(tmp_path: Path) -> None:
    """One user, then four, then two."""
    steps = [{"users": users, "for_s": 1.5} for users in (1, 4, 2)]
    run = executed(
        tmp_path,
        arrivals={**CLOSED, "profile": {"kind": "steps", "steps": steps}},
        workload__output_tokens=4,
        phases={"measure_s": 4.5, "drain_s": 20},
    )
    summary, steps = run.summary, run.summary["steps"]
    assert [step["users"] for step in steps] == [1, 4, 2]
    assert [part["turns"] for part in summary["by_phase"]] == [step["turns"]["sent"] for step in steps]
    assert [step["growth"] for step in steps] == [None] * 3  # closed loop
    assert summary["overload_not_judged"] is None
    for step in steps:
        # After the first turn of a step surplus users have stopped.
        later = [row for row in run.turns if row["step"] == step["step"]][step["users"] :]
        assert most_at_once(later) == step["users"]
    # Each turn lasts for 50 ms.
    assert [step["turns"]["ok"] for step in steps] == pytest.approx([30, 120, 60], abs=4)
    assert summary["turns"]["unfinished"] == summary["turns"]["failed"] == 0


@pytest.mark.parametrize(("loop", "unit"), [("open", "sessions"), ("closed", "turns")])
def test_a_run_that_ends_by_count_sends_exactly_that_count(loop: str, unit: str, tmp_path: Path) -> None:
    run = executed(
        tmp_path,
        arrivals=CLOSED if loop == "closed" else {"kind": "poisson", "sessions_per_s": 30},
        workload={"kind": "chat", "turns": 3, "prompt_tokens": 20, "output_tokens": 4},
        phases={unit: 25, "drain_s": 20},
    )
    summary, rows = run.summary, run.turns
    assert not run.codes, run.text
    if unit == "sessions":
        assert summary["sessions"]["planned"] == 25
        ids = {f"s{session}.{turn}" for session in range(25) for turn in range(3)}
        assert {row["turn_id"] for row in rows} == ids  # all sessions are complete
    else:
        assert len(rows) == summary["turns"]["ok"] == 25
    assert summary["turns"]["unfinished"] == summary["turns"]["failed"] == 0
    measure = next(phase for phase in run.manifest["phases"] if phase["phase"] == "measure")
    last_s = max(run.after_start_s(row["closed_ns"]) for row in rows)
    assert measure["end_wall_ns"] - measure["start_wall_ns"] == pytest.approx(last_s * 1e9, abs=1000)
    assert run.manifest["stop_reason"] == "the scenario's end"


@pytest.mark.parametrize("when_full", ["delay", "drop"])
def test_sessions_delayed_or_dropped_by_max_in_flight_are_counted(when_full: str, tmp_path: Path) -> None:
    """Run 20 sessions/s of 200 ms, which is a concurrency of 4, with a limit of two in flight."""
    run = virtual.run(
        tmp_path,
        scenario(
            tmp_path,
            arrivals={"kind": "constant", "sessions_per_s": 20, "max_in_flight": 2, "when_full": when_full},
            workload__output_tokens=19,
            phases={"measure_s": 3, "drain_s": 20},
        ),
    )
    run.check_counts()
    sessions = run.summary["sessions"]
    assert most_at_once(run.turns) == 2
    assert sessions["planned"] == 60 == sessions["started"] + sessions["dropped"]
    assert sessions["at_limit"] == sessions["dropped"] > 10
    assert run.codes == {"at_limit"}
    (reason,) = run.summary["verdict"]["reasons"]
    assert "because max_in_flight was reached" in reason["text"]
    lag_ms = run.summary["latency"]["lag_ms"]
    if when_full == "delay":
        assert lag_ms["max"] > 300
        assert "turns waited" in reason["text"]
    else:
        assert lag_ms["max"] == 0
        assert "sessions were dropped" in reason["text"]


def test_a_run_has_the_start_times_of_a_kind_from_outside(tmp_path: Path) -> None:
    """Three sessions at once, each second. The locustfile adds the kind, sitecustomize.py in the program of the summary."""
    added = f"import sys\n\nsys.path.append({str(SUPPORT)!r})\nimport burst_arrivals\n\nburst_arrivals.register()\n"
    (tmp_path / "sitecustomize.py").write_text(added)
    locustfile = tmp_path / "bursts.py"
    locustfile.write_text(f"{added}from inferload.locustfiles.chat import ChatUser\n")
    file = scenario(
        tmp_path, arrivals={"kind": "bursts", "sessions": 3, "every_s": 1}, phases={"measure_s": 2.5, "drain_s": 20}
    )
    run = virtual.run(tmp_path, file, locustfile=locustfile, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    with registered():
        run.check_counts()
    assert run.summary["sessions"]["planned"] == 9
    assert {row["session_id"]: run.after_start_s(row["planned_ns"]) for row in run.turns} == {
        f"s{number}": pytest.approx(number // 3, abs=1e-6) for number in range(9)
    }
    assert run.manifest["load"]["users_or_rate"] == "3/s in bursts"


def test_a_replay_sends_recorded_requests_at_recorded_times(tmp_path: Path) -> None:
    """Replay 30 s of the bundled trace in 3 s."""
    run = executed(
        tmp_path,
        workload={"kind": "replay", "path": str(SAMPLE), "format": "mooncake"},
        arrivals={"kind": "trace", "speed": 10},
        phases={"measure_s": None, "drain_s": 30},
    )
    assert not run.codes, run.text
    check_files(run.run_dir)
    assert (run.summary["growth"], run.summary["overload_not_judged"]) == (None, "sessions begin at recorded times")
    recorded = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    rows = {row["session_id"]: row for row in run.turns}
    assert set(rows) == {f"s{number}" for number in range(len(recorded))}
    for number, request in enumerate(recorded):
        row = rows[f"s{number}"]
        assert run.after_start_s(row["planned_ns"]) == pytest.approx(request["timestamp"] / 1e4, abs=1e-6)
        assert row["output_tokens"] == request["output_length"]
        # The chat template adds tokens.
        assert row["input_tokens"] == pytest.approx(request["input_length"], rel=0.03, abs=40)
    data = run.manifest["workload"]["data"]["replay"]
    assert (data["sessions"], data["turns"], data["format"]) == (46, 46, "mooncake")
    assert run.manifest["stop_reason"] == "the scenario's end"


def test_sub_agents_of_a_trace_run_concurrently(tmp_path: Path) -> None:
    """Sub-agents have no recorded times of their own."""
    run = executed(
        tmp_path,
        workload={"kind": "replay", "path": str(DATA / "traces" / "weka.jsonl"), "format": "weka", "speed": 10},
        arrivals={"kind": "closed", "users": 2, "spawn_per_s": 50},
        phases={"sessions": 2, "drain_s": 30},
    )
    assert not run.codes, run.text
    rows = {row["turn_id"]: row for row in run.turns}
    assert set(rows) == {"s0.0", "s0/1-a1.0", "s0/1-a1.1", "s0/2-a2.0", "s0.1", "s1.0"}
    last_inner_ns = max(rows[name]["closed_ns"] for name in ("s0/1-a1.1", "s0/2-a2.0"))
    assert rows["s0.1"]["sent_ns"] >= last_inner_ns
    assert rows["s0/2-a2.0"]["sent_ns"] < rows["s0/1-a1.1"]["sent_ns"]
    block = run.summary["tasks"]["replay"]
    assert (block["begun"], block["done"]) == (2, 2)
    assert block["steps"]["max"] == 5
