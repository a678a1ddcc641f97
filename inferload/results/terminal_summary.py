"""Texts that a headless run prints at its end: the short summary, or with `--details` all tables."""

from collections.abc import Iterator, Sequence

from inferload.base.escaping import escaped, escaped_lines, mapped
from inferload.base.numbers import dashed, percent
from inferload.base.status_lines import wrapped
from inferload.figures import table
from inferload.figures.client_figures import CPU_SHARE, DELAY, LOOP_LAG
from inferload.figures.limits.slo import LIMITS, limit_text
from inferload.figures.rate_figures import ACHIEVED, ATTAINMENT, GOODPUT, INPUT, OFFERED, OUTPUT, TEXTS, TURNS
from inferload.figures.servers.server_figure import (
    ROUTER,
    SPEC_DECODE,
    ServerFigure,
    entry_block,
    is_shown,
    statistic_of,
)
from inferload.figures.servers.server_figures import SERVER_FIGURES, Server
from inferload.figures.turn_figures import HEADLINES
from inferload.results import readers
from inferload.results.documents import summary_document as documents
from inferload.results.documents.figures_document import EarlierRun, Slo
from inferload.results.documents.verdict_document import GateResult
from inferload.results.tables.cells import row_of, statistic_head
from inferload.results.tables.rate_tables import not_served
from inferload.results.tables.server_tables import by_position, unknown_page
from inferload.results.verdict import failures
from inferload.results.verdict.gate_text import interval_and_note, value_text
from inferload.servers.replicas import left_out

_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_SERVERS, _REQUESTS = 2, 3  # lines
_SERVER_WIDTH = 78  # characters for the figures of a server
_SLO_CLASSES = 4  # with a line each
_VERDICTS = {
    "valid": "valid measurement",
    "suspect": "SUSPECT measurement: look at the reasons before you use the figures",
    "invalid": "INVALID measurement: do not use the figures",
}


def details(summary: documents.Summary, planned: str = "") -> str:
    """Return all tables of a run, outcome first. `planned`: text of the planned load."""
    from inferload.results.tables.run_tables import run_tables  # of --details only

    caution = "INVALID" if summary.not_valid else ""
    parts = ["\n".join(_judged(mapped(summary, escaped))), escaped_lines(planned)]
    tables = run_tables(summary)
    if summary.window_s and all(shown.key != "latency" for shown in tables):
        parts.append(_no_latency(summary))
    parts += [table.text(shown.marked(caution)) for shown in tables]
    if not summary.servers:
        parts.append("server: nothing was scraped")
    parts.append("\n".join(escaped(failures.stopped_text(entry, summary)) for entry in summary.stopped_answering or ()))
    parts.append("\n".join(f"note: {escaped(note)}" for note in summary.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def _judged(summary: documents.Summary) -> list[str]:
    """Return outcome, what was measured, and the verdict with its reasons."""
    verdict = summary.verdict
    lines = [summary.outcome.headline, _subject(summary), _VERDICTS.get(verdict.measurement, verdict.measurement)]
    for reason in verdict.reasons:
        where = "" if reason.decides else f" (in the {reason.phase} phase; does not affect the verdict)"
        lines.append(f"  {reason.code}: {reason.text}{where}")
    return lines


def brief(summary: documents.Summary, load: str = "") -> str:
    """Return outcome, gates, latencies, load, client and servers; an unknown figure is a dash. `load`: users or rate."""
    summary = mapped(summary, escaped)
    lines = [*_head(summary, escaped(load)), *_gates(summary.verdict.gates)]
    if not summary.window_s:  # the headline says so
        return "\n".join([*lines, *failures.lines(summary)])
    lines += _latency(summary)
    rows = [*_load_rows(summary), *_request_rows(summary.other_requests)]
    if (canary := summary.canary) is not None and canary.asked:
        rows.append(("canary", f"{canary.asked} asked: {failures.counts_by_name(canary.by_class)}"))
    rows += [("client", _client(summary.client)), *_server_rows(summary.servers)]
    if arms := _against_earlier(summary.cache.earlier):
        rows.append((f"{summary.cache.arm} run", arms))
    if failed := failures.turn_lines(summary):
        rows.append(("failed", "; ".join(failed[:2])))
    if summary.conformity is not None:
        rows.append(("rules", summary.conformity.text))
    if summary.notes:
        rows.append(("note", "; ".join(summary.notes)))
    width = max(len(title) for title, _ in rows)
    return "\n".join([*lines, *(f"{title:<{width}}  {text}" for title, text in rows)])


def diagnosis_line(cause: str, columns: int | None) -> str:
    """Return the main cause in one line, or in lines of at most `columns` characters. None: no terminal, of no width."""
    line = f"diagnosis: {cause}"
    return line if columns is None else "\n".join(wrapped(line, columns, rest="  "))


def _head(summary: documents.Summary, load: str) -> list[str]:
    verdict, lines = summary.verdict, [summary.outcome.headline, _subject(summary, *filter(None, [load]))]
    if verdict.measurement != "valid" and summary.window_s:
        codes = ", ".join(dict.fromkeys(reason.code for reason in verdict.deciding))
        lines.append(f"measurement {verdict.measurement.upper()}" + (f": {codes}" if codes else ""))
    return lines


def _subject(summary: documents.Summary, *more: str) -> str:
    """Return what was measured, and how long; that a server is simulated, and what it stands for."""
    run, server = summary.run, summary.run.engine or "engine not known"
    if run.engine == "simulator":
        server = "simulator, not a real server" + (f"; stands for {run.stands_for}" if run.stands_for else "")
    measured = [f"{dashed(summary.window_s)} s measured"] if summary.window_s else []
    return ", ".join(
        [f"{run.scenario} on {run.target}, model {run.model} ({server})", *measured, f"seed {run.seed}", *more]
    )


def _gates(gates: Sequence[GateResult]) -> list[str]:
    """Return a line for each gate, failed ones first."""
    return [
        f"gate {'passed' if gate.passed else 'FAILED'}{', simulated' if gate.simulated else ''}  {_gate(gate)}"
        for gate in sorted(gates, key=lambda gate: gate.passed)
        if gate.passed or gate.failed
    ]


def _gate(gate: GateResult) -> str:
    if gate.value is None:
        return f"{gate.gate}: {gate.note or 'no value'}"
    undecided = f" (inconclusive: {interval_and_note(gate)})" if gate.answer == "inconclusive" else ""
    return f"{gate.gate}: {value_text(gate, gate.value)}{undecided}"


def _latency(summary: documents.Summary) -> list[str]:
    rows = [
        row_of(figure, block, _STATISTICS) for figure in HEADLINES if (block := summary.latency_of(figure.key)).count
    ]
    if not rows:
        return [_no_latency(summary)]
    first = "INVALID" if summary.not_valid else ""
    shown = table.text(table.Table("latency", "", (first, *map(statistic_head, _STATISTICS)), rows))
    lines = [line.removeprefix("  ") for line in shown.splitlines()]
    if any("~" in line for line in (*lines, _client(summary.client))):
        lines[0] += "   (~ fewer than 10 samples beyond)"
    return lines


def _no_latency(summary: documents.Summary) -> str:
    """Return the line in place of the latencies. A turn that its caller cancelled early succeeded, and may have none."""
    return f"latency: {'no successful turn has a first token' if summary.turns.ok else 'no turn succeeded'}"


def _load_rows(summary: documents.Summary) -> list[tuple[str, str]]:
    turns, rates = summary.turns, summary.rates
    stalled = f", {dashed(summary.stalls.turns_with_stall)} with a stall" if turns.streamed else ""
    tokens = [f"{dashed(rates.get(OUTPUT.key))}/s output"] if turns.streamed else []
    texts = [f"{dashed(rates.get(TEXTS.key))} texts/s"] if turns.whole else []
    rows = [
        (
            "load",
            f"{dashed(rates.get(OFFERED.key))} sessions/s offered, {dashed(rates.get(ACHIEVED.key))} achieved, "
            f"{dashed(summary.sessions.dropped)} dropped",
        ),
        (
            "turns",
            f"{dashed(rates.get(TURNS.key))}/s; {turns.sent} sent, {turns.ok} ok, {turns.failed} failed, "
            f"{turns.unfinished} unfinished{_retried(turns)}{stalled}",
        ),
        ("tokens", ", ".join([*tokens, f"{dashed(rates.get(INPUT.key))}/s input", *texts])),
    ]
    return [*rows, *(("" if number else "SLO", line) for number, line in enumerate(slo_lines(summary)))]


def _retried(turns: documents.Turns) -> str:
    """Return the requests that were sent again, of all phases."""
    of_run = turns.whole_run.retried or 0
    if not of_run:
        return ""
    return f", {turns.retried or 0} retried" + ("" if of_run == turns.retried else f" ({of_run} in all phases)")


def _request_rows(requests: documents.OtherRequests) -> list[tuple[str, str]]:
    """Return a line for each name of requests other than turns, such as those of an HttpUser."""
    by_name = sorted(requests.by_name, key=lambda row: not row.failed)
    shown = by_name if len(by_name) <= _REQUESTS else by_name[: _REQUESTS - 1]
    rows = [("other", _request(request)) for request in shown]
    if len(by_name) > len(shown):
        rows.append(
            ("other", f"{len(by_name) - len(shown)} more; {requests.sent} sent, {requests.failed} failed in all")
        )
    return rows


def _request(request: documents.RequestName) -> str:
    times = f"p50 {dashed(request.p50_ms)}, p95 {dashed(request.p95_ms)}, p99 {dashed(request.p99_ms)} ms"
    first = request.first_error
    why = f"; first failure: {first.text}" if first is not None else ""
    return f"{request.text}: {request.sent} sent, {request.failed} failed; {times}{why}"


def _client(client: documents.Client) -> str:
    if client.stamps == "virtual":
        return "not measured: the clock is virtual"
    delay, lag = (
        f"{dashed(block.p99)} ms" + (" ~" if block.is_marked("p99") else "")
        for block in map(client.samples, (DELAY, LOOP_LAG))
    )
    text = f"CPU {percent(client.number(CPU_SHARE), '-')} of a core; p99: client delay {delay}, event loop lag {lag}"
    reader = readers.text(client.readers)
    return f"{text}; reader {reader}" if reader else text


def _server_rows(servers: Sequence[Server]) -> list[tuple[str, str]]:
    shown = servers if len(servers) <= _SERVERS else servers[: _SERVERS - 1]
    named = len(servers) > 1
    rows = []
    for server in shown:
        prefix = f"{server.target}: " if named and server.replicas == 1 else ""
        rows.append(("router" if entry_block(server) == ROUTER else "server", prefix + _server(server)))
        if drafts := _drafts(server):
            rows.append(("speculation", prefix + drafts))
    if len(servers) > len(shown):
        rows.append(("server", f"{len(servers) - len(shown)} more"))
    return rows or [("server", "no metrics were scraped")]


def _server(server: Server) -> str:
    """Return the known figures of a server, in the order of the table, as many as fit into the line."""
    if server.replicas > 1:
        return left_out(server.target, server.replicas)
    block = entry_block(server)
    chosen = [row for row in SERVER_FIGURES if is_shown(row, block) and row.block != SPEC_DECODE]
    shown = [row for row in chosen if row.headline or block == ROUTER]
    line = ""
    for text in _known_figures(shown, server):
        if len(line) + len(text) > _SERVER_WIDTH:
            break
        line += f", {text}" if line else text
    return f"{line} (gauges: mean/max)" if line else unknown_page(server) or "no figures are known"


def _drafts(server: Server) -> str:
    """Return the known figures of speculative decoding; empty without drafts."""
    texts = _known_figures([row for row in SERVER_FIGURES if row.block == SPEC_DECODE and row.panel], server)
    positions = by_position(server)
    return ", ".join([*texts, *([f"accepted by position {positions}"] if positions else [])])


def _known_figures(rows: Sequence[ServerFigure], server: Server) -> Iterator[str]:
    """Yield the known figures of a server: mean/max of a gauge, the mean of a histogram; a share in per cent."""
    for row in rows:
        times, unit = (100, " %") if row.form == "share" else (1, "")
        parts = [statistic_of(row.in_entry(server), name) for name in row.statistics or (None,)]
        if any(part is not None for part in parts):
            value = "/".join(dashed(None if part is None else part * times) for part in parts)
            yield f"{row.label.removesuffix(', %')} {value}{unit}"


def _against_earlier(earlier: EarlierRun | None) -> str:
    """Return the mean latencies beside those of the same turns in the run before, on one line; empty without such a run."""
    if earlier is None or not earlier.paired:
        return ""
    texts = [
        f"mean {name.removesuffix('_ms').upper()} {dashed(of.after_mean)} against {dashed(of.before_mean)} ms "
        f"{earlier.arm} ({of.pairs} pairs)"
        for name, of in earlier.paired.items()
    ]
    return f"the same turns as {earlier.run_dir}: {'; '.join(texts)}"


def slo_lines(summary: documents.Results) -> list[str]:
    """Return SLO attainment, goodput, and the share of the turns that missed each limit; empty without an SLO.

    The shares have a line for each class if the limits differ, or if a class has none.
    """
    rates, block = summary.rates, summary.slo
    lines = []
    if (attained := rates.get(ATTAINMENT.key)) is not None:
        lines.append(f"{percent(attained)} of turns met it; goodput {dashed(rates.get(GOODPUT.key))} turns/s")
    if block and None not in block.limits.values():
        return [*lines, _missed(block)]
    classes = {name: part.slo for name, part in summary.by_class.items() if part.slo}
    lines += [f"{name}: {_missed(slo)}" for name, slo in list(classes.items())[:_SLO_CLASSES]]
    more = len(classes) - _SLO_CLASSES
    return [*lines, *([f"{more} more in the report"] if more > 0 else [])]


def _missed(block: Slo) -> str:
    """Return the share of the turns that missed each limit, and of those not served. `block`: of turns of one SLO."""
    missed, limits = block.missed, block.limits
    shares = {name: percent(missed.get(name, 0) / block.turns) for name in (*limits, *missed)}
    texts = [f"{limit_text(name, limits.get(name))} missed by {shares[name]}" for name in LIMITS if name in shares]
    return "; ".join([*texts, *not_served(block)])
