"""Texts of the outputs for pipelines: JUnit XML, Markdown, a termination message, and annotations of GitHub."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from inferload.base.escaping import code_span, escaped, escaped_lines
from inferload.base.escaping import markdown as plain
from inferload.base.numbers import exact
from inferload.figures import table
from inferload.figures.table import Cell, Table
from inferload.results.documents.summary_document import Summary
from inferload.results.documents.verdict_document import NOT_JUDGED
from inferload.results.verdict import failures
from inferload.results.verdict.gate_text import gate_line, gate_mark, interval_text, value_text
from inferload.results.verdict.outcome import FAILED, reason_lines

_GITHUB_ESCAPES = {"%": "%25", "\n": "%0A"}
_PROPERTIES = ("scenario", "target", "model", "engine", "seed")

MESSAGE_BYTES = 4096
_LINE_CHARS = 1000  # of a message: its first line always fits

Summaries = Mapping[str, Summary]  # by the name of their run


def annotations(summaries: Summaries) -> list[tuple[str, str]]:
    """Return (level, text): errors for failed runs and gates, warnings for uncertain results."""
    notes = []
    for name, summary in summaries.items():
        judged = summary.outcome
        if judged.state != "passed":
            text = "; ".join([f"{name}: {judged.headline}", *_details(summary)])
            notes.append(("error" if judged.exit_code else "warning", text))
        for gate in summary.verdict.gates:
            if gate.failed or gate.answer == "inconclusive":
                level = "warning" if gate.passed else "error"
                notes.append((level, f"{name}: {gate_mark(gate)}: {gate_line(gate)}"))
    return notes


def markdown(summaries: Summaries) -> str:
    """Return the outcome of each run with its failures, and a table of the gates."""
    parts = []
    rows: list[Sequence[Cell]] = []
    for name, summary in summaries.items():
        details = "\n".join(f"* {plain(line)}" for line in _details(summary))
        parts += [f"**{plain(name)}**: {plain(summary.outcome.headline)}", *([details] if details else [])]
        for gate in summary.verdict.gates:
            outcome = "; ".join([gate_mark(gate), *([gate.note] if gate.note else [])])
            rows.append((name, code_span(gate.gate), value_text(gate, gate.value), interval_text(gate), outcome))
    if rows:
        parts.append(table.markdown(Table("gates", "", ("run", "gate", "value", "95 %", "result"), rows)))
    return "\n\n".join(parts) + "\n"


def junit(summaries: Summaries) -> str:
    """Return a suite for each run: a case for each gate, and one for the run, which fails for any other reason.

    The time of the run is its measured time; gates have none of their own.
    """
    root = ElementTree.Element("testsuites", name="inferload")
    for name, summary in summaries.items():
        _add_suite(root, name, summary)
    for total in ("tests", "failures"):
        root.set(total, str(sum(int(suite.get(total, 0)) for suite in root)))
    root.set("time", exact(sum(float(suite.get("time", 0)) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def termination_message(summaries: Summaries) -> str:
    """Return outcome, gates and reasons in at most 4,096 bytes, which is what Kubernetes keeps of a container's last words.

    https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
    """
    lines: list[str] = []
    for name, summary in summaries.items():
        own = "" if summary.run.scenario else "inferload: "  # as on standard error
        lines.append((f"{name}: " if len(summaries) > 1 else own) + summary.outcome.headline)
        lines += [f"{gate_mark(gate)}: {gate_line(gate)}" for gate in summary.verdict.gates]
        lines += _details(summary)
    shown = [line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}..." for line in map(escaped, lines)]
    return _fitting(shown, MESSAGE_BYTES)


def _fitting(lines: Sequence[str], most_bytes: int) -> str:
    """Return the lines, or the first of them with the number of those left out, in at most so many bytes."""
    whole = "".join(f"{line}\n" for line in lines)
    for shown in range(len(lines) - 1, -1, -1):
        if len(whole.encode(errors="backslashreplace")) <= most_bytes:
            break
        whole = "".join(f"{line}\n" for line in (*lines[:shown], f"and {len(lines) - shown} more in the report"))
    return whole


def _add_suite(root: ElementTree.Element, name: str, summary: Summary) -> None:
    judged, gates, details = summary.outcome, summary.verdict.gates, _details(summary)
    run, time = summary.run, exact(summary.window_s or 0.0)
    of = run.scenario or name  # constant over runs, for the history of a case
    broken = sum(not gate.passed for gate in gates)
    failed = bool(judged.exit_code) and not (broken and judged.exit_code == FAILED)
    counts = {"tests": len(gates) + 1, "failures": failed + broken, "errors": 0, "skipped": 0}
    stated = {"name": escaped(name), "time": time, **{key: str(count) for key, count in counts.items()}}
    if run.started_at:
        stated["timestamp"] = escaped(run.started_at)
    suite = ElementTree.SubElement(root, "testsuite", stated)
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(summary).items():
        ElementTree.SubElement(properties, "property", name=key, value=escaped(value))
    case = ElementTree.SubElement(suite, "testcase", classname=escaped(of), name="run", time=time)
    text = "\n".join(escaped(line) for line in (judged.headline, *details))
    _add_text(case, text, judged.state if failed else "", judged.headline)
    for gate in gates:
        case = ElementTree.SubElement(suite, "testcase", classname=escaped(of), name=escaped(gate.gate), time="0")
        text = escaped(f"{gate_mark(gate)}: {gate_line(gate)}")
        _add_text(case, text, "" if gate.passed else "gate", gate_line(gate))


def _add_text(case: ElementTree.Element, text: str, failure: str, message: str) -> None:
    """Add the text of a case. `failure`: its type; empty: the case passed."""
    stated = {"type": failure, "message": escaped(message)} if failure else {}
    ElementTree.SubElement(case, "failure" if failure else "system-out", stated).text = text


def _properties(summary: Summary) -> dict[str, str]:
    judged, run, measurement = summary.outcome, summary.run, summary.verdict.measurement
    properties = {
        "outcome": judged.headline,
        "state": judged.state,
        "exit_code": judged.exit_code,
        "measurement": None if measurement == NOT_JUDGED else measurement,
        "window_s": summary.window_s,
        **{key: getattr(run, key) for key in _PROPERTIES},
    }
    return {key: str(value) for key, value in properties.items() if value is not None}


def _details(summary: Summary) -> list[str]:
    """Return the failures with the first message of each class, and the reasons of the verdict."""
    return [*failures.lines(summary), *reason_lines(summary.verdict)]


TEXTS = {"--junit": junit, "--markdown": markdown, "--termination-message": termination_message}


# -- GitHub


def workflow_command(level: str, text: str, title: str = "inferload") -> str:
    """Return a workflow command; `level`: notice, warning or error. Line breaks are escaped, because they would end it."""
    text = escaped_lines(text.replace("\r", ""))
    for sign, code in _GITHUB_ESCAPES.items():
        text = text.replace(sign, code)
    return f"::{level} title={title}::{text}"


def annotate(notes: Sequence[tuple[str, str]], summary: str, title: str = "inferload") -> None:
    """Print annotations on stderr, which workflows read as well as stdout, and append to the step summary."""
    for level, text in notes:
        print(workflow_command(level, text, title), file=sys.stderr)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(page).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(summary)
        except OSError as error:
            print(f"inferload: GITHUB_STEP_SUMMARY {page}: {error.strerror}", file=sys.stderr)
