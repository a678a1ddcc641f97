"""Reconciliation of client figures with the server's counters: requests, tokens, times and Little's law.

Sums and means of the server come from its counters between two scrapes at which it was idle. Its histograms of queue, prefill
and decode are updated at the end of a request, so any other span would contain parts of turns.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from inferload.measure.record import CANCELLED
from inferload.numbers import NOT_KNOWN, number, whole
from inferload.server_metrics import metric_names as names
from inferload.server_metrics.series import ServerSeries
from inferload.server_metrics.window_figures import View

from ..data.breakdown import COLUMNS as COLUMNS_OF_PARTS
from ..data.breakdown import PARTS, SERVER_PARTS, TITLES, Band, bands, parts
from ..data.frames import RunFrames
from ..pages.tables import Table

Outcome = Literal["adds up", "does not add up", "not known"]

COLUMNS = ("band", "turns", "total, ms", *TITLES.values())

# Tolerances: server and client measure from different events.
_SLACK_MS, _SLACK_SHARE = 1.0, 0.01
_MEANS_SHARE = 0.10  # two means of the same times
_LITTLE_SHARE, _LITTLE_REQUESTS = 0.25, 0.5  # gauges are sampled a few times per second

_HISTOGRAMS = {"queue_ms": names.QUEUE, "prefill_ms": names.PREFILL, "decode_ms": names.DECODE}


@dataclass(frozen=True, slots=True)
class CounterCheck:
    """Comparison of a figure that client and server measure."""

    name: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class IdleSpan:
    """Span between two scrapes at which a server was idle. Times are means over requests; None: not published."""

    target: str
    start_s: float
    end_s: float
    turns: int  # of this client, in the span
    turns_whole: bool  # all turns succeeded and were written, so both sides counted the same requests
    requests: int | None
    server_means: dict[str, float | None]
    server_e2e_ms: float | None
    client_server_ms: float | None  # mean of written to last over these turns
    input_tokens: tuple[int | None, int | None]  # (client, server)
    output_tokens: tuple[int | None, int | None]
    waiting_mean: float | None
    queue_rate: float | None  # requests/s x mean queue time: mean number waiting by Little's law
    preempted: bool
    turn_means: Mapping[str, float] | None  # of the server's times of these turns; None if a turn has none


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Latency breakdown of each turn, idle spans, and the checks. Spans and checks are of all turns.

    `per_turn`: every measured turn has the server's own times. `sample`: the turns of `parts`; None: all.
    """

    parts: pd.DataFrame
    spans: tuple[IdleSpan, ...]
    checks: tuple[CounterCheck, ...]
    per_turn: bool = False
    sample: str | None = None


def reconcile(frames: RunFrames) -> Reconciled:
    """Reconcile a run: latency breakdown of the measured turns, idle spans, checks."""
    table, spans = parts(frames.turns), idle_spans(frames)
    times = _ServerTimes()
    for turns in frames.batches(*COLUMNS_OF_PARTS):
        times.add(table if frames.sample is None else parts(turns))
    checks = [times.check()]
    if ((frames.summary or {}).get("client") or {}).get("stamps") == "user":
        text = "read times are from the client process, so the front end includes the client delay"
        checks.append(CounterCheck("front end", "not known", text))
    if not spans and frames.servers:
        text = (
            "no scrape around the measured turns shows the server idle, so its counters include partial turns: scrape until the "
            "end of the drain, without other clients"
        )
        checks.append(CounterCheck("sums", "not known", text))
    elif not spans:
        checks.append(CounterCheck("sums", "not known", "no server metrics were scraped"))
    alone = len(frames.servers) == 1
    for span in spans:
        where = "" if alone else f" at {span.target}"
        checks += [replace(check, name=check.name + where) for check in _span_checks(span)]
    sample = None if frames.sample is None else str(frames.sample)
    return Reconciled(table, spans, tuple(checks), times.turns == times.known > 0, sample)


@dataclass(slots=True)
class _ServerTimes:
    """Sums over tables of `breakdown.parts`: how the server's own times fit into the time that the client measured."""

    turns: int = 0
    known: int = 0  # turns with all of the server's times
    over: int = 0  # of these: turns with more than the client measured
    most_ms: float = -np.inf

    def add(self, table: pd.DataFrame) -> None:
        known = table[table[list(SERVER_PARTS)].notna().all(axis=1)]
        self.turns += len(table)
        self.known += len(known)
        if len(known):
            # From sent on: the kernel may send a request before the client stamps it as written.
            over_ms = -(known["front_end_ms"] + known["upload_ms"])
            self.over += int((over_ms > _SLACK_MS + _SLACK_SHARE * known["server_ms"]).sum())
            self.most_ms = max(self.most_ms, float(over_ms.max()))

    def check(self) -> CounterCheck:
        """Return the check of these times."""
        name = "parts of a turn"
        if not self.known:
            text = "the server reports no times per turn (vLLM: --enable-per-request-metrics)"
            return CounterCheck(name, "not known", text)
        if self.over:
            most = number(self.most_ms)
            text = f"{self.over:,} of {self.known:,} turns: the server reports up to {most} ms more than the client measured"
            return CounterCheck(name, "does not add up", text)
        missing = self.turns - self.known
        rest = f"; {missing:,} turns without server times" if missing else ""
        return CounterCheck(name, "adds up", f"the server times are consistent with all {self.known:,} turns{rest}")


def _span_checks(span: IdleSpan) -> list[CounterCheck]:
    checks = [
        _counts("requests", (span.turns, span.requests), span),
        _counts("prompt tokens", span.input_tokens, span),
        _counts("output tokens", span.output_tokens, span),
    ]
    if span.turn_means is not None:
        checks.append(_means(span, span.turn_means))
    return checks + _little(span)


def _counts(name: str, both: tuple[int | None, int | None], span: IdleSpan) -> CounterCheck:
    client, server = both
    if server is None:
        return CounterCheck(name, "not known", "not published by the server")
    if not span.turns_whole or client is None:
        return CounterCheck(
            name, "not known", f"server {server:,}; some turns were unsuccessful, not written or not counted"
        )
    text = f"client {client:,}, server {server:,}, between idle scrapes ({number(span.end_s - span.start_s)} s)"
    if client == server:
        return CounterCheck(name, "adds up", text)
    why = "other clients used this server" if server > client else "the server counted fewer than the client"
    return CounterCheck(name, "does not add up", f"{text}: {why}")


def _means(span: IdleSpan, turn_means: Mapping[str, float]) -> CounterCheck:
    """Compare means of per-turn times with the server's histograms: the same requests if the counts agree."""
    name = "turns against histograms"
    means, differing = [], []
    for part in SERVER_PARTS:
        of_turns, of_histogram = turn_means[part], span.server_means[part]
        if of_histogram is None:
            continue
        means.append(f"{TITLES[part]} {number(of_turns)} and {number(of_histogram)} ms")
        if abs(of_turns - of_histogram) > _SLACK_MS + _MEANS_SHARE * of_histogram:
            differing.append(TITLES[part])
    if not means:
        return CounterCheck(name, "not known", "the server publishes no histograms of queue, prefill and decode")
    text = f"means {', '.join(means)}"
    if differing and not span.turns_whole:
        return CounterCheck(
            name, "not known", f"{text}; some turns were unsuccessful and may be in the server's histograms only"
        )
    return CounterCheck(
        name,
        "does not add up" if differing else "adds up",
        text + (f": {', '.join(differing)} differ" if differing else ""),
    )


def _little(span: IdleSpan) -> list[CounterCheck]:
    """Check mean waiting = rate x mean queue time; not known with preemption: requests then wait more than once."""
    name = "Little's law, queue"
    if span.waiting_mean is None or span.queue_rate is None:
        return [CounterCheck(name, "not known", "the server does not publish waiting requests and queue times")]
    text = f"mean waiting {number(span.waiting_mean)}, rate x mean queue time {number(span.queue_rate)}"
    if span.preempted:
        return [CounterCheck(name, "not known", f"{text}; preempted requests wait more than once")]
    if not span.turns_whole:
        why = "some turns were unsuccessful: they waited but are not in the server's times"
        return [CounterCheck(name, "not known", f"{text}; {why}")]
    difference = abs(span.waiting_mean - span.queue_rate)
    holds = difference <= _LITTLE_REQUESTS + _LITTLE_SHARE * span.queue_rate
    return [CounterCheck(name, "adds up" if holds else "does not add up", text)]


def idle_spans(frames: RunFrames) -> tuple[IdleSpan, ...]:
    """Return the shortest span between idle scrapes around the measured turns of each server; none for a server without."""
    spans = []
    for server in frames.servers.values():
        edges = _idle_scrapes(frames, server)
        if edges is not None:
            spans.append(_idle_span(frames, server, *edges))
    return tuple(spans)


def _turns_of(frames: RunFrames, server: ServerSeries, *columns: str) -> Iterator[pd.DataFrame]:
    """Yield all turns of a server, in batches."""
    for turns in frames.batches("target", *columns):
        alone = len(frames.servers) == 1 or "target" not in turns
        yield turns if alone else turns[turns["target"] == server.target]


def _idle_scrapes(frames: RunFrames, server: ServerSeries) -> tuple[int, int] | None:
    """Return the indexes of the two nearest scrapes at which neither server nor client had requests in flight."""
    running, waiting = server.summed(names.RUNNING), server.summed(names.WAITING)
    if running is None or waiting is None:
        return None
    at_s = frames.since_start_s(server.wall_ns)
    change = np.zeros(len(at_s) + 1, dtype=np.int64)  # of the turns in flight, since the scrape before
    first_s, last_s = np.inf, -np.inf
    for turns in _turns_of(frames, server, "sent_s", "closed_s", "phase"):
        sent, closed = turns["sent_s"].to_numpy(), turns["closed_s"].to_numpy()
        was_sent = ~np.isnan(sent)
        for instants, by in ((sent, 1), (closed, -1)):
            after = np.searchsorted(at_s, instants[was_sent], side="right")
            change += by * np.bincount(after, minlength=len(change))
        measured = was_sent & (turns["phase"] == "measure").to_numpy() if "phase" in turns else was_sent
        if measured.any():
            first_s, last_s = min(first_s, sent[measured].min()), np.fmax(last_s, np.fmax.reduce(closed[measured]))
    idle = (running + waiting == 0) & (np.cumsum(change)[:-1] == 0)
    before, after = np.flatnonzero(idle & (at_s <= first_s)), np.flatnonzero(idle & (at_s >= last_s))
    return (int(before[-1]), int(after[0])) if np.isfinite(first_s) and len(before) and len(after) else None


@dataclass(slots=True)
class _SpanSums:
    """Sums over the turns of a span. Tokens: None if a turn has no count."""

    turns: int = 0
    all_ok: bool = True  # and none was cancelled
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    answered: int = 0  # turns with a known time from written to last
    written_to_last_ms: float = 0.0
    parts: int = 0  # turns of the latency breakdown
    all_parts_known: bool = True
    part_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SERVER_PARTS, 0.0))

    def add(self, own: pd.DataFrame) -> None:
        cancelled = "finish_reason" in own and bool((own["finish_reason"] == CANCELLED).any())
        self.turns += len(own)
        self.all_ok = self.all_ok and not cancelled and bool(own["failure"].isna().all())
        self.input_tokens = _plus(self.input_tokens, own, "input_tokens")
        self.output_tokens = _plus(self.output_tokens, own, "output_tokens")
        written_to_last_ms = (own["e2e_ms"] - own["upload_ms"]).dropna()
        self.answered += len(written_to_last_ms)
        self.written_to_last_ms += float(written_to_last_ms.sum())
        table = parts(own, phase=None)[list(SERVER_PARTS)]  # of all phases, as in the server's counters
        self.parts += len(table)
        self.all_parts_known = self.all_parts_known and bool(table.notna().all(axis=None))
        for name in SERVER_PARTS:
            self.part_ms[name] += float(table[name].sum())

    @property
    def means(self) -> dict[str, float] | None:
        """Means of the server's times; None if a turn has none."""
        known = self.parts > 0 and self.all_parts_known
        return {name: total / self.parts for name, total in self.part_ms.items()} if known else None


def _plus(total: int | None, turns: pd.DataFrame, name: str) -> int | None:
    """Add a column to a sum; None if a turn has no value."""
    known = total is not None and name in turns and turns[name].notna().all()
    return int((total or 0) + turns[name].sum()) if known else None


def _idle_span(frames: RunFrames, server: ServerSeries, first: int, last: int) -> IdleSpan:
    view = View(server, first, last, int(server.wall_ns[first]), int(server.wall_ns[last]))
    start_s, end_s = (float(at) for at in frames.since_start_s(server.wall_ns[[first, last]]))
    sums = _SpanSums()
    of_sums = ("sent_s", "finish_reason", "input_tokens", "output_tokens", *COLUMNS_OF_PARTS)
    for turns in _turns_of(frames, server, *of_sums):
        own = turns[(turns["sent_s"] >= start_s) & (turns["sent_s"] <= end_s)]
        if len(own):
            sums.add(own)
    complete = frames.turns_until_s is None and sums.all_ok
    means = {name: view.mean_ms(family) for name, family in _HISTOGRAMS.items()}
    requests, queue_ms = view.delta(names.E2E + "_count"), means["queue_ms"]
    length_s = end_s - start_s
    return IdleSpan(
        target=server.target,
        start_s=start_s,
        end_s=end_s,
        turns=sums.turns,
        turns_whole=complete,
        requests=whole(requests),
        server_means=means,
        server_e2e_ms=view.mean_ms(names.E2E),
        client_server_ms=sums.written_to_last_ms / sums.answered if complete and sums.answered else None,
        input_tokens=(sums.input_tokens if sums.turns else None, whole(view.delta(names.PROMPT_TOKENS))),
        output_tokens=(sums.output_tokens if sums.turns else None, whole(view.delta(names.GENERATION_TOKENS))),
        waiting_mean=view.gauge(server.summed(names.WAITING))["mean"],
        queue_rate=None if requests is None or queue_ms is None else requests / length_s * queue_ms / 1e3,
        preempted=bool(view.delta(names.PREEMPTIONS)),
        turn_means=sums.means,
    )


def rows(reconciled: Reconciled) -> list[tuple[str, ...]]:
    """Return a row for each band of turns; without server times per turn also a row of histogram means for each server."""
    lines = [_row(band) for band in bands(reconciled.parts)]
    if not reconciled.per_turn:
        lines += [_span_row(span) for span in reconciled.spans if span.client_server_ms is not None]
    return lines


def _row(band: Band) -> tuple[str, ...]:
    means = [number(band.means[name]) for name in PARTS]
    return (band.label, f"{band.turns:,}", number(band.total_ms), *means)


def _span_row(span: IdleSpan) -> tuple[str, ...]:
    """Return means of the server's histograms; the front end is the rest of the client's written to last."""
    own = [span.server_means[name] for name in SERVER_PARTS]
    known = [value for value in own if value is not None]
    rest = span.client_server_ms - sum(known) if span.client_server_ms is not None and len(known) == 3 else None
    label = f"{span.target}, histograms"
    return (label, f"{span.turns:,}", NOT_KNOWN, "", "", "", number(rest), *(number(value) for value in own))


def source(reconciled: Reconciled) -> str:
    """Return a sentence on the source of queue, prefill and decode."""
    if reconciled.per_turn:
        return "Queue, prefill and decode are reported by the server per turn."
    if any(span.client_server_ms is not None for span in reconciled.spans):
        return (
            "The server reported no times per turn: queue, prefill and decode are means of its histograms between two idle "
            "scrapes, over all phases."
        )
    return "Queue, prefill and decode are not known; server and network are the total without the parts of the client."


def tables(reconciled: Reconciled) -> tuple[Table, ...]:
    """Return the tables of the report: latency breakdown and checks."""
    marked = "" if reconciled.sample is None else f"From {reconciled.sample}. "
    note = (
        f"{marked}In milliseconds; means of the turns of each band, planned start to last token. {source(reconciled)}"
    )
    checks = tuple((check.name, check.outcome, check.text) for check in reconciled.checks)
    both = (
        Table("parts", "Latency breakdown by total", COLUMNS, tuple(rows(reconciled)), note),
        Table("agreement", "Client and server counters", ("figure", "", ""), checks),
    )
    return tuple(table for table in both if table.rows)


def document(reconciled: Reconciled) -> dict[str, Any]:
    """Return the content of reconcile.json."""
    return {
        "format": 1,
        "parts_from": "turns" if reconciled.per_turn else "histograms" if reconciled.spans else None,
        "bands_from": reconciled.sample,
        "bands": [
            {"band": band.label, "turns": band.turns, "total_ms": band.total_ms, **band.means}
            for band in bands(reconciled.parts)
        ],
        "servers": [_span_document(span) for span in reconciled.spans],
        "checks": [{"check": check.name, "outcome": check.outcome, "text": check.text} for check in reconciled.checks],
    }


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


def json_text(reconciled: Reconciled) -> str:
    """Return reconcile.json as text."""
    return json.dumps(document(reconciled), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
