"""Server metrics over a window: the `servers` entries of summary.json, from scrapes.

Rates and counts are between the scrapes nearest to the window's two ends, and `window_s` is the time between those two.
They are None if one of these scrapes is too far from its end (`gap_limit_s`). Gauges are over the scrapes of the window.
Counters are summed over engines and bridged over restarts. Gauges are never averaged over engines: KV usage is the maximum
over engines, since the fullest one preempts, queues are sums, and `engines` has the values of each engine. Series of ranks that
work on the same requests are one value (see `parts`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferload.measure.arrow import pa
from inferload.measure.clock import NS_PER_S
from inferload.server_metrics import metric_names as names
from inferload.server_metrics.series import TOO_LARGE, Floats, Instants, ServerSeries, by_target

_HISTOGRAMS = {
    "ttft_ms": names.TTFT,
    "itl_ms": names.ITL,
    "queue_ms": names.QUEUE,
    "prefill_ms": names.PREFILL,
    "decode_ms": names.DECODE,
    "e2e_ms": names.E2E,
}
_GAUGES = (
    names.KV_CACHE_USAGE,
    names.RUNNING,
    names.WAITING,
    names.WAITING_BY_REASON,
    names.CACHE_CONFIG,
    names.HIT_RATE,
    names.KV_CACHE_TOKENS,
)
_COUNTERS = (
    names.PREFIX_QUERIES,
    names.PREFIX_HITS,
    names.PREEMPTIONS,
    names.PROMPT_TOKENS,
    names.PROMPT_TOKENS_BY_SOURCE,
    names.PROMPT_TOKENS_CACHED,
    names.GENERATION_TOKENS,
    names.FINISHED,
    names.REJECTIONS,
    names.SPEC_DRAFTS,
    names.SPEC_DRAFT_TOKENS,
    names.SPEC_ACCEPTED,
    names.SPEC_ACCEPTED_PER_POS,
    names.PROCESS_CPU,
)
USED = (
    *_GAUGES,
    *names.GPU,
    *_COUNTERS,
    *(family + end for family in _HISTOGRAMS.values() for end in names.HISTOGRAM_SUFFIXES),
)


# Longest time without a scrape in a window whose figures are complete: the greater of both.
_GAP_S = 5.0
_GAP_INTERVALS = 2.5

_MOST_DIGITS = 18
_SURE_S = 0.05  # uncertainty of the clocks of several machines


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Prefix caches of all servers over a whole run. None: not reported, or different between servers."""

    queries: int | None  # tokens
    hits: int | None  # tokens
    block_size: int | None
    enabled: bool | None
    between_wall_ns: tuple[int, int] | None = None  # first and last scrape of the counts, of all targets

    def missed(self, first_wall_ns: int, last_wall_ns: int) -> list[str]:
        """Describe the parts of a load between these instants that the counts lack; empty if none."""
        if self.between_wall_ns is None:
            return []
        late_s, early_s = (
            (self.between_wall_ns[0] - first_wall_ns) / NS_PER_S,
            (last_wall_ns - self.between_wall_ns[1]) / NS_PER_S,
        )
        gaps = []
        if late_s > _SURE_S:
            gaps.append(f"begins {late_s:.1f} s after the first turn was sent, with the first successful scrape")
        if early_s > _SURE_S:
            gaps.append(f"ends {early_s:.1f} s before the last turn ended, with the last successful scrape")
        return gaps


def prefix_cache(table: pa.Table) -> PrefixCache:
    """Sum over all targets, from the first scrape to the last. Tokens are counted at admission."""
    servers = list(by_target(table, [names.PREFIX_QUERIES, names.PREFIX_HITS, names.CACHE_CONFIG]).values())
    configs = [series.labels for server in servers for series in server.series(names.CACHE_CONFIG)]
    sizes = {labels.get("block_size", "") for labels in configs}
    switches = {labels.get("enable_prefix_caching", "") for labels in configs}
    size, switch = (sizes.pop() if len(sizes) == 1 else "", switches.pop() if len(switches) == 1 else "")
    return PrefixCache(
        _grown(servers, names.PREFIX_QUERIES),
        _grown(servers, names.PREFIX_HITS),
        _number(size),
        {"True": True, "False": False}.get(switch),
        _between(servers),
    )


def _between(servers: Sequence[ServerSeries]) -> tuple[int, int] | None:
    at = [
        server.wall_ns[~np.isnan(sums)]
        for server in servers
        if (sums := server.summed(names.PREFIX_QUERIES)) is not None
    ]
    scraped = [instants for instants in at if len(instants)]
    if not scraped:
        return None
    return max(int(instants[0]) for instants in scraped), min(int(instants[-1]) for instants in scraped)


def _grown(servers: Sequence[ServerSeries], metric: str) -> int | None:
    grown = [server.grown(metric) for server in servers]
    known = [values for values in grown if values is not None and len(values)]
    return round(sum(float(values[-1] - values[0]) for values in known)) if known and len(known) == len(grown) else None


def gap_limit_s(interval_s: float) -> float:
    """Return the longest time without a scrape that leaves the figures of a window complete."""
    return max(_GAP_S, _GAP_INTERVALS * interval_s)


def servers_block(
    table: pa.Table, start_wall_ns: int, end_wall_ns: int, targets: Sequence[str] = (), interval_s: float | None = None
) -> list[dict[str, Any]]:
    """Return one entry per target for the half-open window. None: not reported.

    `targets`: configured targets; one that never answered has an entry without values. `interval_s`: configured interval
    of the scrapes; None: their median interval.
    """
    servers = by_target(table, USED)
    for target in targets:
        silent = ServerSeries(target, np.array([], dtype=np.int64), {}, np.array([], dtype=np.bool_))
        servers.setdefault(target, silent)
    return entries(servers, start_wall_ns, end_wall_ns, interval_s)


def entries(
    servers: Mapping[str, ServerSeries], start_wall_ns: int, end_wall_ns: int, interval_s: float | None = None
) -> list[dict[str, Any]]:
    """Return one entry per server by target, as `servers_block`."""
    return [_entry(View.of(server, start_wall_ns, end_wall_ns, interval_s)) for _, server in sorted(servers.items())]


@dataclass(frozen=True, slots=True)
class View:
    """One server between two of its scrapes. `first`, `last`: their indices; None if the window does not have two.

    `interval_s`: configured interval of the scrapes; None: their median interval.
    """

    server: ServerSeries
    first: int | None
    last: int | None
    start_wall_ns: int
    end_wall_ns: int
    interval_s: float | None = None

    @classmethod
    def of(cls, server: ServerSeries, start_wall_ns: int, end_wall_ns: int, interval_s: float | None = None) -> "View":
        """Return the view between the scrapes nearest to the two ends."""
        interval_s = server.interval_s if interval_s is None else interval_s
        if len(server.wall_ns) == 0:
            return cls(server, None, None, start_wall_ns, end_wall_ns, interval_s)
        first, last = (int(np.argmin(np.abs(server.wall_ns - at))) for at in (start_wall_ns, end_wall_ns))
        two = first < last
        return cls(server, first if two else None, last if two else None, start_wall_ns, end_wall_ns, interval_s)

    @property
    def scraping_interval_s(self) -> float:
        """Configured interval of the scrapes, or their median interval."""
        return self.server.interval_s if self.interval_s is None else self.interval_s

    @property
    def gap_limit_s(self) -> float:
        """Longest time without a scrape that leaves the figures complete."""
        return gap_limit_s(self.scraping_interval_s)

    @property
    def scrapes(self) -> Instants:
        """Indices of the window's scrapes. The two at its ends may be outside it by at most an interval."""
        if self.first is None or self.last is None:
            return np.array([], dtype=np.int64)
        indices = np.arange(self.first, self.last + 1)
        return indices[self._outside_s(indices) <= self.scraping_interval_s]

    @property
    def ends(self) -> tuple[int, int] | None:
        """Indices of the two scrapes; None if one is too far from its end of the window, or no scrape is in the window."""
        if self.first is None or self.last is None or not len(self.scrapes):
            return None
        at_ns = self.server.wall_ns[[self.first, self.last]]
        distance_s = np.abs(at_ns - np.array([self.start_wall_ns, self.end_wall_ns])) / NS_PER_S
        return (self.first, self.last) if distance_s.max() <= self.gap_limit_s else None

    def _outside_s(self, indices: Instants) -> Floats:
        at_ns = self.server.wall_ns[indices]
        return np.abs(at_ns - np.clip(at_ns, self.start_wall_ns, self.end_wall_ns)) / NS_PER_S

    @property
    def window_s(self) -> float | None:
        """Time between the two scrapes."""
        if self.ends is None:
            return None
        first, last = self.ends
        return float(self.server.wall_ns[last] - self.server.wall_ns[first]) / NS_PER_S

    @property
    def longest_gap_s(self) -> float | None:
        """Longest time in the window without a scrape, its ends included; None without any scrape."""
        if len(self.server.wall_ns) == 0:
            return None
        inside = np.clip(self.server.wall_ns, self.start_wall_ns, self.end_wall_ns)
        return float(np.max(np.diff(np.r_[self.start_wall_ns, inside, self.end_wall_ns]))) / NS_PER_S

    def delta(self, metric: str, **labels: str) -> float | None:
        """Increase of a counter between the two scrapes."""
        grown = self.server.grown(metric, **labels)
        if grown is None or self.ends is None:
            return None
        first, last = self.ends
        return float(grown[last] - grown[first])

    def per_s(self, metric: str, **labels: str) -> float | None:
        """Mean rate of a counter between the two scrapes."""
        delta, window_s = self.delta(metric, **labels), self.window_s
        return None if delta is None or window_s is None else delta / window_s

    def mean_ms(self, family: str) -> float | None:
        """Return the mean of a histogram of seconds, in ms; None without samples in the window."""
        count, total = self.delta(family + "_count"), self.delta(family + "_sum")
        return total / count * 1e3 if count and total is not None else None

    def gauge(self, values: Floats | None) -> dict[str, float | None]:
        """Mean and maximum over the window's scrapes; None without a value."""
        if values is not None:
            known = values[self.scrapes]
            known = known[~np.isnan(known)]
            if len(known):
                return {"mean": float(known.mean()), "max": float(known.max())}
        return {"mean": None, "max": None}


def _entry(view: View) -> dict[str, Any]:
    server = view.server
    return {
        "target": server.target,
        "scrapes": len(view.scrapes),
        "window_s": view.window_s,
        "longest_gap_s": view.longest_gap_s,
        "gap_limit_s": view.gap_limit_s,
        "restarts": _restarts(view),
        "samples_unusable": server.samples_unusable,
        **_gauges(view),
        **_prefix_cache(view),
        **_work(view),
        "kv_cache_size_tokens": _cache_size(server),
        "spec_decode": _spec_decode(view),
        **{name: _histogram(view, family) for name, family in _HISTOGRAMS.items()},
        "engines": _engines(view),
        "gpu": _gpu(view),
    }


def _gpu(view: View) -> dict[str, Any] | None:
    """Gauges of a GPU exporter: highest use (0..1), sum of memory and power, lowest clock; None on other pages."""
    server = view.server
    if not any(name in server.metrics for name in names.GPU):
        return None
    use = server.highest(names.GPU_USE)
    clocks = [series.values for series in server.series(names.GPU_SM_CLOCK)]
    return {
        "use": view.gauge(None if use is None else use / 100),
        "memory_mib": view.gauge(server.summed(names.GPU_MEMORY)),
        "power_w": view.gauge(server.summed(names.GPU_POWER)),
        "sm_clock_mhz": view.gauge(np.fmin.reduce(clocks) if clocks else None),
    }


def _restarts(view: View) -> int | None:
    if view.ends is None:
        return None
    first, last = view.ends
    return int(np.count_nonzero(view.server.restarted[first + 1 : last + 1]))


def _gauges(view: View) -> dict[str, Any]:
    server = view.server
    reasons = sorted({series.labels.get("reason", "") for series in server.series(names.WAITING_BY_REASON)})
    by_reason = {why: view.gauge(server.summed(names.WAITING_BY_REASON, reason=why)) for why in reasons if why}
    return {
        "kv_cache_usage": view.gauge(server.highest(names.KV_CACHE_USAGE)),
        "requests_running": view.gauge(server.summed(names.RUNNING)),
        "requests_waiting": view.gauge(server.summed(names.WAITING)),
        "waiting_by_reason": by_reason or None,
    }


def _prefix_cache(view: View) -> dict[str, Any]:
    """Prefix cache figures; hits and queries are tokens.

    `_before`: from the server's start to the window. `_at_first_scrape`: to the first scrape, before this run's load.
    `_from`: source of the rate; "gauge" is the mean of the server's own gauge.
    """
    queries, hits = view.delta(names.PREFIX_QUERIES), view.delta(names.PREFIX_HITS)
    shown = view.server.summed(names.PREFIX_QUERIES)
    rate, source = _hit_rate(view)
    return {
        "prefix_cache_hit_rate": rate,
        "prefix_cache_hit_rate_from": source,
        "prefix_cache_queries": _whole(queries),
        "prefix_cache_hits": _whole(hits),
        "prefix_cache_queries_before": _at(shown, None if view.ends is None else view.ends[0]),
        "prefix_cache_queries_at_first_scrape": _at(shown, 0),
        "cached_tokens": _whole(view.delta(names.PROMPT_TOKENS_CACHED)),
    }


def _hit_rate(view: View) -> tuple[float | None, str | None]:
    """Hits over tokens looked up; without that counter, over prompt tokens, else the server's gauge."""
    if view.server.series(names.PREFIX_QUERIES):
        queries, hits = view.delta(names.PREFIX_QUERIES), view.delta(names.PREFIX_HITS)
        return (hits / queries, "queries") if queries and hits is not None else (None, None)
    if names.HIT_RATE not in view.server.metrics:
        return None, None
    prompt, cached = view.delta(names.PROMPT_TOKENS), view.delta(names.PROMPT_TOKENS_CACHED)
    if prompt and cached is not None:
        return cached / prompt, "prompt tokens"
    gauge = view.gauge(view.server.highest(names.HIT_RATE))["mean"]
    return gauge, None if gauge is None else "gauge"


def _work(view: View) -> dict[str, Any]:
    return {
        "preemptions": _whole(view.delta(names.PREEMPTIONS)),
        "requests_finished": _whole(view.delta(names.FINISHED)),
        "rejections": _whole(view.delta(names.REJECTIONS)),
        "prompt_tokens": _whole(view.delta(names.PROMPT_TOKENS)),
        "generation_tokens": _whole(view.delta(names.GENERATION_TOKENS)),
        "prompt_tok_per_s": view.per_s(names.PROMPT_TOKENS),
        "prompt_tok_computed_per_s": view.per_s(names.PROMPT_TOKENS_BY_SOURCE, source=names.LOCAL_COMPUTE),
        "generation_tok_per_s": view.per_s(names.GENERATION_TOKENS),
        "process_cpu_share": view.per_s(names.PROCESS_CPU),  # of one core, of the process that serves the page
    }


def _cache_size(server: ServerSeries) -> int | None:
    """Size of the KV cache of one engine in tokens, from a label or a gauge; None: not reported."""
    sizes = [series.labels.get("kv_cache_size_tokens", "") for series in server.series(names.CACHE_CONFIG)]
    known = [number for size in sizes if (number := _number(size)) is not None]
    gauges = [series.values[~np.isnan(series.values)] for series in server.series(names.KV_CACHE_TOKENS)]
    known += [round(float(values[-1])) for values in gauges if len(values)]
    return min(known) if known else None


def _spec_decode(view: View) -> dict[str, Any] | None:
    """Speculative decoding; None without drafts. Mean length = 1 + accepted / drafts, the bonus token included."""
    drafts, drafted, accepted = (
        view.delta(metric) for metric in (names.SPEC_DRAFTS, names.SPEC_DRAFT_TOKENS, names.SPEC_ACCEPTED)
    )
    if not drafts or not drafted or accepted is None:
        return None
    series = view.server.series(names.SPEC_ACCEPTED_PER_POS)
    texts = {entry.labels.get("position", "") for entry in series}
    positions = sorted((text for text in texts if _number(text) is not None), key=int)
    per_position = [view.delta(names.SPEC_ACCEPTED_PER_POS, position=position) for position in positions]
    return {
        "drafts": _whole(drafts),
        "draft_tokens": _whole(drafted),
        "accepted_tokens": _whole(accepted),
        "acceptance_rate": accepted / drafted,
        "mean_acceptance_length": 1 + accepted / drafts,
        "acceptance_by_position": [None if count is None else count / drafts for count in per_position],
    }


def _histogram(view: View, family: str) -> dict[str, Any] | None:
    """Count, mean and the brackets of quantiles, in ms; None without a sample in the window.

    A bracket is [low, high] of the bucket; high is None in the last bucket, which has no upper bound.
    """
    count, total = view.delta(family + "_count"), view.delta(family + "_sum")
    if not count or total is None:
        return None
    texts = {series.labels.get("le", "") for series in view.server.series(family + "_bucket")} - {""}
    bounds = sorted((bound, text) for text in texts if (bound := _bound(text)) is not None)
    cumulative = [view.delta(family + "_bucket", le=text) or 0.0 for _, text in bounds]
    brackets = {
        name: _bracket([bound for bound, _ in bounds], cumulative, q) for name, q in (("p50", 0.5), ("p99", 0.99))
    }
    return {"count": _whole(count), "mean": total / count * 1e3, **brackets}


def _bracket(bounds_s: list[float], cumulative: list[float], q: float) -> list[float | None] | None:
    """Bucket of the sample of nearest rank ceil(q n), as [low, high] in ms."""
    if not cumulative or cumulative[-1] <= 0:
        return None
    rank = max(1.0, float(np.ceil(q * cumulative[-1])))
    at = min(int(np.searchsorted(cumulative, rank)), len(cumulative) - 1)
    low, high = bounds_s[at - 1] if at else 0.0, bounds_s[at]
    return [low * 1e3, None if high == float("inf") else high * 1e3]


def _engines(view: View) -> list[dict[str, Any]]:
    """Gauges of each engine, by its label; None on a server without the label."""
    gauges = {
        "kv_cache_usage": names.KV_CACHE_USAGE,
        "requests_running": names.RUNNING,
        "requests_waiting": names.WAITING,
    }
    entries: list[dict[str, Any]] = []
    for selector in view.server.engines(*gauges.values()):
        read = {name: view.gauge(view.server.summed(metric, **selector)) for name, metric in gauges.items()}
        read["kv_cache_usage"] = view.gauge(view.server.highest(names.KV_CACHE_USAGE, **selector))
        if selector or any(view.server.series(metric) for metric in gauges.values()):
            entries.append({"engine": next(iter(selector.values()), None), **read})
    return entries


def _bound(text: str) -> float | None:
    """Parse a bucket's upper bound; None if it is not a number."""
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound == np.inf or abs(bound) < TOO_LARGE else None


def _number(text: str) -> int | None:
    """Parse a whole number of at most 18 digits from a label; None for other text."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)


def _at(values: Floats | None, index: int | None) -> int | None:
    if values is None or index is None or not len(values) or np.isnan(values[index]):
        return None
    return round(float(values[index]))
