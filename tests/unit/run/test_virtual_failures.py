"""Rejection of all turns, and conditions that end a run, on a virtual clock."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import surfaces
import virtual
from e2e_runs import mark, scenario
from locust_process import csv_rows

from inferload import cli

MEASURED = {"warmup_s": 1, "measure_s": 4, "drain_s": 20}
REFUSED: dict[str, Any] = {"kind": "status", "status": 400, "count": 100_000}
CONDITION = "failed_ratio > 0.5 for 2s"


def refusing(folder: Path, *words: str) -> virtual.VirtualRun:
    """Answer every turn with HTTP 400."""
    file = scenario(folder, arrivals={"kind": "poisson", "sessions_per_s": 8}, phases=MEASURED)
    return virtual.run(folder, file, "--details", *words, acts=[(0.0, REFUSED)])


def test_rejection_of_all_turns_is_the_first_finding(tmp_path: Path) -> None:
    run = refusing(tmp_path, "--report", *surfaces.OUTPUTS)
    turns = run.summary["turns"]
    assert turns["failed"] == turns["sent"] > 10
    assert run.summary["stopped_answering"] == []
    (first,) = turns["first_errors"]
    assert (first["failure"], first["status"]) == ("http_4xx", 400)
    assert first["text"].startswith("HTTP 400: {")
    assert len(first["text"]) <= 300
    assert "HTTP 400: {" in run.text[run.text.rindex("Failed turns by class") :]
    assert first["text"] in "\n".join(run.text.rstrip().splitlines()[-5:])
    surfaces.check_failures_first(run.run_dir)
    assert "HTTP 400" in (run.run_dir / "report.md").read_text()
    assert "HTTP 400" in (run.run_dir / "report.html").read_text()
    (row,) = csv_rows(run.run_dir / "locust_failures.csv")
    assert row["First Message"] == first["text"]
    assert cli.main(["report", str(run.run_dir), "--junit", str(tmp_path / "again.xml")]) == 0
    for junit in (tmp_path / "again.xml", tmp_path / "junit.xml"):
        (case,) = ElementTree.parse(junit).findall(".//failure")
        assert first["text"] in str(case.text)
    assert run.code == 1, run.text


TOO_LONG = {"message": "the request exceeds the available context size", "count": 5}


@pytest.mark.parametrize("plan", [{"kind": "status", "status": 500}, {"kind": "error_event", "after_events": 0}])
def test_too_long_prompts_are_refused_and_the_server_kept_up(tmp_path: Path, plan: dict[str, Any]) -> None:
    file = scenario(tmp_path, arrivals={"kind": "constant", "sessions_per_s": 8}, phases=MEASURED)
    run = virtual.run(tmp_path, file, "--report", acts=[(2.0, plan | TOO_LONG)])
    assert re.search(r"\ndiagnosis: probably refused: 5 of \d+ turns failed .*; kept-up: ", run.text)


def test_a_server_that_stops_answering_is_named(tmp_path: Path) -> None:
    file = scenario(tmp_path, arrivals={"kind": "constant", "sessions_per_s": 8}, phases=MEASURED)
    cut = {"kind": "cut", "after_events": 0, "count": 100_000}
    run = virtual.run(tmp_path, file, "--report", *surfaces.OUTPUTS, acts=[(0.0, cut)])
    turns = run.summary["turns"]["by_phase"]["all"]
    assert turns["ok"] == 0
    assert turns["failed"] > 0
    last_lines = "\n".join(run.text.splitlines()[-5:])
    assert re.search(r"the server http://\S+ stopped answering at \d+\.\d s \(.* the measure phase\): ", last_lines)
    assert re.search(r": first cut 200 of \S+ at \d+\.\d s on ", last_lines)
    headline = rf"failed: {turns['failed']} of {turns['failed']} turns failed.*"
    surfaces.check(run.run_dir, 1, run.text, "failed", headline)


def test_a_run_ends_when_its_abort_condition_holds(tmp_path: Path) -> None:
    run = refusing(tmp_path, "--abort-on", CONDITION)
    stop = mark(run.run_dir, "abort_on")
    assert stop is not None
    assert (stop["condition"], stop["value"]) == (CONDITION, 1)
    assert run.manifest["stop_reason"].startswith(f"abort_on: {CONDITION}")
    assert 0 < run.summary["window_s"] < MEASURED["measure_s"]
    assert run.manifest["scenario"]["overrides"] == {"abort_on": [CONDITION]}
    (gate,) = run.summary["verdict"]["gates"]
    assert (gate["gate"], gate["passed"]) == (f"abort_on: {CONDITION}", False)
    assert f"abort_on: {CONDITION}" in run.text
    assert run.code == 1, run.text
    run.check_counts()
