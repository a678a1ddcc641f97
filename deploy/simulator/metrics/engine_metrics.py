"""Metrics of vLLM 0.32, with its names, labels and bucket bounds. No I/O, no clock."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.speculation import SpecCounts
from .buckets import Bounds, histogram_bounds

SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")
_RECENT_REQUESTS = 1000  # requests in the hit rate of the log


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

    def observe_all(self, values: Sequence[int], unit: float) -> None:
        """Count many values, given in multiples of `unit`."""
        bounds, counts = [bound / unit for bound in self.bounds], self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values) * unit

    def reset(self) -> None:
        """Reset to zero."""
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """Observations at the end of a request. `max_tokens` is None if not requested."""

    queue_s: float
    prefill_s: float
    decode_s: float
    e2e_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int | None
    preemptions: int
    reason: str
    n: int = 1  # choices of the request
    max_output_tokens: int | None = None  # of all its choices; None: other choices are in progress


@dataclass(frozen=True, slots=True)
class Gauges:
    """State and counters of the scheduler at a scrape."""

    running: int
    waiting: int
    kv_cache_usage: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int


class RecentHits:
    """Prefix-cache hit rate over the last 1,000 requests, as in vLLM's log."""

    def __init__(self) -> None:
        self._requests: deque[tuple[int, int]] = deque()
        self.reset()

    def reset(self) -> None:
        """Reset to zero."""
        self._requests.clear()
        self._queries = self._hits = 0

    def observe(self, queries: int, hits: int) -> None:
        """Count the queried and hit tokens of a request."""
        self._requests.append((queries, hits))
        self._queries += queries
        self._hits += hits
        if len(self._requests) > _RECENT_REQUESTS:
            queries, hits = self._requests.popleft()
            self._queries -= queries
            self._hits -= hits

    @property
    def rate(self) -> float | None:
        """Hit rate, 0 to 1; None without queries."""
        return self._hits / self._queries if self._queries else None


class Metrics:
    """Counters and histograms of an engine."""

    def __init__(self, max_model_len: int, spec: SpecCounts | None = None, custom: Bounds | None = None) -> None:
        self.spec = spec  # None without speculative decoding
        self.recent_hits = RecentHits()
        self.rejections = dict.fromkeys(REJECTION_REASONS, 0)
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._make_histograms(histogram_bounds(max_model_len, custom))
        self.gaps_ns: list[int] = []  # between outputs of a request, not in the histogram yet
        self.caching = True  # the prefix cache is enabled
        self._scheduler_zero = (0, 0, 0)

    def _make_histograms(self, bounds: Bounds) -> None:
        latency, itl, tokens = bounds["request_latency"], bounds["inter_token_latency"], bounds["request_tokens"]
        self.ttft = Histogram(bounds["time_to_first_token"])
        self.itl, self.tpot = Histogram(itl), Histogram(itl)
        self.e2e, self.queue, self.inference = Histogram(latency), Histogram(latency), Histogram(latency)
        self.prefill, self.decode = Histogram(latency), Histogram(latency)
        self.step_tokens = Histogram(bounds["iteration_tokens"])
        self.request_prompt, self.request_generation = Histogram(tokens), Histogram(tokens)
        self.request_max_generation, self.request_max_tokens = Histogram(tokens), Histogram(tokens)
        self.request_computed = Histogram(tokens)
        self.request_n = Histogram(bounds["request_params_n"])
        self.request_preemptions = Histogram(bounds["request_num_preemptions"])

    def first_token(self, ttft_s: float, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a prompt, at the first output token as in vLLM."""
        self.ttft.observe(ttft_s)
        self.prompt_tokens += prompt_tokens
        self.prompt_tokens_cached += cached_tokens
        if self.caching:
            self.recent_hits.observe(prompt_tokens, cached_tokens)

    def request_done(self, done: FinishedRequest) -> None:
        """Count a completed request. Aborted requests are not counted."""
        self.finished[done.reason] += 1
        self.e2e.observe(done.e2e_s)
        self.queue.observe(done.queue_s)
        self.prefill.observe(done.prefill_s)
        self.decode.observe(done.decode_s)
        self.inference.observe(done.prefill_s + done.decode_s)
        self.tpot.observe(done.decode_s / (done.output_tokens - 1) if done.output_tokens > 1 else 0.0)
        self.request_prompt.observe(done.prompt_tokens)
        self.request_generation.observe(done.output_tokens)
        self.request_computed.observe(done.prompt_tokens - done.cached_tokens)
        if done.max_output_tokens is not None:
            self.request_n.observe(done.n)
            self.request_max_generation.observe(done.max_output_tokens)
        self.request_preemptions.observe(done.preemptions)
        if done.max_tokens is not None:
            self.request_max_tokens.observe(done.max_tokens)

    def reset(self, gauges: Gauges) -> None:
        """Reset all counters, including those of the scheduler, as after a restart of the server."""
        self.prompt_tokens = self.prompt_tokens_cached = self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._scheduler_zero = (gauges.prefix_queries, gauges.prefix_hits, gauges.preemptions)
        self.rejections = dict.fromkeys(REJECTION_REASONS, 0)
        self.recent_hits.reset()
        if self.spec is not None:
            self.spec.reset()
        for _name, _text, histogram in self.histograms():
            histogram.reset()

    def counters(self, gauges: Gauges) -> list[tuple[str, str, list[tuple[dict[str, str], float]]]]:
        """Return (name without _total, help, [(additional labels, value)]) of each counter."""
        queries, zero_hits, preemptions = self._scheduler_zero
        computed = self.prompt_tokens - self.prompt_tokens_cached
        hit_tokens = gauges.prefix_hits - zero_hits
        by_source = zip(SOURCES, (computed, self.prompt_tokens_cached, 0), strict=True)
        by_tier = zip(CACHE_TIERS, (hit_tokens, 0, 0, 0, 0), strict=True)
        return [
            *[
                (f"estimated_{estimate}_per_gpu", "Not estimated: always zero.", [_unlabelled(0)])
                for estimate in _ESTIMATES
            ],
            *(_speculation(self.spec) if self.spec is not None else ()),
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the cache.",
                [_unlabelled(gauges.prefix_queries - queries)],
            ),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", [_unlabelled(hit_tokens)]),
            (
                "external_prefix_cache_queries",
                "Look-ups in an external cache; the simulator has none.",
                [_unlabelled(0)],
            ),
            ("external_prefix_cache_hits", "Hits in an external cache; the simulator has none.", [_unlabelled(0)]),
            ("mm_cache_queries", "Multi-modal cache look-ups; the simulator has none.", [_unlabelled(0)]),
            ("mm_cache_hits", "Multi-modal cache hits; the simulator has none.", [_unlabelled(0)]),
            ("num_preemptions", "Preempted requests.", [_unlabelled(gauges.preemptions - preemptions)]),
            ("prompt_tokens", "Prompt tokens, including cached tokens.", [_unlabelled(self.prompt_tokens)]),
            ("prompt_tokens_by_source", "Prompt tokens by source.", [({"source": s}, n) for s, n in by_source]),
            ("prompt_tokens_cached", "Cached prompt tokens.", [_unlabelled(self.prompt_tokens_cached)]),
            (
                "prompt_tokens_cached_by_source",
                "Cached prompt tokens by source.",
                [({"source": s}, n) for s, n in by_tier],
            ),
            ("generation_tokens", "Output tokens.", [_unlabelled(self.generation_tokens)]),
            (
                "request_success",
                "Completed requests.",
                [({"finished_reason": reason}, count) for reason, count in self.finished.items()],
            ),
        ]

    def settle(self, min_count: int = 1) -> None:
        """Count the pending gaps if there are at least `min_count`."""
        if len(self.gaps_ns) >= min_count:
            self.itl.observe_all(self.gaps_ns, 1e-9)
            self.gaps_ns.clear()

    def histograms(self) -> list[tuple[str, str, Histogram]]:
        """Return (name, help, counts) of each histogram."""
        self.settle()
        return [
            ("time_to_first_token_seconds", "Arrival to first token.", self.ttft),
            ("inter_token_latency_seconds", "Time between outputs of a request.", self.itl),
            ("request_time_per_output_token_seconds", "Mean time per output token of a request.", self.tpot),
            ("e2e_request_latency_seconds", "Arrival to last token.", self.e2e),
            ("request_queue_time_seconds", "Time in the waiting queue.", self.queue),
            ("request_prefill_time_seconds", "Admission to first token.", self.prefill),
            ("request_decode_time_seconds", "First to last token.", self.decode),
            ("request_inference_time_seconds", "Admission to last token.", self.inference),
            ("iteration_tokens_total", "Computed prompt tokens and output tokens per step.", self.step_tokens),
            ("request_prompt_tokens", "Prompt tokens of a request.", self.request_prompt),
            ("request_generation_tokens", "Output tokens of a request.", self.request_generation),
            (
                "request_max_num_generation_tokens",
                "Output tokens of a request's longest choice.",
                self.request_max_generation,
            ),
            ("request_params_max_tokens", "The request's max_tokens.", self.request_max_tokens),
            ("request_prefill_kv_computed_tokens", "Computed prompt tokens of a request.", self.request_computed),
            ("request_params_n", "The request's n.", self.request_n),
            ("request_num_preemptions", "Preemptions of a request.", self.request_preemptions),
        ]


_ESTIMATES = ("flops", "read_bytes", "write_bytes")


def _unlabelled(value: float) -> tuple[dict[str, str], float]:
    return {}, value


def _speculation(spec: SpecCounts) -> list[tuple[str, str, list[tuple[dict[str, str], float]]]]:
    by_position = [({"position": str(position)}, float(count)) for position, count in enumerate(spec.per_position)]
    return [
        ("spec_decode_num_drafts", "Drafts: one per request and step.", [_unlabelled(spec.drafts)]),
        ("spec_decode_num_draft_tokens", "Drafted tokens.", [_unlabelled(spec.draft_tokens)]),
        ("spec_decode_num_accepted_tokens", "Accepted draft tokens.", [_unlabelled(spec.accepted)]),
        ("spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position.", by_position),
    ]
