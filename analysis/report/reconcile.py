"""Reconciliation of client figures with the server's: times of the turns, requests and tokens.

Counts of the server come from its counters between two scrapes at which it was idle. They are updated at the end of a request,
so any other span would contain parts of turns.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import numpy as np

from inferload.base.json_text import lines as json_lines
from inferload.base.numbers import listed, number, time_unit, whole
from inferload.figures.figure import Head
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import PageKind, of_engine
from inferload.figures.servers import server_blocks, server_figures
from inferload.figures.servers.server_formulas import Reading, known
from inferload.figures.table import Table
from inferload.figures.turn_figures import UPLOAD
from inferload.servers.replicas import left_out
from inferload.servers.roles import without_prefill
from inferload.servers.series import ServerSeries
from inferload.servers.window import ServerWindow
from inferload.turns.record import CANCELLED

from ..data import frame
from ..data.breakdown import PARTS, SERVER_PARTS, TITLES, bands, divided, parts, timed
from ..data.frame import Frame, rows_by_text
from ..data.frames import RunFrames

Outcome = Literal["adds up", "does not add up", "not known"]

COLUMNS: Sequence[str | Head] = ("band", "turns", Head("total", "total, ms"), *TITLES.values())

SENT_COLUMNS = (
    "server",
    "before the load",
    Head("turns", "turns sent"),
    Head("without a connection", "requests without a connection"),
    Head("retried", "turns retried"),
    "canaries",
    Head("requests", "requests sent"),
)
SENT_NOTE = (
    "Of the whole run. Requests = before the load + turns - turns without a connection + retried + canaries; a server that "
    "resets a connection before it has read the request counts fewer."
)

AGAIN, FAILED, QUERIES, CANARIES = "sent again", "failed", "queries", "canaries"
TOGETHER = " of all servers"  # behind one address

_SLACK_MS, _SLACK_SHARE = 1.0, 0.01  # server and client measure from different events


@dataclass(frozen=True, slots=True)
class CounterCheck:
    """Comparison of a figure that client and server measure."""

    check: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Number counted by the client and by the server; None: not known, not published."""

    client: int | None
    server: int | None

    @property
    def surplus(self) -> int | None:
        """What the server counted beyond the client; None: not known."""
        return None if self.client is None or self.server is None else self.server - self.client


@dataclass(frozen=True, slots=True)
class IdleSpan:
    """Span between two scrapes at which a server was idle. `target`: empty for the sums of several servers behind one address."""

    target: str
    start_s: float
    end_s: float
    written: bool  # the records have all turns
    requests: Counted  # of the client: turns that succeeded, or their texts
    input_tokens: Counted
    output_tokens: Counted
    texts: bool = False  # turns have no streams: the server counts a request for each text
    # Requests beside those of `requests.client` that a server may have counted or not: of turns that were sent again, cancelled or
    # failed, and of the queries of texts.
    unsure: Mapping[str, int] = field(default_factory=dict)
    accepted_drafts: int = 0  # tokens, in the server's output tokens also where an answer ended before them

    @property
    def complete(self) -> bool:
        """True if all turns were written and succeeded, so that both sides counted the same tokens."""
        return self.written and not self.unsure.keys() & {CANCELLED, FAILED}


@dataclass(frozen=True, slots=True)
class SentRequests:
    """Requests that were sent to a server in the whole run: before the load, for turns, and canaries beside them."""

    target: str
    before_load: int
    turns: int
    retried: int  # second requests of turns
    unsent: int  # turns without a connection
    canaries: int

    @property
    def total(self) -> int:
        """Requests that may have arrived at the server."""
        return self.before_load + self.turns - self.unsent + self.retried + self.canaries


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Latency breakdown of each turn, idle spans, and the checks. Spans are of all turns.

    `per_turn`: every measured turn has the server's own times. `sample`: the turns of `parts`; None: all.
    """

    parts: Frame
    spans: tuple[IdleSpan, ...]
    checks: tuple[CounterCheck, ...]
    per_turn: bool = False
    sample: str | None = None
    requests: tuple[SentRequests, ...] = ()


def reconcile(frames: RunFrames) -> Reconciled:
    """Reconcile a run: latency breakdown of the measured turns, idle spans, checks."""
    table, spans = parts(frames.turns), idle_spans(frames)
    engine = next((of_engine(target.engine) for target in frames.manifest.targets), None)
    outcome, times = _times_check(table, "" if engine is None else engine.with_switch("own times"))
    checks = [CounterCheck("parts of a turn", outcome, frames.marked + times)]
    if frames.summary is not None and frames.summary.client.stamps == "user":
        text = "read times are from the client process, so the front end includes the client delay"
        checks.append(CounterCheck("front end", "not known", text))
    unknown = [left_out(server.target, server.replicas) for server in frames.servers.values() if server.replicas > 1]
    if not frames.servers:
        unknown = ["no server metrics were scraped"]
    elif not spans and not unknown:
        unknown = [
            "no scrape around the measured turns shows the server idle, so its counters include partial turns: scrape until the "
            "end of the drain, without other clients"
        ]
    checks += [CounterCheck("sums", "not known", text) for text in unknown]
    for span in spans:
        where = "" if len(frames.servers) == 1 else f" at {span.target}" if span.target else TOGETHER
        page = frames.servers[span.target].page if span.target else None
        checks += [replace(check, check=check.check + where) for check in _count_checks(span, page)]
    checks += _left_out(frames)
    per_turn = len(table) > 0 and bool(divided(table).all())
    sample = None if frames.sample is None else str(frames.sample)
    return Reconciled(table, spans, tuple(checks), per_turn, sample, sent_requests(frames))


def sent_requests(frames: RunFrames) -> tuple[SentRequests, ...]:
    """Return the requests that were sent to each server of the manifest; none if the records do not hold all turns."""
    if frames.turns_until_s is not None:
        return ()
    attempts: dict[str, list[np.ndarray]] = {}
    for turns in frames.batches("target", "attempts"):
        if "attempts" not in turns:
            return ()
        for target, rows in rows_by_text(turns["target"]).items():
            attempts.setdefault(str(target), []).append(turns["attempts"][rows])
    counts = []
    for server in frames.manifest.targets:
        each = np.concatenate(attempts.get(server.url, [np.zeros(0)]))
        retried, unsent = int((each > 1).sum()), int((each == 0).sum())
        canaries = _canaries(frames).get(server.url, 0)
        counts.append(SentRequests(server.url, server.before_load.requests, len(each), retried, unsent, canaries))
    return tuple(counts)


def _canaries(frames: RunFrames) -> Mapping[str, int]:
    """Return the canary requests by server."""
    canary = None if frames.summary is None else frames.summary.canary
    return {} if canary is None else canary.by_target


def _times_check(table: Frame, remedy: str) -> tuple[Outcome, str]:
    """Check that the server's own times of a turn fit into the time that the client measured. `remedy`: if it reports none."""
    known = table[timed(table)]
    if not len(known):
        return "not known", "the server reports no times per turn" + (f"; {remedy}" if remedy else "")
    # From sent on: the kernel may send a request before the client stamps it as written.
    own_ms = sum(np.nan_to_num(known[name]) for name in SERVER_PARTS)
    over_ms = own_ms - known["server_ms"] - known[UPLOAD.key]
    if over := int((over_ms > _SLACK_MS + _SLACK_SHARE * known["server_ms"]).sum()):
        most = number(float(over_ms.max()))
        text = f"{over:,} of {len(known):,} turns: the server reports up to {most} ms more than the client measured"
        return "does not add up", text
    missing = len(table) - len(known)
    rest = f"; {missing:,} turns without server times" if missing else ""
    return "adds up", f"the server times are consistent with all {len(known):,} turns{rest}"


def _count_checks(span: IdleSpan, page: PageKind | None) -> list[CounterCheck]:
    counts = (span.requests, span.input_tokens, span.output_tokens)
    rows = zip(_ROWS.items(), counts[: 2 if span.texts else 3], strict=False)
    return [CounterCheck(name, *_compared(counted, span, row.unknown_on(page))) for (name, row), counted in rows]


def _compared(counted: Counted, span: IdleSpan, not_published: str) -> tuple[Outcome, str]:
    surplus, of_requests = counted.surplus, counted is span.requests
    if counted.server is None:
        return "not known", not_published
    if surplus is None or not (span.written if of_requests else span.complete):
        return "not known", f"server {counted.server:,}; some turns were unsuccessful, not written or not counted"
    text = f"client {counted.client:,}, server {counted.server:,}, between idle scrapes ({number(span.end_s - span.start_s)} s)"
    if surplus == 0 and FAILED not in span.unsure:
        return "adds up", text
    doubtful = sum(span.unsure.values()) if of_requests else math.inf if {AGAIN, CANARIES} & {*span.unsure} else 0
    if 0 <= surplus <= doubtful:
        names = ", ".join(f"{count:,} {name}" for name, count in span.unsure.items())
        certain = of_requests and FAILED not in span.unsure
        return "adds up" if certain else "not known", f"{text}; {names}: a server may have counted them or not"
    return _why(counted, span, text)


def _why(counted: Counted, span: IdleSpan, text: str) -> tuple[Outcome, str]:
    """Return outcome and reason of a difference.

    A request of another client has a prompt and at least one output token, and counts as a request unless it was aborted.
    """
    requests, prompts, outputs = span.requests.surplus, span.input_tokens.surplus, span.output_tokens.surplus
    no_prompt = span.complete and None not in (prompts, outputs) and (prompts or 0) <= 0
    if (counted.surplus or 0) < 0:
        reason = "the server counted fewer than the client"
    elif span.complete and ((requests != 0 and outputs == 0) or (no_prompt and counted is span.requests)):
        of_choices = "a server counts a request with its prompt for each choice (n) and prompt of a turn"
        return "not known", f"{text}; {of_choices}"
    elif (no_prompt or (prompts is None and (requests or 0) <= 0)) and 0 < (outputs or 0) <= span.accepted_drafts:
        behind = f"{text}; accepted drafts behind the end of an answer, such as a stop string, are not sent"
        return "adds up" if no_prompt else "not known", behind
    elif no_prompt:
        reason = "output tokens that were not sent, or not counted in the usage of an answer"
    elif (requests or 0) <= 0:
        reason = "tokens of requests that were aborted, of other clients or of a proxy, gateway or router"
    else:
        reason = "other clients used this server, or a proxy, gateway or router repeated requests"
    return "does not add up", f"{text}: {reason}"


_ROWS = {
    "requests": server_figures.E2E,
    "prompt tokens": server_figures.PROMPT_TOKENS,
    "output tokens": server_figures.GENERATION_TOKENS,
}


def _left_out(frames: RunFrames) -> list[CounterCheck]:
    """Return the servers that are left out: others count each request once, which these count again, in parts, or not at all."""
    counting = {server.target for server in _counting(frames)}
    behind = f"{listed(sorted(counting))} counts each request once, in front of it or after its prefill"
    why = dict.fromkeys(sorted(frames.inference_servers - counting), behind)
    why |= dict.fromkeys(sorted(_without_turns(frames)), "no turn was sent to it, and all to other servers")
    return [CounterCheck(f"sums at {target}", "not known", f"not compared: {text}") for target, text in why.items()]


def _without_turns(frames: RunFrames) -> set[str]:
    """Return the servers that no turn was sent to, if the addresses that turns were sent to are those of other servers."""
    counting = {server.target for server in _counting(frames)}
    return counting - frames.sent_to if frames.sent_to and frames.sent_to <= counting else set()


def _counting(frames: RunFrames) -> list[ServerSeries]:
    """Return the servers whose counts are those of the turns: those in front if there are any, else those after prefill."""
    servers = [server for server in frames.servers.values() if names.RUNNING in server.metrics]
    return [server for server in servers if server.in_front] or [*without_prefill(servers)]


def idle_spans(frames: RunFrames) -> tuple[IdleSpan, ...]:
    """Return the shortest span between idle scrapes around the measured turns of each server; none for a server without.

    Servers behind one address have one span together.
    """
    left = _without_turns(frames)
    servers = [server for server in _counting(frames) if server.target not in left]
    together = [server for server in servers if not frames.answers_for(server)]
    groups = [[server] for server in servers if frames.answers_for(server)] + ([together] if together else [])
    spans = (_idle_span(frames, group) for group in groups)
    return tuple(span for span in spans if span is not None)


def _turns_of(frames: RunFrames, server: ServerSeries, *columns: str) -> Iterator[Frame]:
    """Yield all turns of a server, in batches."""
    sent_to = frames.sent_to
    for turns in frames.batches("target", *columns):
        yield turns[turns["target"] == server.target] if server.target in sent_to else turns


def _idle_scrapes(frames: RunFrames, server: ServerSeries) -> tuple[int, int] | None:
    """Return the indexes of the two nearest scrapes at which neither server nor client had requests in flight."""
    running, waiting = server.summed(names.RUNNING), server.summed(names.WAITING)
    if server.in_front and running is not None:
        waiting = np.zeros(len(running))  # they are in flight
    if running is None or waiting is None:
        return None
    at_s = frames.since_start_s(server.wall_ns)
    change = np.zeros(len(at_s) + 1, dtype=np.int64)  # of the turns in flight, since the scrape before
    first_s, last_s = np.inf, -np.inf
    for turns in _turns_of(frames, server, "sent_s", "closed_s", "phase"):
        sent, closed = turns["sent_s"], turns["closed_s"]
        was_sent = ~np.isnan(sent)
        for instants, by in ((sent, 1), (closed, -1)):
            after = np.searchsorted(at_s, instants[was_sent], side="right")
            change += by * np.bincount(after, minlength=len(change))
        measured = was_sent & (turns["phase"] == "measure") if "phase" in turns else was_sent
        if measured.any():
            first_s, last_s = min(first_s, sent[measured].min()), np.fmax(last_s, np.fmax.reduce(closed[measured]))
    idle = (running + waiting == 0) & (np.cumsum(change)[:-1] == 0)
    before, after = np.flatnonzero(idle & (at_s <= first_s)), np.flatnonzero(idle & (at_s >= last_s))
    return (int(before[-1]), int(after[0])) if np.isfinite(first_s) and len(before) and len(after) else None


@dataclass(slots=True)
class _SpanSums:
    """Sums over the turns of a span. Tokens: None if a turn has no count."""

    requests: int = 0  # of turns that succeeded: one for each, or for each of its texts
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    texts: bool = False
    unsure: Counter[str] = field(default_factory=Counter)

    def add(self, own: Frame) -> None:
        cancelled = own["finish_reason"] == CANCELLED if "finish_reason" in own else np.zeros(len(own), dtype=bool)
        failed = frame.known(own["failure"]) & ~cancelled
        texts = own.numbers("texts") if "texts" in own else np.full(len(own), np.nan)
        of_texts = ~np.isnan(texts)
        again = own["attempts"] > 1 if "attempts" in own else np.zeros(len(own), dtype=bool)
        requests = np.where(of_texts, texts, 1).astype(np.int64)
        kinds = {AGAIN: again, CANCELLED: cancelled, FAILED: failed}
        self.unsure.update(
            {name: int(requests[of].sum()) for name, of in kinds.items()} | {QUERIES: int(of_texts.sum())}
        )
        self.requests += int(requests[~(cancelled | failed)].sum())
        self.texts |= bool(of_texts.any())
        self.input_tokens = _plus(self.input_tokens, own, "input_tokens")
        self.output_tokens = _plus(self.output_tokens, own, "output_tokens")


def _plus(total: int | None, turns: Frame, name: str) -> int | None:
    """Add a column to a sum; None if a turn has no value."""
    counts = turns.numbers(name)
    return None if total is None or np.isnan(counts).any() else total + int(counts.sum())


def _idle_span(frames: RunFrames, group: Sequence[ServerSeries]) -> IdleSpan | None:
    """Return the span of a server, or of servers together; None without idle scrapes, or if turns fell between them."""
    windows = []
    for server in group:
        edges = _idle_scrapes(frames, server)
        if edges is None:
            return None
        first, last = edges
        windows.append(ServerWindow(server, first, last, int(server.wall_ns[first]), int(server.wall_ns[last])))
    begins = frames.since_start_s(np.array([window.start_wall_ns for window in windows]))
    ends = frames.since_start_s(np.array([window.end_wall_ns for window in windows]))
    start_s, end_s = float(begins.min()), float(ends.max())
    sums, between = _SpanSums(), 0
    columns = ("sent_s", "failure", "finish_reason", "input_tokens", "output_tokens", "attempts", "texts")
    for turns in _turns_of(frames, group[0], *columns):
        sent_s = turns["sent_s"]
        own = turns[(sent_s >= start_s) & (sent_s <= end_s)]
        between += int(((own["sent_s"] < begins.max()) | (own["sent_s"] > ends.min())).sum())
        if len(own):
            sums.add(own)
    if between:
        return None
    alone, canaries = len(group) == 1 and group[0].target in frames.sent_to, _canaries(frames)
    sums.unsure[CANARIES] = canaries.get(group[0].target, 0) if alone else sum(canaries.values())
    return IdleSpan(
        target=group[0].target if len(group) == 1 else "",
        start_s=start_s,
        end_s=end_s,
        written=frames.turns_until_s is None,
        requests=Counted(sums.requests, _sum(known(window.delta(Reading(names.E2E + "_count"))) for window in windows)),
        input_tokens=Counted(sums.input_tokens, _sum(map(server_figures.PROMPT_TOKENS.number, windows))),
        output_tokens=Counted(sums.output_tokens, _sum(map(server_figures.GENERATION_TOKENS.number, windows))),
        texts=sums.texts,
        unsure=dict(+sums.unsure),
        accepted_drafts=_sum(server_blocks.ACCEPTED_TOKENS.number(window) or 0 for window in windows) or 0,
    )


def _sum(counts: Iterable[float | None]) -> int | None:
    """Return the sum of counts; None if one is not known."""
    each = list(counts)
    return whole(sum(count for count in each if count is not None)) if None not in each else None


def _scaled(value_ms: float | None, factor: float) -> str | None:
    return None if value_ms is None else number(value_ms * factor)


def tables(reconciled: Reconciled) -> tuple[Table, ...]:
    """Return the tables of the report: latency breakdown and checks."""
    note = "" if reconciled.sample is None else f"From {reconciled.sample}. "
    averages = bands(reconciled.parts)
    unit, factor = time_unit(band.total_ms for band in averages)
    unit = "In seconds" if unit == "s" else "In milliseconds"
    note += f"{unit}; means of the turns of each band, planned start to last token. "
    if reconciled.per_turn:
        note += "Queue, prefill and decode are reported by the server per turn."
    elif len(reconciled.parts) and timed(reconciled.parts).all():
        note += (
            "Prefill and decode are reported by the server per turn; the queue is not, and is one with the front end."
        )
    else:
        note += "Queue, prefill and decode are not known per turn; the server has only means."
    rows = [
        (band.label, band.turns, *(_scaled(each, factor) for each in (band.total_ms, *map(band.means.get, PARTS))))
        for band in averages
    ]
    checks = []
    for check in reconciled.checks:
        figure = check.check.removesuffix(TOGETHER).partition(" at http")[0]
        term = "output tokens, both" if figure == "output tokens" else figure
        checks.append((Head(check.check, term), check.outcome, check.text))
    sent = [
        (books.target, books.before_load, books.turns, books.unsent, books.retried, books.canaries, books.total)
        for books in reconciled.requests
    ]
    all_of_them = (
        Table("parts", "Latency breakdown by total", COLUMNS, rows, note),
        Table("agreement", "Client and server counters", ("figure", "result", "counts"), checks),
        Table("sent-requests", "Requests by server", SENT_COLUMNS, sent, SENT_NOTE),
    )
    return tuple(table for table in all_of_them if table.rows)


def json_text(reconciled: Reconciled) -> str:
    """Return reconcile.json as text."""
    document = {
        "format": 1,
        "parts_from": "turns" if reconciled.per_turn else None,
        "bands_from": reconciled.sample,
        "bands": [
            {"band": band.label, "turns": band.turns, "total_ms": band.total_ms, **band.means}
            for band in bands(reconciled.parts)
        ],
        "servers": [asdict(span) for span in reconciled.spans],
        "checks": [asdict(check) for check in reconciled.checks],
        "requests": [{**asdict(books), "total": books.total} for books in reconciled.requests],
    }
    return json_lines(document)
