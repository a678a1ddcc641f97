"""Outcomes of runs on a virtual clock."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import summaries
import surfaces
import virtual
from e2e_runs import scenario
from locust_process import csv_rows

from inferload import cli
from inferload.base import rundir
from inferload.results import ci_texts

CLOSED = {"kind": "closed", "users": 3, "spawn_per_s": 3}
OPEN = {"kind": "constant", "sessions_per_s": 4}
POISSON = {"kind": "poisson", "sessions_per_s": 3}


def made(folder: Path, arrivals: dict[str, Any], drain_s: float) -> virtual.VirtualRun:
    """Make a run whose turns last for longer than the load and a short drain."""
    workload = {"kind": "chat", "turns": 2, "prompt_tokens": 50, "output_tokens": 80, "think_time_s": 0.2}
    load = {"schema": 1, "name": "long", "workload": workload, "arrivals": arrivals}
    return virtual.run(folder, load | {"phases": {"measure_s": 2, "drain_s": drain_s}}, variant="t4-baseline")


@pytest.mark.parametrize(("arrivals", "drain_s"), [(CLOSED, 0.1), (OPEN, 0.2), (CLOSED, 60), (POISSON, 60)])
def test_unfinished_turns_are_recorded_and_no_record_is_missing(
    arrivals: dict[str, Any], drain_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run = made(tmp_path, arrivals, drain_s)
    run, summary, rows = made_run.run_dir, made_run.summary, made_run.turns
    unfinished = summary["turns"]["by_phase"]["all"]["unfinished"]
    assert (unfinished > 0) == (drain_s < 60)
    assert unfinished == sum(row["failure"] == "unfinished" for row in rows)
    assert summary["turn_records"] == {
        "counted": len(rows), "at_hand": len(rows), "held_back": 0, "lost": 0, "why": None,
    }  # fmt: skip
    assert summary["percentiles_from"] == "records"
    assert "records" not in (summary["overload_not_judged"] or "")
    assert summary["stopped_answering"] is not None
    assert rundir.read_object(run / rundir.MANIFEST)["complete"]
    codes = {reason["code"] for reason in summary["verdict"]["reasons"]}
    assert "lost_records" not in codes
    assert ("unfinished_drain" in codes) == (unfinished > 0)
    capsys.readouterr()
    assert cli.main(["report", str(run)]) == 0
    page = (run / rundir.REPORT_MD).read_text()
    for text in (capsys.readouterr().out, page):
        assert "records are missing" not in text
        assert "sketches" not in text


HOLDING = ["failed_ratio < 0.5", "p50(ttft_ms) < 60000", "p50(e2e_ms) < 60000"]
GATES = [*HOLDING, "p50(ttft_ms) < 0.001", "p50(e2e_ms) < 0.001"]
ADDED = [
    "preemptions == 0",
    "failed_ratio{chat} < 0.5",
    "mean(kv_cache_usage) > 0.999",
    "failed_ratio{GET /health} < 0.01",
]
SIMULATED = r" \(simulated, on a virtual clock\)"
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


def programmed(folder: Path, program: str, *words: str, **changes: Any) -> virtual.VirtualRun:
    """Make a run of a locustfile, with all outputs."""
    locustfile = folder / "program.py"
    locustfile.write_text(program)
    file = scenario(folder, phases={"measure_s": 1, "drain_s": 30}, **changes)
    return virtual.run(folder, file, *words, "--report", *surfaces.OUTPUTS, locustfile=locustfile)


def test_a_run_with_failed_gates_is_failed(tmp_path: Path) -> None:
    """Gates of scenario and command line, and of other requests."""
    run = programmed(tmp_path, PROBING, "--details", *(w for text in ADDED for w in ("--gate", text)), gates=GATES)
    summary = run.summary
    (probe,) = summary["other_requests"]["by_name"]
    headline = f"failed: 4 of 9 gates failed; {probe['failed']} of {probe['sent']} other requests failed{SIMULATED}"
    assert run.code == 1
    surfaces.check(run.run_dir, 1, run.text, "failed", headline)
    (row,) = [row for row in csv_rows(run.run_dir / "locust_stats.csv") if row["Type"] == "GET"]
    assert (probe["type"], probe["name"]) == (row["Type"], row["Name"])
    assert (probe["sent"], probe["failed"]) == (int(row["Request Count"]), int(row["Failure Count"]))
    assert (probe["sent"], probe["failed"]) == (len(run.turns), -(-len(run.turns) // 4))
    gates = {gate["gate"]: gate for gate in summary["verdict"]["gates"]}
    assert list(gates) == GATES + ADDED
    assert run.manifest["scenario"]["overrides"] == {"gates": GATES + ADDED}
    (server,) = summary["servers"]
    assert [gates[text]["passed"] for text in ADDED] == [True, True, False, False]
    assert gates["preemptions == 0"]["value"] == server["preemptions"] == 0
    assert gates["mean(kv_cache_usage) > 0.999"]["value"] == server["kv_cache_usage"]["mean"]
    assert gates["failed_ratio{GET /health} < 0.01"]["value"] == probe["failed"] / probe["sent"]
    (suite,) = ElementTree.fromstring(ci_texts.junit({"run": summaries.summary(summary)}))
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed >= set(GATES[3:] + ADDED[2:])
    page = (run.run_dir / rundir.REPORT_MD).read_text().replace("\\", "")
    for text in ADDED:
        shown = "passed" if gates[text]["passed"] else "FAILED"
        assert re.search(rf"^  {re.escape(text)} .* {shown}", run.text, re.MULTILINE), text
        assert re.search(rf"^\| {re.escape(text)} \| .* \| {shown}", page, re.MULTILINE), text
    assert "\nLatency" in run.text
    assert ": gates that failed: p50(ttft_ms) < 0.001: is " in "\n".join(run.text.splitlines()[-5:])


RAISING = """
from inferload.users import ScenarioUser
from locust import task


class ChatUser(ScenarioUser):
    @task
    def broken(self):
        if self.environment.inferload_worker._run.context.open:
            raise KeyError("no such prompt")
"""


def test_a_task_that_raises_fails_the_run(tmp_path: Path) -> None:
    run = programmed(tmp_path, RAISING)
    headline = rf"failed: tasks raised \d+ exceptions?, the first: .*no such prompt.*{SIMULATED}"
    assert run.code == 1
    surfaces.check(run.run_dir, 1, run.text, "failed", headline, raised=True)


BARE = """
from inferload.users import InferenceUser


class Support(InferenceUser):
    pass
"""


def test_a_user_without_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    run = virtual.run(tmp_path, "smoke", "-t", "2s", locustfile=tmp_path / "bare.py")
    assert run.code == 2
    (line,) = [line for line in run.text.splitlines() if line.startswith("inferload: ")]
    assert line.startswith("inferload: Support: has no task")


KEY = "sk-canary-5ecret"


@pytest.mark.parametrize(
    "words", [("--api-key", KEY), (f"--api-key={KEY}",), ("--api-key-f", KEY), ("--scen", "smoke")]
)
def test_locust_refuses_keys_and_abbreviations(words: tuple[str, ...], tmp_path: Path) -> None:
    run = virtual.run(tmp_path, "smoke", *words)
    assert run.code == 2, run.text
    assert KEY not in run.text
    if words[0].partition("=")[0] == "--api-key":
        assert run.text.splitlines()[-1].startswith("inferload: --api-key: ")
        assert "--api-key-file FILE or OPENAI_API_KEY" in run.text


# Gates, validity and exit codes. A stream of so many tokens lasts for longer than the run.
LONG = 2400
CODES: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "gates hold": ({"gates": ["p50(ttft_ms) < 60000", "failed_ratio < 0.01"]}, (), 0),
    "a gate on an unknown value": ({"gates": ["p50(tpot_ms) < 60000"], "workload__output_tokens": 1}, (), 1),
    "invalid with a failed gate": ({"gates": ["p50(ttft_ms) < 0.001"], "workload__output_tokens": LONG}, (), 3),
    "invalid without turns": ({"arrivals": {"kind": "poisson", "sessions_per_s": 1e-6}}, (), 3),
    "invalid with --on-invalid warn": ({"workload__output_tokens": LONG}, ("--on-invalid", "warn"), 0),
}


@pytest.mark.parametrize("name", CODES)
def test_the_exit_code_reflects_gates_and_validity(name: str, tmp_path: Path) -> None:
    changes, words, code = CODES[name]
    phases = {"measure_s": 1.5, "drain_s": 0.5}
    run = virtual.run(tmp_path, scenario(tmp_path, phases=phases, **changes), *words)
    verdict = run.summary["verdict"]
    assert run.code == code, run.text
    assert [gate["gate"] for gate in verdict["gates"]] == changes.get("gates", [])
    if "invalid" in name:
        assert verdict["measurement"] == "invalid"
        code, text = (
            ("no_turns", "no turn was sent") if "without" in name else ("unfinished_drain", "measurement INVALID")
        )
        assert code in run.codes
        assert text in run.text
    else:
        assert verdict["passed"] == (code == 0)
        assert run.codes == set()
    if "unknown" in name:
        assert [(gate["value"], gate["passed"]) for gate in verdict["gates"]] == [(None, False)]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "status": ({"status": 500}, "http_5xx"),
    "cut": ({"after_events": 2}, "cut"),
    "error_event": ({"after_events": 2}, "server_error"),
    "garbage": ({"after_events": 2}, "bad_http"),
    "stall": ({"ms": 6000, "after_events": 2}, "timeout_between_events"),
    "html": ({}, "not_sse"),
}
TIMES = 3


def test_faults_during_a_run_are_counted_by_class(tmp_path: Path) -> None:
    acts = [
        (1.0 * at, {"kind": kind, "count": TIMES, **values}) for at, (kind, (values, _)) in enumerate(FAULTS.items())
    ]
    file = scenario(tmp_path, request={"timeouts": {"between_events_s": 2.0}}, phases={"measure_s": 9})
    run = virtual.run(tmp_path, file, acts=acts)
    expected = {failure: TIMES for _, failure in FAULTS.values()}
    assert "Traceback" not in run.text, run.text
    assert run.summary["turns"]["by_failure"] == expected
    assert run.summary["turns"]["failed"] == TIMES * len(FAULTS)
    assert run.code == 1, run.text
    run.check_counts()
    table = csv_rows(run.run_dir / "locust_failures.csv")
    assert sum(int(row["Occurrences"]) for row in table) == TIMES * len(FAULTS)
    for failure in expected:
        assert f"turn failed ({failure}" in run.text
        assert any(failure in row["Error"] for row in table)
