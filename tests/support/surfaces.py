"""Outputs of a run that show its outcome: terminal, report, JUnit and Markdown."""

import html
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import summaries
from locust_process import summary_of

from inferload.base import rundir
from inferload.results import ci

OUTPUTS = (
    "--junit",
    "junit.xml",
    "--markdown",
    "gates.md",
    "--termination-message",
    "message.txt",
    "--github",
)  # options of a run beside which they are written


def check(run_dir: Path, code: int, text: str, state: str, headline: str, *, raised: bool = False) -> None:
    """Check that each output shows the headline of the summary. `raised`: Locust logs a task's exception."""
    summary = summary_of(run_dir)
    stated = summary["outcome"]
    assert ("Traceback" in text) == raised, text
    assert (stated["state"], stated["exit_code"]) == (state, code), text
    assert re.fullmatch(headline, stated["headline"]), stated
    _check_terminal(run_dir, text, summary)
    page, markdown = (html.unescape((run_dir / name).read_text()) for name in (rundir.REPORT_HTML, rundir.REPORT_MD))
    stated_in = [line for line in markdown.replace("\\", "").splitlines()[:4] if stated["headline"] in line]
    assert stated_in, "the first paragraph of report.md"
    assert f"<title>{stated['headline']} · " in page
    assert f'<body class="{state.replace(" ", "-")}"' in page
    _check_load(run_dir, text, markdown, page)
    _check_junit(run_dir, summary)
    assert f"**run**: {stated['headline']}" in run_dir.with_name("gates.md").read_text()
    assert run_dir.with_name("message.txt").read_text().splitlines()[0] == stated["headline"]


def check_failures_first(run_dir: Path) -> None:
    """Check that report and diagnosis.json begin with the failures."""
    document = rundir.read_object(run_dir / "diagnosis.json")
    finding = document["run"]["findings"][0]
    assert finding["code"] in ("failures", "refused")
    page = (run_dir / rundir.REPORT_MD).read_text()
    section = page.partition("\n## Diagnosis")[2].partition("\n## ")[0]
    assert "not-loaded" not in page
    assert "kept up" not in section
    assert "more load" not in section
    assert "turns failed" in section
    assert finding["sentences"][0] in document["lines"][2]
    assert "more load" not in "\n".join(document["lines"])


def _check_terminal(run_dir: Path, text: str, summary: dict[str, Any]) -> None:
    headline = summary["outcome"]["headline"]
    assert headline in text.splitlines(), "first line of the tables on the terminal"
    *details, report, last = text.rstrip().splitlines()[-5:]
    assert last.endswith(f": {headline}"), "last line of the log"
    *_before, after = text.partition(f"\n{headline}\n")
    own = [line for line in after.splitlines() if "/INFO/locust." not in line]
    more_gates = max(0, len(summary["verdict"]["gates"]) - 1)  # each has a line
    assert len(own) - more_gates < 25 or "\nLatency" in after
    assert "# reqs" not in text, "Locust's own tables"
    assert report.endswith(f": report: {run_dir / rundir.REPORT_HTML}")
    for line in ci.explanation(summaries.summary(summary), len(details)):
        assert any(detail.endswith(f": {line}") for detail in details), line
    assert str(run_dir / rundir.REPORT_HTML) in text.splitlines()


def _check_load(run_dir: Path, text: str, markdown: str, page: str) -> None:
    """Check that terminal and report state the load of run.json."""
    load = rundir.read_object(run_dir / rundir.MANIFEST)["load"]
    assert [title for title, _ in load["rows"]] == ["arrivals", "session", "request", "phases"]
    assert f'<p class="users">{load["users_or_rate"]}</p><p class="note">{load["detail"]}</p>' in page
    detailed = "\nLatency" in text
    assert detailed or f", {load['users_or_rate']}\n" in text
    for title, lines in load["rows"]:
        assert not detailed or f"{title:<10}{lines[0]}" in text
        assert f"| {title} | {lines[0]}" in markdown.replace("\\", "")
        assert f"<dt>{title}</dt><dd>{lines[0]}" in page


def _check_junit(run_dir: Path, summary: dict[str, Any]) -> None:
    stated = summary["outcome"]
    headline, state, code = stated["headline"], stated["state"], stated["exit_code"]
    (suite,) = ElementTree.parse(run_dir.with_name("junit.xml")).getroot()
    properties = {prop.get("name"): prop.get("value") for prop in suite.iter("property")}
    assert (properties["outcome"], properties["state"], properties["exit_code"]) == (headline, state, str(code))
    (case,) = suite.findall("testcase[@name='run']")
    by_gates = code == 1 and any(not gate["passed"] for gate in summary["verdict"]["gates"])
    assert [(failure.get("type"), failure.get("message")) for failure in case.findall("failure")] == (
        [] if by_gates else [(state, headline)]
    )
    assert headline in "".join(case.itertext()), "without a failure: its output"
