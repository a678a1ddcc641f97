"""Metrics of vLLM 0.32 that inferload reads, with vLLM's names, labels and bucket bounds. No I/O, no clock."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from inferload.base.errors import UsageError, instead
from inferload.servers.text_format import ITL_S, REQUEST_S, TTFT_S

from ..core.speculation import SpecCounts

Bounds = Mapping[str, Sequence[float]]  # of histograms by family

ITERATION_TOKENS = (1, *(2**power for power in range(3, 15)))
DEFAULTS: Bounds = {"request_latency": REQUEST_S, "time_to_first_token": TTFT_S, "inter_token_latency": ITL_S}
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")

# Name without _total, help, and additional labels with values.
Counter = tuple[str, str, list[tuple[dict[str, str], float]]]


def check_bounds(custom: Mapping[str, Any]) -> None:
    """Check --custom-histogram-buckets as vLLM does. Raise UsageError for an unknown family or an invalid bound."""
    for family, values in custom.items():
        flag = f"--custom-histogram-buckets {family}"
        if family not in DEFAULTS:
            raise UsageError(f"{flag}: the simulator has no such histogram; {instead(family, DEFAULTS)}")
        if not isinstance(values, list) or not values or any(type(bound) not in (int, float) for bound in values):
            raise UsageError(f"{flag}: {values!r}: needs a list of numbers")
        if not all(math.isfinite(bound) and bound > 0 for bound in values) or any(a >= b for a, b in pairwise(values)):
            raise UsageError(f"{flag}: {values!r}: needs ascending bounds above 0")


class Histogram:
    """Counts by bucket. `bounds` are inclusive upper bounds, as in Prometheus."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(frozen=True, slots=True)
class Gauges:
    """State and counters of the scheduler at a scrape."""

    running: int
    waiting: int
    kv_cache_usage: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int


_ZERO = Gauges(0, 0, 0.0, 0, 0, 0)


class Metrics:
    """Counters and histograms of an engine. `zero`: counters of the scheduler at the start of counting."""

    def __init__(self, spec: SpecCounts | None = None, custom: Bounds | None = None, zero: Gauges = _ZERO) -> None:
        self.spec = spec  # None without speculative decoding
        self._custom, self._zero = custom, zero
        self.rejections = dict.fromkeys(REJECTION_REASONS, 0)
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        bounds = {**DEFAULTS, **(custom or {})}
        latency = bounds["request_latency"]
        self.ttft, self.itl = Histogram(bounds["time_to_first_token"]), Histogram(bounds["inter_token_latency"])
        # Of the steps with an output; prompts without cached tokens.
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.e2e, self.queue, self.prefill, self.decode = (Histogram(latency) for _ in range(4))

    def restarted(self, gauges: Gauges) -> "Metrics":
        """Metrics at zero, as after a restart of the server."""
        if self.spec is not None:
            self.spec.reset()
        return Metrics(self.spec, self._custom, gauges)

    def counters(self, gauges: Gauges) -> list[Counter]:
        """All counters except those of refused requests."""
        zero, computed = self._zero, self.prompt_tokens - self.prompt_tokens_cached
        sources = {"local_compute": computed, "local_cache_hit": self.prompt_tokens_cached, "external_kv_transfer": 0}
        hits = round(gauges.prefix_hits - zero.prefix_hits)
        tiers = {"device": hits} | dict.fromkeys(("host", "disk", "p2p", "external_unspecified"), 0)
        return [
            *(_speculation(self.spec) if self.spec is not None else ()),
            _plain("prefix_cache_queries", "Prompt tokens looked up.", gauges.prefix_queries - zero.prefix_queries),
            _plain("prefix_cache_hits", "Prompt tokens found in the cache.", hits),
            _plain("mm_cache_queries", "Look-ups in a cache of images; the simulator has none.", 0),
            _plain("mm_cache_hits", "Hits in a cache of images; the simulator has none.", 0),
            _plain("num_preemptions", "Preempted requests.", gauges.preemptions - zero.preemptions),
            _plain("prompt_tokens", "Prompt tokens, including cached tokens.", self.prompt_tokens),
            ("prompt_tokens_by_source", "Prompt tokens by source.", _labelled("source", sources)),
            ("prompt_tokens_cached_by_source", "Prompt tokens found, by tier.", _labelled("source", tiers)),
            _plain("prompt_tokens_cached", "Cached prompt tokens.", self.prompt_tokens_cached),
            _plain("generation_tokens", "Output tokens.", self.generation_tokens),
            ("request_success", "Completed requests.", _labelled("finished_reason", self.finished)),
        ]

    def histograms(self) -> list[tuple[str, str, Histogram]]:
        """Return (name, help, counts) of each histogram."""
        return [
            ("time_to_first_token_seconds", "Arrival to first token.", self.ttft),
            ("inter_token_latency_seconds", "Time between outputs of a request.", self.itl),
            ("iteration_tokens_total", "Computed prompt tokens and output tokens of a step.", self.iteration_tokens),
            ("e2e_request_latency_seconds", "Arrival to last token.", self.e2e),
            ("request_queue_time_seconds", "Time in the waiting queue.", self.queue),
            ("request_prefill_time_seconds", "Admission to first token.", self.prefill),
            ("request_decode_time_seconds", "First to last token.", self.decode),
        ]


def gauge_rows(gauges: Gauges) -> list[Counter]:
    """All gauges of the scheduler, as counters."""
    by_reason = {"capacity": gauges.waiting, "deferred": 0}
    states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    return [
        _plain("num_requests_running", "Running requests.", gauges.running),
        _plain("num_requests_waiting", "Waiting requests.", gauges.waiting),
        ("num_requests_waiting_by_reason", "Waiting requests by reason.", _labelled("reason", by_reason)),
        ("engine_sleep_state", "Sleep state; the simulator is awake.", _labelled("sleep_state", states)),
        _plain("kv_cache_usage_perc", "Share of referenced KV blocks, 0 to 1.", gauges.kv_cache_usage),
    ]


def _plain(name: str, text: str, value: float) -> Counter:
    return name, text, [({}, value)]


def _labelled(label: str, counts: dict[str, int]) -> list[tuple[dict[str, str], float]]:
    return [({label: value}, float(count)) for value, count in counts.items()]


def _speculation(spec: SpecCounts) -> list[Counter]:
    by_position = {str(position): count for position, count in enumerate(spec.per_position)}
    return [
        _plain("spec_decode_num_drafts", "Drafts: one per request and step.", spec.drafts),
        _plain("spec_decode_num_draft_tokens", "Drafted tokens.", spec.draft_tokens),
        _plain("spec_decode_num_accepted_tokens", "Accepted draft tokens.", spec.accepted),
        (
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position.",
            _labelled("position", by_position),
        ),
    ]
