"""Last lines of a run's log: reasons, report and outcome; a terminal that has shown them does not get them again."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import summaries

from inferload.run.master.end_report import EndReport
from inferload.run.master.finish import RunResult

REASON = {"code": "client_cpu", "level": "invalid", "value": 0.9, "limit": 0.85, "text": "CPU over 85 %; use workers"}
SUMMARY = summaries.summary(
    {
        "turns": {"sent": 5, "ok": 5, "failed": 0, "unfinished": 0},
        "verdict": {
            "measurement": "invalid",
            "reasons": [REASON],
            "gates": [{"gate": "p95(ttft_ms) < 500", "value": 700.0, "passed": False}],
        },
        "outcome": {"state": "invalid", "headline": "invalid: CPU over 85 %", "exit_code": 3},
    }
)
LAST = ["report: runs/a/report.html", "invalid: CPU over 85 %"]


@pytest.mark.parametrize(
    ("terminals", "options", "shown"),
    [
        ((True, True), {}, ["invalid: CPU over 85 %; use workers"]),
        ((True, True), {"details": True}, []),
        ((True, True), {"logfile": "run.log"}, LAST),
        ((True, False), {}, LAST),
        ((False, True), {}, LAST),
    ],
)
def test_a_terminal_shows_the_outcome_once(
    terminals: tuple[bool, bool],
    options: dict[str, Any],
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams = [SimpleNamespace(isatty=lambda is_one=is_one: is_one) for is_one in terminals]
    monkeypatch.setattr("inferload.run.master.end_report.sys", SimpleNamespace(stdout=streams[0], stderr=streams[1]))
    environment: Any = SimpleNamespace(
        parsed_options=SimpleNamespace(headless=False, logfile=options.get("logfile")),
        events=SimpleNamespace(quit=SimpleNamespace(add_listener=lambda _listener: None)),
    )
    own: Any = SimpleNamespace(details=options.get("details"))
    with caplog.at_level(logging.INFO):
        EndReport(environment, own).concluded(RunResult(Path("runs/a"), SUMMARY, Path("runs/a/report.html")))
    assert caplog.messages[-2:] == shown
