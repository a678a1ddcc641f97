"""From a run to its causes: windows, findings ranked, a primary cause with its contributors, and what to try."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferload.server_metrics.series import ServerSeries

from ..data.frames import RunFrames
from ..data.timeline import is_gpu_exporter
from .advice import ADVICE, Cause
from .client_view import Seen
from .evidence import Evidence, as_document, collect
from .rules import RULES, Finding, Rule
from .whole_run import RULE_OF, RUN_RULES, is_troubled, kept_up_rates, run_findings

WINDOW_S = 30.0
SHORTEST_S = 2.0

_TITLES = {rule.code: rule.title for rule in RULES}


@dataclass(frozen=True, slots=True)
class Window:
    """One window's findings, the strongest first."""

    evidence: Evidence
    findings: tuple[Finding, ...]

    @property
    def primary(self) -> Finding | None:
        """What weighs most; None where no rule holds."""
        return self.findings[0] if self.findings else None


@dataclass(frozen=True, slots=True)
class Diagnoses:
    """Findings on the whole run, the most important first, and the causes at each server that was scraped."""

    run: tuple[Finding, ...] = ()
    servers: tuple["Diagnosis", ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run's causes at one server. `short`: the windows are shorter than a diagnosis wants."""

    target: str
    windows: tuple[Window, ...]
    whole: Window
    short: bool

    @property
    def primary(self) -> Finding | None:
        """The run's cause: of the whole measure phase."""
        return self.whole.primary


def judge(evidence: Evidence) -> Window:
    """All rules on one window."""
    found = [finding for rule in RULES if (finding := rule.judge(evidence)) is not None]
    real = [finding for finding in found if finding.code != "kept-up"]
    return Window(evidence, tuple(sorted(real or found, key=lambda finding: -finding.weight)))


def diagnose(run: RunFrames) -> Diagnoses:
    """The diagnosis of a run. No server has one if none was scraped, or the run has no measure phase."""
    servers = _servers(run)
    return Diagnoses(run_findings(run, [one.whole.evidence for one in servers]), tuple(servers))


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
    seen, troubled, rates = Seen.of(run, server), is_troubled(run, server), kept_up_rates(run)

    def judged(low: float, high: float) -> Window:
        return judge(replace(collect(run, server, low, high, seen), troubled=troubled, rates=rates))

    count = max(1, int((end_s - start_s) // WINDOW_S))
    length_s = (end_s - start_s) / count
    edges = [(start_s + place * length_s, start_s + (place + 1) * length_s) for place in range(count)]
    windows = tuple(judged(low, high) for low, high in edges)
    whole = windows[0] if count == 1 else judged(start_s, end_s)
    return Diagnosis(server.target, windows, whole, short=length_s < WINDOW_S)


def run_sentences(findings: Sequence[Finding]) -> list[str]:
    """The findings on the whole run in words."""
    return [
        line for finding in findings for line in (_lead(finding, RULE_OF[finding.code].title), *_sentence(finding.said))
    ]


def _lead(finding: Finding, title: str) -> str:
    return f"{'Probable cause: ' if finding.probable else ''}{title} ({finding.code})."


def sentences(diagnosis: Diagnosis) -> list[str]:
    """The diagnosis in words: the cause, its evidence, what contributes, what to try."""
    primary = diagnosis.primary
    if primary is None:
        evidence = diagnosis.whole.evidence
        why = "no rule holds" if evidence.waiting_known else "the server does not publish how many requests wait"
        return [f"No {'other ' if evidence.troubled else ''}cause found: {why}."]
    lines = [
        _lead(primary, _TITLES[primary.code]),
        *_sentence(primary.said),
    ]
    for other in diagnosis.whole.findings[1:]:
        lines.append(f"Contributes: {_TITLES[other.code]} ({other.code}): {'; '.join(other.said)}.")
    changed = _over_time(diagnosis.windows)
    if changed:
        lines.append(changed)
    if diagnosis.short:
        lines.append(
            f"The window is {diagnosis.whole.evidence.length_s:.0f} s long; {WINDOW_S:.0f} s or more tell more surely."
        )
    return lines


def _sentence(said: Sequence[str]) -> list[str]:
    return [f"{each[:1].upper()}{each[1:]}." for each in said]


def _over_time(windows: Sequence[Window]) -> str:
    codes = [window.primary.code if window.primary else "none" for window in windows]
    if len(set(codes)) < 2:
        return ""
    counted = ", ".join(f"{code} in {count}" for code, count in Counter(codes).most_common())
    return f"Over {len(codes)} windows of {windows[0].evidence.length_s:.0f} s: {counted}."


def advice(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """What to try against the primary cause: (what, why, effects)."""
    primary = diagnosis.primary
    return [] if primary is None else [(one.do, one.why, one.effects) for one in ADVICE[primary.code]]


def run_advice(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """What to do about the findings on the whole run: (what, why, effects)."""
    every = [one for finding in findings for one in RULE_OF[finding.code].advice]
    return [(one.do, one.why, one.effects) for one in dict.fromkeys(every)]


def causes(diagnoses: Diagnoses) -> tuple[Cause, ...]:
    """As the report shows them."""
    whole = Cause("The whole run", tuple(run_sentences(diagnoses.run)), tuple(run_advice(diagnoses.run)))
    servers = [Cause(one.target, tuple(sentences(one)), tuple(advice(one))) for one in diagnoses.servers]
    return (*([whole] if diagnoses.run else []), *servers)


def _brief(diagnoses: Diagnoses) -> str:
    """Return the primary finding and its evidence: on the whole run, else on each server, named if there are several."""
    if diagnoses.run:
        return " ".join(run_sentences(diagnoses.run)[:2])
    first = [(one.target, " ".join(sentences(one)[:2])) for one in diagnoses.servers]
    return first[0][1] if len(first) == 1 else "; ".join(f"{target}: {sentence}" for target, sentence in first)


def document(diagnoses: Diagnoses) -> dict[str, Any]:
    """Return the content of diagnosis.json. `brief`: one line; `lines`: the causes in words. A run prints them at its end."""
    return {
        "format": 1,
        "brief": _brief(diagnoses),
        "lines": [line for one in causes(diagnoses) for line in (one.target, *(f"  {each}" for each in one.sentences))],
        "run": {
            "findings": [_finding(finding) for finding in diagnoses.run],
            "advice": _advice(run_advice(diagnoses.run)),
        },
        "servers": [
            {
                "target": one.target,
                "primary": None if one.primary is None else one.primary.code,
                "probable": None if one.primary is None else one.primary.probable,
                "short_windows": one.short,
                "findings": [_finding(finding) for finding in one.whole.findings],
                "advice": _advice(advice(one)),
                "evidence": as_document(one.whole.evidence),
                "windows": [
                    {
                        "start_s": window.evidence.start_s,
                        "end_s": window.evidence.end_s,
                        "findings": [finding.code for finding in window.findings],
                    }
                    for window in one.windows
                ],
            }
            for one in diagnoses.servers
        ],
    }


def _advice(rows: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [{"do": do, "why": why, "effects": effects} for do, why, effects in rows]


def _finding(finding: Finding) -> dict[str, Any]:
    return {"code": finding.code, "weight": finding.weight, "probable": finding.probable, "said": list(finding.said)}


def json_text(diagnoses: Diagnoses) -> str:
    """The document as JSON text."""
    return json.dumps(document(diagnoses), indent=1, ensure_ascii=False) + "\n"


def table(rules: Sequence[Rule] = RULES) -> str:
    """The rules and what to try, as docs/report.md has them."""
    lines = ["| of the whole run | holds if |", "|---|---|"]
    lines += [f"| `{rule.code}` {rule.title} | {rule.holds} |" for rule in RUN_RULES]
    lines += ["", "| cause | looks like | limits |", "|---|---|---|"]
    lines += [f"| `{rule.code}` {rule.title} | {rule.looks_like} | {rule.limits} |" for rule in rules]
    lines += ["", "| cause | try | because | effects |", "|---|---|---|---|"]
    for rule in rules:
        lines += [f"| `{rule.code}` | `{one.do}` | {one.why} | {one.effects} |" for one in ADVICE[rule.code]]
    return (
        "\n".join(lines).replace(" | awq", " \\| awq").replace(" | gptq", " \\| gptq").replace(" | fp8", " \\| fp8")
        + "\n"
    )


def main(page: str) -> None:
    """Write the tables of the page anew, below its text."""
    from pathlib import Path

    path = Path(page)
    head = path.read_text(encoding="utf-8").partition("| of the whole run |")[0].rstrip() + "\n\n"
    path.write_text(head + table(), encoding="utf-8")


if __name__ == "__main__":
    import sys

    main(sys.argv[1] if len(sys.argv) > 1 else "docs/report.md")
