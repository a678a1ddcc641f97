"""Figures of a server, from its metrics page. A row of a field of `Server` or its blocks is in each place that lists them.

These are summary.json (`servers`), gates, the tables of terminal and report, the timeline and its chart, the live view, the
scraper, the glossary and the reference pages. Names of other engines' metrics are translated before (see `page_kinds`).
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

from msgspec import Struct

from inferload.base.json_text import Count as CountOf
from inferload.base.json_text import Number, means
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import PREFIXES, PageKind
from inferload.figures.servers.server_blocks import Gpu, Router, Speculation, Transfer, WaitingByReason
from inferload.figures.servers.server_entry import Histogram, MeanAndMax, ServerFacts
from inferload.figures.servers.server_figure import (
    GPU,
    ROUTER,
    SPEC_DECODE,
    TIERS,
    TRANSFER,
    ServerFigure,
    row,
    unwanted,
)
from inferload.figures.servers.server_formulas import Count, Gauge, HistogramMean, HitRate, Rate, Ratio, Restarts
from inferload.figures.servers.tier_figures import Tiers

_COMPUTED = ("source", names.LOCAL_COMPUTE)
_KV, _OUTPUT, _PROMPT, _REQUESTS = ("KV cache and hits, %", "output, tok/s", "prompt, tok/s", "requests")
_BLOCKS_IN_USE = f"{names.KV_CACHE_USAGE}: blocks in use by requests; cached blocks that no request uses count as free"


class Engine(Struct, frozen=True, kw_only=True):
    """Gauges of one engine of a server."""

    engine: Annotated[str | None, means("label of the engine, or labels")] = None
    kv_cache_size_tokens: Annotated[CountOf | None, means("tokens that fit into its KV cache")] = None
    kv_cache_usage: Annotated[MeanAndMax, means(_BLOCKS_IN_USE)] = MeanAndMax()
    requests_running: Annotated[MeanAndMax, means("vllm:num_requests_running")] = MeanAndMax()
    requests_waiting: Annotated[MeanAndMax, means("vllm:num_requests_waiting")] = MeanAndMax()


KV_CACHE_USAGE = row(
    Gauge(names.KV_CACHE_USAGE, "highest"),
    "KV cache usage",
    f"{_BLOCKS_IN_USE}. Maximum over engines",
    form="share",
    live=("KV", _KV),
)
RUNNING = row(
    Gauge(names.RUNNING), "requests running", f"{names.RUNNING}, summed over engines", live=("running", _REQUESTS)
)
WAITING = row(
    Gauge(names.WAITING),
    "requests waiting",
    f"{names.WAITING}, summed over engines",
    better="lower",
    live=("waiting", _REQUESTS),
)
BEFORE_FIRST_TOKEN = row(
    Gauge(names.BEFORE_FIRST_TOKEN),
    "requests before their first token",
    "requests in a front end without a first token: waiting or in prefill",
    better="lower",
)
HIT_RATE = row(
    HitRate(),
    "prefix cache hit rate",
    "prompt tokens found in the prefix cache / prompt tokens looked up at admission; of vLLM without other tiers (`tiers`)",
    form="share",
    better="higher",
    live=("hits", _KV),
)
PREFIX_QUERIES = row(
    Count(names.PREFIX_QUERIES), "prefix cache queries", "prompt tokens looked up in the cache", unit="tokens"
)
PREFIX_HITS = row(
    Count(names.PREFIX_HITS),
    "prefix cache hits",
    "prompt tokens found in the prefix cache",
    unit="tokens",
    better="higher",
)
CACHED_TOKENS = row(
    Count(names.PROMPT_TOKENS_CACHED),
    "cached prompt tokens",
    "vllm:prompt_tokens_cached_total: prompt tokens taken from a cache",
    better="higher",
)
MM_HIT_RATE = row(
    Ratio(names.MM_HITS, names.MM_QUERIES),
    "MM cache hit rate",
    "multi-modal inputs found in the processor cache",
    form="share",
    better="higher",
    live=("multi-modal hits", _KV),
)
PREEMPTIONS = unwanted(
    names.PREEMPTIONS,
    "preemptions",
    "preempted requests, which are recomputed; no token counter has this work",
    headline=True,
    panel="preemptions, /s",
)
FINISHED = row(Count(names.FINISHED), "requests finished", "vllm:request_success_total")
FAILED = unwanted(names.FAILED, "requests failed at the server", "requests that it counts as failed")
MIGRATIONS = unwanted(names.MIGRATIONS, "migrations", "requests that a front end moved to another worker")
REJECTIONS = unwanted(names.REJECTIONS, "rejections", "requests refused because of a full queue")
PROMPT_TOKENS = row(
    Count(names.PROMPT_TOKENS), "prompt tokens of the server", "vllm:prompt_tokens_total, with cached tokens"
)
GENERATION_TOKENS = row(Count(names.GENERATION_TOKENS), "generation tokens", "vllm:generation_tokens_total")
PROMPT_RATE = row(
    Rate(names.PROMPT_TOKENS),
    "prompt",
    "vllm:prompt_tokens_total per second, including cached tokens",
    better="higher",
    live=("prompt tok/s", _PROMPT),
)
COMPUTED_RATE = row(
    Rate(names.PROMPT_TOKENS_BY_SOURCE, label=_COMPUTED),
    "prompt computed",
    "prompt tokens per second that were computed (source local_compute), without recomputation after preemptions",
    chart=("computed tok/s", _PROMPT),
)
GENERATION_RATE = row(
    Rate(names.GENERATION_TOKENS),
    "generation",
    "vllm:generation_tokens_total per second",
    better="higher",
    live=("generation tok/s", _OUTPUT),
)
PREFILL_SPEED = row(
    Ratio(names.PROMPT_TOKENS_BY_SOURCE, names.PREFILL_SECONDS, _COMPUTED),
    "prefill of a request",
    "computed prompt tokens / seconds of prefill, summed over requests: the speed of one request",
    unit="tok/s",
    better="higher",
)
DECODE_SPEED = row(
    Ratio(names.GENERATION_TOKENS, names.DECODE_SECONDS),
    "decode of a request",
    "output tokens / seconds of decode, summed over requests: the speed of one request",
    unit="tok/s",
    better="higher",
)
TTFT, ITL, E2E = (
    row(
        HistogramMean(family),
        f"engine {name}",
        f"histogram of the server, {text}; p50 and p99: bounds of the bucket",
        key=f"engine_{name.lower()}_ms",
    )
    for family, name, text in (
        (names.TTFT, "TTFT", "from receipt of the request"),
        (names.ITL, "ITL", "one sample per output of a request"),
        (names.E2E, "E2E", "from receipt of the request to its end"),
    )
)
QUEUE, PREFILL, DECODE = (
    row(HistogramMean(family, names.E2E), title, f"{text}, requests that ended in the window")
    for family, title, text in (
        (names.QUEUE, "engine queue", "arrival to first scheduling"),
        (names.PREFILL, "engine prefill", "first scheduling to first token"),
        (names.DECODE, "engine decode", "first token to last token"),
    )
)
PROCESS_CPU = row(
    Rate(names.PROCESS_CPU),
    "front end CPU",
    "CPU time per second of the process that serves the metrics",
    unit="cores",
    layer="system",
)
RESTARTS = row(
    Restarts(),
    "restarts",
    "decreases of counters and changes of the process start time; those in one gap of scrapes are one restart",
    better="lower",
)


class Server(ServerFacts, frozen=True, kw_only=True):
    # Without a docstring: that of the facts is the text of the reference page.
    engines: Annotated[list[Engine], means("gauges of each engine")] = []
    kv_cache_usage: Annotated[MeanAndMax | None, KV_CACHE_USAGE] = None
    requests_running: Annotated[MeanAndMax | None, RUNNING] = None
    requests_waiting: Annotated[MeanAndMax | None, WAITING] = None
    requests_before_first_token: Annotated[MeanAndMax | None, BEFORE_FIRST_TOKEN] = None
    waiting_by_reason: Annotated[
        WaitingByReason | None, means("waiting requests by reason; null if the server does not report it")
    ] = None
    prefix_cache_hit_rate: Annotated[Number | None, HIT_RATE] = None
    prefix_cache_queries: Annotated[CountOf | None, PREFIX_QUERIES] = None
    prefix_cache_hits: Annotated[CountOf | None, PREFIX_HITS] = None
    cached_tokens: Annotated[CountOf | None, CACHED_TOKENS] = None
    mm_cache_hit_rate: Annotated[Number | None, MM_HIT_RATE] = None
    preemptions: Annotated[CountOf | None, PREEMPTIONS] = None
    requests_finished: Annotated[CountOf | None, FINISHED] = None
    requests_failed: Annotated[CountOf | None, FAILED] = None
    migrations: Annotated[CountOf | None, MIGRATIONS] = None
    rejections: Annotated[CountOf | None, REJECTIONS] = None
    prompt_tokens: Annotated[CountOf | None, PROMPT_TOKENS] = None
    generation_tokens: Annotated[CountOf | None, GENERATION_TOKENS] = None
    prompt_tok_per_s: Annotated[Number | None, PROMPT_RATE] = None
    prompt_tok_computed_per_s: Annotated[Number | None, COMPUTED_RATE] = None
    generation_tok_per_s: Annotated[Number | None, GENERATION_RATE] = None
    prefill_tok_per_s: Annotated[Number | None, PREFILL_SPEED] = None
    decode_tok_per_s: Annotated[Number | None, DECODE_SPEED] = None
    spec_decode: Annotated[Speculation | None, means("speculative decoding; null without drafts")] = None
    tiers: Annotated[Tiers | None, means("tiers of the KV cache; null if only the engine's memory is used")] = None
    transfer: Annotated[Transfer | None, means("KV transfer; null without any")] = None
    ttft_ms: Annotated[Histogram | None, TTFT] = None
    itl_ms: Annotated[Histogram | None, ITL] = None
    queue_ms: Annotated[Histogram | None, QUEUE] = None
    prefill_ms: Annotated[Histogram | None, PREFILL] = None
    decode_ms: Annotated[Histogram | None, DECODE] = None
    e2e_ms: Annotated[Histogram | None, E2E] = None
    process_cpu_share: Annotated[Number | None, PROCESS_CPU] = None
    gpu: Annotated[Gpu | None, means("figures of a GPU exporter; null for an engine")] = None
    router: Annotated[Router | None, means("figures of a router or gateway; null for others")] = None
    restarts: Annotated[CountOf | None, RESTARTS] = None


BLOCKS: Mapping[str, type[Struct]] = MappingProxyType(
    {
        "waiting_by_reason": WaitingByReason,
        **{SPEC_DECODE: Speculation, TIERS: Tiers, TRANSFER: Transfer, GPU: Gpu, ROUTER: Router},
    }
)


def _rows(entry: type[Struct], block: str | None = None) -> Iterator[ServerFigure]:
    """Yield the rows of a type, and of its blocks in their places."""
    for name, hint in entry.__annotations__.items():
        if name in BLOCKS:
            yield from _rows(BLOCKS[name], name)
        for each in getattr(hint, "__metadata__", ()):
            if isinstance(each, ServerFigure):
                each.place(name, block)
                yield each


SERVER_FIGURES = tuple(_rows(Server))
BY_KEY = MappingProxyType({row.key: row for row in SERVER_FIGURES})
OF_STREAMS = (TTFT, ITL, DECODE, GENERATION_TOKENS, GENERATION_RATE)  # which say nothing of requests of texts
ROUTER_DELAYS = tuple(BY_KEY[f"router_{name}"] for name in ("retries", "failed", "waiting", "queue_ms"))
# What each engine of a page has.
ENGINE_GAUGES = tuple(row for row in SERVER_FIGURES if row.key in Engine.__struct_fields__)
# What the figures are made of.
READINGS = tuple(dict.fromkeys(reading for row in SERVER_FIGURES for reading in row.formula.readings))
READ = tuple(dict.fromkeys(reading.metric for reading in READINGS))
# Prefixes of the metrics that a scraper stores.
KEPT_PREFIXES = (*PREFIXES, names.PROCESS_START, *(metric for metric in READ if not metric.startswith(PREFIXES)))


def page_block(page: PageKind | None, metrics: Mapping[str, object]) -> str | None:
    """Return the block of the figures of a page of GPUs or of a router; None for an engine's."""
    if page is not None and page.kind == "router":
        return ROUTER
    of_gpus = (reading.metric for row in SERVER_FIGURES if row.block == GPU for reading in row.formula.readings)
    return GPU if names.RUNNING not in metrics and any(metric in metrics for metric in of_gpus) else None


def values(key: str, statistic: str | None, servers: Sequence[ServerFacts]) -> dict[str, float | None]:
    """Return the figure of each server that should report it, by target; None if not measured.

    A server whose kind of page lacks it should not, if that of another has it; nor should one behind a front end that has it, nor
    one with another role than all that have it, if it was read over the whole window: prefill has no ITL.
    """
    row = BY_KEY[key]
    expected = [entry for entry in servers if row.expected_of(entry)]
    found = {entry.target: row.of(entry, statistic) for entry in expected}
    front = {entry.target for entry in expected if entry.kind is not None and entry.kind.in_front}
    excused = {entry.target for entry in expected if row.lacking(entry.kind) is not None}
    if any(found[target] is not None for target in front):
        excused |= found.keys() - front
    with_it = {entry.role for entry in expected if found[entry.target] is not None}
    read = [entry for entry in expected if entry.role is not None and entry.window_s is not None]
    excused |= {entry.target for entry in read if with_it and entry.role not in with_it}
    return {target: value for target, value in found.items() if value is not None or target not in excused} or found
