"""Types of the block `cache` of summary.json: prefix-cache hits that were expected, counted and reported."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from inferload.base.json_text import Count, Number
from inferload.results.documents.figures_document import means


class ExpectedHits(Struct, frozen=True, kw_only=True):
    """Hits of an unlimited cache."""

    turns: Annotated[Count, means("turns whose prompts are counted")]
    input_tokens: Annotated[Count, means("prompt tokens of these turns")]
    cacheable_tokens: Annotated[Count, means("prompt tokens in whole blocks, without the last token")]
    cacheable_share: Annotated[Number | None, means("cacheable over input tokens")] = None
    cached_tokens: Annotated[Count, means("prompt tokens that an earlier prompt left in the cache")]
    hit_rate: Annotated[Number | None, means("cached over input tokens")] = None
    exactness: Annotated[str, means("`exact` or `approximate`")] = "approximate"
    notes: Annotated[list[str], means("assumptions")] = []


class CountedHits(Struct, frozen=True, kw_only=True):
    """The server's counters."""

    queries: Annotated[Count, means("tokens looked up")]
    hits: Annotated[Count, means("tokens found")]
    hit_rate: Annotated[Number | None, means("tokens found over tokens looked up")] = None
    notes: Annotated[list[str], means("load outside the scrapes")] = []


class RoutedHits(Struct, frozen=True, kw_only=True):
    """Expected hit rates of several servers with an unlimited cache each, for two ways of routing."""

    servers: Annotated[Count, means("servers that count hits")]
    stay_hit_rate: Annotated[Number | None, means("hit rate if each session stays on one server")] = None
    in_turn_hit_rate: Annotated[
        Number | None, means("hit rate if turns go to the servers in turn, in the order in which they were sent")
    ] = None


class ReportedHits(Struct, frozen=True, kw_only=True):
    """Cached tokens reported with the answers."""

    turns: Annotated[Count, means("turns that reported cached tokens")]
    input_tokens: Annotated[Count, means("prompt tokens of these turns")]
    cached_tokens: Annotated[Count, means("cached tokens that they reported")]
    hit_rate: Annotated[Number | None, means("cached over input tokens")] = None
    of_cacheable: Annotated[Number | None, means("share of the cacheable tokens")] = None


class PairedMeasure(Struct, frozen=True, kw_only=True):
    """The same turns in the earlier run (before) and in this one (after)."""

    pairs: Annotated[Count, means("turns with a value in both runs")]
    before_mean: Annotated[Number | None, means("mean of the earlier run")] = None
    after_mean: Annotated[Number | None, means("mean of this run")] = None
    difference_mean: Annotated[Number | None, means("after - before")] = None
    ratio_p50: Annotated[Number | None, means("median of after / before")] = None


class EarlierRun(Struct, frozen=True, kw_only=True):
    """Comparison with the cold run, turn by turn."""

    arm: Annotated[str, means("arm of the earlier run")]
    run_dir: Annotated[str, means("its folder, beside this run's")]
    only_after: Annotated[Count | None, means("turns that the earlier run does not have")] = None
    measures: Annotated[dict[str, PairedMeasure], means("by measure; empty if turn records are missing")] = {}

    @property
    def paired(self) -> dict[str, PairedMeasure]:
        """Measures that have pairs."""
        return {name: measure for name, measure in self.measures.items() if measure.pairs}


class Cache(Struct, frozen=True, kw_only=True):
    """Prefix-cache hits of the whole run, warm-up and drain included ([cache](../background/cache.md))."""

    arm: Annotated[str | None, means("`cold`, `warming` or `warm`")] = None
    isolate: Annotated[str | None, means("`run`, `session` or `none`")] = None
    block_size: Annotated[Count | None, means("tokens in a block")] = None
    block_size_from: Annotated[str | None, means("`scenario`, `server` or `assumed`")] = None
    enabled: Annotated[bool | None, means("prefix caching of the server")] = None
    expected: Annotated[ExpectedHits | None, means("hits of an unlimited cache")] = None
    counted: Annotated[CountedHits | None, means("the server's counters")] = None
    routed: Annotated[RoutedHits | None, means("expected hits by routing; of several servers only")] = None
    per_turn: Annotated[ReportedHits | None, means("cached tokens reported with the answers")] = None
    earlier: Annotated[EarlierRun | None, means("comparison with the cold run; of a warm run only")] = None

    @property
    def known(self) -> list[tuple[str, int, int, float | None]]:
        """Each known kind of hits: name, input tokens, cached tokens, hit rate."""
        rows: list[tuple[str, int, int, float | None]] = []
        for name, hits in (("expected", self.expected), ("reported with answers", self.per_turn)):
            if hits is not None:
                rows.append((name, hits.input_tokens, hits.cached_tokens, hits.hit_rate))
        if self.counted is not None:
            counted = self.counted
            rows.insert(bool(self.expected), ("counted by the server", counted.queries, counted.hits, counted.hit_rate))
        return rows

    @property
    def notes(self) -> list[str]:
        """Notes on expected and counted hits."""
        return [note for hits in (self.expected, self.counted) if hits is not None for note in hits.notes]
