"""Texts that a headless run prints at its end: the short summary, or with `--details` all tables."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from inferload.base.escaping import escaped, escaped_lines, mapped
from inferload.base.numbers import percent, short
from inferload.figures import table
from inferload.figures.client_figures import CPU_SHARE, DELAY, LOOP_LAG
from inferload.figures.rate_figures import ACHIEVED, ATTAINMENT, GOODPUT, INPUT, OFFERED, OUTPUT, TURNS
from inferload.figures.server_figures import GPU, SERVER_FIGURES, ServerFigure
from inferload.figures.slo import LIMITS, limit_text
from inferload.figures.turn_figures import HEADLINES
from inferload.results.run_tables import run_tables, statistic, statistic_head
from inferload.results.summary import is_marked
from inferload.results.verdict import failures, outcome
from inferload.results.verdict.gate_text import interval_and_note

_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_SERVERS, _REQUESTS = 2, 3  # lines
_SERVER_WIDTH = 78  # characters for the figures of a server
_SLO_CLASSES = 4  # with a line each
_VERDICTS = {
    "valid": "valid measurement",
    "suspect": "SUSPECT measurement: look at the reasons before you use the figures",
    "invalid": "INVALID measurement: do not use the figures",
}


def details(summary: Mapping[str, Any], planned: str = "") -> str:
    """Return all tables of a run, outcome first. `planned`: text of the planned load."""
    verdict = summary["verdict"]
    caution = "INVALID" if verdict["measurement"] == "invalid" else ""
    parts = ["\n".join(_judged(mapped(summary, escaped))), escaped_lines(planned)]
    if not verdict["gates"] and not verdict["passed"]:
        parts.append(
            "FAILED: the scenario has no gates, so that a failed turn, other failed request or exception fails the run"
        )
    tables = run_tables(summary)
    if all(shown.key != "latency" for shown in tables):
        parts.append(_no_latency(summary))
    parts += [table.text(shown.marked(caution)) for shown in tables]
    if not summary["servers"]:
        parts.append("server: nothing was scraped")
    if failed := failures.lines(summary):
        parts.append("\n  ".join(["failed turns (times since the run began)", *map(escaped, failed)]))
    parts.append("\n".join(f"note: {escaped(note)}" for note in summary.get("notes") or ()))
    return "\n\n".join(filter(None, parts)) + "\n"


def _judged(summary: Mapping[str, Any]) -> list[str]:
    """Return outcome, verdict with its reasons, and what was measured."""
    run, verdict = summary["run"], summary["verdict"]
    simulated = " (of the simulator, not of a real server)" if run.get("engine") == "simulator" else ""
    lines = [outcome.of_summary(summary).headline, _VERDICTS[verdict["measurement"]] + simulated]
    for reason in verdict["reasons"]:
        measured = reason["phase"] == "measure"
        where = "" if measured else f" (in the {reason['phase']} phase; does not affect the verdict)"
        lines.append(f"  {reason['code']}: {reason['text']}{where}")
    lines.append(
        f"{run.get('scenario')} on {run.get('target')}, model {run.get('model')}, engine {run.get('engine') or 'not known'}: "
        f"{short(summary['window_s'])} s measured, seed {run.get('seed')}"
    )
    return lines


def brief(summary: Mapping[str, Any], load: str = "") -> str:
    """Return outcome, gates, latencies, load, client and servers; an unknown figure is a dash. `load`: users or rate."""
    summary = mapped(summary, escaped)
    lines = [*_head(summary, escaped(load)), *_gates(summary["verdict"]["gates"]), *_latency(summary)]
    rows = [*_load_rows(summary), *_request_rows(summary["other_requests"])]
    rows += [("client", _client(summary["client"])), *_server_rows(summary["servers"])]
    if arms := _against_earlier(summary):
        rows.append((f"{summary['cache']['arm']} run", arms))
    failed = failures.lines(summary)
    if failed:
        rows.append(("failed", "; ".join(failed[:2])))
    if summary.get("notes"):
        rows.append(("note", "; ".join(summary["notes"])))
    width = max(len(title) for title, _ in rows)
    return "\n".join([*lines, *(f"{title:<{width}}  {text}" for title, text in rows)])


def diagnosis_line(cause: str, columns: int | None) -> str:
    """Return the main cause in one line, or in lines of at most `columns` characters. None: no terminal, of no width."""
    line = f"diagnosis: {cause}"
    if columns is None:
        return line
    return textwrap.fill(line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _head(summary: Mapping[str, Any], load: str) -> list[str]:
    run, verdict = summary["run"], summary["verdict"]
    engine = run.get("engine")
    server = "simulator, not a real server" if engine == "simulator" else engine or "engine not known"
    lines = [
        outcome.of_summary(summary).headline,
        f"{run.get('scenario')} on {run.get('target')}, model {run.get('model')} ({server}), "
        f"{short(summary['window_s'])} s measured, seed {run.get('seed')}" + (f", {load}" if load else ""),
    ]
    if verdict["measurement"] != "valid":
        codes = ", ".join(dict.fromkeys(outcome.deciding_codes(verdict)))
        lines.append(f"measurement {verdict['measurement'].upper()}" + (f": {codes}" if codes else ""))
    return lines


def _gates(gates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each gate, failed ones first."""
    return [
        f"gate {'passed' if gate['passed'] else 'FAILED'}  {_gate(gate)}"
        for gate in sorted(gates, key=lambda gate: bool(gate["passed"]))
    ]


def _gate(gate: Mapping[str, Any]) -> str:
    if gate["value"] is None:
        return f"{gate['gate']}: {gate.get('note') or 'no value'}"
    undecided = f" (inconclusive: {interval_and_note(gate)})" if gate.get("answer") == "inconclusive" else ""
    return f"{gate['gate']}: {short(gate['value'])}{undecided}"


def _latency(summary: Mapping[str, Any]) -> list[str]:
    latency = summary["latency"]
    rows = [
        (figure.head(), *(statistic(latency[figure.key], name) for name in _STATISTICS))
        for figure in HEADLINES
        if latency.get(figure.key, {}).get("count")
    ]
    if not rows:
        return [_no_latency(summary)]
    first = "INVALID" if summary["verdict"]["measurement"] == "invalid" else ""
    shown = table.text(table.Table("latency", "", (first, *map(statistic_head, _STATISTICS)), rows))
    lines = [line.removeprefix("  ") for line in shown.splitlines()]
    if any("~" in line for line in (*lines, _client(summary["client"]))):
        lines[0] += "   (~ fewer than 10 samples beyond)"
    return lines


def _no_latency(summary: Mapping[str, Any]) -> str:
    """Return the line in place of the latencies. A turn that its caller cancelled early succeeded, and may have none."""
    return f"latency: {'no successful turn has a first token' if summary['turns']['ok'] else 'no turn succeeded'}"


def _load_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    sessions, turns, rates, stalls = (summary[key] for key in ("sessions", "turns", "rates", "stalls"))
    rows = [
        (
            "load",
            f"{short(rates[OFFERED.key])} sessions/s offered, {short(rates[ACHIEVED.key])} achieved, "
            f"{sessions['dropped']} dropped",
        ),
        (
            "turns",
            f"{short(rates[TURNS.key])}/s; {turns['sent']} sent, {turns['ok']} ok, {turns['failed']} failed, "
            f"{turns['unfinished']} unfinished, {stalls['turns_with_stall']} with a stall",
        ),
        ("tokens", f"{short(rates[OUTPUT.key])}/s output, {short(rates[INPUT.key])}/s input"),
    ]
    return [*rows, *(("" if number else "SLO", line) for number, line in enumerate(slo_lines(summary)))]


def _request_rows(requests: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a line for each name of requests other than turns, such as those of an HttpUser."""
    by_name = requests.get("by_name") or []
    shown = by_name if len(by_name) <= _REQUESTS else by_name[: _REQUESTS - 1]
    rows = [("other", _request(request)) for request in shown]
    if len(by_name) > len(shown):
        rows.append(
            ("other", f"{len(by_name) - len(shown)} more; {requests['sent']} sent, {requests['failed']} failed in all")
        )
    return rows


def _request(request: Mapping[str, Any]) -> str:
    times = ", ".join(f"{name.removesuffix('_ms')} {short(request[name])}" for name in ("p50_ms", "p95_ms", "p99_ms"))
    return f"{request['type'] or ''} {request['name']}: {request['sent']} sent, {request['failed']} failed; {times} ms".lstrip()


def _client(client: Mapping[str, Any]) -> str:
    delay, lag = (
        f"{short(block['p99'])} ms" + (" ~" if is_marked(block, "p99") else "")
        for block in (client[DELAY.field], client[LOOP_LAG.field])
    )
    return f"CPU {percent(client[CPU_SHARE.field], '-')} of a core; p99: client delay {delay}, event loop lag {lag}"


def _server_rows(servers: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    shown = servers if len(servers) <= _SERVERS else servers[: _SERVERS - 1]
    rows = [("server", (f"{server['target']}: " if len(servers) > 1 else "") + _server(server)) for server in shown]
    if len(servers) > len(shown):
        rows.append(("server", f"{len(servers) - len(shown)} more"))
    return rows or [("server", "no metrics were scraped")]


def _server(server: Mapping[str, Any]) -> str:
    """Return the known figures of a server, in the order of the table, as many as fit into the line."""
    shown = [row for row in SERVER_FIGURES if row.headline and (row.block == GPU) == bool(server.get(GPU))]
    line = ""
    for row in shown:
        value = _server_value(row, server)
        text = f"{row.label} {value}{' %' if row.form == 'share' else ''}"
        if not any(letter.isdigit() for letter in value):
            continue
        if len(line) + len(text) > _SERVER_WIDTH:
            break
        line += f", {text}" if line else text
    return f"{line} (gauges: mean/max)" if line else "no figures are known"


def _server_value(row: ServerFigure, server: Mapping[str, Any]) -> str:
    """Return the figure of a server: mean/max of a gauge, the mean of a histogram; a share in per cent."""
    value = row.in_entry(server)
    statistics = row.statistics or (None,)
    parts = [value if name is None else (value or {}).get(name) for name in statistics]
    times = 100 if row.form == "share" else 1
    return "/".join(short(None if part is None else part * times) for part in parts)


def _against_earlier(summary: Mapping[str, Any]) -> str:
    """Return the mean latencies beside those of the same turns in the run before, on one line; empty without such a run."""
    earlier = (summary.get("cache") or {}).get("earlier") or {}
    texts = [
        f"mean {name.removesuffix('_ms').upper()} {short(block['after_mean'])} against {short(block['before_mean'])} ms "
        f"{earlier['arm']} ({block['pairs']} pairs)"
        for name, block in (earlier.get("measures") or {}).items()
        if block["pairs"]
    ]
    return f"the same turns as {earlier['run_dir']}: {'; '.join(texts)}" if texts else ""


def slo_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return SLO attainment, goodput, and the share of the turns that missed each limit; empty without an SLO.

    The shares have a line for each class if the limits differ, or if a class has none.
    """
    rates, block = summary["rates"], summary.get("slo")
    lines = []
    if rates[ATTAINMENT.key] is not None:
        goodput = short(rates[GOODPUT.key])
        lines.append(f"{percent(rates[ATTAINMENT.key])} of turns met it; goodput {goodput} turns/s")
    if block and None not in (block.get("limits") or {}).values():
        return [*lines, _missed(block)]
    classes = {name: part["slo"] for name, part in (summary.get("by_class") or {}).items() if part["slo"]}
    lines += [f"{name}: {_missed(slo)}" for name, slo in list(classes.items())[:_SLO_CLASSES]]
    more = len(classes) - _SLO_CLASSES
    return [*lines, *([f"{more} more in the report"] if more > 0 else [])]


def _missed(block: Mapping[str, Any]) -> str:
    """Return the share of the turns that missed each limit, and of failed and dropped ones. `block`: of turns of one SLO."""
    missed, limits = block["missed"], block.get("limits") or {}
    shares = {name: percent(missed.get(name, 0) / block["turns"]) for name in (*limits, *missed)}
    texts = [f"{limit_text(name, limits.get(name))} missed by {shares[name]}" for name in LIMITS if name in shares]
    return "; ".join([*texts, *(f"{name} {share}" for name, share in shares.items() if name not in LIMITS)])
