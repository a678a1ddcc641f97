"""Runs whose turns fail: a crash of the server, rejection of all turns, and --abort-on."""

import json
import os
import signal
from typing import Any
from xml.etree import ElementTree

from e2e_runs import (
    FinishedRun,
    RunCase,
    RunPool,
    Sandbox,
    check_counts,
    mark,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import csv_rows

from inferload import cli
from inferload.results.verdict import failures

MEASURED = {"warmup_s": 0, "measure_s": 5, "drain_s": 20}
# Against a server that refuses connections a closed loop without pauses would send thousands of turns.
PACED = {"kind": "constant", "sessions_per_s": 8}


def crashed(sandbox: Sandbox) -> FinishedRun:
    """Kill the server while turns stream."""
    simulator = sandbox.simulator()
    # Long enough for later turns even if a busy machine delays the kill.
    phases = MEASURED | {"measure_s": 8}
    file = scenario(sandbox.folder, arrivals=PACED, phases=phases, workload__output_tokens=40)
    words = ["--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", "--details"]
    fleet = sandbox.fleet("processes", *words, report=True)
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["finished"] > 2, "successful turns")
    os.kill(simulator.process.pid, signal.SIGKILL)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def refusing(sandbox: Sandbox, *arguments: str) -> FinishedRun:
    """Answer every turn with HTTP 400."""
    simulator = sandbox.simulator()
    arrivals = {"kind": "poisson", "sessions_per_s": 8}
    file = scenario(sandbox.folder, arrivals=arrivals, phases=MEASURED | {"warmup_s": 1})
    words = ["--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", "--details", *arguments]
    fleet = sandbox.fleet("local", *words, report=not arguments)
    wait_until(lambda: mark(sandbox.run_dir, "phase"), "the end of the preflight")
    simulator.chaos(kind="status", status=400, count=100_000)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def diagnosis_of(ended: FinishedRun) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ended.run_dir / "diagnosis.json").read_text())
    return document


def check_failures_first(ended: FinishedRun) -> str:
    """Check that report and diagnosis.json begin with the failures; return the first sentence of the diagnosis."""
    document = diagnosis_of(ended)
    finding = document["run"]["findings"][0]
    assert finding["code"] == "failures"
    page = (ended.run_dir / "report.md").read_text()
    section = page.partition("\n## Diagnosis")[2].partition("\n## ")[0]
    assert "not-loaded" not in page
    assert "kept up" not in section
    assert "more load" not in section
    assert "turns failed" in section
    assert finding["sentences"][0] in document["lines"][2]
    assert "more load" not in "\n".join(document["lines"])
    return str(finding["sentences"][0])


@run_cases(crashed, ())
def test_a_crashed_server_is_the_first_finding(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    turns = ended.summary["turns"]
    (stopped,) = ended.summary["stopped_answering"]
    after = [row for row in ended.turns if row["failure"] in ("connect", "cut")]
    assert sum(stopped["by_failure"].values()) == len(after) > 2
    assert {error["failure"] for error in turns["first_errors"]} == set(stopped["by_failure"])
    first = next(error for error in turns["first_errors"] if error["failure"] == "connect")
    assert "refused" in first["text"].lower()
    assert first["at_s"] >= stopped["at_s"]
    assert first["worker"] in {row["worker"] for row in ended.turns}
    tables = ended.text[ended.text.rindex("Failed turns by class") :]
    assert first["text"] in " ".join(tables.split())
    assert f"stopped answering at {stopped['at_s']:.1f} s" in tables
    check_failures_first(ended)
    page = (ended.run_dir / "report.md").read_text()
    text = f"stopped answering at {stopped['at_s']:.1f} s: {failures.counts_by_name(stopped['by_failure'])}"
    assert text in page.replace("\\", "")
    assert "metrics page" in page.partition("\n## Diagnosis")[2].partition("\n## ")[0]
    assert ended.idle_code == 1, ended.text
    check_counts(ended)


@run_cases(refusing, ())
def test_rejection_of_all_turns_is_the_first_finding(run_pool: RunPool, run_case: RunCase, tmp_path: Any) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    turns = ended.summary["turns"]
    assert turns["failed"] > 10
    assert ended.summary["stopped_answering"] == []
    (first,) = turns["first_errors"]
    assert (first["failure"], first["status"]) == ("http_4xx", 400)
    assert first["text"].startswith("HTTP 400: {")
    assert len(first["text"]) <= 300
    assert "HTTP 400: {" in ended.text[ended.text.rindex("Failed turns by class") :]
    assert first["text"] in "\n".join(ended.text.rstrip().splitlines()[-5:])
    check_failures_first(ended)
    assert "HTTP 400" in (ended.run_dir / "report.md").read_text()
    assert "HTTP 400" in (ended.run_dir / "report.html").read_text()
    (row,) = csv_rows(ended.run_dir / "locust_failures.csv")
    assert row["First Message"] == first["text"]
    assert cli.main(["report", str(ended.run_dir), "--junit", str(tmp_path / "junit.xml")]) == 0
    for junit in (tmp_path / "junit.xml", ended.run_dir.with_name("junit.xml")):
        (case,) = ElementTree.parse(junit).findall(".//failure")
        assert first["text"] in str(case.text)
    assert ended.idle_code == 1, ended.text


@run_cases(refusing, ("--abort-on", "failed_ratio > 0.5 for 2s"))
def test_a_run_ends_when_its_abort_condition_holds(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    stop = mark(ended.run_dir, "abort_on")
    assert stop is not None
    assert stop["condition"] == "failed_ratio > 0.5 for 2s"
    assert stop["value"] > 0.5
    manifest = json.loads((ended.run_dir / "run.json").read_text())
    assert manifest["stop_reason"].startswith("abort_on: failed_ratio > 0.5 for 2s")
    assert ended.summary["window_s"] < MEASURED["measure_s"]
    assert manifest["scenario"]["overrides"] == {"abort_on": ["failed_ratio > 0.5 for 2s"]}
    (gate,) = ended.summary["verdict"]["gates"]
    assert (gate["gate"], gate["passed"]) == ("abort_on: failed_ratio > 0.5 for 2s", False)
    assert "abort_on: failed_ratio > 0.5 for 2s" in ended.text
    assert ended.idle_code == 1, ended.text
    check_counts(ended)


def not_aborted(sandbox: Sandbox) -> FinishedRun:
    """Run with a condition that never holds."""
    simulator = sandbox.simulator()
    file = scenario(
        sandbox.folder, arrivals=PACED, phases=MEASURED | {"measure_s": 3}, abort_on=["failed_ratio > 0.5 for 1s"]
    )
    fleet = sandbox.fleet("local", "--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn")
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(not_aborted, ())
def test_an_abort_condition_that_never_holds_changes_nothing(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert mark(ended.run_dir, "abort_on") is None
    assert ended.summary["verdict"]["gates"] == []
    assert ended.idle_code == 0, ended.text
