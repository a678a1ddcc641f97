"""Stops of runs on a virtual clock: by signals, the end of the load, conditions of their program, and before the load."""

import signal
from pathlib import Path
from typing import Any

import pytest
import surfaces
import virtual
from e2e_runs import check_files, check_turns_across_drain, mark, scenario

SIGNALS = {"Ctrl-C": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143), "SIGHUP": (signal.SIGHUP, 143)}
USERS, AT_S = 4, 2.4
GATES = ["failed_ratio < 0.5", "p50(ttft_ms) < 60000", "p50(e2e_ms) < 60000"]  # all pass
LENGTHS = {"dist": "uniform", "min": 100, "max": 300}  # so that some turns end before the stop
TOO_MANY_TOKENS = 20_000
SIMULATED = r" \(simulated, on a virtual clock\)"


def stopped(folder: Path, *words: str, by: str = "", at_s: tuple[float, ...] = (AT_S,), **changes: Any) -> Any:
    """Make a run that a signal stops at these instants."""
    file = scenario(folder, **{"workload__output_tokens": LENGTHS, "gates": GATES} | changes)
    acts = [(each_s, int(SIGNALS[by][0])) for each_s in at_s] if by else []
    run = virtual.run(folder, file, *words, acts=acts)
    assert "Traceback" not in run.text, run.text
    check_files(run.run_dir)
    run.check_counts()
    return run


@pytest.mark.parametrize("by", [*SIGNALS, "run_time", "scenario_end"])
def test_turns_in_flight_complete_at_each_kind_of_stop(by: str, tmp_path: Path) -> None:
    if by in SIGNALS:
        run = stopped(tmp_path, "--report", *surfaces.OUTPUTS, by=by)
        headline = rf"stopped early by {by} after {AT_S} of 300 s{SIMULATED}"
        surfaces.check(run.run_dir, run.code, run.text, "stopped early", headline)
        assert (run.manifest["stop_reason"], run.manifest["complete"]) == (by, False)
    elif by == "run_time":
        run = stopped(tmp_path, "-t", "2s")
    else:
        run = stopped(tmp_path, phases__measure_s=2)
    summary = run.summary
    check_turns_across_drain(run, USERS)
    assert summary["window_s"] == (AT_S if by in SIGNALS else 2)
    assert summary["turns"]["by_phase"]["all"]["unfinished"] == 0
    assert summary["turns"]["by_phase"]["all"]["failed"] == 0
    assert summary["verdict"]["reasons"] == []
    assert run.code == (SIGNALS[by][1] if by in SIGNALS else 0)
    assert (mark(run.run_dir, "stop") is None) == (by not in SIGNALS)


def test_a_second_ctrl_c_aborts_the_turns_in_flight(tmp_path: Path) -> None:
    run = stopped(tmp_path, by="Ctrl-C", at_s=(AT_S, AT_S + 0.5), workload__output_tokens=TOO_MANY_TOKENS, gates=[])
    turns = run.summary["turns"]["by_phase"]["all"]
    assert [turns[name] for name in ("sent", "ok", "failed", "unfinished")] == [USERS, 0, 0, USERS]
    assert run.codes == {"unfinished_drain", "no_turns"}
    assert run.summary["verdict"]["measurement"] == "invalid"
    assert run.code == 3
    assert mark(run.run_dir, "abort") is not None
    assert {(bool(row["event_ns"]), row["failure"]) for row in run.turns} == {(True, "unfinished")}
    assert [run.after_start_s(row["closed_ns"]) for row in run.turns] == [AT_S + 0.5] * USERS


@pytest.mark.parametrize("by", ["SIGTERM", "SIGHUP"])
def test_a_second_signal_other_than_ctrl_c_lets_the_turns_in_flight_complete(by: str, tmp_path: Path) -> None:
    run = stopped(tmp_path, *["--on-stop", "pass"] * (by == "SIGTERM"), by=by, at_s=(AT_S, AT_S + 0.5))
    assert run.summary["turns"]["by_phase"]["all"]["unfinished"] == 0
    assert (run.code, run.summary["outcome"]["state"]) == (0 if by == "SIGTERM" else 143, "stopped early")
    assert mark(run.run_dir, "abort") is None


def test_an_unfinished_drain_is_reported(tmp_path: Path) -> None:
    long = {"workload__output_tokens": TOO_MANY_TOKENS, "phases": {"measure_s": 2, "drain_s": 1}}
    run = stopped(tmp_path, **long)
    assert run.summary["turns"]["by_phase"]["all"]["unfinished"] == USERS
    reason = next(reason for reason in run.summary["verdict"]["reasons"] if reason["code"] == "unfinished_drain")
    assert reason["value"] == 1.0
    assert f"{USERS} of {USERS} turns" in reason["text"]
    assert run.code == 3
    assert mark(run.run_dir, "unfinished_drain") is not None


@pytest.mark.parametrize(("by", "words", "code"), [("Ctrl-C", ["--on-invalid", "warn"], 130), ("SIGTERM", [], 3)])
def test_a_run_stopped_in_its_warmup_measured_nothing(by: str, words: list[str], code: int, tmp_path: Path) -> None:
    file = scenario(tmp_path, phases__warmup_s=300, gates=[*GATES, "p50(ttft_ms) < 0.001"])
    acts = [(AT_S, int(SIGNALS[by][0]))]
    run = virtual.run(tmp_path, file, *words, "--report", *surfaces.OUTPUTS, acts=acts)
    headline = rf"stopped early by {by} after {AT_S} s of warm-up: nothing was measured{SIMULATED}"
    surfaces.check(run.run_dir, code, run.text, "stopped early", headline)
    assert run.code == code
    assert {gate["answer"] for gate in run.summary["verdict"]["gates"]} == {"not evaluated"}
    for text in (run.text, (run.run_dir / "report.md").read_text()):
        assert "FAILED" not in text
        assert "no metrics were scraped" not in text
    phases = [phase["phase"] for phase in run.manifest["phases"]]
    assert phases == ["warmup", "drain"]
    assert mark(run.run_dir, "phase", "measure") is None


# A locustfile whose listener ends the process after the first turn.
QUITS = """
from locust import events

from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    pass


@events.init.add_listener
def listen(environment, **_others):
    quits = []

    def quit_once(**_event):
        if not quits:
            quits.append(1)
            environment.runner.quit()

    environment.events.request.add_listener(quit_once)
"""


def test_the_drain_does_not_wait_for_a_listener_that_ends_the_process(tmp_path: Path) -> None:
    program = tmp_path / "quits.py"
    program.write_text(QUITS)
    run = virtual.run(tmp_path, scenario(tmp_path, workload__output_tokens=LENGTHS), locustfile=program)
    assert "Traceback" not in run.text, run.text
    check_files(run.run_dir)
    run.check_counts()
    assert mark(run.run_dir, "unfinished_drain") is None
    assert run.summary["turns"]["by_phase"]["all"]["unfinished"] == 0
    assert run.codes == set()
    assert run.code == run.summary["outcome"]["exit_code"] == 0


def test_a_signal_ends_a_preflight_without_an_answer(tmp_path: Path) -> None:
    words = ("--termination-message", "message")
    run = virtual.run(tmp_path, scenario(tmp_path), *words, script="changed_servers:interrupting")
    assert "Traceback" not in run.text, run.text
    assert run.code == 130
    text = "stopped early by Ctrl-C before the load: nothing was measured"
    assert text in run.text
    assert (tmp_path / "message").read_text() == f"inferload: {text}\n"
    assert not run.run_dir.exists()


# A locustfile whose listener delays the start of the run, and sends a signal.
SLOW_TO_BEGIN = """
import os
import time

from locust import events

from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    pass


@events.init.add_listener
def wait(**_others):
    time.sleep(3)
    os.kill(os.getpid(), {number})
    time.sleep(3)
"""
SHAPE = """
from locust import LoadTestShape


class Shape(LoadTestShape):
    def tick(self):
        return 1, 1
"""


@pytest.mark.parametrize(("by", "shape"), [*((by, False) for by in SIGNALS), ("Ctrl-C", True)])
def test_a_signal_before_the_start_of_a_run_sets_the_exit_code(by: str, shape: bool, tmp_path: Path) -> None:
    number, code = SIGNALS[by]
    program = tmp_path / "slow.py"
    program.write_text(SLOW_TO_BEGIN.format(number=int(number)) + SHAPE * shape)
    words = ("--junit", "junit.xml", "--termination-message", "message")
    run = virtual.run(tmp_path, scenario(tmp_path), *words, locustfile=program)
    assert "Traceback" not in run.text, run.text
    text = f"stopped early by {by} before the load: nothing was measured"
    assert run.text.count(text) == 1
    assert run.code == code
    assert (tmp_path / "message").read_text() == f"inferload: {text}\n"
    assert (tmp_path / "junit.xml").exists()
    assert not run.run_dir.exists()
