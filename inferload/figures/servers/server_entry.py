"""Values and facts of an entry of `servers` in summary.json. `server_figures.Server` adds a field for each figure."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from inferload.base.json_text import Count, Number
from inferload.figures.pages.page_kinds import KIND_OF, PageKind


class MeanAndMax(Struct, frozen=True, kw_only=True):
    """A gauge over the scrapes of the window."""

    mean: Annotated[Number | None, Meta(description="mean of the scrapes")] = None
    max: Annotated[Number | None, Meta(description="highest value of a scrape")] = None


class Histogram(Struct, frozen=True, kw_only=True):
    """A histogram of the server between two scrapes. A bracket is `[low, high]` of a bucket."""

    count: Annotated[Count | None, Meta(description="samples")] = None
    mean: Annotated[Number | None, Meta(description="sum / number of samples")] = None
    p50: Annotated[
        list[Number | None] | None,
        Meta(description="bounds `[low, high]` of the bucket; `high` is `null` in the last bucket"),
    ] = None
    p99: Annotated[list[Number | None] | None, Meta(description="the same")] = None


# None: unknown.
FigureValue = MeanAndMax | Histogram | Number | None


class ServerFacts(Struct, frozen=True, kw_only=True):
    """Counters are differences between the two scrapes nearest to the ends of the measure phase. They are null if one of these
    scrapes is further than `gap_limit_s` from its end. Gauges are over the scrapes of the measure phase; if `longest_gap_s`
    exceeds `gap_limit_s`, they lack a part of it, gates on them fail, and the measurement is suspect (`scrape_gap`). Figures of
    several engines are combined as [Metrics of several engines](endpoints.md#metrics-of-several-engines) has it.
    """

    target: Annotated[str, Meta(description="URL of the target")]
    page: Annotated[
        str | None,
        Meta(description="key of the kind of page, as in measures.md; null: no known engine, or never scraped"),
    ] = None
    role: Annotated[
        str | None,
        Meta(description="`prefill` or `decode`, of servers that share each request; null: not known, or not shared"),
    ] = None
    role_from: Annotated[
        str | None,
        Meta(
            description="what says so: `option`, `file` of targets, `label`, `series` of the page or `name` of the host"
        ),
    ] = None
    unknown_series: Annotated[
        Count | None,
        Meta(description="stored series of a page of no known engine, of which no figure is read; null: of others"),
    ] = None
    replicas: Annotated[
        Count,
        Meta(
            description="servers behind the target, recognised by alternating pages; if there are several, figures are null"
        ),
    ] = 1
    scrapes: Annotated[Count, Meta(description="scrapes in the window")] = 0
    window_s: Annotated[Number | None, Meta(description="time between the two scrapes nearest to the ends")] = None
    seen_s: Annotated[
        list[Number] | None,
        Meta(
            description="first and last scrape of a server that [joined or left](../how-to/scale-out.md), in seconds of the "
            "measure phase; figures are of this part; null: of the others"
        ),
    ] = None
    longest_gap_s: Annotated[
        Number | None, Meta(description="longest time without a scrape; null without any scrape")
    ] = None
    gap_limit_s: Annotated[
        Number | None,
        Meta(description="longest such time that leaves the figures complete: 5 s, or 2.5 scrape intervals if longer"),
    ] = None
    samples_unusable: Annotated[
        Count, Meta(description="samples that are no usable number, or were on lines that could not be read")
    ] = 0
    lines_unread: Annotated[Count, Meta(description="lines of its pages, over the whole run, that are no samples")] = 0
    samples_age_s: Annotated[
        Number | None,
        Meta(
            description="greatest age of samples that carry their own time; null: samples are of the time of their scrape"
        ),
    ] = None
    slots: Annotated[
        Count | None, Meta(description="requests that one engine runs at once at most, of a front end's page")
    ] = None
    kv_block_tokens: Annotated[Count | None, Meta(description="tokens of a block of the KV cache, of the same")] = None
    failures_by_reason: Annotated[
        dict[str, Count], Meta(description="failed requests by the reason that the server gives, the 20 most frequent")
    ] = {}
    kv_cache_size_tokens: Annotated[
        Count | None, Meta(description="tokens that fit into the KV caches of all engines")
    ] = None
    prefix_cache_hit_rate_from: Annotated[str | None, Meta(description="`queries`, `prompt tokens` or `gauge`")] = None
    prefix_cache_queries_before: Annotated[Count | None, Meta(description="tokens looked up before the window")] = None
    prefix_cache_queries_at_first_scrape: Annotated[
        Count | None, Meta(description="tokens looked up before the run")
    ] = None
    engines: Annotated[list[Any], Meta(description="gauges of each engine")] = []

    @property
    def kind(self) -> PageKind | None:
        """Kind of the page; None: not known."""
        return KIND_OF.get(self.page or "")

    @property
    def too_long_gap_s(self) -> float | None:
        """Longest time without a scrape if it exceeds the limit, else None."""
        gap_s, limit_s = self.longest_gap_s, self.gap_limit_s
        return gap_s if gap_s is not None and limit_s is not None and gap_s > limit_s else None
