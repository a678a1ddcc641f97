"""Diagnosis of a run: findings on the whole run and on each server, in words and as diagnosis.json."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from inferload.base.numbers import number, percent, plural, time_of_day
from inferload.figures.pages.page_kinds import KINDS
from inferload.figures.servers.server_figures import page_block
from inferload.servers.bottleneck.finding import QUEUED_SHARE, Finding
from inferload.servers.bottleneck.history import WINDOW_S
from inferload.servers.bottleneck.peers import OUTLIER
from inferload.servers.bottleneck.rules import BETWEEN, KEPT_UP, LEAST_TURNS, RULES
from inferload.servers.replicas import left_out

from ..data.frame import Frame
from ..data.frames import RunFrames
from ..data.manifest import arrivals_of
from .advice import ADVICE, Advice, Cause, advice_on
from .evidence import as_document
from .group import STARVED
from .measured_load import MeasuredLoad
from .routing import LOSES_HITS
from .server_diagnosis import CauseSpan, Diagnosis, of_server
from .whole_run import RULE_OF, RUN_RULES, run_findings, sent_no_turn

SHORTEST_S = 2.0

_TITLES = {rule.code: rule.title for rule in RULES}
_MOST_ROWS = 20  # of a history
# Findings on the whole run in the line of the terminal.
_FIRST = (
    "failures", "refused", "failed-between", "server-gone", "restarted", OUTLIER, *BETWEEN, LOSES_HITS, STARVED,
    "overload", "serial",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagnoses:
    """Findings on the whole run by descending weight, and the diagnosis of each scraped server. `left_out`: why one has none."""

    run: tuple[Finding, ...] = ()
    servers: tuple[Diagnosis, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def diagnose(run: RunFrames, timeline: Frame) -> Diagnoses:
    """Diagnose a run: nothing without turns, servers only with scrapes and a measure phase. `timeline`: its table by second."""
    if sent_no_turn(run):
        return Diagnoses()
    load = MeasuredLoad.of(timeline, arrivals_of(run.manifest).get("kind") == "closed")
    measured = _measured(run)
    servers = tuple(
        of_server(run, server, timeline, load, measured)
        for server in run.servers.values()
        if measured is not None and server.replicas == 1 and len(server.wall_ns) > 2
        if server.unknown_series is None and page_block(server.page, server.metrics) is None
    )
    findings = run_findings(run, [server.whole.evidence for server in servers], load)
    several = {target: left_out(target, each.replicas) for target, each in run.servers.items() if each.replicas > 1}
    return Diagnoses(findings, servers, several)


def _measured(run: RunFrames) -> tuple[float, float] | None:
    """Return begin and end of the measure phase; None without one that is long enough."""
    span = next((span for span in run.phases if span.phase == "measure"), None)
    if span is None:
        return None
    end_s = run.end_s if span.end_s is None else span.end_s
    return None if end_s - span.start_s < SHORTEST_S else (span.start_s, end_s)


def run_sentences(findings: Sequence[Finding]) -> list[str]:
    """Format the findings on the whole run as sentences."""
    texts = ([_lead(each, RULE_OF[each.code].title), *_capitalised(each.sentences)] for each in findings)
    return list(chain.from_iterable(texts))


def _lead(finding: Finding, title: str) -> str:
    return f"{'Probable cause: ' if finding.probable else ''}{title} ({finding.code})."


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Format the diagnosis of a server: main cause with its begin, evidence, contributing causes."""
    primary, span = diagnosis.primary, diagnosis.span
    if primary is None:
        evidence = diagnosis.whole.evidence
        turns, why = evidence.run.turns, "no rule holds"
        if not evidence.waiting_known:
            why = "the server does not publish the number of waiting requests"
        elif evidence.queued and evidence.waiting_share < QUEUED_SHARE:
            queue_ms, waited = number(evidence.served.queue_ms), percent(evidence.waiting_share, limit=QUEUED_SHARE)
            why = f"mean queue time is {queue_ms} ms, but requests waited in {waited} of the scrapes: scrape more often"
        elif turns is not None and turns < LEAST_TURNS:
            why = f"{plural(turns, 'turn')} ended well, and a statement needs {LEAST_TURNS}"
        return [f"No bottleneck found: {why}."]
    when = [] if span is None else [f"{_when(span, diagnosis).capitalize()}."]
    lines = [_lead(primary, _TITLES[primary.code]), *when, *_capitalised(primary.sentences)]
    for other in diagnosis.whole.findings:
        if other.code not in (primary.code, KEPT_UP):
            lines.append(f"Contributing: {_TITLES[other.code]} ({other.code}): {'; '.join(other.sentences)}.")
    if diagnosis.short:
        lines.append(
            f"The window is {diagnosis.whole.evidence.length_s:.0f} s long; use {WINDOW_S:.0f} s or more for a reliable diagnosis."
        )
    if diagnosis.sample is not None:
        lines.append(f"TTFT, ITL and waiting prompts of the client are from {diagnosis.sample}.")
    return lines


def _when(span: CauseSpan, diagnosis: Diagnosis) -> str:
    """Format load and time from which a cause held, and its end if it ended before the measurement.

    The begin of the first cause is not known: it held when the measurement began.
    """
    if span is diagnosis.history[0]:
        text = "from the start of the measurement"
    else:
        load = "" if span.load_at_start is None else f"{span.load_at_start} on, "
        text = f"from {load}{time_of_day(span.start_wall_s)}"
    if span is diagnosis.history[-1]:
        return text
    again = any(later.code == span.code and later.start_s > span.start_s for later in diagnosis.history)
    return f"{text} to {time_of_day(span.end_wall_s)}{' and again later' if again else ''}"


def _rows(diagnosis: Diagnosis) -> tuple[tuple[str, str, str, str], ...]:
    """Format the causes over time as rows of time, load, cause and evidence; none if the cause did not change."""
    if len(diagnosis.history) < 2:
        return ()
    rows = [
        (
            f"{time_of_day(span.start_wall_s)} to {time_of_day(span.end_wall_s)} ({span.start_s:.0f} to {span.end_s:.0f} s)",
            span.load or "not known",
            "none found" if span.finding is None else span.finding.named,
            "" if span.finding is None else span.finding.in_a_few_words,
        )
        for span in diagnosis.history
    ]
    left_out = len(rows) - _MOST_ROWS
    more = (f"{number(left_out)} more in diagnosis.json", "", "", "")
    return tuple(rows) if left_out <= 0 else (*rows[:_MOST_ROWS], more)


def _capitalised(sentences: Sequence[str]) -> list[str]:
    """Return sentences with a capital, unless they begin with an address."""
    return [f"{each if each.startswith('http') else each[:1].upper() + each[1:]}." for each in sentences]


def advice(diagnosis: Diagnosis) -> tuple[Advice, ...]:
    """Return the advice on the main cause whose preconditions hold."""
    primary = diagnosis.primary
    return () if primary is None else advice_on(primary.code, diagnosis.evidence)


def run_advice(findings: Sequence[Finding]) -> tuple[Advice, ...]:
    """Return advice on the whole run."""
    return tuple(dict.fromkeys(entry for finding in findings for entry in RULE_OF[finding.code].advice))


def causes(diagnoses: Diagnoses) -> tuple[Cause, ...]:
    """Return the diagnosis for the report: the whole run, then each server."""
    whole = Cause("Whole run", tuple(run_sentences(diagnoses.run)), run_advice(diagnoses.run))
    servers = [Cause(each.target, tuple(sentences(each)), advice(each), _rows(each)) for each in diagnoses.servers]
    unknown = [Cause(target, tuple(_capitalised([text])), ()) for target, text in diagnoses.left_out.items()]
    return (*([whole] if diagnoses.run else []), *servers, *unknown)


def brief(diagnoses: Diagnoses) -> str:
    """Format in one line what failed, and the main cause of each server with its evidence; several servers by name."""
    parts = [finding.brief for finding in diagnoses.run if finding.code in _FIRST]
    known = [server for server in diagnoses.servers if server.primary is not None]
    parts += [(f"{server.target}: " if len(diagnoses.servers) > 1 else "") + _brief(server) for server in known]
    if not parts:
        parts = [finding.brief for finding in diagnoses.run]
    if not parts and diagnoses.servers:
        parts = [sentences(diagnoses.servers[0])[0]]
    return "; ".join(parts or diagnoses.left_out.values())


def _brief(diagnosis: Diagnosis) -> str:
    primary, span = diagnosis.primary, diagnosis.span
    assert primary is not None
    when = "" if span is None else f" {_when(span, diagnosis)}"
    sample = "" if diagnosis.sample is None else f" (client figures from {diagnosis.sample})"
    return f"{primary.named}{when}: {primary.in_a_few_words}{sample}"


# Fields in diagnosis.json.
_FINDING = ("code", "weight", "probable", "sentences")
_ADVICE = ("do", "why", "effects")
_SPAN, _CAUSE = ("code", "start_s", "end_s", "load_at_start", "load"), ("probable", "sentences")


def _only(entry: object, *names: str) -> dict[str, Any]:
    """Return some fields of an entry; empty for None."""
    return {} if entry is None else {name: getattr(entry, name) for name in names}


def _row_text(row: Sequence[str]) -> str:
    return "  ".join(filter(None, row))


def document(diagnoses: Diagnoses) -> dict[str, Any]:
    """Return the content of diagnosis.json. `brief`: one line; `lines`: all sentences; both are printed at the end of a run."""
    return {
        "format": 1,
        "brief": brief(diagnoses),
        "lines": [
            line
            for cause in causes(diagnoses)
            for line in (cause.target, *(f"  {each}" for each in (*cause.sentences, *map(_row_text, cause.history))))
        ],
        "run": {
            "findings": [_only(finding, *_FINDING) for finding in diagnoses.run],
            "advice": [_only(entry, *_ADVICE) for entry in run_advice(diagnoses.run)],
        },
        "left_out": dict(diagnoses.left_out),
        "servers": [
            {
                "target": server.target,
                "primary": None if server.primary is None else server.primary.code,
                "probable": None if server.primary is None else server.primary.probable,
                "short_windows": server.short,
                "findings": [_only(finding, *_FINDING) for finding in server.whole.findings],
                "advice": [_only(entry, *_ADVICE) for entry in advice(server)],
                "client_figures_from": server.sample,
                "evidence": as_document(server.whole.evidence),
                "history": [
                    _only(span, *_SPAN) | ({"probable": None, "sentences": []} | _only(span.finding, *_CAUSE))
                    for span in server.history
                ],
            }
            for server in diagnoses.servers
        ],
    }


def json_text(diagnoses: Diagnoses) -> str:
    """Return diagnosis.json as text."""
    return json.dumps(document(diagnoses), indent=1, ensure_ascii=False) + "\n"


def table() -> str:
    """Format rules and advice as the tables of docs/reference/report.md."""
    engines = {kind.key: kind.title for kind in KINDS}
    lines = ["| finding on the whole run | condition |", "|---|---|"]
    lines += [f"| `{rule.code}` {rule.title} | {rule.holds} |" for rule in RUN_RULES]
    lines += ["", "| cause | evidence | limits |", "|---|---|---|"]
    lines += [f"| `{rule.code}` {rule.title} | {rule.looks_like} | {rule.limits} |" for rule in RULES]
    lines += ["", "| cause | to try | only if | reason | side effects |", "|---|---|---|---|---|"]
    for rule in RULES:
        for entry in ADVICE[rule.code]:
            only_if = "; ".join(precondition.text for precondition in entry.when)
            do = "; ".join((f"`{entry.do}`", *(f"{engines.get(key, key)}: `{text}`" for key, text in entry.elsewhere)))
            lines.append(f"| `{rule.code}` | {do} | {only_if} | {entry.why} | {entry.effects} |")
    return re.sub(r" \| (awq|gptq|fp8)", r" \\| \1", "\n".join(lines)) + "\n"


def main(page: str) -> None:
    """Replace the tables at the end of the page."""
    from pathlib import Path

    path = Path(page)
    head = path.read_text(encoding="utf-8").partition("| finding on the whole run |")[0].rstrip() + "\n\n"
    path.write_text(head + table(), encoding="utf-8")


if __name__ == "__main__":
    import sys

    main(sys.argv[1] if len(sys.argv) > 1 else "docs/reference/report.md")
