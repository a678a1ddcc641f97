"""Client-side data on a server, computed once per run for all windows."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from inferload.figures.pages import metric_names as names
from inferload.figures.turn_figures import ROUND_TRIP, TTFT
from inferload.servers.bottleneck.evidence import ClientSide
from inferload.servers.roles import DECODE
from inferload.servers.series import ServerSeries
from inferload.turns.sketch import Floats

from ..data.frames import RunFrames
from ..data.manifest import slo_of
from ..data.turn_frames import Events
from .turn_causes import begun_not_ended


@dataclass(frozen=True, slots=True)
class Queue:
    """Turns in the order of sending. `until_s`: time of the first output, or of the end of a turn without output."""

    sent_s: Floats
    until_s: Floats
    tokens: Floats  # uncached prompt tokens
    longest_s: float
    scale: float = 1.0  # all turns over these

    def heads(self, at_s: Floats, waiting: Floats) -> Floats:
        """Return the uncached prompt tokens of the head of the queue at each time; NaN if no request waits, or if unknown.

        The waiting turns are the latest of the turns without a first token; the head is the oldest of them. Of a sample, it is the
        turn nearest to the head; unknown if fewer requests wait than half of those that one turn stands for.
        """
        heads = np.full(len(at_s), np.nan)
        counts = np.rint(np.nan_to_num(waiting) / self.scale).astype(int)
        for index in np.flatnonzero(counts > 0):
            now = at_s[index]
            oldest, newest = np.searchsorted(self.sent_s, (now - self.longest_s, now), side="right")
            open_turns = np.flatnonzero(self.until_s[oldest:newest] > now)[::-1]
            if len(open_turns):
                heads[index] = self.tokens[oldest + open_turns[min(int(counts[index]), len(open_turns)) - 1]]
        return heads

    def held(self, at_s: Floats) -> Floats:
        """Return the turns that have waited for output for a second at each time, and do so for half a second more."""
        begin_s = self.sent_s + 1.0
        return self.scale * begun_not_ended(at_s, begin_s, np.maximum(begin_s, self.until_s - 0.5))


@dataclass(frozen=True, slots=True)
class FastestSecond:
    """Second of the run with the lowest mean ITL."""

    itl_ms: float
    decoding: float  # mean number of requests that decoded then
    scale: float  # all turns over those of the sample

    @classmethod
    def of(cls, events: Events, scale: float) -> "FastestSecond | None":
        """Return the second with the lowest mean ITL of those with at least ten gaps; None if there are few gaps."""
        gaps = ~np.isnan(events.gap_ms)
        if gaps.sum() < 30:
            return None
        seconds = np.floor(events.at_s[gaps]).astype(int)
        first = int(seconds.min())
        counts = np.bincount(seconds - first)
        sums = np.bincount(seconds - first, weights=events.gap_ms[gaps])
        full = counts >= 10
        if not full.any():
            return None
        at = int(np.argmin(np.where(full, sums / np.maximum(counts, 1), np.inf)))
        start_s = float(first + at)
        of_second = events.where(gaps & (np.floor(events.at_s) == start_s))
        decoding = scale * decoding_requests(of_second, start_s, start_s + 1)
        return cls(float(sums[at] / counts[at]), decoding, scale)

    def load_ratio(self, events: Events, start_s: float, end_s: float) -> float | None:
        """Return the mean number of decoding requests in a window over that in this second, at least 1; None of an empty one."""
        if end_s <= start_s:
            return None
        return self.scale * decoding_requests(events, start_s, end_s) / max(self.decoding, 1.0)


def decoding_requests(events: Events, start_s: float, end_s: float) -> float:
    """Return the mean number of requests between two of these events: the part of their gaps in the window over its length."""
    return float(np.nansum(np.minimum(events.gap_ms / 1000, events.at_s - start_s))) / (end_s - start_s)


@dataclass(frozen=True, slots=True)
class ClientView:
    """Turns of a server by time of the first token, and their output events by time."""

    events: Events
    first_s: Floats
    ttft_ms: Floats
    side: ClientSide  # what is the same in all windows
    head_tokens: Floats  # of the head of the queue, at each scrape of the server
    held: Floats  # turns that wait for output, at each scrape
    fastest: FastestSecond | None
    slo: Mapping[str, float]

    @classmethod
    def of(cls, run: RunFrames, server: ServerSeries) -> "ClientView":
        """Build the view of a server; of all turns if none was sent to it directly (a server behind a router)."""
        turns = run.turns
        own = turns.texts("target") == server.target
        own_target = bool(own.any())
        if not own_target or own.all():
            own, events = np.ones(len(turns), dtype=bool), run.events
        else:
            events = run.events.where(own[run.events.turn])
        sent, first, closed = (turns[f"{name}_s"][own] for name in ("sent", "first", "closed"))
        tokens = (turns.numbers("input_tokens") - np.nan_to_num(turns.numbers("cached_tokens")))[own]  # uncached
        scale = 1.0 if run.sample is None else run.sample.scale
        queue = _queue(sent, np.where(np.isnan(first), closed, first), tokens, scale)
        at_s = run.since_start_s(server.wall_ns)
        by_first = np.argsort(first)
        by_first = by_first[: int(np.count_nonzero(~np.isnan(first)))]
        return cls(
            events=events,
            first_s=first[by_first],
            ttft_ms=turns[TTFT.key][own][by_first],
            side=ClientSide(
                round_trip_ms=_median(turns.numbers(ROUND_TRIP.key)[own]),
                behind=not own_target and not any(same_address(server.target, target) for target in run.sent_to),
                attributed=run.answers_for(server),
            ),
            head_tokens=queue.heads(at_s, capacity(server)),
            held=queue.held(at_s),
            fastest=FastestSecond.of(events, scale),
            slo=slo_of(run.manifest),
        )

    def firsts(self, start_s: float, end_s: float) -> slice:
        """Return the turns whose first token is in the half-open window."""
        low, high = np.searchsorted(self.first_s, (start_s, end_s))
        return slice(int(low), int(high))


def capacity(server: ServerSeries, **engine: str) -> Floats:
    """Return the requests waiting for capacity at each scrape; all waiting requests if the server publishes no reason.

    Without reasons, those at decode are not known: they may wait for prefill, or for its KV cache.
    """
    by_reason = server.summed(names.WAITING_BY_REASON, reason=names.CAPACITY, **engine)
    unknown = by_reason is None and server.role_name == DECODE
    waiting = server.summed(names.WAITING, **engine) if by_reason is None and not unknown else by_reason
    return np.full(len(server.wall_ns), np.nan) if waiting is None else waiting


def _queue(sent: Floats, until: Floats, tokens: Floats, scale: float) -> Queue:
    order = np.argsort(sent)[: int(np.count_nonzero(~np.isnan(sent)))]
    sent, until = sent[order], until[order]
    return Queue(sent, until, tokens[order], float(np.nanmax(until - sent, initial=0.0)), scale)


def same_address(target: str, other: str) -> bool:
    """Return True for two names of one address of this machine, such as localhost and 127.0.0.1."""
    host, other_host = ((each.hostname or "", each.port) for each in map(urlsplit, (target, other)))
    return host[1] == other_host[1] and (host[0] == other_host[0] or {host[0], other_host[0]} <= _LOOPBACK)


_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None
