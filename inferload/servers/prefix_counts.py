"""Counts of the prefix caches of all servers over a whole run, from scrapes."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from inferload.base.clock import NS_PER_S
from inferload.figures.pages import metric_names as names
from inferload.servers.roles import PREFILL, without_prefill
from inferload.servers.series import ServerSeries

_MOST_DIGITS = 18
_SURE_S = 0.05  # uncertainty of the clocks of several machines


class PrefixCache(Struct, frozen=True):
    """Prefix caches of all servers over a whole run. None: not reported, or different between servers."""

    queries: int | None  # tokens
    hits: int | None  # tokens
    loaded: int | None  # tokens whose KV came from tiers beyond the memory of the engines, beside the hits
    block_size: int | None
    enabled: bool | None
    between_wall_ns: tuple[int, int] | None = None  # first and last scrape of the counts, of all targets
    servers: int = 0  # that count tokens
    engines: int = 1  # of the server with most, each with a cache of its own
    size: int | None = None  # tokens that fit into the memory of the only engine

    def missed(self, first_wall_ns: int, last_wall_ns: int) -> list[str]:
        """Describe the parts of a load between these instants that the counts lack; empty if none."""
        if self.between_wall_ns is None:
            return []
        late_s = (self.between_wall_ns[0] - first_wall_ns) / NS_PER_S
        early_s = (last_wall_ns - self.between_wall_ns[1]) / NS_PER_S
        gaps = []
        if late_s > _SURE_S:
            gaps.append(f"begins {late_s:.1f} s after the first turn was sent, with the first successful scrape")
        if early_s > _SURE_S:
            gaps.append(f"ends {early_s:.1f} s before the last turn ended, with the last successful scrape")
        return gaps


def prefix_cache(every: Sequence[ServerSeries]) -> PrefixCache:
    """Sum over all targets, from the first scrape to the last. Tokens are counted at admission.

    Of servers for prefill and decode only those for prefill: prompts that decode looks up were computed, or found, there.
    Pages of exporters, and of what stands in front of engines, do not count.
    """
    of_prefill = [server for server in every if server.role_name == PREFILL and _grown([server], names.PREFIX_QUERIES)]
    servers = of_prefill or without_prefill(every)
    engines = [server for server in servers if names.RUNNING in server.metrics and not server.in_front] or servers
    configs = [series.labels for server in servers for series in server.series(names.CACHE_CONFIG)]
    sizes = {server.newest(names.KV_BLOCK_TOKENS) for server in servers} - {None}
    sizes |= {whole_number(labels.get("block_size", "")) for labels in configs}
    switches = {labels.get("enable_prefix_caching", "") for labels in configs}
    return PrefixCache(
        _grown(engines, names.PREFIX_QUERIES),
        _grown(engines, names.PREFIX_HITS),
        _loaded(engines),
        sizes.pop() if len(sizes) == 1 else None,
        {"True": True, "False": False}.get(switches.pop()) if len(switches) == 1 else None,
        _between(servers),
        sum(server.grown(names.PREFIX_QUERIES) is not None for server in servers),
        max(
            (len({of.labels.get("engine") for of in server.series(names.PREFIX_QUERIES)}) for server in servers),
            default=1,
        ),
        _size(engines, [labels.get("kv_cache_size_tokens", "") for labels in configs]),
    )


def _between(servers: Sequence[ServerSeries]) -> tuple[int, int] | None:
    sums = ((server, server.summed(names.PREFIX_QUERIES)) for server in servers)
    at_ns = [server.wall_ns[~np.isnan(values)] for server, values in sums if values is not None]
    scraped = [(int(instants[0]), int(instants[-1])) for instants in at_ns if len(instants)]
    return (max(first for first, _ in scraped), min(last for _, last in scraped)) if scraped else None


def _grown(servers: Sequence[ServerSeries], metric: str) -> int | None:
    grown = [server.grown(metric) for server in servers]
    counted = [values for values in grown if values is not None and len(values)]
    total = sum(float(values[-1] - values[0]) for values in counted)
    return round(total) if counted and len(counted) == len(grown) else None


def _size(servers: Sequence[ServerSeries], labels: Sequence[str]) -> int | None:
    """Return the size of the only cache, from a label or a gauge; None if there are several, or it is not known."""
    gauges = (server.newest(names.KV_CACHE_TOKENS) for server in servers)
    found = [*map(whole_number, labels), *(size for size in gauges if size is not None)]
    return found[0] if len(found) == len(servers) == 1 else None


def _loaded(servers: Sequence[ServerSeries]) -> int | None:
    grown = [server.grown(names.CACHED_BY_SOURCE, source=tier) for server in servers for tier in names.BEYOND]
    counted = [float(values[-1] - values[0]) for values in grown if values is not None and len(values)]
    return round(sum(counted)) if counted else None


def whole_number(text: str) -> int | None:
    """Parse a whole number of at most 18 digits from a label; None for other text."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
