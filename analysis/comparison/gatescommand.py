"""`inferload gates`: what the gates of runs came to, in the forms that pipelines read."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from inferload import rundir
from inferload.errors import UsageError
from inferload.measure.outcome import FAILED, INVALID, gravest, of_summary
from inferload.measure.untrusted import escaped


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "gates",
        help="what the gates of runs came to: text, JUnit XML, Markdown, GitHub annotations",
        description="Print the outcome and the gates of finished runs, as their summary.json has them. Exit codes: 0 all "
        "passed; 1 a gate failed, or without gates a turn, another request or a task; 2 cannot be read; 3 a measurement is "
        "not valid; 130, 143 a run was stopped early by a signal.",
    )
    add = parser.add_argument
    add("run_dirs", nargs="+", type=Path, metavar="RUN", help="run directory")
    add("--junit", type=Path, default=None, metavar="FILE", help="also write JUnit XML there")
    add("--markdown", type=Path, default=None, metavar="FILE", help="also write Markdown for a pull request there")
    add("--github", action="store_true", help="annotations, and the Markdown in the step's summary")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print each run's gates, and write what was asked for."""
    from inferload.measure.console import gates_text

    from . import github
    from .output import write_file

    summaries = {name: _read(path / rundir.SUMMARY) for name, path in _named(arguments.run_dirs).items()}
    for name, summary in summaries.items():
        print(escaped(f"{name}: {of_summary(summary).headline}"))
        print(gates_text(summary) or "no gates")
        print("\n".join(f"  {line}" for line in _failed(summary)), end="\n" if _failed(summary) else "")
    if arguments.junit is not None:
        write_file("--junit", arguments.junit, junit(summaries))
    if arguments.markdown is not None:
        write_file("--markdown", arguments.markdown, markdown(summaries))
    if arguments.github:
        github.tell(annotations(summaries), markdown(summaries), "inferload gates")
    return gravest([_code(summary) for summary in summaries.values()])


def _code(summary: Mapping[str, Any]) -> int:
    """The exit code of a run, whatever its options --on-invalid and --inconclusive-code made of it."""
    verdict, judged = summary["verdict"], of_summary(summary)
    if verdict["measurement"] == "invalid":
        return INVALID
    return FAILED if judged.state == "failed" else judged.exit_code


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Each run by its folder's name, or by its path where several folders are called the same, as in a sweep."""
    names = [path.name for path in dict.fromkeys(paths)]
    return {path.name if path.name and names.count(path.name) == 1 else str(path): path for path in paths}


def _read(path: Path) -> dict[str, Any]:
    """A summary whose verdict is whole; UsageError names what is missing."""
    summary = rundir.read_json(path)
    verdict = summary.get("verdict")
    if not isinstance(verdict, dict):
        raise UsageError(f"{path}: has no verdict; is {path.parent} a finished run of inferload?")
    for key in ("measurement", "reasons", "gates", "passed"):
        if key not in verdict:
            raise UsageError(f"{path}: has no verdict.{key}; is {path.parent} a finished run of inferload?")
    return summary


def _said(gate: Mapping[str, Any]) -> str:
    """One gate in words."""
    from ..wording import number, sureness

    value = "is not known" if gate.get("value") is None else f"is {number(gate['value'])}"
    sure = f" (95 %: {sureness(gate)})" if sureness(gate) else ""
    note = f"; {gate['note']}" if gate.get("note") else ""
    return f"{gate['gate']}: {value}{sure}{note}"


def _failed(summary: Mapping[str, Any]) -> list[str]:
    """The failures of a run in words, with the first message of each class."""
    from inferload.measure import failures

    return [escaped(line) for line in failures.lines(summary)]


def _outcome(gate: Mapping[str, Any]) -> str:
    outcome = "passed" if gate["passed"] else "FAILED"
    return f"inconclusive, {outcome}" if gate.get("answer") == "inconclusive" else outcome


def annotations(summaries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(level, text): an error for a gate that failed and a measurement that is not valid, a warning for what is not certain."""
    found = []
    for name, summary in summaries.items():
        verdict, judged = summary["verdict"], of_summary(summary)
        if judged.state == "stopped early":
            found.append(("error" if judged.exit_code else "warning", f"{name}: {judged.headline}"))
        if verdict["measurement"] != "valid":
            why = "; ".join(str(reason["text"]) for reason in verdict["reasons"] if reason["phase"] == "measure")
            level = "error" if verdict["measurement"] == "invalid" else "warning"
            found.append((level, f"{name}: {verdict['measurement']} measurement: {why}"))
        for gate in verdict["gates"]:
            if not gate["passed"] or gate.get("answer") == "inconclusive":
                found.append(("warning" if gate["passed"] else "error", f"{name}: {_outcome(gate)}: {_said(gate)}"))
        if not verdict["gates"] and not verdict["passed"]:
            why = "; ".join([judged.headline, *_failed(summary)])
            found.append(("error", f"{name}: {why}"))
    return found


def markdown(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """The outcome of each run, and a row for each gate."""
    from inferload.measure.untrusted import code_span
    from inferload.measure.untrusted import markdown as text

    from ..wording import NOT_KNOWN, number, sureness
    from .output import piped

    rows: list[Sequence[str]] = [("run", "measurement", "gate", "value", "95 %", "")]
    for name, summary in summaries.items():
        verdict = summary["verdict"]
        for gate in verdict["gates"] or [{"gate": "no turn fails", "passed": verdict["passed"]}]:
            value = number(gate["value"]) if gate.get("value") is not None else NOT_KNOWN if "value" in gate else ""
            rows.append((name, verdict["measurement"], code_span(gate["gate"]), value, sureness(gate), _outcome(gate)))
    outcomes = [f"**{text(name)}**: {text(of_summary(summary).headline)}" for name, summary in summaries.items()]
    return "\n\n".join([*outcomes, piped(rows, right=False)]) + "\n"


def junit(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """A suite for each run with its outcome as a property; cases: the planned end, a valid measurement, each gate."""
    root = ElementTree.Element("testsuites", name="inferload gates")
    for name, summary in summaries.items():
        verdict = summary["verdict"]
        invalid = verdict["measurement"] == "invalid"
        gates = verdict["gates"] or [{"gate": "no turn fails", "passed": verdict["passed"]}]
        judged = of_summary(summary)
        stopped = judged.state == "stopped early"
        failures = sum(not gate["passed"] for gate in gates) + invalid + stopped
        counts = {"tests": str(len(gates) + 2), "failures": str(failures), "skipped": "0"}
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
        properties = ElementTree.SubElement(suite, "properties")
        for key, value in (("outcome", judged.headline), ("state", judged.state)):
            ElementTree.SubElement(properties, "property", name=key, value=escaped(value))
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="run reached its planned end")
        if stopped:
            ElementTree.SubElement(case, "failure", message=escaped(judged.headline))
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="measurement is valid")
        if invalid:
            ElementTree.SubElement(case, "failure", message="; ".join(str(one["text"]) for one in verdict["reasons"]))
        for gate in gates:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=gate["gate"])
            if not gate["passed"]:
                plain = "; ".join([judged.headline, *_failed(summary)])
                ElementTree.SubElement(case, "failure", message=_said(gate) if "value" in gate else plain)
            elif gate.get("answer") == "inconclusive":
                ElementTree.SubElement(case, "system-out").text = f"inconclusive: {_said(gate)}"
        if _failed(summary):
            ElementTree.SubElement(suite, "system-out").text = "\n".join(_failed(summary))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
