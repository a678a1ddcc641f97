"""Figures of servers over a window: the `servers` entries of summary.json. No I/O.

Gauges are never averaged over engines: KV usage is the maximum over engines, since the fullest one preempts, queues are sums,
and `engines` has the values of each engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from inferload.base.numbers import whole
from inferload.figures.pages import metric_names as names
from inferload.figures.servers import server_figures
from inferload.figures.servers.server_blocks import DRAFTS
from inferload.figures.servers.server_entry import FigureValue, Histogram, MeanAndMax
from inferload.figures.servers.server_figure import GPU, OF_OTHER_PAGES, ROUTER, SPEC_DECODE, TIERS, ServerFigure
from inferload.figures.servers.server_figures import ENGINE_GAUGES, SERVER_FIGURES, Engine, Server
from inferload.figures.servers.server_formulas import MS_PER_S, Floats, HistogramMean, HitRate, Reading, known
from inferload.servers.exposition import TOO_LARGE
from inferload.servers.prefix_counts import whole_number
from inferload.servers.series import MetricSeries
from inferload.servers.servers_window import ServersWindow
from inferload.servers.window import ServerWindow

# Metrics to read for an entry.
USED = (
    *server_figures.READ,
    *(f"{row.formula.family}_bucket" for row in SERVER_FIGURES if isinstance(row.formula, HistogramMean)),
    names.HTTP_REQUESTS,
    names.WAITING_BY_REASON,
    names.CACHE_CONFIG,
    names.KV_CACHE_TOKENS,
    names.KV_BLOCK_TOKENS,
    names.SLOTS,
    names.SPEC_ACCEPTED_PER_POS,
)

# Labels.
_REASONS = ("reason", "err")
_SERVER_LABELS = ("worker", "api_base", "envoy_cluster_name")
_MOST_REASONS = 20


def entries(windows: Iterable[ServerWindow]) -> list[Server]:
    """Return one entry per server. None: not reported."""
    return [_entry(window) for window in windows]


def together(windows: Iterable[ServerWindow]) -> dict[str, float | None]:
    """Return each figure of inference servers together by its key, of gauges the mean; empty for fewer than two.

    Counts and sums are added, shares are the highest, and means of histograms are by request. A figure is unknown if that of one
    server is.
    """
    every = list(windows)
    servers = [window for window in every if window.publishes(names.RUNNING)]
    if len(servers) < 2 or any(window.server.replicas > 1 for window in every):
        return {}
    group = ServersWindow(servers, whole=True)
    return {row.key: row.number(group) for row in SERVER_FIGURES if row.block not in OF_OTHER_PAGES}


def _entry(window: ServerWindow) -> Server:
    """Return the facts on the scrapes and the server, and all figures."""
    server = window.server
    groups: dict[str | None, dict[str, Any]] = {}
    for row in SERVER_FIGURES:
        groups.setdefault(row.block, {})[row.entry_key] = _value(row, window)
    groups[SPEC_DECODE]["acceptance_by_position"] = _by_position(window)
    groups[TIERS]["hits"] = _counts_by(window, names.CACHED_BY_SOURCE, ("source",))
    if window.has_gpus:
        from inferload.servers import gpu_energy  # of runs with a GPU exporter

        energy = gpu_energy.together(gpu_energy.by_gpu(window).values())
        groups[GPU] |= {"gpus": energy.gpus or None, "energy_from": energy.source}
        groups[GPU] |= {"energy_j": energy.joules(window.lasts_s), "counted_power_w": energy.counted_w}
    groups[ROUTER]["attempts_by_server"] = _counts_by(window, names.ROUTER_ATTEMPTS, _SERVER_LABELS)
    blocks: dict[str, Any] = {
        block: server_figures.BLOCKS[block](**values)
        for block, values in groups.items()
        if block is not None and any(_says_something(block, *each) for each in values.items())
    }
    return Server(
        target=server.target,
        page=None if server.page is None else server.page.key,
        role=server.role_name,
        role_from=None if server.role is None else server.role.source,
        unknown_series=server.unknown_series,
        replicas=server.replicas,
        scrapes=len(window.scrapes),
        window_s=window.window_s,
        seen_s=None if window.seen_s is None else list(window.seen_s),
        longest_gap_s=window.longest_gap_s,
        gap_limit_s=window.gap_limit_s,
        samples_unusable=server.samples_unusable,
        lines_unread=round(np.nansum(server.of_scrapes(names.SCRAPE_UNREAD))),
        samples_age_s=max(server.of_scrapes(names.SAMPLE_AGE), default=None),
        slots=server.newest(names.SLOTS),
        kv_block_tokens=server.newest(names.KV_BLOCK_TOKENS),
        failures_by_reason=dict([*_counts_by(window, names.FAILED, _REASONS).items()][:_MOST_REASONS]),
        kv_cache_size_tokens=_cache_size(window),
        engines=_engines(window),
        **_prefix_cache(window),
        **blocks,
        **groups[None],
    )


def _value(row: ServerFigure, window: ServerWindow) -> FigureValue:
    """Return the value of an entry: of several statistics, or one number; None if unknown."""
    if isinstance(row.formula, HistogramMean):
        return _histogram(window, row.formula)
    if row.statistics:
        return _mean_and_max(row, window)
    number = row.number(window)
    return whole(number) if row.form == "count" else number


def _mean_and_max(row: ServerFigure, window: ServerWindow) -> MeanAndMax:
    return MeanAndMax(mean=row.number(window, "mean"), max=row.number(window, "max"))


def _says_something(block: str, name: str, value: Any) -> bool:
    """Return True if a value of a group is known, and is no count of 0, such as the drafts of a server without speculation.

    Hits in the memory of the engine do not say that there are other tiers.
    """
    if block == TIERS and name.startswith(("hits", names.DEVICE)):
        return False
    return value != MeanAndMax() if isinstance(value, MeanAndMax) else bool(value)


def _prefix_cache(window: ServerWindow) -> dict[str, Any]:
    """Facts on the prefix cache, in tokens.

    `_before`: from the server's start to the window. `_at_first_scrape`: to the first scrape, before this run's load.
    `_from`: source of the rate; "gauge" is the mean of the server's own gauge.
    """
    hit_rate, queries = server_figures.HIT_RATE, server_figures.PREFIX_QUERIES
    shown = window.server.summed(names.PREFIX_QUERIES)
    return {
        f"{hit_rate.key}_from": HitRate().source(window) if hit_rate.number(window) is not None else None,
        f"{queries.key}_before": _at(shown, None if window.ends is None else window.ends[0]),
        f"{queries.key}_at_first_scrape": _at(shown, 0),
    }


def _cache_size(window: ServerWindow) -> int | None:
    """Size of the KV caches of all engines in tokens; None: one is not reported."""
    sizes = [_cache_size_of(engine) for engine in window.by_engine()]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _cache_size_of(engine: ServerWindow) -> int | None:
    """Size of the KV cache of one engine in tokens, from a label or a gauge, also of all engines alike; None: not reported."""

    def of(metric: str) -> Iterator[MetricSeries]:
        for series in engine.server.series(metric):
            if series.fits({name: value for name, value in engine.labels.items() if name in series.labels}):
                yield series

    found = [whole_number(series.labels.get("kv_cache_size_tokens", "")) for series in of(names.CACHE_CONFIG)]
    found += [series.newest for series in of(names.KV_CACHE_TOKENS)]
    return min((size for size in found if size is not None), default=None)


def _counts_by(window: ServerWindow, metric: str, names_of: Sequence[str]) -> dict[str, int]:
    """Return the increase of a counter by the text of the first of these labels, the most frequent first."""
    labels = [entry.labels for entry in window.server.series(metric)]
    texts = {(name, each[name]) for each in labels if (name := next((name for name in names_of if name in each), ""))}
    counts = {text: known(window.delta(Reading(metric, label=(name, text)))) for name, text in texts}
    ordered = sorted((-count, text) for text, count in counts.items() if count)
    return {text: round(-count) for count, text in ordered}


def _by_position(window: ServerWindow) -> list[float | None]:
    """Acceptance rate of each draft position; empty without drafts."""
    drafts = DRAFTS.number(window)
    if not drafts:
        return []
    texts = {entry.labels.get("position", "") for entry in window.server.series(names.SPEC_ACCEPTED_PER_POS)}
    positions = sorted((text for text in texts if whole_number(text) is not None), key=int)
    accepted = [Reading(names.SPEC_ACCEPTED_PER_POS, label=("position", position)) for position in positions]
    counts = [known(window.delta(reading)) for reading in accepted]
    return [None if count is None else count / drafts for count in counts]


def _histogram(window: ServerWindow, formula: HistogramMean) -> Histogram | None:
    """Count, mean and [low, high] of the buckets of quantiles, in ms; `high` of the last is None. None without a sample."""
    mean_ms = known(formula.value(window))
    if mean_ms is None:
        return None
    buckets = f"{formula.family}_bucket"
    texts: dict[float, list[str]] = {}
    for series in window.server.series(buckets):
        if (bound := _bound(text := series.labels.get("le", ""))) is not None:
            texts.setdefault(bound, []).append(text)
    most = max(map(len, texts.values()), default=0)
    bounds = sorted(bound for bound in texts if len(texts[bound]) == most)  # that all engines have
    increases = ([known(window.delta(Reading(buckets, label=("le", each)))) for each in {*texts[at]}] for at in bounds)
    cumulative = [sum(filter(None, each)) for each in increases]
    p50, p99 = (_bracket(bounds, cumulative, q) for q in (0.5, 0.99))
    return Histogram(count=whole(known(window.delta(formula.count))), mean=mean_ms, p50=p50, p99=p99)


def _bracket(bounds_s: list[float], cumulative: list[float], q: float) -> list[float | None] | None:
    """Bucket of the sample of nearest rank ceil(q n), as [low, high] in ms."""
    if not cumulative or cumulative[-1] <= 0:
        return None
    rank = max(1.0, float(np.ceil(q * cumulative[-1])))
    at = min(int(np.searchsorted(cumulative, rank)), len(cumulative) - 1)
    low, high = bounds_s[at - 1] if at else 0.0, bounds_s[at]
    return [low * MS_PER_S, None if high == float("inf") else high * MS_PER_S]


def _engines(window: ServerWindow) -> list[Engine]:
    """Gauges of each engine, by its label; None on a server without the label."""
    published = any(window.publishes(reading.metric) for row in ENGINE_GAUGES for reading in row.formula.readings)
    return [
        Engine(
            engine=" ".join(engine.labels.values()) or None,
            kv_cache_size_tokens=_cache_size_of(engine),
            **{row.key: _mean_and_max(row, engine) for row in ENGINE_GAUGES},
        )
        for engine in window.by_engine()
        if published
    ]


def _bound(text: str) -> float | None:
    """Parse a bucket's upper bound; None if it is not a number."""
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound == np.inf or abs(bound) < TOO_LARGE else None


def _at(values: Floats | None, index: int | None) -> int | None:
    if values is None or index is None or not len(values) or np.isnan(values[index]):
        return None
    return round(float(values[index]))
