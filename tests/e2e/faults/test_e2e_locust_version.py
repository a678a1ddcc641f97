"""Runs with a Locust to which an adaptation does not fit, and with untested versions."""

import re
from pathlib import Path

import locust_process
import pytest
from e2e_runs import FinishedRun, Sandbox, run_cases
from test_e2e_books import TASKS

NEWER = """
import locust

locust.__version__ = "2.99.1"
"""
CHANGED = """
import sys

import locust.web
from locust.user.task import DefaultTaskSet

execute = DefaultTaskSet.execute_task
if "--worker" in sys.argv:
    DefaultTaskSet.execute_task = lambda self, *tasks: execute(self, *tasks)
else:
    locust.web.WebUI._stop_runners = lambda self, at_s: None
"""
START_CHANGED = """
from locust.runners import LocalRunner

LocalRunner.start = lambda self, user_count: None
"""
OLDER = """
import locust

locust.__version__ = "2.45.0"
"""


def left_out(sandbox: Sandbox) -> FinishedRun:
    locustfile = sandbox.locustfile(NEWER + CHANGED + TASKS)
    words = ("--host", sandbox.simulator().url, "-u", "2", "-r", "2", "-t", "2s", "--on-invalid", "warn")
    fleet = sandbox.fleet("by_hand", *words, workers=1, locustfile=locustfile)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.master.text)


@run_cases(left_out, ())
def test_an_adaptation_that_does_not_fit_is_skipped_with_a_warning(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    workers, masters = ended.manifest["adaptations_left_out"]
    consequence = "turns of tasks without name= are counted under the name of their user class"
    assert workers == {"name": "task_names", "consequence": consequence}
    assert masters["name"] == "web_run_time"
    assert {row["class"] for row in ended.turns} == {"Asker"}
    (reason,) = [reason for reason in ended.summary["verdict"]["reasons"] if reason["code"] == "locust_adaptation"]
    assert (reason["level"], reason["value"]) == ("suspect", 1)
    assert f"(task_names: {consequence})" in reason["text"]
    warnings = [
        line.partition(": ")[2] for line in ended.text.splitlines() if "WARNING" in line and "locust 2.99" in line
    ]
    assert warnings == [
        "locust 2.99.1 is newer than the tested versions, 2.46.0 to 2.47.0",
        f"locust 2.99.1: adaptation web_run_time does not fit: {masters['consequence']}",
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (START_CHANGED, r"inferload: locust \S+: start, stop .* tested with 2\.46\.0 to 2\.47\.0: .*"),
        (OLDER, r"inferload: locust 2\.45\.0: inferload needs 2\.46\.0 or newer; pip install .*"),
    ],
    ids=["start", "older"],
)
def test_an_unsupported_locust_is_refused_in_one_line(change: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(change + TASKS)
    words = ("--headless", "--host", "http://127.0.0.1:1")
    refused = locust_process.start(*words, cwd=tmp_path, locustfile=tmp_path / "mine.py")
    assert refused.exit_code() == 2, refused.text
    (message,) = refused.lines
    assert re.fullmatch(line, message), message
