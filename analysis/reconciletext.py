"""Where the time went and whether it adds up, in words: for a terminal, for the report, for a machine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferload.measure.texttable import align
from inferload.numbers import NOT_KNOWN, number

from .reconcile import PARTS, Band, IdleSpan, bands
from .reconcilechecks import Check, Reconciled
from .reporttables import Table

TITLES = {
    "client_lag_ms": "client lag",
    "connect_ms": "connect",
    "upload_ms": "upload",
    "front_end_ms": "front end, network",
    "queue_ms": "queue",
    "prefill_ms": "prefill",
    "decode_ms": "decode",
}
COLUMNS = ("turns by their total", "turns", "total, ms", *TITLES.values())
_UNDIVIDED = "server and network"  # where the server's own parts are not known


def rows(found: Reconciled) -> list[tuple[str, ...]]:
    """The table: a band of turns each; with histograms alone a row for each server's means."""
    table = [_row(band) for band in bands(found.parts)]
    if not found.per_turn:
        table += [_span_row(span) for span in found.spans if span.client_server_ms is not None]
    return table


def _row(band: Band) -> tuple[str, ...]:
    shown = [number(band.means[name]) for name in PARTS]
    return (band.label, f"{band.turns:,}", number(band.total_ms), *shown)


def _span_row(span: IdleSpan) -> tuple[str, ...]:
    """Means of the server's histograms; the front end is what our mean of written to last leaves."""
    own = [span.server_means[name] for name in ("queue_ms", "prefill_ms", "decode_ms")]
    known = [value for value in own if value is not None]
    rest = span.client_server_ms - sum(known) if span.client_server_ms is not None and len(known) == 3 else None
    label = f"{span.target} by its histograms"
    return (label, f"{span.turns:,}", NOT_KNOWN, "", "", "", number(rest), *(number(value) for value in own))


def source(found: Reconciled) -> str:
    """Where the server's parts come from, a sentence."""
    if found.per_turn:
        return "Queue, prefill and decode are what the server itself reported with each turn."
    if any(span.client_server_ms is not None for span in found.spans):
        return (
            "The server reported no times with its turns: queue, prefill and decode are means of its histograms between two "
            "instants at which it was idle, over all phases."
        )
    return f"Queue, prefill and decode are not known; {_UNDIVIDED} together are the total without the client's parts."


def tables(found: Reconciled) -> tuple[Table, ...]:
    """For the report: the parts, and the checks."""
    note = (
        f"In milliseconds: means of the turns of each band, from the planned instant to the last token. {source(found)}"
    )
    checks = tuple((one.name, one.outcome, one.text) for one in found.checks)
    made = (
        Table("parts", "Where the time of a turn went", COLUMNS, tuple(rows(found)), note),
        Table("agreement", "Whether client and server agree", ("what both counted", "", ""), checks),
    )
    return tuple(table for table in made if table.rows)


def text(name: str, found: Reconciled) -> str:
    """For a terminal."""
    lines = [f"{name}: where the time of a turn went (means; from the planned instant to the last token)"]
    table = rows(found)
    if table:
        lines.append(align([COLUMNS, *table], "l" + "r" * (len(COLUMNS) - 1)))
        lines.append(source(found))
    else:
        lines.append("  no measured turns at hand")
    return "\n".join([*lines, *checks_text(found.checks)])


def verdict_lines(name: str, summary: Mapping[str, Any] | None) -> list[str]:
    """What has to be known before any figure: of a run that is not valid, or has no verdict."""
    verdict = (summary or {}).get("verdict") or {}
    level = verdict.get("measurement")
    if level == "valid":
        return []
    why = "; ".join(str(one["text"]) for one in verdict.get("reasons") or () if one.get("phase") in (None, "measure"))
    said = f"{str(level).upper()} measurement" if level else "no verdict: the run ended before its summary was written"
    return [f"{name}: {said}" + (f": {why}" if why else "")]


def checks_text(checks: Sequence[Check]) -> list[str]:
    """A line each."""
    return [f"  {check.outcome}: {check.name}: {check.text}" for check in checks]


def document(found: Reconciled) -> dict[str, Any]:
    """For a machine: reconcile.json."""
    return {
        "format": 1,
        "parts_from": "turns" if found.per_turn else "histograms" if found.spans else None,
        "bands": [
            {"band": band.label, "turns": band.turns, "total_ms": band.total_ms, **band.means}
            for band in bands(found.parts)
        ],
        "servers": [_span_document(span) for span in found.spans],
        "checks": checks_document(found.checks),
    }


def checks_document(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """An object each."""
    return [{"check": one.name, "outcome": one.outcome, "text": one.text} for one in checks]


def _span_document(span: IdleSpan) -> dict[str, Any]:
    return {
        "target": span.target,
        "start_s": span.start_s,
        "end_s": span.end_s,
        "turns": span.turns,
        "requests": span.requests,
        **span.server_means,
        "e2e_ms": span.server_e2e_ms,
        "client_written_to_last_ms": span.client_server_ms,
        "input_tokens": {"client": span.input_tokens[0], "server": span.input_tokens[1]},
        "output_tokens": {"client": span.output_tokens[0], "server": span.output_tokens[1]},
        "requests_waiting_mean": span.waiting_mean,
        "rate_times_queue_time": span.queue_rate,
    }


def json_text(found: Reconciled) -> str:
    """The document as JSON text."""
    return json.dumps(document(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
