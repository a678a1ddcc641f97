"""Outcomes of runs for CI: JUnit XML, Markdown and annotations of `inferload report`."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import summaries
import synthetic_run
from hypothesis import given
from hypothesis import strategies as st

from inferload import cli
from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.results import ci, ci_texts
from inferload.results.documents.typed_documents import document_of
from inferload.results.documents.verdict_document import GateResult
from inferload.results.verdict import outcome
from inferload.results.verdict.gate_text import interval_text

GATES: list[dict[str, Any]] = [
    {"gate": "failed_ratio < 0.01", "value": 0.0, "passed": True, "answer": "pass"},
    {"gate": "p50(ttft_ms) < 60", "value": 58.0, "passed": True, "answer": "inconclusive", "low": 55.0, "high": 64.0},
    {
        "gate": "p99(ttft_ms) < 100",
        "value": 130.0,
        "passed": False,
        "answer": "inconclusive",
        "low": 90.0,
        "high": None,
    },
    {"gate": "mean(tpot_ms) < 9", "value": None, "passed": False, "answer": "fail", "note": "tpot_ms is not known"},
]


def summary(gates: list[dict[str, Any]], measurement: str = "valid", passed: bool | None = None) -> dict[str, Any]:
    """Return a summary with a verdict and the outcome that follows from it."""
    reasons = [{"phase": "measure", "code": "late", "level": measurement, "text": "the client was late"}]
    passed = all(gate["passed"] for gate in gates) if passed is None else passed
    verdict = {"measurement": measurement, "reasons": reasons, "gates": gates, "passed": passed}
    document: dict[str, Any] = {"verdict": verdict, "run": {"scenario": "smoke", "seed": 0}, "window_s": 9.0}
    if measurement == "valid":
        verdict["reasons"] = []
    return document | {"outcome": msgspec.to_builtins(outcome.judge(summaries.results(document)))}


def run(folder: Path, *arguments: Any) -> Path:
    """Write a run directory with `summary(*arguments)`. Return its path."""
    synthetic_run.write(folder)
    rundir.write_json(folder / rundir.SUMMARY, document_of(summaries.summary(summary(*arguments))))
    return folder


def test_a_report_writes_junit_markdown_and_annotations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    folder = run(tmp_path / "r", GATES)
    files = ["--junit", str(tmp_path / "o" / "j.xml"), "--markdown", str(tmp_path / "o" / "g.md"), "--github"]
    files += ["--termination-message", str(tmp_path / "o" / "message.txt")]
    assert cli.main(["report", str(folder), *files]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "::error title=inferload::r: failed: 2 of 4 gates failed",
        "::warning title=inferload::r: inconclusive, passed: p50(ttft_ms) < 60: is 58 ms (95 %25: 55 to 64 ms)",
        "::error title=inferload::r: inconclusive, FAILED: p99(ttft_ms) < 100: is 130 ms (95 %25: over 90 ms)",
        "::error title=inferload::r: FAILED: mean(tpot_ms) < 9: is not known (tpot_ms is not known)",
    ]
    (suite,) = ElementTree.parse(tmp_path / "o" / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("5", "2")
    assert [case.get("name") for case in suite.iter("testcase")] == ["run", *(gate["gate"] for gate in GATES)]
    assert {case.get("classname") for case in suite.iter("testcase")} == {"smoke"}
    page = (tmp_path / "o" / "g.md").read_text()
    assert page.splitlines()[0] == "**r**: failed: 2 of 4 gates failed"
    assert "| r | `p50(ttft_ms) < 60` | 58 ms | 55 to 64 ms | inconclusive, passed |" in page
    assert (tmp_path / "step.md").read_text() == page
    assert (tmp_path / "o" / "message.txt").read_text().splitlines()[:2] == [
        "failed: 2 of 4 gates failed",
        "passed: failed_ratio < 0.01: is 0",
    ]


@pytest.mark.parametrize(
    ("arguments", "failure", "level"),
    [
        (([],), None, None),
        (([], "valid", False), "failed", "error"),
        ((GATES[:2], "suspect"), None, "warning"),
        ((GATES[:1], "invalid"), "invalid", "error"),
    ],
)
def test_the_junit_case_fails_with_the_exit_code(
    arguments: tuple[Any, ...], failure: str | None, level: str | None
) -> None:
    document = summary(*arguments)
    (suite,) = ElementTree.fromstring(ci_texts.junit({"r": summaries.summary(document)}))
    case = suite.find("testcase[@name='run']")
    assert case is not None
    assert (failure is None) == (document["outcome"]["exit_code"] == 0)
    assert [element.get("type") for element in case.findall("failure")] == ([] if failure is None else [failure])
    assert ("the client was late" in "".join(case.itertext())) == (len(arguments) > 1 and arguments[1] != "valid")
    assert [annotation_level for annotation_level, _ in ci_texts.annotations({"r": summaries.summary(document)})][
        :1
    ] == ([] if level is None else [level])


TEXTS = st.text()
ANY_GATES = st.lists(
    st.fixed_dictionaries(
        {"gate": TEXTS, "value": st.none() | st.floats(0, 1e9), "passed": st.booleans(), "note": st.none() | TEXTS},
        optional={"answer": st.sampled_from(["pass", "fail", "inconclusive"]), "low": st.none() | st.floats(0, 1e9)},
    )
)


@given(ANY_GATES, TEXTS, st.sampled_from(["valid", "suspect", "invalid"]), st.floats(0, 1e6), TEXTS)
def test_junit_has_one_failure_for_each_failed_gate(
    gates: list[dict[str, Any]], name: str, measurement: str, window_s: float, started_at: str
) -> None:
    """Any texts, controls and lone surrogates included, are read back by an XML parser."""
    document = summary(gates, measurement) | {"window_s": window_s}
    document["run"] |= {"started_at": started_at, "scenario": name}
    root = ElementTree.fromstring(ci_texts.junit({name: summaries.summary(document)}))
    (suite,) = root
    failures = {case.get("name"): len(case.findall("failure")) for case in suite.iter("testcase")}
    broken = [gate for gate in gates if not gate["passed"]]
    own = measurement == "invalid" and document["outcome"]["exit_code"] != 0
    assert len(suite.findall("testcase/failure")) == int(str(suite.get("failures"))) == len(broken) + own
    assert set(failures.values()) <= {0, 1}
    assert [case.get("name") for case in suite.iter("testcase")] == ["run", *(escaped(gate["gate"]) for gate in gates)]
    assert sum(float(str(case.get("time"))) for case in suite.iter("testcase")) == float(str(root.get("time")))
    assert (suite.get("timestamp") or "") == escaped(started_at)


def test_the_explanation_of_an_outcome_is_short() -> None:
    document = summary(GATES, "suspect")
    gates = (
        "gates that failed: p99(ttft_ms) < 100: is 130 ms (95 %: over 90 ms), "
        "mean(tpot_ms) < 9: is not known (tpot_ms is not known)"
    )
    assert ci.explanation(summaries.summary(document), 3) == [gates, "suspect: the client was late"]
    errors = [
        {"failure": name, "status": None, "class": "chat", "at_s": 1.0, "text": f"it {name}", "worker": None}
        for name in ("cut", "connect")
    ]
    document["turns"] = {"failed": 4, "ok": 1, "by_failure": {"cut": 1, "connect": 3}, "first_errors": errors}
    assert ci.explanation(summaries.summary(document), 3) == [
        "first cut of chat at 1.0 s: it cut (and 1 more in the report)",
        gates,
        "suspect: the client was late",
    ]
    assert (
        ci.explanation(summaries.summary(document), 5)[0]
        == "4 of 5 turns failed (80 %): connect 3, cut 1; first failure at 1.0 s"
    )


@given(st.integers(0, 9), st.integers(0, 9), st.integers(3, 8), st.sampled_from(["valid", "suspect"]))
def test_many_failures_hide_neither_gates_nor_reasons(turns: int, requests: int, most: int, measurement: str) -> None:
    document = summary(GATES, measurement)
    errors = [
        {"failure": f"f{n}", "status": None, "class": "c", "at_s": 1.0, "text": "x", "worker": None}
        for n in range(turns)
    ]
    document["turns"] = {
        "failed": turns,
        "ok": 1,
        "by_failure": {f"f{n}": 1 for n in range(turns)},
        "first_errors": errors,
    }
    error = {"at_s": 1.0, "text": "no", "worker": None}
    document["other_requests"] = {
        "sent": requests,
        "failed": requests,
        "by_name": [
            {"type": "GET", "name": f"/{n}", "sent": 1, "failed": 1, "first_error": error} for n in range(requests)
        ],
    }
    lines = ci.explanation(summaries.summary(document), most)
    assert len(lines) <= most
    assert any(line.startswith("gates that failed: ") for line in lines)
    assert any(line.startswith("suspect: ") for line in lines) == (measurement == "suspect")
    if turns or requests:
        assert not lines[0].startswith(("gates", "suspect"))


@pytest.mark.parametrize("measurement", ["valid", "suspect", "invalid"])
def test_a_run_that_an_invalid_call_ended_gives_no_advice_on_the_measurement(measurement: str) -> None:
    document = summary((), measurement)
    document["outcome"] = {"state": "failed", "headline": "failed: mine.py:12", "exit_code": 2}
    assert ci.explanation(summaries.summary(document), 3) == []


def test_runs_with_equal_names_are_all_written(tmp_path: Path) -> None:
    failed, good = run(tmp_path / "s" / "a" / "001", GATES), run(tmp_path / "s" / "b" / "001", GATES[:1])
    junit = tmp_path / "j.xml"
    assert cli.main(["report", str(failed), str(good), "--junit", str(junit)]) == 0
    assert [suite.get("name") for suite in ElementTree.parse(junit).getroot()] == [str(failed), str(good)]


@pytest.mark.parametrize("missing", ["outcome", "turns"])
def test_an_incomplete_summary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str) -> None:
    document = {key: value for key, value in synthetic_run.SUMMARY.items() if key != missing}
    folder = synthetic_run.write(tmp_path / "r", document)
    assert cli.main(["report", str(folder), "--junit", str(tmp_path / "j.xml")]) == 2
    assert f"summary.json: object missing required field `{missing}`; the file is damaged" in capsys.readouterr().err


def test_old_files_are_removed_and_unwritable_ones_refused(tmp_path: Path) -> None:
    (tmp_path / "j.xml").write_text("of an earlier run")
    ci.Outputs({"--junit": tmp_path / "j.xml", "--markdown": tmp_path / "new" / "g.md"}).prepare()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    with pytest.raises(UsageError, match=r"--junit .*new: Is a directory; name another that can be written"):
        ci.Outputs({"--junit": tmp_path / "new"}).prepare()


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(None, 64.0, "under 64"), (55.0, None, "over 55"), (None, None, ""), (1.0, 2.0, "1 to 2")],
)
def test_intervals_with_open_ends_in_words(low: float | None, high: float | None, expected: str) -> None:
    assert interval_text(GateResult(gate="", passed=True, low=low, high=high)) == expected


def test_workflow_commands_escape_line_breaks_and_percent_signs() -> None:
    assert ci_texts.workflow_command("error", "100 %\nworse") == "::error title=inferload::100 %25%0Aworse"


def test_annotate_appends_to_the_step_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    ci_texts.annotate([("notice", "x")], "# A\n")
    ci_texts.annotate([], "# B\n")
    assert (tmp_path / "page.md").read_text() == "# A\n# B\n"


def test_outputs_can_contain_lone_surrogates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half, page = "\ud83d", tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    ci_texts.annotate([], half)
    ci.write_file("--junit", tmp_path / "junit.xml", half)
    assert page.read_text("utf-8") == (tmp_path / "junit.xml").read_text("utf-8") == "\\ud83d"


def test_a_run_that_never_started_has_no_measurement() -> None:
    nothing = ci.without_load("failed", "not started: no server", outcome.USAGE)
    root = ElementTree.fromstring(ci_texts.junit({"run": nothing}))
    assert [entry.get("name") for entry in root.iter("property")] == ["outcome", "state", "exit_code"]
