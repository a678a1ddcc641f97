"""Figures of a server, from its metrics page. A row of this module is in each place that lists them.

These are summary.json (`servers`), gates, the tables of terminal and report, the timeline and its chart, the live view, the
scraper, the glossary and the reference pages. Names of other engines' metrics are translated before (see `metric_names`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, defstruct

from inferload.base.json_text import Count as CountOf
from inferload.base.json_text import Number
from inferload.figures import metric_names as names
from inferload.figures.figure import Figure, Layer
from inferload.figures.server_entry import (
    EngineLabel,
    FigureValue,
    Gpus,
    Histogram,
    MeanAndMax,
    ServerFacts,
    SpeculationByPosition,
    WaitingReasons,
)
from inferload.figures.server_formulas import (
    GAUGE,
    Count,
    Formula,
    Gauge,
    HistogramMean,
    HitRate,
    Rate,
    Ratio,
    Reading,
    Restarts,
    Statistic,
    Window,
    known,
)

GPU = "gpu"
SPEC_DECODE = "spec_decode"
_BY_REASON = "waiting_by_reason"
_KV, _OUTPUT, _PROMPT, _REQUESTS, _SPECULATION, _DRAFTS = (
    "KV cache and cache hits, %",
    "output, tok/s",
    "prompt, tok/s",
    "requests",
    "speculation",
    "draft tokens, tok/s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigure(Figure):
    """One figure of a server. `key` names it in gates, the timeline and the live view, and so in an entry unless `entry_key` does.

    `label`: its name beside others, in a line of the terminal or in a chart. `block`: key of its group in an entry of `servers` in
    summary.json, None at the top; the group GPU is of GPU exporters, all others are of engines. `headline`: also in the live view.
    """

    formula: Formula
    layer: Layer = "engine"
    label: str = ""
    block: str | None = None
    entry_key: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistics", self.formula.statistics)
        object.__setattr__(self, "label", self.label or self.title)
        object.__setattr__(self, "entry_key", self.entry_key or self.key)

    def number(self, window: Window, statistic: Statistic = "mean") -> float | None:
        """Return the value over a window that has one; None if unknown."""
        return known(self.formula.value(window, statistic))

    def in_entry(self, entry: ServerFacts) -> FigureValue:
        """Return the value in an entry of `servers`; None if unknown."""
        block = entry if self.block is None else getattr(entry, self.block)
        return None if block is None else getattr(block, self.entry_key)

    def of(self, entry: ServerFacts, statistic: str | None) -> float | None:
        """Return the value for a gate; None if it was not measured, or in a part of the window only."""
        if entry.too_long_gap_s is not None and self._over_scrapes(entry):
            return None
        return statistic_of(self.in_entry(entry), statistic)

    def _over_scrapes(self, entry: ServerFacts) -> bool:
        """Return True for a mean or maximum over the scrapes. Counters need the scrapes at the ends only."""
        return isinstance(self.formula, Gauge) or (
            self.entry_key == HIT_RATE.key and entry.prefix_cache_hit_rate_from == GAUGE
        )

    def expected_of(self, entry: ServerFacts) -> bool:
        """Return True if the server's kind of page has the metric."""
        return bool(has_gpu(entry) if self.block == GPU else entry.engines) or not entry.scrapes


def statistic_of(value: FigureValue, statistic: str | None) -> float | None:
    """Return a statistic of a value, or the number that it is (None); None if unknown."""
    if statistic is not None:
        value = getattr(value, statistic, None)
    return float(value) if isinstance(value, int | float) else None


def has_gpu(entry: ServerFacts) -> bool:
    """Return True for the entry of a GPU exporter."""
    return getattr(entry, GPU) is not None


def _by_label(metric: str, label: str, value: str) -> Reading:
    return Reading(metric, label=(label, value))


KV_CACHE_USAGE = ServerFigure(
    key="kv_cache_usage",
    title="KV cache usage",
    unit="",
    form="share",
    label="KV",
    text="vllm:kv_cache_usage_perc: blocks in use by requests; cached blocks that no request uses count as free. Maximum over "
    "engines",
    formula=Gauge(Reading(names.KV_CACHE_USAGE, "highest")),
    headline=True,
    panel=_KV,
)
RUNNING = ServerFigure(
    key="requests_running",
    title="requests running",
    unit="",
    label="running",
    text="vllm:num_requests_running, summed over engines",
    formula=Gauge(Reading(names.RUNNING)),
    headline=True,
    panel=_REQUESTS,
)
WAITING = ServerFigure(
    key="requests_waiting",
    title="requests waiting",
    unit="",
    label="waiting",
    text="vllm:num_requests_waiting, summed over engines",
    better="lower",
    formula=Gauge(Reading(names.WAITING)),
    headline=True,
    panel=_REQUESTS,
)
WAITING_CAPACITY = ServerFigure(
    key="waiting_capacity",
    title="waiting, capacity",
    unit="",
    text="requests waiting for a free place in the batch or for KV blocks",
    better="lower",
    formula=Gauge(_by_label(names.WAITING_BY_REASON, "reason", names.CAPACITY)),
    block=_BY_REASON,
    entry_key=names.CAPACITY,
)
WAITING_DEFERRED = ServerFigure(
    key="waiting_deferred",
    title="waiting, deferred",
    unit="",
    text="requests waiting for something other than capacity: LoRA adapter, grammar, KV transfer",
    better="lower",
    formula=Gauge(_by_label(names.WAITING_BY_REASON, "reason", names.DEFERRED)),
    block=_BY_REASON,
    entry_key=names.DEFERRED,
)
HIT_RATE = ServerFigure(
    key="prefix_cache_hit_rate",
    title="prefix cache hit rate",
    unit="",
    form="share",
    label="hits",
    text="prompt tokens found in the prefix cache / prompt tokens looked up at admission",
    better="higher",
    formula=HitRate(),
    headline=True,
    panel=_KV,
)
PREFIX_QUERIES = ServerFigure(
    key="prefix_cache_queries",
    title="prefix cache queries",
    unit="tokens",
    form="count",
    text="prompt tokens looked up in the prefix cache",
    formula=Count(Reading(names.PREFIX_QUERIES)),
)
PREFIX_HITS = ServerFigure(
    key="prefix_cache_hits",
    title="prefix cache hits",
    unit="tokens",
    form="count",
    text="prompt tokens found in the prefix cache",
    better="higher",
    formula=Count(Reading(names.PREFIX_HITS)),
)
CACHED_TOKENS = ServerFigure(
    key="cached_tokens",
    title="cached prompt tokens",
    unit="",
    form="count",
    text="vllm:prompt_tokens_cached_total: prompt tokens taken from a cache",
    better="higher",
    formula=Count(Reading(names.PROMPT_TOKENS_CACHED)),
)
MM_HIT_RATE = ServerFigure(
    key="mm_cache_hit_rate",
    title="MM cache hit rate",
    unit="",
    form="share",
    label="multi-modal hits",
    text="multi-modal inputs found in the processor cache",
    better="higher",
    formula=Ratio(Reading(names.MM_HITS), Reading(names.MM_QUERIES)),
    headline=True,
    panel=_KV,
)
PREEMPTIONS = ServerFigure(
    key="preemptions",
    title="preemptions",
    unit="",
    form="count",
    text="preempted requests, which are recomputed",
    better="lower",
    formula=Count(Reading(names.PREEMPTIONS)),
    headline=True,
    panel="preemptions, /s",
)
FINISHED = ServerFigure(
    key="requests_finished",
    title="requests finished",
    unit="",
    form="count",
    text="vllm:request_success_total",
    formula=Count(Reading(names.FINISHED)),
)
REJECTIONS = ServerFigure(
    key="rejections",
    title="rejections",
    unit="",
    form="count",
    text="requests refused because of a full queue",
    better="lower",
    formula=Count(Reading(names.REJECTIONS)),
)
PROMPT_TOKENS = ServerFigure(
    key="prompt_tokens",
    title="prompt tokens of the server",
    unit="",
    form="count",
    text="vllm:prompt_tokens_total, including cached tokens",
    formula=Count(Reading(names.PROMPT_TOKENS)),
)
GENERATION_TOKENS = ServerFigure(
    key="generation_tokens",
    title="generation tokens",
    unit="",
    form="count",
    text="vllm:generation_tokens_total",
    formula=Count(Reading(names.GENERATION_TOKENS)),
)
PROMPT_RATE = ServerFigure(
    key="prompt_tok_per_s",
    title="prompt",
    unit="tok/s",
    label="prompt tok/s",
    text="vllm:prompt_tokens_total per second, including cached tokens",
    better="higher",
    formula=Rate(Reading(names.PROMPT_TOKENS)),
    headline=True,
    panel=_PROMPT,
)
COMPUTED_RATE = ServerFigure(
    key="prompt_tok_computed_per_s",
    title="prompt computed",
    unit="tok/s",
    label="computed tok/s",
    text="prompt tokens per second that were computed (source local_compute)",
    formula=Rate(_by_label(names.PROMPT_TOKENS_BY_SOURCE, "source", names.LOCAL_COMPUTE)),
    panel=_PROMPT,
)
GENERATION_RATE = ServerFigure(
    key="generation_tok_per_s",
    title="generation",
    unit="tok/s",
    label="generation tok/s",
    text="vllm:generation_tokens_total per second",
    better="higher",
    formula=Rate(Reading(names.GENERATION_TOKENS)),
    headline=True,
    panel=_OUTPUT,
)
DRAFTS = ServerFigure(
    key="drafts",
    title="drafts",
    unit="",
    form="count",
    text="steps with draft tokens",
    formula=Count(Reading(names.SPEC_DRAFTS)),
    block=SPEC_DECODE,
)
DRAFTED_TOKENS = ServerFigure(
    key="drafted_tokens",
    title="drafted tokens",
    unit="",
    form="count",
    text="draft tokens proposed",
    formula=Count(Reading(names.SPEC_DRAFT_TOKENS)),
    block=SPEC_DECODE,
    entry_key="draft_tokens",
)
ACCEPTED_TOKENS = ServerFigure(
    key="accepted_tokens",
    title="accepted tokens",
    unit="",
    form="count",
    text="draft tokens accepted",
    formula=Count(Reading(names.SPEC_ACCEPTED)),
    block=SPEC_DECODE,
)
DRAFTED_RATE = ServerFigure(
    key="drafted_tok_per_s",
    title="drafted",
    unit="tok/s",
    label="drafted tok/s",
    text="draft tokens proposed per second",
    formula=Rate(Reading(names.SPEC_DRAFT_TOKENS)),
    block=SPEC_DECODE,
    headline=True,
    panel=_DRAFTS,
)
ACCEPTED_RATE = ServerFigure(
    key="accepted_tok_per_s",
    title="accepted",
    unit="tok/s",
    label="accepted tok/s",
    text="draft tokens accepted per second, without the regular token of each step",
    better="higher",
    formula=Rate(Reading(names.SPEC_ACCEPTED)),
    block=SPEC_DECODE,
    headline=True,
    panel=_DRAFTS,
)
ACCEPTANCE_RATE = ServerFigure(
    key="acceptance_rate",
    title="drafts accepted",
    unit="",
    form="share",
    label="drafts accepted, %",
    text="accepted / drafted tokens",
    better="higher",
    formula=Ratio(Reading(names.SPEC_ACCEPTED), Reading(names.SPEC_DRAFT_TOKENS)),
    block=SPEC_DECODE,
    panel=_SPECULATION,
)
ACCEPTANCE_LENGTH = ServerFigure(
    key="mean_acceptance_length",
    title="mean acceptance length",
    unit="",
    label="tokens per step",
    text="tokens per step with speculation: 1 + accepted tokens / drafts",
    better="higher",
    formula=Ratio(Reading(names.SPEC_ACCEPTED), Reading(names.SPEC_DRAFTS), plus=1.0),
    block=SPEC_DECODE,
    panel=_SPECULATION,
)
TTFT = ServerFigure(
    key="engine_ttft_ms",
    title="engine TTFT",
    unit="ms",
    text="histogram of the server, from receipt of the request; p50 and p99: bounds of the bucket",
    better="lower",
    formula=HistogramMean(names.TTFT),
    entry_key="ttft_ms",
)
ITL = ServerFigure(
    key="engine_itl_ms",
    title="engine ITL",
    unit="ms",
    text="histogram of the server, one sample per output of a request; p50 and p99: bounds of the bucket",
    better="lower",
    formula=HistogramMean(names.ITL),
    entry_key="itl_ms",
)
QUEUE = ServerFigure(
    key="queue_ms",
    title="engine queue",
    unit="ms",
    text="arrival to first scheduling, requests that ended in the window",
    better="lower",
    formula=HistogramMean(names.QUEUE),
)
PREFILL = ServerFigure(
    key="prefill_ms",
    title="engine prefill",
    unit="ms",
    text="first scheduling to first token, requests that ended in the window",
    better="lower",
    formula=HistogramMean(names.PREFILL),
)
DECODE = ServerFigure(
    key="decode_ms",
    title="engine decode",
    unit="ms",
    text="first token to last token, requests that ended in the window",
    better="lower",
    formula=HistogramMean(names.DECODE),
)
E2E = ServerFigure(
    key="engine_e2e_ms",
    title="engine E2E",
    unit="ms",
    text="histogram of the server, from receipt of the request to its end; p50 and p99: bounds of the bucket",
    better="lower",
    formula=HistogramMean(names.E2E),
    entry_key="e2e_ms",
)
PROCESS_CPU = ServerFigure(
    key="process_cpu_share",
    layer="system",
    title="front end CPU",
    unit="cores",
    text="CPU time per second of the process that serves the metrics",
    formula=Rate(Reading(names.PROCESS_CPU)),
)
GPU_USE = ServerFigure(
    key="gpu_use",
    title="GPU use",
    unit="",
    form="share",
    label="GPU use",
    text="DCGM_FI_DEV_GPU_UTIL: share of time in which a kernel ran on the GPU, not its load. Maximum over GPUs",
    formula=Gauge(Reading(names.GPU_USE, "highest"), scale=0.01),
    block=GPU,
    layer="system",
    entry_key="use",
    headline=True,
    panel="GPU, %",
)
GPU_MEMORY = ServerFigure(
    key="gpu_memory_mib",
    title="GPU memory",
    unit="MiB",
    label="used",
    text="DCGM_FI_DEV_FB_USED, summed over GPUs",
    formula=Gauge(Reading(names.GPU_MEMORY)),
    block=GPU,
    layer="system",
    entry_key="memory_mib",
    panel="GPU memory, MiB",
)
GPU_POWER = ServerFigure(
    key="gpu_power_w",
    title="GPU power",
    unit="W",
    label="GPU power, W",
    text="DCGM_FI_DEV_POWER_USAGE, summed over GPUs",
    formula=Gauge(Reading(names.GPU_POWER)),
    block=GPU,
    layer="system",
    entry_key="power_w",
    headline=True,
    panel="GPU power, W",
)
GPU_CLOCK = ServerFigure(
    key="gpu_sm_clock_mhz",
    title="GPU clock",
    unit="MHz",
    label="SM",
    text="DCGM_FI_DEV_SM_CLOCK, minimum over GPUs",
    formula=Gauge(Reading(names.GPU_SM_CLOCK, "lowest")),
    block=GPU,
    layer="system",
    entry_key="sm_clock_mhz",
    panel="GPU clock, MHz",
)
RESTARTS = ServerFigure(
    key="restarts",
    title="restarts",
    unit="",
    form="count",
    text="decreases of counters and changes of the process start time; those in one gap of scrapes are one restart",
    better="lower",
    formula=Restarts(),
)

# All rows above, in their order.
SERVER_FIGURES: tuple[ServerFigure, ...] = tuple(row for row in list(vars().values()) if isinstance(row, ServerFigure))
BY_KEY = MappingProxyType({row.key: row for row in SERVER_FIGURES})
# What each engine of a page has.
ENGINE_GAUGES = tuple(row for row in SERVER_FIGURES if isinstance(row.formula, Gauge) and row.block is None)
# What the figures are made of.
READINGS = tuple(dict.fromkeys(reading for row in SERVER_FIGURES for reading in row.formula.readings))
READ = tuple(dict.fromkeys(reading.metric for reading in READINGS))
# Prefixes of the metrics that a scraper stores.
KEPT_PREFIXES = (
    *names.PREFIXES,
    names.PROCESS_START,
    *(metric for metric in READ if not metric.startswith(names.PREFIXES)),
)


def is_gpu_page(metrics: Mapping[str, object]) -> bool:
    """Return True for the metrics of a GPU exporter's page, which has none of an engine."""
    of_gpus = (reading.metric for row in SERVER_FIGURES if row.block == GPU for reading in row.formula.readings)
    return names.RUNNING not in metrics and any(metric in metrics for metric in of_gpus)


def values(key: str, statistic: str | None, servers: Sequence[ServerFacts]) -> dict[str, float | None]:
    """Return the figure of each server that should report it, by target; None if not measured."""
    row = BY_KEY[key]
    return {entry.target: row.of(entry, statistic) for entry in servers if row.expected_of(entry)}


def _type(row: ServerFigure) -> Any:
    if isinstance(row.formula, HistogramMean):
        return Histogram
    return MeanAndMax if row.statistics else CountOf if row.form == "count" else Number


def _struct(name: str, block: str | None, base: type, more: Sequence[tuple[str, Any, Any]] = ()) -> Any:
    """Return a type with a field for each row of a block, after those of `base` and `more`: name, type and default."""
    rows = [row for row in SERVER_FIGURES if row.block == block]
    fields = [(row.entry_key, Annotated[_type(row) | None, Meta(description=row.text)], None) for row in rows]
    return defstruct(name, [*more, *fields], bases=(base,), module=__name__, frozen=True, kw_only=True)


_BLOCKS: Mapping[str, type] = {
    _BY_REASON: _struct("WaitingByReason", _BY_REASON, WaitingReasons),
    SPEC_DECODE: _struct("Speculation", SPEC_DECODE, SpeculationByPosition),
    GPU: _struct("Gpu", GPU, Gpus),
}
_BLOCK_TEXTS = {
    _BY_REASON: "waiting requests by reason; null if the server does not report it",
    SPEC_DECODE: "speculative decoding; null without drafts",
    GPU: "figures of a GPU exporter; null for an engine",
}


def _of_engine(row: ServerFigure) -> str:
    """Return the definition of a gauge without how the engines of a server are combined."""
    return re.sub(r"(, summed|\. Maximum) over engines$", "", row.text)


if TYPE_CHECKING:
    Engine = EngineLabel
    Server = ServerFacts
else:
    # Entries of summary.json, with a field for each row.
    Engine = defstruct(
        "Engine",
        [(row.key, Annotated[MeanAndMax, Meta(description=_of_engine(row))], MeanAndMax()) for row in ENGINE_GAUGES],
        bases=(EngineLabel,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )
    Server = _struct(
        "Server",
        None,
        ServerFacts,
        [
            ("engines", Annotated[list[Engine], Meta(description="gauges of each engine")], []),
            *(
                (block, Annotated[kind | None, Meta(description=_BLOCK_TEXTS[block])], None)
                for block, kind in _BLOCKS.items()
            ),
        ],
    )


def block_of(block: str, values: Mapping[str, Any]) -> Any:
    """Return a group of figures of an entry, by the keys of its type."""
    return _BLOCKS[block](**values)
