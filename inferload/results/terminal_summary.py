"""Short summary that a headless run prints at its end; `terminal_tables` has the full tables."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from inferload.base.escaping import escaped, mapped
from inferload.base.numbers import percent, short
from inferload.base.text_table import align
from inferload.figures.client_figures import CPU_SHARE, DELAY, LOOP_LAG
from inferload.figures.rate_figures import ACHIEVED, INPUT, OFFERED, OUTPUT, TURNS
from inferload.figures.server_figures import GPU, SERVER_FIGURES
from inferload.figures.turn_figures import HEADLINES
from inferload.results.cache_table import against_earlier
from inferload.results.terminal_tables import figure, interval_and_note, no_latency, server_value, slo_lines
from inferload.results.verdict import failures, outcome

_MEASURES = {figure.key: f"{figure.title} {figure.unit}" for figure in HEADLINES}
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_SERVERS, _REQUESTS = 2, 3  # lines
_SERVER_WIDTH = 78  # characters for the figures of a server


def brief(summary: Mapping[str, Any], load: str = "") -> str:
    """Return outcome, gates, latencies, load, client and servers; an unknown figure is a dash. `load`: users or rate."""
    summary = mapped(summary, escaped)
    lines = [*_head(summary, escaped(load)), *_gates(summary["verdict"]["gates"]), *_latency(summary)]
    rows = [*_load_rows(summary), *_request_rows(summary["other_requests"])]
    rows += [("client", _client(summary["client"])), *_server_rows(summary["servers"])]
    if arms := against_earlier(summary):
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
    blocks = {title: latency[name] for name, title in _MEASURES.items() if latency.get(name, {}).get("count")}
    if not blocks:
        return [no_latency(summary)]
    rows = [[title, *(figure(block, name) for name in _STATISTICS)] for title, block in blocks.items()]
    heads = ["INVALID" if summary["verdict"]["measurement"] == "invalid" else "", *_STATISTICS]
    lines = [line[2:] for line in align([heads, *rows]).splitlines()]
    if any("~" in line for line in (*lines, _client(summary["client"]))):
        lines[0] += "   (~ fewer than 10 samples beyond)"
    return lines


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
    delay, lag = (figure(client[name], "p99", "ms") for name in (DELAY.field, LOOP_LAG.field))
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
        value = server_value(row, server)
        text = f"{row.label} {value}{' %' if row.form == 'share' else ''}"
        if not any(letter.isdigit() for letter in value):
            continue
        if len(line) + len(text) > _SERVER_WIDTH:
            break
        line += f", {text}" if line else text
    return f"{line} (gauges: mean/max)" if line else "no figures are known"
