"""The outcome of runs on terminal, summary, report, JUnit, web page and exit code."""

import html
import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import summaries
from e2e_runs import (
    PATIENCE_S,
    FinishedRun,
    Fleet,
    RunCase,
    RunPool,
    Sandbox,
    mark,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import ROOT, csv_rows, start, summary_of, turns_of
from ports import unused_port
from test_e2e_stop import GATES as HOLDING
from test_e2e_stop import SHOWN, stop

from inferload import cli
from inferload.base import rundir
from inferload.results import ci
from inferload.scenario import scenario as scenarios

pytestmark = pytest.mark.timeout(300)

ADDED = [
    "preemptions == 0",
    "failed_ratio{chat} < 0.5",
    "mean(kv_cache_usage) > 0.999",
    "failed_ratio{GET /health} < 0.01",
]
GATES = [*HOLDING, "p50(ttft_ms) < 0.001", "p50(e2e_ms) < 0.001"]
WAYS = {"sigint": "Ctrl-C", "sigterm": "SIGTERM", "sighup": "SIGHUP"}
SIGNALS = {"Ctrl-C": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143), "SIGHUP": (signal.SIGHUP, 143)}


def ended(sandbox: Sandbox, fleet: Fleet, **seen: Any) -> FinishedRun:
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, seen=seen)


def measured_s(file: Path) -> float:
    """Return the duration of the measure phase so far, by the run's progress file."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return json.loads(lines[-1])["measured_s"] or 0.0 if lines else 0.0


def all_failed(sandbox: Sandbox) -> FinishedRun:
    """Kill the server at the start of the measure phase."""
    server = sandbox.simulator()
    file = scenario(sandbox.folder, phases={"measure_s": 3, "drain_s": 30}, workload__output_tokens=400)
    fleet = sandbox.fleet("local", "--host", server.url, "--scenario", str(file), "--on-invalid", "warn", report=True)
    wait_for_measure_phase(sandbox.run_dir)
    server.process.kill()
    return ended(sandbox, fleet)


PROBING = """
import itertools

import locust
from inferload.users import events
from inferload.users import ScenarioUser

numbers = itertools.count()


class ChatUser(ScenarioUser):
    scenario = "smoke"


@events.turn_end.add_listener
def probe(record, **_others):
    bad = OSError("no") if next(numbers) % 4 == 0 else None
    locust.events.request.fire(
        request_type="GET", name="/health", response_time=1, response_length=0, exception=bad, context={}
    )
"""


def gates_failed(sandbox: Sandbox) -> FinishedRun:
    """Run with gates of scenario and command line, and with other requests."""
    file = scenario(sandbox.folder, phases={"measure_s": 2, "drain_s": 30}, gates=GATES)
    locustfile = sandbox.folder / "probing.py"
    locustfile.write_text(PROBING)
    words = ["--host", sandbox.simulator().url, "--scenario", str(file), "--on-invalid", "warn", "--details"]
    words += [word for text in ADDED for word in ("--gate", text)]
    return ended(sandbox, sandbox.fleet("local", *words, report=True, locustfile=locustfile))


def stop_allowed(sandbox: Sandbox) -> FinishedRun:
    """Send SIGTERM after the first turns, with gates that pass."""
    file, server = scenario(sandbox.folder, gates=HOLDING), sandbox.simulator()
    words = ("--scenario", str(file), "--on-invalid", "warn", "--on-stop", "pass")
    fleet = sandbox.fleet("local", "--host", server.url, *words)
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: server.stats()["requests"]["finished"] > 2, "turns of the run")
    fleet.signal(signal.SIGTERM, whole_group=False)
    return ended(sandbox, fleet)


def stopped_in_warmup(sandbox: Sandbox, by: str, *words: str) -> FinishedRun:
    file = scenario(sandbox.folder, phases__warmup_s=300, gates=GATES)
    fleet = sandbox.fleet("local", "--host", sandbox.simulator().url, "--scenario", str(file), *words, report=True)
    wait_until(lambda: mark(sandbox.run_dir, "phase", "warmup"), "the warm-up")
    fleet.signal(SIGNALS[by][0], whole_group=False)
    return ended(sandbox, fleet)


def check_surfaces(ended: FinishedRun, state: str, headline: str, raised: bool = False) -> None:
    """Check that each output shows the headline of the summary. `raised`: Locust logs a task's exception."""
    assert ("Traceback" in ended.text) == raised, ended.text
    stated = ended.summary["outcome"]
    assert (stated["state"], stated["exit_code"]) == (state, ended.code), ended.text
    assert re.fullmatch(headline, stated["headline"]), stated
    assert stated["headline"] in ended.text.splitlines(), "first line of the tables on the terminal"
    *details, report, last = ended.text.rstrip().splitlines()[-5:]
    assert last.endswith(f": {stated['headline']}"), "last line of the log"
    *_before, after = ended.text.partition(f"\n{stated['headline']}\n")
    own = [line for line in after.splitlines() if "/INFO/locust." not in line]
    more_gates = max(0, len(ended.summary["verdict"]["gates"]) - 1)  # each has a line
    assert len(own) - more_gates < 25 or "\nLatency" in after
    assert "# reqs" not in ended.text, "Locust's own tables"
    assert report.endswith(f": report: {ended.run_dir / rundir.REPORT_HTML}")
    for line in ci.explanation(summaries.summary(ended.summary), len(details)):
        assert any(detail.endswith(f": {line}") for detail in details), line
    page, markdown = (
        html.unescape((ended.run_dir / name).read_text()) for name in (rundir.REPORT_HTML, rundir.REPORT_MD)
    )
    stated_in = [line for line in markdown.replace("\\", "").splitlines()[:4] if stated["headline"] in line]
    assert stated_in, "the first paragraph of report.md"
    assert f"<title>{stated['headline']} · " in page
    assert str(ended.run_dir / rundir.REPORT_HTML) in ended.text.splitlines()
    check_load(ended, markdown, page)
    assert f'<body class="{state.replace(" ", "-")}">' in page
    (suite,) = ElementTree.parse(ended.run_dir.with_name("junit.xml")).getroot()
    properties = {prop.get("name"): prop.get("value") for prop in suite.iter("property")}
    assert (properties["outcome"], properties["state"], properties["exit_code"]) == (
        stated["headline"],
        state,
        str(ended.code),
    )
    (case,) = suite.findall("testcase[@name='run']")
    by_gates = ended.code == 1 and any(not gate["passed"] for gate in ended.summary["verdict"]["gates"])
    assert [(failure.get("type"), failure.get("message")) for failure in case.findall("failure")] == (
        [] if by_gates else [(state, stated["headline"])]
    )
    assert stated["headline"] in "".join(case.itertext()), "without a failure: its output"
    assert f"**run**: {stated['headline']}" in ended.run_dir.with_name("gates.md").read_text()


def check_load(ended: FinishedRun, markdown: str, page: str) -> None:
    """Check that terminal and report state the load of run.json."""
    load = rundir.read_object(ended.run_dir / rundir.MANIFEST)["load"]
    assert [title for title, _ in load["rows"]] == ["arrivals", "session", "request", "phases"]
    assert f'<p class="users">{load["users_or_rate"]}</p><p class="note">{load["detail"]}</p>' in page
    detailed = "\nLatency" in ended.text
    assert detailed or f", {load['users_or_rate']}\n" in ended.text
    for title, lines in load["rows"]:
        assert not detailed or f"{title:<10}{lines[0]}" in ended.text
        assert f"| {title} | {lines[0]}" in markdown.replace("\\", "")
        assert f"<dt>{title}</dt><dd>{lines[0]}" in page


@run_cases(all_failed, ())
def test_a_run_whose_turns_all_failed_is_failed(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 1
    turns = ended.summary["turns"]["by_phase"]["all"]
    assert turns["ok"] == 0
    assert turns["failed"] > 0
    last_lines = "\n".join(ended.text.splitlines()[-5:])
    assert re.search(r"the server http://\S+ stopped answering at \d+\.\d s: ", last_lines)
    assert re.search(r": first (connect|cut 200) of \S+ at \d+\.\d s on ", last_lines)
    check_surfaces(ended, "failed", rf"failed: {turns['failed']} of {turns['failed']} turns failed(; measurement .*)?")


@run_cases(gates_failed, ())
def test_a_run_with_failed_gates_is_failed(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 1
    (probe,) = ended.summary["other_requests"]["by_name"]
    other = f"{probe['failed']} of {probe['sent']} other requests failed"
    check_surfaces(ended, "failed", rf"failed: 4 of 9 gates failed; {other}(; measurement .*)?")
    (row,) = [row for row in csv_rows(ended.run_dir / "locust_stats.csv") if row["Type"] == "GET"]
    assert (probe["type"], probe["name"]) == (row["Type"], row["Name"])
    assert (probe["sent"], probe["failed"]) == (int(row["Request Count"]), int(row["Failure Count"]))
    gates = {gate["gate"]: gate for gate in ended.summary["verdict"]["gates"]}
    assert list(gates) == GATES + ADDED
    assert rundir.read_object(ended.run_dir / rundir.MANIFEST)["scenario"]["overrides"] == {"gates": GATES + ADDED}
    (server,) = ended.summary["servers"]
    assert [gates[text]["passed"] for text in ADDED] == [True, True, False, False]
    assert gates["preemptions == 0"]["value"] == server["preemptions"] == 0
    assert gates["mean(kv_cache_usage) > 0.999"]["value"] == server["kv_cache_usage"]["mean"]
    assert gates["failed_ratio{GET /health} < 0.01"]["value"] == probe["failed"] / probe["sent"]
    (suite,) = ElementTree.fromstring(ci.junit({"run": summaries.summary(ended.summary)}))
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed >= set(GATES[3:] + ADDED[2:])
    page = (ended.run_dir / rundir.REPORT_MD).read_text()
    for text in ADDED:
        shown = "passed" if gates[text]["passed"] else "FAILED"
        assert re.search(rf"^  {re.escape(text)} .* {shown}", ended.text, re.MULTILINE), text
        assert re.search(rf"^\| {re.escape(text)} \| .* \| {shown}", page.replace("\\", ""), re.MULTILINE), text
    assert "\nLatency" in ended.text
    assert ": gates that failed: p50(ttft_ms) < 0.001: is " in "\n".join(ended.text.splitlines()[-5:])
    assert str(ended.run_dir / rundir.REPORT_HTML) in ended.text.splitlines()


@run_cases(stop, *SHOWN)
def test_a_run_ended_by_a_signal_is_stopped_early(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    by = WAYS[run_case.arguments[0]]
    assert ended.code == SIGNALS[by][1], ended.text
    manifest = rundir.read_object(ended.run_dir / rundir.MANIFEST)
    (measure,) = (phase for phase in manifest["phases"] if phase["phase"] == "measure")
    lasted_s = (measure["end_wall_ns"] - measure["start_wall_ns"]) / 1e9
    check_surfaces(ended, "stopped early", rf"stopped early by {by} after {lasted_s:.1f} of 300 s(; measurement .*)?")
    assert (manifest["stop_reason"], manifest["complete"]) == (by, False)
    assert ended.summary["turns"]["by_phase"]["all"]["unfinished"] == 0


@run_cases(stop_allowed, ())
def test_on_stop_pass_ends_a_stopped_run_with_code_0(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    assert ended.summary["outcome"]["state"] == "stopped early"


@run_cases(stopped_in_warmup, ("Ctrl-C", "--on-invalid", "warn"), ("SIGTERM",))
def test_a_run_stopped_in_its_warmup_measured_nothing(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    by, *allowed = run_case.arguments
    assert ended.code == (SIGNALS[by][1] if allowed else 3), ended.text
    check_surfaces(ended, "stopped early", rf"stopped early by {by} after \d+\.\d s of warm-up: nothing was measured")
    assert mark(ended.run_dir, "phase", "warmup")
    assert mark(ended.run_dir, "phase", "drain")
    assert mark(ended.run_dir, "phase", "measure") is None
    phases = [phase["phase"] for phase in rundir.read_object(ended.run_dir / rundir.MANIFEST)["phases"]]
    assert phases == ["warmup", "drain"]


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
def test_closing_the_terminal_stops_the_run_early(run_pool: RunPool, run_case: RunCase) -> None:
    code, run_dir = run_pool.result(run_case)
    assert code == 143
    assert summary_of(run_dir)["outcome"]["headline"].startswith("stopped early by SIGHUP after ")
    assert (run_dir / rundir.REPORT_HTML).is_file()


# -- the web page


OPEN_LOOPS = {"refused": 6, "overloaded": 12}  # sessions/s


def on_the_page(sandbox: Sandbox, outcome: str) -> FinishedRun:
    """Start a run on the page; it ends as planned or by the page's Stop."""
    gates = {"failed": GATES, "passed": HOLDING, "stopped": HOLDING}.get(outcome, [])
    timed = {"run_time": "2s"} if outcome == "passed" else {}  # by the start form
    measure_s, warmup_s = (2, 0) if outcome == "failed" else (300, 1 if timed else 0)
    changes: dict[str, Any] = {"phases__measure_s": measure_s, "phases__warmup_s": warmup_s, "gates": gates}
    users = OPEN_LOOPS.get(outcome, 2)
    if outcome in OPEN_LOOPS:
        changes |= {"arrivals": {"kind": "constant", "sessions_per_s": users}, "workload__output_tokens": 10}
        changes |= {"phases": {"warmup_s": 1, "measure_s": 8, "drain_s": 60}}
    file = scenario(sandbox.folder, **changes)
    slow = ("--ttft-ms", "20", "--itl-ms", "20", "--max-num-seqs", "1")
    server = sandbox.simulator(*slow, paced=False) if outcome == "overloaded" else sandbox.simulator()
    fleet = sandbox.fleet("local", "--host", server.url, "--scenario", str(file), "--on-invalid", "warn", web=True)
    fleet.wait_for_page()
    assert fleet.post("/swarm", user_count=users, spawn_rate=50, **timed)["success"]
    wait_for_measure_phase(sandbox.run_dir)
    if outcome == "refused":
        server.chaos(kind="status", status=400, count=100_000)
    if outcome == "stopped":
        wait_until(lambda: server.stats()["requests"]["finished"] > 1, "a turn of the run")  # besides the preflight's
        assert fleet.press_stop()
    status = wait_until(
        lambda: (status := fleet.get_json("/inferload/status")) and "headline" in status and status, "the outcome"
    )
    script = fleet.get("/inferload/run_line.js").decode()
    fleet.signal(signal.SIGINT, whole_group=False)
    return ended(sandbox, fleet, status=status, script=script)


@run_cases(on_the_page, ("failed",), ("passed",), ("stopped",), ("refused",), ("overloaded",))
def test_the_page_shows_the_outcome_and_its_colour(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    status, stated = ended.seen["status"], ended.summary["outcome"]
    assert (status["outcome"], status["headline"]) == (stated["state"], stated["headline"])
    colours = dict(re.findall(r'"?\b([a-z ]+)"?: "(#[0-9a-f]{6})"', ended.seen["script"]))
    assert {"failed", "stopped early", "invalid", "suspect", "passed"} <= set(colours)
    green = {state for state, colour in colours.items() if colour == colours["passed"]}
    assert green == {"passed"}
    assert stated["headline"] in ended.text.splitlines()
    if run_case.arguments[0] in ("failed", "refused"):
        turns = ended.summary["turns"]["by_phase"]["all"]
        failed = {
            "failed": "2 of 5 gates failed",
            "refused": f"{turns['failed']} of {turns['ok'] + turns['failed']} turns failed",
        }
        assert status["outcome"] == "failed"
        assert status["headline"].startswith(f"failed: {failed[run_case.arguments[0]]}")
        assert ended.idle_code == 1
    elif run_case.arguments[0] == "overloaded":
        assert "overload" in ended.codes
        assert status["outcome"] in ("suspect", "invalid")  # invalid on a busy machine
        if status["outcome"] == "suspect":
            assert re.match(r"suspect: overloaded: \S+ turns/s offered, \S+/s ended", status["headline"])
        assert ended.idle_code == 0, ended.text
    else:
        assert status["outcome"] != "stopped early", "the page's Stop is a planned end"
        assert ended.idle_code == 0, ended.text
        document = rundir.read_object(ended.run_dir / rundir.MANIFEST)
        assert document["complete"]
        if run_case.arguments[0] == "passed":  # Locust's own timer would have stopped it a warm-up earlier
            (measured,) = [phase for phase in document["phases"] if phase["phase"] == "measure"]
            assert measured["end_wall_ns"] - measured["start_wall_ns"] >= 1.99e9


# -- locustfiles


BARE = """
from inferload.users import InferenceUser


class Support(InferenceUser):
    pass
"""


def without_tasks(sandbox: Sandbox, mode: str) -> tuple[int, str]:
    file = sandbox.folder / "bare.py"
    file.write_text(BARE)
    words = ["--host", "http://127.0.0.1:9", "-t", "2s"]
    words += ["--web-host", "127.0.0.1", "--web-port", str(unused_port())] if mode == "web" else ["--headless"]
    words += ["--processes", "2"] if mode == "processes" else []
    process = start(*words, cwd=sandbox.folder, locustfile=file)
    return process.exit_code(), process.text


@run_cases(without_tasks, ("local",), ("processes",), ("web",))
def test_a_user_without_tasks_is_refused(run_pool: RunPool, run_case: RunCase) -> None:
    code, text = run_pool.result(run_case)
    assert code == 2, text
    (line,) = [line for line in text.splitlines() if line.startswith("inferload: ")]
    assert line.startswith("inferload: Support: has no task")


RAISING = """
from inferload.users import ScenarioUser
from locust import task


class ChatUser(ScenarioUser):
    @task
    def broken(self):
        if self.environment.inferload_worker._run.context.open:
            raise KeyError("no such prompt")
"""


def raising(sandbox: Sandbox) -> FinishedRun:
    """Run a scenario with a further task that raises."""
    locustfile = sandbox.folder / "raising.py"
    locustfile.write_text(RAISING)
    file = scenario(sandbox.folder, phases={"measure_s": 2, "drain_s": 30})
    words = ("--host", sandbox.simulator().url, "--scenario", str(file), "--on-invalid", "warn")
    return ended(sandbox, sandbox.fleet("processes", *words, report=True, locustfile=locustfile))


@run_cases(raising, ())
def test_a_task_that_raises_fails_the_run(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 1, ended.text
    check_surfaces(ended, "failed", r"failed: tasks raised \d+ exceptions?, the first: .*no such prompt.*", raised=True)


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
    host = sandbox.simulator().url
    ends = []
    for name, measure_s, words in (
        ("bare", 1, ["--no-report"]),
        ("passed", 1, QUICK),
        ("stopped", 300, ["--progress-file", str(progress)]),
    ):
        (sandbox.folder / name).mkdir()
        file = scenario(sandbox.folder / name, phases={"measure_s": measure_s, "drain_s": 30})
        command = [sys.executable, "-m", "inferload", "run", str(file), "--host", host, "--on-invalid", "warn", *words]
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
def test_latest_links_the_newest_run_and_the_last_line_is_its_report(run_pool: RunPool, run_case: RunCase) -> None:
    ends = run_pool.result(run_case)
    assert [code for code, _, _ in ends] == [0, 0, 143]
    assert len({run for _, _, run in ends}) == 3
    for _, output, run in ends[1:]:
        assert output.splitlines()[-1] == str(run / rundir.REPORT_HTML)
        assert f"\n{rundir.read_object(run / rundir.SUMMARY)['outcome']['headline']}\n" in f"\n{output}"
        assert (run / rundir.REPORT_HTML).is_file()
    assert ends[0][1].splitlines()[-1] == str(ends[0][2])


@run_cases(newest, ())
def test_quick_options_are_in_the_manifest_the_digest_and_the_load(run_pool: RunPool, run_case: RunCase) -> None:
    (_, _, plain), (_, _, quick), *_ = run_pool.result(run_case)
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
    starts_ends = [(turn["sent_ns"], 1) for turn in turns] + [(turn["closed_ns"], -1) for turn in turns]
    assert max(itertools.accumulate(step for _, step in sorted(starts_ends))) == 3
    first = {turn["input_tokens"] for turn in turns if turn["turn_index"] == 0}
    assert len(first) == 1
    assert 40 <= min(first) < 80, "the chat template adds tokens"


# -- keys on a command line

KEY = "sk-canary-5ecret"


def refused(sandbox: Sandbox, *words: str) -> tuple[int, str]:
    process = start("--headless", "--host", "http://127.0.0.1:9", *words, cwd=sandbox.folder)
    return process.exit_code(), process.text


REFUSED = (("--api-key", KEY), (f"--api-key={KEY}",), ("--api-key-f", KEY), ("--scen", "smoke"))


@run_cases(refused, *REFUSED)
def test_locust_refuses_keys_and_abbreviations(run_pool: RunPool, run_case: RunCase) -> None:
    code, text = run_pool.result(run_case)
    assert code == 2, text
    if run_case.arguments[0].startswith("--api-key"):
        assert KEY not in text
    if run_case.arguments[0].partition("=")[0] == "--api-key":
        assert text.splitlines()[-1].startswith("inferload: --api-key: ")
        assert "--api-key-file FILE or OPENAI_API_KEY" in text


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


def before_the_run(sandbox: Sandbox, by: str) -> tuple[int, str, Path]:
    """Send a signal while the master waits for a missing worker."""
    file = scenario(sandbox.folder)
    fleet = sandbox.fleet("by_hand", "--host", sandbox.simulator().url, "--scenario", str(file), workers=0, expected=1)
    fleet.master.wait_for_line("waiting for workers")
    fleet.signal(SIGNALS[by][0], whole_group=False)
    return fleet.exit_code(), fleet.text, sandbox.run_dir


@run_cases(before_the_run, *((by,) for by in SIGNALS))
def test_a_signal_before_the_run_ends_the_wait(run_pool: RunPool, run_case: RunCase) -> None:
    code, text, run_dir = run_pool.result(run_case)
    by = run_case.arguments[0]
    assert code == SIGNALS[by][1], text
    assert f"stopped early by {by} before the load: nothing was measured" in text
    assert not run_dir.exists()
