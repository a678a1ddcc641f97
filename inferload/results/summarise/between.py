"""Evidence of proxies, gateways and routers: counts of client and servers over the whole run, and gaps that show held events."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np
from msgspec.structs import replace

from inferload.base.arrow import pa, pc
from inferload.figures.pages import metric_names as names
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.turns import Turns
from inferload.results.verdict.evidence import Between
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.servers.roles import PREFILL
from inferload.servers.series import ServerSeries
from inferload.turns.sketch import Floats
from inferload.turns.tally import Tally, add_counts

_GAPS, _TURNS, _MOST_TURNS = 5, 10, 5_000  # fewest gaps of a turn; fewest and most turns that are used
_ALIKE = 0.9  # least share of turns whose last gap is shorter by more than half of the median difference
_Span = tuple[ServerSeries, int, int]  # with the indices of two scrapes
_PATHS = tuple({f"/v1{row.path}" for row in ENDPOINTS.values()})
_ENDS = ("status", "failure", "worker", "closed_ns")
_STREAMS = ("failure", "event_ns", "output_tokens", "hidden_tokens", "finish_reason")


def between(run: Counts, turns: Turns | None, servers: Mapping[str, ServerSeries]) -> Between:
    """Return the evidence of a run. Parts that need complete records, or idle scrapes at both ends, are None without them."""
    if turns is None:
        return Between()
    tally = Tally()
    for _, part in run.totals.tallies.items():
        tally.absorb_counts(part)
        add_counts(tally.by_canary, part.by_canary)
    gaps = islice((gaps for table in turns.read(_STREAMS) for gaps in _gaps_ms(table)), _MOST_TURNS)
    ends = np.array([(np.median(each[:-1]), each[-1]) for each in gaps]).reshape(-1, 2)
    held_ms, gap_ms = _held(ends[:, 0], ends[:, 1])
    of_gaps = Between(held_ms=held_ms, gap_ms=gap_ms, turns=tally.ended)
    engines = [server for server in servers.values() if {names.RUNNING, names.WAITING} <= {*server.metrics}]
    # Pages of another kind, such as those of routers, count the same requests again.
    one_kind = len({server.page and server.page.key for server in engines}) == 1
    if not run.course.windows or not one_kind or any(server.replicas > 1 for server in servers.values()):
        return of_gaps
    idle = [_in_flight(server) == 0 for server in engines]
    last_ns, refused = run.course.anchor.to_wall_ns(run.course.windows[0].start_ns), 0
    first_ns, zeros_ns = last_ns, turns.wall_starts_ns(run.workers.workers)
    for table in turns.read(_ENDS):
        closed_ns = table["closed_ns"].to_numpy() + np.array([zeros_ns[name] for name in table["worker"].to_pylist()])
        last_ns = int(closed_ns.max(initial=last_ns))
        status = table["status"].fill_null(0).to_numpy()
        failed = table["failure"].is_valid().to_numpy() & ((status == 429) | (status >= 500))
        refused += int(np.all([*map(partial(_idle_at, closed_ns[failed]), engines, idle)], axis=0).sum())
    spans = [_span(server, is_idle, first_ns, last_ns) for server, is_idle in zip(engines, idle, strict=True)]
    known = [span for span in spans if span is not None and not tally.whole]
    beside = run.totals.others.sent + sum(tally.by_canary.values())
    counted = _counts(known, tally, beside, refused) if len(known) == len(spans) else {}
    if refused and not counted and any(names.HTTP_REQUESTS in server.metrics for server in engines):
        return of_gaps  # it is not known whether the refused turns arrived
    return replace(of_gaps, **{"refused_idle": refused, **counted})


def _span(server: ServerSeries, idle: np.ndarray, first_ns: int, last_ns: int) -> _Span | None:
    """Return the idle scrapes before and after all turns; None if there are none."""
    before, after = np.flatnonzero(server.wall_ns <= first_ns), np.flatnonzero((server.wall_ns >= last_ns) & idle)
    return (server, int(before[-1]), int(after[-1])) if len(before) and idle[before[-1]] and len(after) else None


def _gaps_ms(turns: pa.Table) -> Iterator[Floats]:
    """Yield the gaps of each complete turn with one token per event: several tokens in one event would show as a long gap."""
    whole = pc.and_(pc.is_null(turns["failure"]), pc.is_in(turns["finish_reason"], pa.array(["length", "stop"])))
    events = pc.list_value_length(turns["event_ns"])
    more = pc.subtract(pc.subtract(turns["output_tokens"], pc.fill_null(turns["hidden_tokens"], 0)), events)
    one_each = pc.and_(pc.greater(events, _GAPS), pc.less_equal(pc.abs(more), 1))
    for at_ns in turns.filter(pc.and_(whole, one_each))["event_ns"]:
        yield np.diff(np.asarray(at_ns.values, dtype=np.float64)) / 1e6


def _held(typical_ms: Floats, last_ms: Floats) -> tuple[float | None, float | None]:
    """Return by how much the last gap of a turn is shorter than its median gap, and the typical gap; medians over the turns.

    The first is 0 unless nearly all turns agree; both are None with too few turns.
    """
    if len(last_ms) < _TURNS:
        return None, None
    short_ms, gap_ms = typical_ms - last_ms, float(np.median(typical_ms))
    held_ms = float(np.median(short_ms))
    return (held_ms if held_ms > 0 and np.mean(short_ms > held_ms / 2) >= _ALIKE else 0.0), gap_ms


def _counts(spans: Sequence[_Span], tally: Tally, others: int, refused: int) -> dict[str, int | None]:
    """Return the counts of client and servers.

    `others`: requests that are no turns, which servers may count. `refused`: turns refused while the servers were idle;
    where the servers count all requests, those that arrived are left out, because the servers themselves refused them.
    """
    spans = [span for span in spans if not _only_prefills(span)]
    finished, generated = (_grown(spans, name) for name in (names.FINISHED, names.GENERATION_TOKENS))
    if finished is None or generated is None:
        return {}
    dropped = sum(_grown(spans, names.FINISHED, **reason) or 0 for reason in names.DROPPED)
    seen = tally.failed + tally.unfinished + tally.cancelled + tally.retried  # that the servers may have dropped
    same = tally.output_tokens_from == tally.ok == tally.requests == finished and not dropped and not tally.cancelled
    # With speculative decoding, servers also count accepted draft tokens after a stop.
    accepted = sum(_grown([span], names.SPEC_ACCEPTED) or 0 for span in spans)
    drafts = 0 < generated - tally.output_tokens <= accepted
    ok, answered = tally.ok - tally.cancelled, _answered(spans)
    arrived = finished if answered is None else answered
    return {
        "refused_idle": refused if answered is None else min(refused, max(0, tally.requests - answered)),
        "sent": max(tally.requests, min(arrived, tally.requests + others)),
        "arrived": arrived,
        "ok": ok,
        "cut": max(0, min(ok - (finished - dropped), dropped - seen)),
        "output_tokens": tally.output_tokens if same and not drafts else None,
        "generated_tokens": generated,
    }


def _only_prefills(span: _Span) -> bool:
    """Return True for a server that prefills for others, which count the request too; without a role, by one token of each."""
    requests, tokens = (_grown([span], name) for name in (names.FINISHED, names.GENERATION_TOKENS))
    return bool(requests) and requests == tokens if span[0].role is None else span[0].role_name == PREFILL


def _answered(spans: Sequence[_Span]) -> int | None:
    """Return the requests of turns that the API servers answered, refusals included; None if one does not count them."""
    if any(names.HTTP_REQUESTS not in server.metrics for server, _, _ in spans):
        return None
    return sum(_grown([span], names.HTTP_REQUESTS, handler=path) or 0 for span in spans for path in _PATHS)


def _in_flight(server: ServerSeries) -> Floats:
    parts = [server.summed(name) for name in (names.RUNNING, names.WAITING)]
    return np.asarray(np.sum([part for part in parts if part is not None], axis=0))


def _idle_at(at_ns: np.ndarray, server: ServerSeries, idle: np.ndarray) -> np.ndarray:
    """Return for each instant whether a server was idle at the scrapes before and after it."""
    after = np.searchsorted(server.wall_ns, at_ns)
    padded = np.concatenate([[False], idle, [False]])  # outside of the scrapes it is not known
    return np.asarray(padded[after] & padded[after + 1])


def _grown(spans: Sequence[_Span], metric: str, **labels: str) -> int | None:
    """Return the growth of a counter in the spans of servers; None if one does not publish it, or there is no server."""
    total = 0.0
    for server, first, last in spans:
        grown = server.grown(metric, **labels)
        if grown is None:
            return None
        total += grown[last] - grown[first]
    return None if not spans or not np.isfinite(total) else round(total)
