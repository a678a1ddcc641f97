"""Values and facts of an entry of `servers` in summary.json. `server_figures.Server` adds a field for each figure."""

from typing import Annotated, Any

from msgspec import Struct

from inferload.base.json_text import Count, Number, means
from inferload.figures.pages.page_kinds import KIND_OF, PageKind


class MeanAndMax(Struct, frozen=True, kw_only=True):
    """A gauge over the scrapes of the window."""

    mean: Annotated[Number | None, means("mean of the scrapes")] = None
    max: Annotated[Number | None, means("highest value of a scrape")] = None


class Histogram(Struct, frozen=True, kw_only=True):
    """A histogram of the server between two scrapes. A bracket is `[low, high]` of a bucket."""

    count: Annotated[Count | None, means("samples")] = None
    mean: Annotated[Number | None, means("sum / number of samples")] = None
    p50: Annotated[
        list[Number | None] | None, means("bounds `[low, high]` of the bucket; `high` is `null` in the last bucket")
    ] = None
    p99: Annotated[list[Number | None] | None, means("the same")] = None


# None: unknown.
FigureValue = MeanAndMax | Histogram | Number | None


class ServerFacts(Struct, frozen=True, kw_only=True):
    """Counters are differences between the two scrapes nearest to the ends of the measure phase. They are null if one of these
    scrapes is further than `gap_limit_s` from its end. Gauges are over the scrapes of the measure phase; if `longest_gap_s`
    exceeds `gap_limit_s`, they lack a part of it, gates on them fail, and the measurement is suspect (`scrape_gap`). Figures of
    several engines are combined as [Metrics of several engines](endpoints.md#metrics-of-several-engines) has it.
    """

    target: Annotated[str, means("URL of the target")]
    page: Annotated[
        str | None, means("key of the kind of page, as in measures.md; null: no known engine, or never scraped")
    ] = None
    role: Annotated[
        str | None, means("`prefill` or `decode`, of servers that share each request; null: not known, or not shared")
    ] = None
    role_from: Annotated[
        str | None,
        means("what says so: `option`, `file` of targets, `label`, `series` of the page or `name` of the host"),
    ] = None
    unknown_series: Annotated[
        Count | None, means("stored series of a page of no known engine, of which no figure is read; null: of others")
    ] = None
    replicas: Annotated[
        Count,
        means("servers behind the target, recognised by alternating pages; if there are several, figures are null"),
    ] = 1
    scrapes: Annotated[Count, means("scrapes in the window")] = 0
    window_s: Annotated[Number | None, means("time between the two scrapes nearest to the ends")] = None
    seen_s: Annotated[
        list[Number] | None,
        means(
            "first and last scrape of a server that [joined or left](../how-to/scale-out.md), in seconds of the "
            "measure phase; figures are of this part; null: of the others"
        ),
    ] = None
    longest_gap_s: Annotated[Number | None, means("longest time without a scrape; null without any scrape")] = None
    gap_limit_s: Annotated[
        Number | None,
        means("longest such time that leaves the figures complete: 5 s, or 2.5 scrape intervals if longer"),
    ] = None
    samples_unusable: Annotated[
        Count, means("samples that are no usable number, or were on lines that could not be read")
    ] = 0
    lines_unread: Annotated[Count, means("lines of its pages, over the whole run, that are no samples")] = 0
    samples_age_s: Annotated[
        Number | None,
        means("greatest age of samples that carry their own time; null: samples are of the time of their scrape"),
    ] = None
    slots: Annotated[Count | None, means("requests that one engine runs at once at most, of a front end's page")] = None
    kv_block_tokens: Annotated[Count | None, means("tokens of a block of the KV cache, of the same")] = None
    failures_by_reason: Annotated[
        dict[str, Count], means("failed requests by the reason that the server gives, the 20 most frequent")
    ] = {}
    kv_cache_size_tokens: Annotated[Count | None, means("tokens that fit into the KV caches of all engines")] = None
    prefix_cache_hit_rate_from: Annotated[str | None, means("`queries`, `prompt tokens` or `gauge`")] = None
    prefix_cache_queries_before: Annotated[Count | None, means("tokens looked up before the window")] = None
    prefix_cache_queries_at_first_scrape: Annotated[Count | None, means("tokens looked up before the run")] = None
    engines: Annotated[list[Any], means("gauges of each engine")] = []

    @property
    def kind(self) -> PageKind | None:
        """Kind of the page; None: not known."""
        return KIND_OF.get(self.page or "")

    @property
    def too_long_gap_s(self) -> float | None:
        """Longest time without a scrape if it exceeds the limit, else None."""
        gap_s, limit_s = self.longest_gap_s, self.gap_limit_s
        return gap_s if gap_s is not None and limit_s is not None and gap_s > limit_s else None
