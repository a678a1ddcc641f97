"""`inferload gates`: what the gates of runs came to, in the forms that pipelines read."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from inferload import rundir
from inferload.errors import UsageError

EXIT_GATE, EXIT_INVALID = 1, 3


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "gates",
        help="what the gates of runs came to: text, JUnit XML, Markdown, GitHub annotations",
        description="Says what the gates of finished runs came to, as their summary.json has it. Exit codes: 0 all passed; "
        "1 a gate failed, or turns did where there is no gate; 2 cannot be read; 3 a measurement is not valid.",
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
        verdict = summary["verdict"]
        print(f"{name}: {verdict['measurement']} measurement, {'passed' if verdict['passed'] else 'FAILED'}")
        print(gates_text(summary) or "no gates")
    if arguments.junit is not None:
        write_file("--junit", arguments.junit, junit(summaries))
    if arguments.markdown is not None:
        write_file("--markdown", arguments.markdown, markdown(summaries))
    if arguments.github:
        github.tell(annotations(summaries), markdown(summaries), "inferload gates")
    verdicts = [summary["verdict"] for summary in summaries.values()]
    if any(verdict["measurement"] == "invalid" for verdict in verdicts):
        return EXIT_INVALID
    return 0 if all(verdict["passed"] for verdict in verdicts) else EXIT_GATE


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


def _outcome(gate: Mapping[str, Any]) -> str:
    outcome = "passed" if gate["passed"] else "FAILED"
    return f"inconclusive, {outcome}" if gate.get("answer") == "inconclusive" else outcome


def annotations(summaries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(level, text): an error for a gate that failed and a measurement that is not valid, a warning for what is not certain."""
    found = []
    for name, summary in summaries.items():
        verdict = summary["verdict"]
        if verdict["measurement"] != "valid":
            why = "; ".join(str(reason["text"]) for reason in verdict["reasons"] if reason["phase"] == "measure")
            level = "error" if verdict["measurement"] == "invalid" else "warning"
            found.append((level, f"{name}: {verdict['measurement']} measurement: {why}"))
        for gate in verdict["gates"]:
            if not gate["passed"] or gate.get("answer") == "inconclusive":
                found.append(("warning" if gate["passed"] else "error", f"{name}: {_outcome(gate)}: {_said(gate)}"))
        if not verdict["gates"] and not verdict["passed"]:
            found.append(("error", f"{name}: turns failed, and there are no gates that would allow it"))
    return found


def markdown(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each gate."""
    from inferload.measure.untrusted import code_span

    from ..wording import NOT_KNOWN, number, sureness
    from .output import piped

    rows: list[Sequence[str]] = [("run", "measurement", "gate", "value", "95 %", "")]
    for name, summary in summaries.items():
        verdict = summary["verdict"]
        for gate in verdict["gates"] or [{"gate": "no turn fails", "passed": verdict["passed"]}]:
            value = number(gate["value"]) if gate.get("value") is not None else NOT_KNOWN if "value" in gate else ""
            rows.append((name, verdict["measurement"], code_span(gate["gate"]), value, sureness(gate), _outcome(gate)))
    return piped(rows, right=False) + "\n"


def junit(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """A suite for each run, a case for each gate, and one for whether the measurement is valid."""
    root = ElementTree.Element("testsuites", name="inferload gates")
    for name, summary in summaries.items():
        verdict = summary["verdict"]
        invalid = verdict["measurement"] == "invalid"
        gates = verdict["gates"] or [{"gate": "no turn fails", "passed": verdict["passed"]}]
        failures = sum(not gate["passed"] for gate in gates) + invalid
        counts = {"tests": str(len(gates) + 1), "failures": str(failures), "skipped": "0"}
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="measurement is valid")
        if invalid:
            ElementTree.SubElement(case, "failure", message="; ".join(str(one["text"]) for one in verdict["reasons"]))
        for gate in gates:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=gate["gate"])
            if not gate["passed"]:
                ElementTree.SubElement(case, "failure", message=_said(gate) if "value" in gate else "turns failed")
            elif gate.get("answer") == "inconclusive":
                ElementTree.SubElement(case, "system-out").text = f"inconclusive: {_said(gate)}"
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
