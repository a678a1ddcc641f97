"""One outcome on every surface: terminal, summary, report, JUnit, web page and exit code of whole runs."""

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
from e2e_runs import PATIENCE_S, Ended, Fleet, Place, Scene, Stage, begun, contract_code, mark, scenario, scenes, until
from inferload.analysis.comparison import gatescommand
from locust_process import ROOT, start, summary_of

from inferload import cli, rundir

pytestmark = pytest.mark.timeout(300)

WINDOW_S = 9
GATES = [
    *("failed_ratio < 0.5", "p50(ttft_ms) < 60000", "p50(e2e_ms) < 60000"),
    *("p50(ttft_ms) < 0.001", "p50(e2e_ms) < 0.001"),
]
SIGNALS = {"Ctrl-C": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143), "SIGHUP": (signal.SIGHUP, 143)}


def ended(place: Place, fleet: Fleet, **seen: Any) -> Ended:
    return Ended(place.run_dir, fleet.ended(), fleet.text, seen=seen)


def measured_s(file: Path) -> float:
    """How long the measure phase has lasted, by the run's progress file."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return json.loads(lines[-1])["measured_s"] or 0.0 if lines else 0.0


def all_failed(place: Place, mode: str) -> Ended:
    """A server that breaks once the run has begun, and stays so."""
    server = place.simulator()
    file = scenario(place.folder, phases={"measure_s": 3, "drain_s": 30}, workload__output_tokens=400)
    fleet = place.fleet(mode, "--host", server.url, "--scenario", str(file), "--on-invalid", "warn", report=True)
    begun(place.run_dir)
    server.process.kill()
    return ended(place, fleet)


def gates_failed(place: Place) -> Ended:
    file = scenario(place.folder, phases={"measure_s": 2, "drain_s": 30}, gates=GATES)
    words = ("--host", place.simulator().url, "--scenario", str(file), "--on-invalid", "warn")
    return ended(place, place.fleet("local", *words, report=True))


def stopped(place: Place, by: str, mode: str, *words: str) -> Ended:
    """A signal after a third of the window; gates that hold."""
    file, progress = scenario(place.folder, phases__measure_s=WINDOW_S, gates=GATES[:3]), place.folder / "progress"
    words = ("--scenario", str(file), "--on-invalid", "warn", "--progress-file", str(progress), *words)
    fleet = place.fleet(mode, "--host", place.simulator().url, *words, report=True)
    until(lambda: measured_s(progress) >= WINDOW_S / 3, "a third of the window")
    fleet.signal(SIGNALS[by][0], whole_group=False)
    return ended(place, fleet)


def stopped_in_warmup(place: Place, by: str, *words: str) -> Ended:
    file = scenario(place.folder, phases__warmup_s=300, gates=GATES)
    fleet = place.fleet("local", "--host", place.simulator().url, "--scenario", str(file), *words, report=True)
    until(lambda: mark(place.run_dir, "phase", "warmup"), "the warm-up")
    fleet.signal(SIGNALS[by][0], whole_group=False)
    return ended(place, fleet)


def check_surfaces(ended: Ended, state: str, headline: str) -> None:
    """Every surface shows the headline as the summary states it."""
    assert "Traceback" not in ended.text, ended.text
    stated = ended.summary["outcome"]
    assert (stated["state"], stated["exit_code"]) == (state, ended.code), ended.text
    assert re.fullmatch(headline, stated["headline"]), stated
    assert stated["headline"] in ended.text.splitlines(), "the terminal's first line of the tables"
    ours = [line for line in ended.text.splitlines() if "/inferload.swarm" in line]
    assert ours[-1].endswith(f": {stated['headline']}"), ours[-3:]
    page, markdown = ((ended.run_dir / name).read_text() for name in (rundir.REPORT_HTML, rundir.REPORT_MD))
    assert markdown.splitlines()[0].replace("\\", "").endswith(f": {stated['headline']}")
    assert f"<title>{stated['headline']} · " in page
    assert f'<body class="{state.replace(" ", "-")}">' in page
    (suite,) = ElementTree.fromstring(gatescommand.junit({"run": ended.summary}))
    found = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert found == {"outcome": stated["headline"], "state": state}
    assert cli.main(["gates", str(ended.run_dir)]) != 0


@scenes(all_failed, ("local",), ("processes",))
def test_a_run_of_which_every_turn_failed_is_failed(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert ended.code == 1
    turns = ended.summary["turns"]["by_phase"]["all"]
    assert turns["ok"] == 0
    assert turns["failed"] > 0
    check_surfaces(ended, "failed", rf"failed: {turns['failed']} of {turns['sent']} turns failed(; measurement .*)?")


@scenes(gates_failed, ())
def test_a_run_with_gates_that_failed_is_failed(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert ended.code == 1
    check_surfaces(ended, "failed", r"failed: 2 of 5 gates failed(; measurement .*)?")
    assert str(ended.run_dir / rundir.REPORT_HTML) in ended.text.splitlines()


STOPPED = [(by, mode) for by in SIGNALS for mode in ("local", "processes")]


@scenes(stopped, *STOPPED)
def test_a_run_that_a_signal_ends_is_stopped_early(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    by = scene.arguments[0]
    assert ended.code == SIGNALS[by][1], ended.text
    after = rf"([3-8]\.\d) of {WINDOW_S} s(; measurement .*)?"
    check_surfaces(ended, "stopped early", f"stopped early by {by} after {after}")
    manifest = rundir.read_json(ended.run_dir / rundir.MANIFEST)
    assert (manifest["stop_reason"], manifest["complete"]) == (by, False)
    assert ended.summary["turns"]["by_phase"]["all"]["unfinished"] == 0


@scenes(stopped, ("SIGTERM", "local", "--on-stop", "pass"))
def test_a_stop_may_be_allowed(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert ended.code == 0, ended.text
    assert ended.summary["outcome"]["state"] == "stopped early"


@scenes(stopped_in_warmup, *((by, "--on-invalid", "warn") for by in SIGNALS), ("SIGTERM",))
def test_a_run_that_is_stopped_in_its_warmup_measured_nothing(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    by, *allowed = scene.arguments
    assert ended.code == (SIGNALS[by][1] if allowed else 3), ended.text
    check_surfaces(ended, "stopped early", rf"stopped early by {by} after \d+\.\d s of warm-up: nothing was measured")
    assert mark(ended.run_dir, "phase", "warmup")
    assert mark(ended.run_dir, "phase", "drain")
    assert mark(ended.run_dir, "phase", "measure") is None
    phases = [one["phase"] for one in rundir.read_json(ended.run_dir / rundir.MANIFEST)["phases"]]
    assert phases == ["warmup", "drain"]


def closed_terminal(place: Place) -> tuple[int, Path]:
    """A run on a terminal of its own, which is closed: the kernel sends SIGHUP, and what is printed then goes nowhere."""
    file = scenario(place.folder, phases__measure_s=300)
    words = ["-f", str(ROOT / "locustfiles" / "chat.py"), "--headless", "--host", place.simulator().url]
    words += ["--scenario", str(file), "--run-dir", str(place.run_dir), "--on-invalid", "warn"]
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "locust", *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=place.folder)
    os.close(theirs)
    try:

        def measuring() -> bool:
            while select.select([ours], [], [], 0)[0]:
                os.read(ours, 1 << 16)
            return mark(place.run_dir, "phase", "measure") is not None

        until(measuring, "the measure phase")
        os.close(ours)
        return process.wait(PATIENCE_S), place.run_dir
    finally:
        process.kill()


@scenes(closed_terminal, ())
def test_a_terminal_that_is_closed_stops_the_run_early(stage: Stage, scene: Scene) -> None:
    code, run_dir = stage.result(scene)
    assert code == 143
    assert summary_of(run_dir)["outcome"]["headline"].startswith("stopped early by SIGHUP after ")
    assert (run_dir / rundir.REPORT_HTML).is_file()


# -- the web page


def on_the_page(place: Place, outcome: str) -> Ended:
    """A run from the page that ends by itself, or by the page's Stop."""
    gates = {"failed": GATES, "passed": GATES[:3], "stopped": GATES[:3]}[outcome]
    timed = {"run_time": "2s"} if outcome == "passed" else {}  # by the start form
    measure_s, warmup_s = (2, 0) if outcome == "failed" else (300, 1 if timed else 0)
    file = scenario(place.folder, phases__measure_s=measure_s, phases__warmup_s=warmup_s, gates=gates)
    server = place.simulator()
    fleet = place.fleet("local", "--host", server.url, "--scenario", str(file), "--on-invalid", "warn", web=True)
    fleet.wait_for_page()
    assert fleet.post("/swarm", user_count=2, spawn_rate=50, **timed)["success"]
    begun(place.run_dir)
    if outcome == "stopped":
        until(lambda: server.stats()["requests"]["finished"], "a turn")
        assert fleet.press_stop()
    status = until(lambda: (one := fleet.get_json("/inferload/status")) and "headline" in one and one, "the outcome")
    script = fleet.get("/inferload/runline.js").decode()
    fleet.signal(signal.SIGINT, whole_group=False)
    return ended(place, fleet, status=status, script=script)


@scenes(on_the_page, ("failed",), ("passed",), ("stopped",))
def test_the_page_shows_the_outcome_and_its_colour(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    status, stated = ended.seen["status"], ended.summary["outcome"]
    assert (status["outcome"], status["headline"]) == (stated["state"], stated["headline"])
    colours = dict(re.findall(r'"?\b([a-z ]+)"?: "(#[0-9a-f]{6})"', ended.seen["script"]))
    assert {"failed", "stopped early", "invalid", "suspect", "passed"} <= set(colours)
    green = {state for state, colour in colours.items() if colour == colours["passed"]}
    assert green == {"passed"}
    if scene.arguments[0] == "failed":
        assert status["outcome"] == "failed"
        assert ended.code == 1
    else:
        assert status["outcome"] != "stopped early", "the page's Stop is a planned end"
        assert ended.code == 0
        document = rundir.read_json(ended.run_dir / rundir.MANIFEST)
        assert document["complete"]
        if scene.arguments[0] == "passed":  # Locust's own timer would have stopped it a warm-up earlier
            (measured,) = [one for one in document["phases"] if one["phase"] == "measure"]
            assert measured["end_wall_ns"] - measured["start_wall_ns"] >= 1.99e9


# -- starts and ends of the process


def autoquit(place: Place) -> Ended:
    file = scenario(place.folder, phases={"measure_s": 1, "drain_s": 30})
    words = ("--host", place.simulator().url, "--scenario", str(file), "--autostart", "--autoquit", "1")
    return ended(place, place.fleet("local", *words, web=True))


@scenes(autoquit, ())
def test_autoquit_ends_the_process_after_the_run(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert ended.code == contract_code(ended), ended.text


BARE = """
from inferload.users import InferenceUser


class Support(InferenceUser):
    pass
"""


def without_tasks(place: Place, mode: str) -> tuple[int, str]:
    file = place.folder / "bare.py"
    file.write_text(BARE)
    words = ["--headless", "--host", "http://127.0.0.1:9", "-t", "2s"]
    words += ["--processes", "2"] if mode == "processes" else []
    process = start(*words, cwd=place.folder, locustfile=file)
    return process.exit_code(), process.text


@scenes(without_tasks, ("local",), ("processes",))
def test_a_user_without_tasks_is_refused(stage: Stage, scene: Scene) -> None:
    code, text = stage.result(scene)
    assert code == 2, text
    (line,) = [line for line in text.splitlines() if line.startswith("inferload: ")]
    assert line.startswith("inferload: Support: has no task")


RAISING = """
from inferload.users import ScenarioUser
from locust import task


class ChatUser(ScenarioUser):
    @task
    def broken(self):
        if self.environment.inferload_agent._run.open:
            raise KeyError("no such prompt")
"""


def raising(place: Place, mode: str) -> Ended:
    """A task of the user's own that raises beside ours."""
    locustfile = place.folder / "raising.py"
    locustfile.write_text(RAISING)
    file = scenario(place.folder, phases={"measure_s": 2, "drain_s": 30})
    words = ("--host", place.simulator().url, "--scenario", str(file), "--on-invalid", "warn")
    return ended(place, place.fleet(mode, *words, report=True, locustfile=locustfile))


@scenes(raising, ("local",), ("processes",))
def test_a_task_that_raises_fails_the_run(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert ended.code == 1, ended.text
    stated = ended.summary["outcome"]
    assert stated["state"] == "failed"
    assert re.match(r"failed: tasks raised \d+ exceptions, the first: .*no such prompt", stated["headline"])


def newest(place: Place) -> tuple[str, Path]:
    """Two runs with directories of their own, one after the other; what the second writes on standard output."""
    file = scenario(place.folder, phases={"measure_s": 1, "drain_s": 30})
    command = [sys.executable, "-m", "inferload", "run", str(file), "--host", place.simulator().url]
    command += ["--on-invalid", "warn"]
    said = ""
    for words in (["--no-report"], []):
        made = subprocess.run([*command, *words], cwd=place.folder, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        said = made.stdout
    return said, place.folder / "runs"


@scenes(newest, ())
def test_latest_links_the_newest_run_and_the_last_line_is_its_report(stage: Stage, scene: Scene) -> None:
    said, runs = stage.result(scene)
    made = sorted(path.name for path in runs.iterdir() if not path.is_symlink())
    assert len(made) == 2
    assert (runs / rundir.LATEST).readlink() == Path(made[-1])
    assert said.splitlines()[-1] == str(runs / made[-1] / rundir.REPORT_HTML)


# -- keys on a command line

KEY = "sk-canary-5ecret"


def refused(place: Place, *words: str) -> tuple[int, str]:
    process = start("--headless", "--host", "http://127.0.0.1:9", *words, cwd=place.folder)
    return process.exit_code(), process.text


@scenes(refused, ("--api-key", KEY), (f"--api-key={KEY}",), ("--api-key-f", KEY), ("--scen", "smoke"))
def test_locust_takes_no_key_and_no_abbreviation(stage: Stage, scene: Scene) -> None:
    code, text = stage.result(scene)
    assert code == 2, text
    if scene.arguments[0].startswith("--api-key"):
        assert KEY not in text
    if scene.arguments[0].partition("=")[0] == "--api-key":
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
def test_our_commands_take_no_key_and_no_abbreviation(
    command: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, *words])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err


# -- a signal before the run


def before_the_run(place: Place, by: str) -> tuple[int, str, Path]:
    """A signal while the master waits for a worker that does not come."""
    file = scenario(place.folder)
    fleet = place.fleet("by_hand", "--host", place.simulator().url, "--scenario", str(file), workers=0, expected=1)
    fleet.master.wait_for_line("waiting for workers")
    fleet.signal(SIGNALS[by][0], whole_group=False)
    return fleet.ended(), fleet.text, place.run_dir


@scenes(before_the_run, *((by,) for by in SIGNALS))
def test_a_signal_before_the_run_ends_the_wait(stage: Stage, scene: Scene) -> None:
    code, text, run_dir = stage.result(scene)
    by = scene.arguments[0]
    assert code == SIGNALS[by][1], text
    assert f"stopped early by {by} before the load: nothing was measured" in text
    assert not run_dir.exists()
