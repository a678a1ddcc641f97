"""Figures of a server, from its metrics page. A row of a field of `Server` or its blocks is in each place that lists them.

These are summary.json (`servers`), gates, the tables of terminal and report, the timeline and its chart, the live view, the
scraper, the glossary and the reference pages. Names of other engines' metrics are translated before (see `page_kinds`).
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from inferload.base.json_text import Count as CountOf
from inferload.base.json_text import Number
from inferload.figures import metric_names as names
from inferload.figures.page_kinds import PREFIXES, PageKind
from inferload.figures.server_blocks import Gpu, Router, Speculation, WaitingByReason
from inferload.figures.server_entry import Histogram, MeanAndMax, ServerFacts
from inferload.figures.server_figure import GPU, ROUTER, SPEC_DECODE, ServerFigure
from inferload.figures.server_formulas import Count, Gauge, HistogramMean, HitRate, Rate, Ratio, Reading, Restarts

_COMPUTED = Reading(names.PROMPT_TOKENS_BY_SOURCE, label=("source", names.LOCAL_COMPUTE))
_KV, _OUTPUT, _PROMPT, _REQUESTS = ("KV cache and cache hits, %", "output, tok/s", "prompt, tok/s", "requests")


class Engine(Struct, frozen=True, kw_only=True):
    """Gauges of one engine of a server."""

    engine: Annotated[str | None, Meta(description="label of the engine, or labels")] = None
    kv_cache_size_tokens: Annotated[CountOf | None, Meta(description="tokens that fit into its KV cache")] = None
    kv_cache_usage: Annotated[
        MeanAndMax,
        Meta(
            description="vllm:kv_cache_usage_perc: blocks in use by requests; cached blocks that no request uses count as free"
        ),
    ] = MeanAndMax()
    requests_running: Annotated[MeanAndMax, Meta(description="vllm:num_requests_running")] = MeanAndMax()
    requests_waiting: Annotated[MeanAndMax, Meta(description="vllm:num_requests_waiting")] = MeanAndMax()


class Server(ServerFacts, frozen=True, kw_only=True):
    # Without a docstring: that of the facts is the text of the reference page.
    engines: Annotated[list[Engine], Meta(description="gauges of each engine")] = []
    kv_cache_usage: Annotated[
        MeanAndMax | None,
        ServerFigure(
            title="KV cache usage",
            form="share",
            label="KV",
            text="vllm:kv_cache_usage_perc: blocks in use by requests; cached blocks that no request uses count as free. "
            "Maximum over engines",
            formula=Gauge(Reading(names.KV_CACHE_USAGE, "highest")),
            headline=True,
            panel=_KV,
        ),
    ] = None
    requests_running: Annotated[
        MeanAndMax | None,
        ServerFigure(
            title="requests running",
            label="running",
            text="vllm:num_requests_running, summed over engines",
            formula=Gauge(Reading(names.RUNNING)),
            headline=True,
            panel=_REQUESTS,
        ),
    ] = None
    requests_waiting: Annotated[
        MeanAndMax | None,
        ServerFigure(
            title="requests waiting",
            label="waiting",
            text="vllm:num_requests_waiting, summed over engines",
            better="lower",
            formula=Gauge(Reading(names.WAITING)),
            headline=True,
            panel=_REQUESTS,
        ),
    ] = None
    requests_before_first_token: Annotated[
        MeanAndMax | None,
        ServerFigure(
            title="requests before their first token",
            text="requests in a front end without a first token: waiting or in prefill",
            better="lower",
            formula=Gauge(Reading(names.BEFORE_FIRST_TOKEN)),
        ),
    ] = None
    waiting_by_reason: Annotated[
        WaitingByReason | None, Meta(description="waiting requests by reason; null if the server does not report it")
    ] = None
    prefix_cache_hit_rate: Annotated[
        Number | None,
        ServerFigure(
            title="prefix cache hit rate",
            form="share",
            label="hits",
            text="prompt tokens found in the prefix cache / prompt tokens looked up at admission",
            better="higher",
            formula=HitRate(),
            headline=True,
            panel=_KV,
        ),
    ] = None
    prefix_cache_queries: Annotated[
        CountOf | None,
        ServerFigure(
            title="prefix cache queries",
            unit="tokens",
            form="count",
            text="prompt tokens looked up in the prefix cache",
            formula=Count(Reading(names.PREFIX_QUERIES)),
        ),
    ] = None
    prefix_cache_hits: Annotated[
        CountOf | None,
        ServerFigure(
            title="prefix cache hits",
            unit="tokens",
            form="count",
            text="prompt tokens found in the prefix cache",
            better="higher",
            formula=Count(Reading(names.PREFIX_HITS)),
        ),
    ] = None
    cached_tokens: Annotated[
        CountOf | None,
        ServerFigure(
            title="cached prompt tokens",
            form="count",
            text="vllm:prompt_tokens_cached_total: prompt tokens taken from a cache",
            better="higher",
            formula=Count(Reading(names.PROMPT_TOKENS_CACHED)),
        ),
    ] = None
    mm_cache_hit_rate: Annotated[
        Number | None,
        ServerFigure(
            title="MM cache hit rate",
            form="share",
            label="multi-modal hits",
            text="multi-modal inputs found in the processor cache",
            better="higher",
            formula=Ratio(Reading(names.MM_HITS), Reading(names.MM_QUERIES)),
            headline=True,
            panel=_KV,
        ),
    ] = None
    preemptions: Annotated[
        CountOf | None,
        ServerFigure(
            title="preemptions",
            form="count",
            text="preempted requests, which are recomputed; no token counter has this work",
            better="lower",
            formula=Count(Reading(names.PREEMPTIONS)),
            headline=True,
            panel="preemptions, /s",
        ),
    ] = None
    requests_finished: Annotated[
        CountOf | None,
        ServerFigure(
            title="requests finished",
            form="count",
            text="vllm:request_success_total",
            formula=Count(Reading(names.FINISHED)),
        ),
    ] = None
    requests_failed: Annotated[
        CountOf | None,
        ServerFigure(
            title="requests failed at the server",
            form="count",
            text="requests that the server counts as failed",
            better="lower",
            formula=Count(Reading(names.FAILED)),
        ),
    ] = None
    migrations: Annotated[
        CountOf | None,
        ServerFigure(
            title="migrations",
            form="count",
            text="requests that a front end moved to another worker",
            better="lower",
            formula=Count(Reading(names.MIGRATIONS)),
        ),
    ] = None
    rejections: Annotated[
        CountOf | None,
        ServerFigure(
            title="rejections",
            form="count",
            text="requests refused because of a full queue",
            better="lower",
            formula=Count(Reading(names.REJECTIONS)),
        ),
    ] = None
    prompt_tokens: Annotated[
        CountOf | None,
        ServerFigure(
            title="prompt tokens of the server",
            form="count",
            text="vllm:prompt_tokens_total, including cached tokens",
            formula=Count(Reading(names.PROMPT_TOKENS)),
        ),
    ] = None
    generation_tokens: Annotated[
        CountOf | None,
        ServerFigure(
            title="generation tokens",
            form="count",
            text="vllm:generation_tokens_total",
            formula=Count(Reading(names.GENERATION_TOKENS)),
        ),
    ] = None
    prompt_tok_per_s: Annotated[
        Number | None,
        ServerFigure(
            title="prompt",
            unit="tok/s",
            label="prompt tok/s",
            text="vllm:prompt_tokens_total per second, including cached tokens",
            better="higher",
            formula=Rate(Reading(names.PROMPT_TOKENS)),
            headline=True,
            panel=_PROMPT,
        ),
    ] = None
    prompt_tok_computed_per_s: Annotated[
        Number | None,
        ServerFigure(
            title="prompt computed",
            unit="tok/s",
            label="computed tok/s",
            text="prompt tokens per second that were computed (source local_compute), without recomputation after preemptions",
            formula=Rate(_COMPUTED),
            panel=_PROMPT,
        ),
    ] = None
    generation_tok_per_s: Annotated[
        Number | None,
        ServerFigure(
            title="generation",
            unit="tok/s",
            label="generation tok/s",
            text="vllm:generation_tokens_total per second",
            better="higher",
            formula=Rate(Reading(names.GENERATION_TOKENS)),
            headline=True,
            panel=_OUTPUT,
        ),
    ] = None
    prefill_tok_per_s: Annotated[
        Number | None,
        ServerFigure(
            title="prefill of a request",
            unit="tok/s",
            text="computed prompt tokens / seconds of prefill, summed over requests: the speed of one request",
            better="higher",
            formula=Ratio(_COMPUTED, Reading(names.PREFILL_SECONDS)),
        ),
    ] = None
    decode_tok_per_s: Annotated[
        Number | None,
        ServerFigure(
            title="decode of a request",
            unit="tok/s",
            text="output tokens / seconds of decode, summed over requests: the speed of one request",
            better="higher",
            formula=Ratio(Reading(names.GENERATION_TOKENS), Reading(names.DECODE_SECONDS)),
        ),
    ] = None
    spec_decode: Annotated[Speculation | None, Meta(description="speculative decoding; null without drafts")] = None
    ttft_ms: Annotated[
        Histogram | None,
        ServerFigure(
            key="engine_ttft_ms",
            title="engine TTFT",
            unit="ms",
            text="histogram of the server, from receipt of the request; p50 and p99: bounds of the bucket",
            better="lower",
            formula=HistogramMean(names.TTFT),
        ),
    ] = None
    itl_ms: Annotated[
        Histogram | None,
        ServerFigure(
            key="engine_itl_ms",
            title="engine ITL",
            unit="ms",
            text="histogram of the server, one sample per output of a request; p50 and p99: bounds of the bucket",
            better="lower",
            formula=HistogramMean(names.ITL),
        ),
    ] = None
    queue_ms: Annotated[
        Histogram | None,
        ServerFigure(
            title="engine queue",
            unit="ms",
            text="arrival to first scheduling, requests that ended in the window",
            better="lower",
            formula=HistogramMean(names.QUEUE),
        ),
    ] = None
    prefill_ms: Annotated[
        Histogram | None,
        ServerFigure(
            title="engine prefill",
            unit="ms",
            text="first scheduling to first token, requests that ended in the window",
            better="lower",
            formula=HistogramMean(names.PREFILL),
        ),
    ] = None
    decode_ms: Annotated[
        Histogram | None,
        ServerFigure(
            title="engine decode",
            unit="ms",
            text="first token to last token, requests that ended in the window",
            better="lower",
            formula=HistogramMean(names.DECODE),
        ),
    ] = None
    e2e_ms: Annotated[
        Histogram | None,
        ServerFigure(
            key="engine_e2e_ms",
            title="engine E2E",
            unit="ms",
            text="histogram of the server, from receipt of the request to its end; p50 and p99: bounds of the bucket",
            better="lower",
            formula=HistogramMean(names.E2E),
        ),
    ] = None
    process_cpu_share: Annotated[
        Number | None,
        ServerFigure(
            layer="system",
            title="front end CPU",
            unit="cores",
            text="CPU time per second of the process that serves the metrics",
            formula=Rate(Reading(names.PROCESS_CPU)),
        ),
    ] = None
    gpu: Annotated[Gpu | None, Meta(description="figures of a GPU exporter; null for an engine")] = None
    router: Annotated[Router | None, Meta(description="figures of a router or gateway; null for others")] = None
    restarts: Annotated[
        CountOf | None,
        ServerFigure(
            title="restarts",
            form="count",
            text="decreases of counters and changes of the process start time; those in one gap of scrapes are one restart",
            better="lower",
            formula=Restarts(),
        ),
    ] = None


BLOCKS: Mapping[str, type[Struct]] = MappingProxyType(
    {"waiting_by_reason": WaitingByReason, SPEC_DECODE: Speculation, GPU: Gpu, ROUTER: Router}
)


def _rows(entry: type[Struct], block: str | None = None) -> Iterator[ServerFigure]:
    """Yield the rows of a type, and of its blocks in their places."""
    for name, hint in entry.__annotations__.items():
        if name in BLOCKS:
            yield from _rows(BLOCKS[name], name)
        for row in getattr(hint, "__metadata__", ()):
            if isinstance(row, ServerFigure):
                yield replace(row, key=row.key or name, block=block, entry_key=name)


SERVER_FIGURES = tuple(_rows(Server))
BY_KEY = MappingProxyType({row.key: row for row in SERVER_FIGURES})
# Figures that a definition, a rule or a default elsewhere is about.
KV_CACHE_USAGE = BY_KEY["kv_cache_usage"]
RUNNING = BY_KEY["requests_running"]
WAITING = BY_KEY["requests_waiting"]
WAITING_CAPACITY = BY_KEY["waiting_capacity"]
WAITING_DEFERRED = BY_KEY["waiting_deferred"]
HIT_RATE = BY_KEY["prefix_cache_hit_rate"]
MM_HIT_RATE = BY_KEY["mm_cache_hit_rate"]
PREFIX_QUERIES = BY_KEY["prefix_cache_queries"]
PREEMPTIONS = BY_KEY["preemptions"]
FINISHED = BY_KEY["requests_finished"]
PROMPT_TOKENS = BY_KEY["prompt_tokens"]
GENERATION_TOKENS = BY_KEY["generation_tokens"]
COMPUTED_RATE = BY_KEY["prompt_tok_computed_per_s"]
GENERATION_RATE = BY_KEY["generation_tok_per_s"]
DRAFTS = BY_KEY["drafts"]
DRAFTED_TOKENS = BY_KEY["drafted_tokens"]
ACCEPTED_TOKENS = BY_KEY["accepted_tokens"]
DRAFTED_RATE = BY_KEY["drafted_tok_per_s"]
ACCEPTED_RATE = BY_KEY["accepted_tok_per_s"]
ACCEPTANCE_RATE = BY_KEY["acceptance_rate"]
ACCEPTANCE_LENGTH = BY_KEY["mean_acceptance_length"]
TTFT = BY_KEY["engine_ttft_ms"]
ITL = BY_KEY["engine_itl_ms"]
QUEUE = BY_KEY["queue_ms"]
PREFILL = BY_KEY["prefill_ms"]
DECODE = BY_KEY["decode_ms"]
E2E = BY_KEY["engine_e2e_ms"]
OF_STREAMS = (TTFT, ITL, DECODE, GENERATION_TOKENS, GENERATION_RATE)  # which say nothing of requests of texts
PROCESS_CPU = BY_KEY["process_cpu_share"]
RESTARTS = BY_KEY["restarts"]
ROUTER_DELAYS = tuple(BY_KEY[f"router_{name}"] for name in ("retries", "failed", "waiting", "queue_ms"))
# What each engine of a page has.
ENGINE_GAUGES = tuple(row for row in SERVER_FIGURES if row.key in Engine.__struct_fields__)
# What the figures are made of.
READINGS = tuple(dict.fromkeys(reading for row in SERVER_FIGURES for reading in row.formula.readings))
READ = tuple(dict.fromkeys(reading.metric for reading in READINGS))
# Prefixes of the metrics that a scraper stores.
KEPT_PREFIXES = (
    *PREFIXES,
    names.PROCESS_START,
    *(metric for metric in READ if not metric.startswith(PREFIXES)),
)


def page_block(page: PageKind | None, metrics: Mapping[str, object]) -> str | None:
    """Return the block of the figures of a page of GPUs or of a router; None for an engine's."""
    if page is not None and page.kind == "router":
        return ROUTER
    of_gpus = (reading.metric for row in SERVER_FIGURES if row.block == GPU for reading in row.formula.readings)
    return GPU if names.RUNNING not in metrics and any(metric in metrics for metric in of_gpus) else None


def values(key: str, statistic: str | None, servers: Sequence[ServerFacts]) -> dict[str, float | None]:
    """Return the figure of each server that should report it, by target; None if not measured.

    A server whose kind of page lacks it should not, if that of another has it; nor should one behind a front end that has it.
    """
    row = BY_KEY[key]
    expected = [entry for entry in servers if row.expected_of(entry)]
    found = {entry.target: row.of(entry, statistic) for entry in expected}
    front = {entry.target for entry in expected if entry.kind is not None and entry.kind.in_front}
    excused = {entry.target for entry in expected if row.lacking(entry.kind) is not None}
    if any(found[target] is not None for target in front):
        excused |= found.keys() - front
    able = {target: value for target, value in found.items() if value is not None or target not in excused}
    return able or found


def block_of(block: str, values: Mapping[str, Any]) -> Any:
    """Return a group of figures of an entry, by the keys of its type."""
    return BLOCKS[block](**values)
