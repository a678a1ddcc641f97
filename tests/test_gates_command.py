"""`inferload gates`: the outcomes of a run's gates in the forms that pipelines read."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from inferload.analysis.wording import sureness

from inferload import cli, rundir

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


def summary(folder: Path, gates: list[dict[str, Any]], measurement: str = "valid", passed: bool | None = None) -> Path:
    folder.mkdir(parents=True)
    reasons = [] if measurement == "valid" else [{"phase": "measure", "text": "the client was late"}]
    passed = all(gate["passed"] for gate in gates) if passed is None else passed
    verdict = {"measurement": measurement, "reasons": reasons, "gates": gates, "passed": passed}
    rundir.write_json(folder / rundir.SUMMARY, {"verdict": verdict})
    return folder


def test_gates_as_a_pipeline_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = summary(tmp_path / "r", GATES)
    files = ["--junit", str(tmp_path / "o" / "j.xml"), "--markdown", str(tmp_path / "o" / "g.md"), "--github"]
    assert cli.main(["gates", str(folder), *files]) == 1
    shown = capsys.readouterr()
    assert "INCONCLUSIVE, 95 %: 55 to 64" in shown.out
    assert shown.err.splitlines() == [
        "::warning title=inferload gates::r: inconclusive, passed: p50(ttft_ms) < 60: is 58 (95 %25: 55 to 64)",
        "::error title=inferload gates::r: inconclusive, FAILED: p99(ttft_ms) < 100: is 130 (95 %25: over 90)",
        "::error title=inferload gates::r: FAILED: mean(tpot_ms) < 9: is not known; tpot_ms is not known",
    ]
    (suite,) = ElementTree.parse(tmp_path / "o" / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("6", "2")
    page = (tmp_path / "o" / "g.md").read_text().splitlines()
    assert page[0] == "**r**: failed: 2 of 4 gates failed"
    assert page[5] == "| r | valid | `p50(ttft_ms) < 60` | 58 | 55 to 64 | inconclusive, passed |"


@pytest.mark.parametrize(
    ("gates", "measurement", "passed", "code"),
    [([], "valid", True, 0), ([], "valid", False, 1), (GATES[:2], "suspect", None, 0), (GATES, "invalid", None, 3)],
)
def test_the_exit_code_is_that_of_the_worst_run(
    tmp_path: Path, gates: list[dict[str, Any]], measurement: str, passed: bool | None, code: int
) -> None:
    good = summary(tmp_path / "good", GATES[:1])
    other = summary(tmp_path / "other", gates, measurement, passed)
    assert cli.main(["gates", str(good), str(other), "--github"]) == code


def test_runs_of_a_sweep_that_are_called_the_same_are_all_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = summary(tmp_path / "s" / "a" / "001", GATES)
    good = summary(tmp_path / "s" / "b" / "001", GATES[:1])
    junit = tmp_path / "j.xml"
    assert cli.main(["gates", str(failed), str(good), "--junit", str(junit)]) == 1
    shown = capsys.readouterr().out
    assert f"{failed}: failed: 2 of 4 gates failed\n" in shown
    assert f"{good}: passed: 1 of 1 gate passed\n" in shown
    assert [suite.get("name") for suite in ElementTree.parse(junit).getroot()] == [str(failed), str(good)]


@pytest.mark.parametrize(
    ("document", "missing"), [({}, "verdict"), ({"verdict": {"measurement": "valid", "reasons": []}}, "verdict.gates")]
)
def test_a_summary_that_is_not_whole_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: dict[str, Any], missing: str
) -> None:
    rundir.write_json(tmp_path / rundir.SUMMARY, document)
    assert cli.main(["gates", str(tmp_path)]) == 2
    assert f"summary.json: has no {missing}; is " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(None, 64.0, "under 64"), (55.0, None, "over 55"), (None, None, "too short to tell"), (1.0, 2.0, "1 to 2")],
)
def test_an_interval_with_open_ends_is_said(low: float | None, high: float | None, said: str) -> None:
    assert sureness({"low": low, "high": high}) == said
