"""Canary requests on a virtual clock: what is found, and what they leave as it is."""

import json
from pathlib import Path
from typing import Any

import virtual

from inferload import cli
from inferload.turns.tally import WRONG

CHAT = {"kind": "chat", "prompt_tokens": 20, "output_tokens": 8}
CLOSED = {"kind": "closed", "users": 4, "spawn_per_s": 4}
STEADY = {"kind": "constant", "sessions_per_s": 4}
PHASES = {"warmup_s": 0, "measure_s": 60, "turns": 250, "drain_s": 30}
FEW = PHASES | {"turns": 40}
OWN = {"canary_failed": None, "canary_changed_ratio": None}
TASKS = """
from locust import task
from inferload.users import InferenceUser


class Own(InferenceUser):
    @task
    def ask(self):
        self.chat("How do I reset my password?", max_tokens=8)
"""


SCENARIO = {"schema": 1, "name": "c", "workload": CHAT, "arrivals": CLOSED, "phases": PHASES, "canary": {"share": 0.5}}


def executed(folder: Path, script: str | None = None, *options: str, **changes: Any) -> virtual.VirtualRun:
    return virtual.run(folder, SCENARIO | changes, *options, script=script and f"canary_server:{script}")


def test_one_wrong_answer_of_each_kind_among_125_fails_the_run(tmp_path: Path) -> None:
    run = executed(tmp_path, "one_of_each", "--report", "--junit", str(tmp_path / "junit.xml"))
    block = run.summary["canary"]
    assert 105 < block["asked"] < 145
    assert block["by_class"] == {
        "broken": 2, "changed": 1, "cut": 1, "empty": 1, "ok": block["asked"] - 6, "swapped": 1,
    }  # fmt: skip
    assert block["again"] == {"ok": 1}
    assert run.code == 1
    text = f"5 of {block['asked']} canary answers wrong: empty 1, cut 1, swapped 1, broken 2"
    pages = [run.run_dir / "report.md", run.run_dir / "report.html", tmp_path / "junit.xml"]
    assert all(text in page for page in [run.text, *(page.read_text() for page in pages)])
    run.check_counts(by_server=False)
    known = json.loads((run.run_dir / "canary.json").read_text())
    assert known["sha256"] == block["references_sha256"]
    assert cli.main(["compare", str(run.run_dir), str(run.run_dir), "--fail-on-regression"]) == 4


def test_other_sensible_answers_are_counted_and_pass(tmp_path: Path) -> None:
    gates = ["canary_failed == 0", "canary_changed_ratio < 0.2"]
    run = executed(tmp_path, "other_answers", "--report", gates=gates)
    assert run.code == 0, run.text
    block = run.summary["canary"]
    assert block["by_class"] == {"changed": 20, "ok": block["asked"] - 20}
    assert [gate["passed"] for gate in run.summary["verdict"]["gates"]] == [True, True]
    assert any("20 (" in note and "asked again without load" in note for note in run.summary["notes"])
    assert run.codes <= {"short"}, run.codes
    reconciled = json.loads((run.run_dir / "reconcile.json").read_text())
    assert {check["check"]: check["outcome"] for check in reconciled["checks"]}["requests"] == "adds up"
    (books,) = reconciled["requests"]
    assert books["canaries"] == sum(block["by_class"].values()) + sum(block["again"].values())
    assert books["total"] == books["before_load"] + books["turns"] + books["canaries"]


def test_canaries_are_in_no_figure_of_the_turns(tmp_path: Path) -> None:
    beside, alone = (executed(tmp_path / name, canary=canary, phases=FEW) for name, canary in (("a", {}), ("b", None)))
    assert beside.summary["canary"]["by_class"].keys() == {"ok"}
    assert alone.summary["canary"] is None
    figures = [{**run.summary, "rates": run.summary["rates"] | OWN} for run in (beside, alone)]
    for name in ("turns", "sessions", "rates", "latency", "notes"):
        assert figures[0][name] == figures[1][name], name


def test_turns_of_open_loops_and_of_tasks_have_the_same_canaries_in_each_run(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(TASKS)
    own = SCENARIO | {"workload": {"kind": "tasks"}, "phases": FEW}
    runs = [executed(tmp_path / name, arrivals=STEADY, phases=FEW) for name in ("a", "b")]
    runs += [virtual.run(tmp_path / name, own, locustfile=file) for name in ("c", "d")]
    classes = [run.summary["canary"]["by_class"] for run in runs]
    assert classes[0] == classes[1]
    assert classes[2] == classes[3]
    assert all(found.keys() == {"ok"} and 12 < found["ok"] < 28 for found in classes)


def test_a_prompt_without_an_answer_is_refused_before_the_load(tmp_path: Path) -> None:
    run = executed(tmp_path, "refusing")
    assert run.code == 2
    assert "no answer of simulator to canary prompt 3 before the load: HTTP 400: blocked; remove canary" in run.text
    assert not run.run_dir.exists()


def test_each_kind_of_answer_that_the_simulator_corrupts_is_found(tmp_path: Path) -> None:
    kinds = "empty=0.05,swapped=0.05,garbled=0.05,repeated=0.05,cut=0.05"
    run = virtual.run(tmp_path, SCENARIO, simulator=f"{virtual.PACED} --corrupt-answers {kinds}")
    found = run.summary["canary"]["by_class"]
    assert found.keys() == {"ok", *WRONG}
    assert 0.1 < 1 - found["ok"] / sum(found.values()) < 0.4
