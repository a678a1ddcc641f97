"""Diagnosis of a run: findings by window, primary and contributing causes, advice."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from inferload.bottleneck.rules import RULES, Finding, WindowDiagnosis, judge
from inferload.server_metrics.series import ServerSeries

from ..data.frames import RunFrames
from ..data.timeline import is_gpu_exporter
from .advice import ADVICE, Advice, Cause
from .client_view import ClientView
from .evidence import as_document, collect
from .whole_run import RULE_OF, RUN_RULES, is_troubled, kept_up_rates, run_findings, sent_no_turn

WINDOW_S = 30.0
SHORTEST_S = 2.0

_TITLES = {rule.code: rule.title for rule in RULES}


@dataclass(frozen=True, slots=True)
class Diagnoses:
    """Findings on the whole run by descending weight, and the diagnosis of each scraped server."""

    run: tuple[Finding, ...] = ()
    servers: tuple["Diagnosis", ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of a server. `short`: the windows are shorter than `WINDOW_S`. `sample`: of client figures; None: all turns."""

    target: str
    windows: tuple[WindowDiagnosis, ...]
    whole: WindowDiagnosis
    short: bool
    sample: str | None = None

    @property
    def primary(self) -> Finding | None:
        """Primary finding of the whole measure phase."""
        return self.whole.primary


def diagnose(run: RunFrames) -> Diagnoses:
    """Diagnose a run. Without turns the diagnosis is empty; servers are diagnosed only with scrapes and a measure phase."""
    if sent_no_turn(run):
        return Diagnoses()
    servers = _servers(run)
    return Diagnoses(run_findings(run, [server.whole.evidence for server in servers]), tuple(servers))


def _servers(run: RunFrames) -> list[Diagnosis]:
    span = next((span for span in run.phases if span.phase == "measure"), None)
    if span is None:
        return []
    end_s = run.end_s if span.end_s is None else span.end_s
    if end_s - span.start_s < SHORTEST_S:
        return []
    scraped = [server for server in run.servers.values() if len(server.wall_ns) > 2 and not is_gpu_exporter(server)]
    return [_of_server(run, server, span.start_s, end_s) for server in scraped]


def _of_server(run: RunFrames, server: ServerSeries, start_s: float, end_s: float) -> Diagnosis:
    view, troubled, rates = ClientView.of(run, server), is_troubled(run, server), kept_up_rates(run)

    def judged(low: float, high: float) -> WindowDiagnosis:
        return judge(replace(collect(run, server, low, high, view), troubled=troubled, rates=rates))

    count = max(1, int((end_s - start_s) // WINDOW_S))
    length_s = (end_s - start_s) / count
    edges = [(start_s + index * length_s, start_s + (index + 1) * length_s) for index in range(count)]
    windows = tuple(judged(low, high) for low, high in edges)
    whole = windows[0] if count == 1 else judged(start_s, end_s)
    sample = None if run.sample is None else str(run.sample)
    return Diagnosis(server.target, windows, whole, short=length_s < WINDOW_S, sample=sample)


def run_sentences(findings: Sequence[Finding]) -> list[str]:
    """Format the findings on the whole run as sentences."""
    return [
        line
        for finding in findings
        for line in (_lead(finding, RULE_OF[finding.code].title), *_capitalised(finding.sentences))
    ]


def _lead(finding: Finding, title: str) -> str:
    return f"{'Probable cause: ' if finding.probable else ''}{title} ({finding.code})."


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Format the diagnosis of a server: primary cause, evidence, contributing causes, changes over time."""
    primary = diagnosis.primary
    if primary is None:
        evidence = diagnosis.whole.evidence
        why = (
            "no rule holds" if evidence.waiting_known else "the server does not publish the number of waiting requests"
        )
        return [f"No {'other ' if evidence.troubled else ''}cause found: {why}."]
    lines = [
        _lead(primary, _TITLES[primary.code]),
        *_capitalised(primary.sentences),
    ]
    for other in diagnosis.whole.findings[1:]:
        lines.append(f"Contributing: {_TITLES[other.code]} ({other.code}): {'; '.join(other.sentences)}.")
    changed = _over_time(diagnosis.windows)
    if changed:
        lines.append(changed)
    if diagnosis.short:
        lines.append(
            f"The window is {diagnosis.whole.evidence.length_s:.0f} s long; use {WINDOW_S:.0f} s or more for a reliable diagnosis."
        )
    if diagnosis.sample is not None:
        lines.append(f"TTFT, ITL and waiting prompts of the client are from {diagnosis.sample}.")
    return lines


def _capitalised(sentences: Sequence[str]) -> list[str]:
    return [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences]


def _over_time(windows: Sequence[WindowDiagnosis]) -> str:
    codes = [window.primary.code if window.primary else "none" for window in windows]
    if len(set(codes)) < 2:
        return ""
    counted = ", ".join(f"{code} in {count}" for code, count in Counter(codes).most_common())
    return f"Primary cause in {len(codes)} windows of {windows[0].evidence.length_s:.0f} s: {counted}."


def advice(diagnosis: Diagnosis) -> tuple[Advice, ...]:
    """Return advice on the primary cause."""
    primary = diagnosis.primary
    return () if primary is None else ADVICE[primary.code]


def run_advice(findings: Sequence[Finding]) -> tuple[Advice, ...]:
    """Return advice on the whole run."""
    return tuple(dict.fromkeys(entry for finding in findings for entry in RULE_OF[finding.code].advice))


def causes(diagnoses: Diagnoses) -> tuple[Cause, ...]:
    """Return the diagnosis for the report: the whole run, then each server."""
    whole = Cause("Whole run", tuple(run_sentences(diagnoses.run)), run_advice(diagnoses.run))
    servers = [Cause(server.target, tuple(sentences(server)), advice(server)) for server in diagnoses.servers]
    return (*([whole] if diagnoses.run else []), *servers)


def _brief(diagnoses: Diagnoses) -> str:
    """Format the primary finding and its evidence: on the whole run, else on each server, by name if there are several."""
    if diagnoses.run:
        return " ".join(run_sentences(diagnoses.run)[:2])
    first = [(server.target, " ".join(sentences(server)[:2]) + _client_figures(server)) for server in diagnoses.servers]
    return first[0][1] if len(first) == 1 else "; ".join(f"{target}: {sentence}" for target, sentence in first)


def _client_figures(diagnosis: Diagnosis) -> str:
    """Return the mark of a sentence with evidence."""
    return f" (Client figures from {diagnosis.sample}.)" if diagnosis.sample is not None and diagnosis.primary else ""


def document(diagnoses: Diagnoses) -> dict[str, Any]:
    """Return the content of diagnosis.json. `brief`: one line; `lines`: all sentences; both are printed at the end of a run."""
    return {
        "format": 1,
        "brief": _brief(diagnoses),
        "lines": [
            line
            for cause in causes(diagnoses)
            for line in (cause.target, *(f"  {sentence}" for sentence in cause.sentences))
        ],
        "run": {
            "findings": [_finding(finding) for finding in diagnoses.run],
            "advice": [asdict(entry) for entry in run_advice(diagnoses.run)],
        },
        "servers": [
            {
                "target": server.target,
                "primary": None if server.primary is None else server.primary.code,
                "probable": None if server.primary is None else server.primary.probable,
                "short_windows": server.short,
                "findings": [_finding(finding) for finding in server.whole.findings],
                "advice": [asdict(entry) for entry in advice(server)],
                "client_figures_from": server.sample,
                "evidence": as_document(server.whole.evidence),
                "windows": [
                    {
                        "start_s": window.evidence.start_s,
                        "end_s": window.evidence.end_s,
                        "findings": [finding.code for finding in window.findings],
                    }
                    for window in server.windows
                ],
            }
            for server in diagnoses.servers
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "weight": finding.weight,
        "probable": finding.probable,
        "sentences": list(finding.sentences),
    }


def json_text(diagnoses: Diagnoses) -> str:
    """Return diagnosis.json as text."""
    return json.dumps(document(diagnoses), indent=1, ensure_ascii=False) + "\n"


def table() -> str:
    """Format rules and advice as the tables of docs/report.md."""
    lines = ["| finding on the whole run | condition |", "|---|---|"]
    lines += [f"| `{rule.code}` {rule.title} | {rule.holds} |" for rule in RUN_RULES]
    lines += ["", "| cause | evidence | limits |", "|---|---|---|"]
    lines += [f"| `{rule.code}` {rule.title} | {rule.looks_like} | {rule.limits} |" for rule in RULES]
    lines += ["", "| cause | to try | reason | side effects |", "|---|---|---|---|"]
    for rule in RULES:
        lines += [f"| `{rule.code}` | `{entry.do}` | {entry.why} | {entry.effects} |" for entry in ADVICE[rule.code]]
    return (
        "\n".join(lines).replace(" | awq", " \\| awq").replace(" | gptq", " \\| gptq").replace(" | fp8", " \\| fp8")
        + "\n"
    )


def main(page: str) -> None:
    """Replace the tables at the end of the page."""
    from pathlib import Path

    path = Path(page)
    head = path.read_text(encoding="utf-8").partition("| finding on the whole run |")[0].rstrip() + "\n\n"
    path.write_text(head + table(), encoding="utf-8")


if __name__ == "__main__":
    import sys

    main(sys.argv[1] if len(sys.argv) > 1 else "docs/report.md")
