"""The outcome of runs on terminal, summary, report, JUnit, web page and exit code."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forge
import pytest
from e2e_runs import PATIENCE_S, FinishedRun, Fleet, RunCase, Sandbox, mark, marks_of, run_cases, scenario, wait_until
from locust_process import ROOT, most_at_once, summary_of, turns_of
from test_e2e_stop import GATES as HOLDING

from inferload import cli
from inferload.base import rundir
from inferload.scenario import scenario as scenarios

GATES = [*HOLDING, "p50(ttft_ms) < 0.001", "p50(e2e_ms) < 0.001"]
pytestmark = pytest.mark.timeout(300)


def ended(sandbox: Sandbox, fleet: Fleet, **seen: Any) -> FinishedRun:
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, seen=seen)


def measured_s(file: Path) -> float:
    """Return the duration of the measure phase so far, by the run's progress file."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return json.loads(lines[-1])["measured_s"] or 0.0 if lines else 0.0


def closed_terminal(sandbox: Sandbox) -> tuple[int, Path]:
    """Run on a terminal that is closed: the kernel sends SIGHUP, and writes to the terminal fail."""
    file = scenario(sandbox.folder, phases__measure_s=300)
    words = ["-f", str(ROOT / "locustfiles" / "chat.py"), "--headless", "--host", sandbox.simulator().url]
    words += ["--scenario", str(file), "--run-dir", str(sandbox.run_dir), "--on-invalid", "warn"]
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "locust", *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=sandbox.folder)
    os.close(theirs)
    try:

        def measuring() -> bool:
            while select.select([ours], [], [], 0)[0]:
                os.read(ours, 1 << 16)
            return mark(sandbox.run_dir, "phase", "measure") is not None

        wait_until(measuring, "the measure phase")
        os.close(ours)
        return process.wait(PATIENCE_S), sandbox.run_dir
    finally:
        process.kill()


@run_cases(closed_terminal, ())
def test_closing_the_terminal_stops_the_run_early(ended: Any) -> None:
    code, run_dir = ended
    assert code == 143
    assert summary_of(run_dir)["outcome"]["headline"].startswith("stopped early by SIGHUP after ")
    assert (run_dir / rundir.REPORT_HTML).is_file()


# -- the web page


def on_the_page(sandbox: Sandbox, *outcomes: str) -> FinishedRun:
    """Make runs on the page; each ends as planned, by the start form, or in a ramp by the page's Stop."""
    fails = outcomes == ("failed",)
    measure_s, gates = (2, GATES) if fails else (300, HOLDING)
    file = scenario(sandbox.folder, phases__measure_s=measure_s, phases__warmup_s=0 if fails else 1, gates=gates)
    server, statuses = sandbox.simulator(), [{"run_dir": ""}]
    fleet = sandbox.fleet("local", "--host", server.url, "--scenario", str(file), "--on-invalid", "warn", web=True)
    fleet.wait_for_page()
    for outcome in outcomes:
        timed = {"run_time": "2s"} if outcome == "passed" else {}
        assert fleet.post("/swarm", user_count=2, spawn_rate=50, **timed)["success"]
        if outcome == "stopped":
            wait_until(lambda: fleet.get_json("/inferload/status").get("phase") == "measure", "the measure phase")
            finished = server.stats()["requests"]["finished"]
            wait_until(lambda before=finished: server.stats()["requests"]["finished"] > before, "a turn")
            fleet.steer(do="ramp", level=22, over_s=10)
            time.sleep(1)
            assert fleet.press_stop()
        statuses.append(fleet.outcome(after=statuses[-1]["run_dir"]))
    script = fleet.get("/inferload/run_line.js").decode()
    fleet.signal(signal.SIGINT, whole_group=False)
    return ended(sandbox, fleet, statuses=statuses[1:], script=script)


@run_cases(on_the_page, ("failed",), ("passed", "stopped"))
def test_the_page_shows_the_outcome_and_its_colour(ended: FinishedRun, run_case: RunCase) -> None:
    colours = dict(re.findall(r'"?\b([a-z ]+)"?: "(#[0-9a-f]{6})"', ended.seen["script"]))
    assert {"failed", "stopped early", "invalid", "suspect", "passed"} <= set(colours)
    assert {state for state, colour in colours.items() if colour == colours["passed"]} == {"passed"}
    assert ended.code == (run_case.arguments == ("failed",)), ended.text
    for outcome, status in zip(run_case.arguments, ended.seen["statuses"], strict=True):
        stated = summary_of(Path(status["run_dir"]))["outcome"]
        assert (status["outcome"], status["headline"]) == (stated["state"], stated["headline"])
        assert stated["headline"] in ended.text.splitlines()
        if outcome == "failed":
            assert status["outcome"] == "failed"
            assert status["headline"].startswith("failed: 2 of 5 gates failed")
        else:
            check_planned(Path(status["run_dir"]), outcome, status)


def check_planned(run_dir: Path, outcome: str, status: dict[str, Any]) -> None:
    """Check that the page's Stop, and its run time, were a planned end."""
    assert status["outcome"] != "stopped early"
    document = rundir.read_object(run_dir / rundir.MANIFEST)
    assert document["complete"]
    if outcome == "passed":  # Locust's own timer would have stopped it a warm-up earlier
        (measured,) = [phase for phase in document["phases"] if phase["phase"] == "measure"]
        assert measured["end_wall_ns"] - measured["start_wall_ns"] >= 1.99e9
        return
    begun, over = [change for change in marks_of(run_dir) if change["kind"] == "users"]
    assert begun["text"] == "ramp by hand: 2 -> 22 users in 10 s"
    assert over["text"] == f"ramp by hand ended with the load at {over['users']} users"
    assert 3 <= over["users"] <= 12
    drain = mark(run_dir, "phase", "drain")
    assert drain is not None
    assert 0 <= over["wall_ns"] - drain["wall_ns"] < 5e9  # the ramp would have ended 9 s later


QUICK = [
    *("--users", "3", "--duration", "2s", "--input-len", "40", "--output-len", "6", "--set", "workload.turns=2"),
    *("--processes", "2"),
]
SET = {
    **{"arrivals.users": 3, "phases.measure_s": 2.0, "workload.prompt_tokens": 40, "workload.output_tokens": 6},
    "workload.turns": 2,
}


def newest(sandbox: Sandbox) -> list[tuple[int, str, Path]]:
    """Run `inferload run` several times; return exit code, standard output and newest run directory of each."""
    runs, progress = sandbox.folder / "runs", sandbox.folder / "progress"
    host, python, ends = sandbox.simulator().url, forge.LOCUST.proxy(), []
    for name, measure_s, words in (
        ("bare", 1, ["--no-report"]),
        ("passed", 1, QUICK),
        ("stopped", 300, ["--progress-file", str(progress)]),
    ):
        (sandbox.folder / name).mkdir()
        file = scenario(sandbox.folder / name, phases={"measure_s": measure_s, "drain_s": 30})
        command = [python, "-m", "inferload", "run", str(file), "--host", host, "--on-invalid", "warn", *words]
        process = subprocess.Popen(
            command, cwd=sandbox.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            if name == "stopped":
                wait_until(lambda: measured_s(progress) > 0, "the measure phase")
                process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        ends.append((process.returncode, output, runs / (runs / rundir.LATEST).readlink()))
    return ends


@run_cases(newest, ())
def test_latest_links_the_newest_run_and_the_last_line_is_its_report(ended: Any) -> None:
    assert [code for code, _, _ in ended] == [0, 0, 143]
    assert len({run for _, _, run in ended}) == 3
    for _, output, run in ended[1:]:
        assert output.splitlines()[-1] == str(run / rundir.REPORT_HTML)
        assert f"\n{rundir.read_object(run / rundir.SUMMARY)['outcome']['headline']}\n" in f"\n{output}"
        assert (run / rundir.REPORT_HTML).is_file()
    assert ended[0][1].splitlines()[-1] == str(ended[0][2])


@run_cases(newest, ())
def test_quick_options_are_in_the_manifest_the_digest_and_the_load(ended: Any) -> None:
    (_, _, plain), (_, _, quick), *_ = ended
    before, after = (rundir.read_object(run / rundir.MANIFEST) for run in (plain, quick))
    assert before["scenario"]["overrides"] == {}
    assert after["scenario"]["overrides"] == SET
    changed = scenarios.from_text(before["scenario"]["text"], "x").changed(SET)
    assert after["scenario"]["digest"] == changed.digest != before["scenario"]["digest"]
    assert after["scenario"]["text"] == changed.resolved_text()
    assert len(after["workers"]) == 2
    assert summary_of(quick)["window_s"] == pytest.approx(2, rel=0.2)
    turns = turns_of(quick)
    assert {turn["output_tokens"] for turn in turns} == {6}
    assert {turn["turn_index"] for turn in turns} == {0, 1}
    assert most_at_once(turns) == 3
    first = {turn["input_tokens"] for turn in turns if turn["turn_index"] == 0}
    assert len(first) == 1
    assert 40 <= min(first) < 80, "the chat template adds tokens"


# -- keys on a command line

KEY = "sk-canary-5ecret"


@pytest.mark.parametrize("words", [["--api-key", KEY], [f"--api-key={KEY}"], ["--api-key-f", KEY]])
@pytest.mark.parametrize(
    "command",
    [
        [],
        ["run", "smoke", "--host", "http://h:1"],
        ["doctor"],
        ["scrape", "http://h:1"],
        ["search", "smoke"],
        ["report"],
    ],
)
def test_commands_refuse_keys_and_abbreviations(
    command: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, *words])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err


# -- a signal before the run


def before_the_run(sandbox: Sandbox) -> tuple[int, str, Path]:
    """Send a signal while the master waits for a missing worker."""
    file = scenario(sandbox.folder)
    fleet = sandbox.fleet("by_hand", "--host", sandbox.simulator().url, "--scenario", str(file), workers=0, expected=1)
    fleet.master.wait_for_line("waiting for workers")
    fleet.signal(signal.SIGTERM, whole_group=False)
    return fleet.exit_code(), fleet.text, sandbox.run_dir


@run_cases(before_the_run, ())
def test_a_signal_before_the_run_ends_the_wait(ended: Any) -> None:
    code, text, run_dir = ended
    assert code == 143, text
    assert "stopped early by SIGTERM before the load: nothing was measured" in text
    assert not run_dir.exists()
