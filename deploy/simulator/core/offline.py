"""Simulation without sockets, faster than real time: requests in, times and counters out.

    requests = [OfflineRequest(at_s=0.1, prompt_tokens=800, output_tokens=200), ...]
    results = simulate(requests, Offline.preset("a100-llama3-8b"))
    results.ttft_s.mean(), results.steps.running.max(), results.prefix_hits / results.prefix_queries

It uses the scheduler and step model of the server. Differences: the front end delays an output by its position in the step,
without merging, and answers have the requested length.
"""

import gc
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from .hardware import Build, Preset, find, kv_blocks, step_cost
from .pipeline import Pipeline
from .queues import SchedulerLimits
from .request import Request
from .scheduler import Scheduler, Step
from .speculation import Acceptance, SpecCounts
from .step_time import NS_PER_S, FrontEnd, StepClock, StepCost

_NEVER_NS = 1 << 62
_AHEAD = 8  # hashes computed ahead: several at once are faster
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One request and its arrival. Shared prefixes are defined by `tokens` or by `session`; without either nothing is shared.

    `tokens`: the prompt as hashable tokens, instead of `prompt_tokens`. `session`: prompts of a session start with its earlier
    prompts and answers; their first `shared_tokens` tokens are common to all requests with the same `shared`.
    """

    at_s: float
    output_tokens: int
    prompt_tokens: int = 0
    tokens: Sequence[Hashable] | None = None
    session: Hashable = None
    shared: Hashable = None
    shared_tokens: int = 0
    ends_itself: bool = True


@dataclass(frozen=True, slots=True)
class Offline:
    """Settings of a simulation. `max_s`: simulated end; None: run until all requests have ended."""

    limits: SchedulerLimits
    cost: StepCost
    front_end: FrontEnd = field(default_factory=FrontEnd)
    acceptance_rate: float = 0.0  # per draft, given those before
    seed: int = 0
    max_s: float | None = None

    @classmethod
    def preset(cls, name: str, build: Build | None = None, **changes: Any) -> "Offline":
        """Build a preset's server with vLLM's defaults; `changes` are fields of `SchedulerLimits` or of this class."""
        selected: Preset = find(name)
        build = build or Build()
        settings = {key: changes.pop(key) for key in ("acceptance_rate", "seed", "max_s") if key in changes}
        size = changes.pop("block_size", selected.block_size)
        blocks = changes.pop("blocks", None) or kv_blocks(selected, build, 0.92, size) - 1
        defaults: dict[str, Any] = {
            "max_num_seqs": selected.max_num_seqs,
            "max_num_batched_tokens": selected.max_num_batched_tokens,
            "max_model_len": min(selected.model.max_model_len, blocks * size),
            "async_scheduling": selected.async_scheduling,
        }
        limits = SchedulerLimits(blocks=blocks, block_size=size, **{**defaults, **changes})
        cost = step_cost(selected, build, limits.max_num_seqs, 1 + limits.speculative_tokens)
        return cls(limits, cost, selected.front_end, **settings)


@dataclass(frozen=True, slots=True)
class Steps:
    """One row per step: end, tokens, and state after it."""

    end_s: Floats
    tokens: Ints
    outputs: Ints
    running: Ints
    waiting: Ints
    kv_cache_usage: Floats


@dataclass(frozen=True, slots=True)
class Results:
    """One row per request, in the order of the input; NaN if not reached. Times in seconds on the clock of `at_s`."""

    arrived_s: Floats
    queued_s: Floats  # entry into the scheduler's queue, after the front end and between two steps
    scheduled_s: Floats  # plan of the first step with a part of its prompt
    first_s: Floats
    last_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    preemptions: Ints
    steps: Steps
    prefix_queries: int
    prefix_hits: int
    preempted: int
    speculation: SpecCounts | None

    @property
    def ttft_s(self) -> Floats:
        """Arrival to first token."""
        return self.first_s - self.arrived_s

    @property
    def e2e_s(self) -> Floats:
        """Arrival to last token."""
        return self.last_s - self.arrived_s

    @property
    def tpot_s(self) -> Floats:
        """(last - first) / (output tokens - 1); NaN for a single token."""
        more = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        result: Floats = (self.last_s - self.first_s) / more
        return result


@dataclass(slots=True, eq=False)
class _SessionRequest(Request):
    """Request with block content by identity: block i of a session, or of the shared prefix."""

    own: int = 0  # hash of the session
    shared: int = 0  # hash of the shared prefix
    shared_tokens: int = 0

    def extend_hashes(self, blocks: int, block_size: int) -> None:
        """Append hashes of session (or shared prefix) and block number."""
        hashes, own = self.hashes, self.own
        common, known = self.shared_tokens // block_size, len(hashes)
        if known < common:
            hashes += [hash((self.shared, block)) for block in range(known, min(common, blocks))]
            known = len(hashes)
        if known < blocks:
            hashes += [hash((own, block)) for block in range(known, blocks + _AHEAD)]


def simulate(arrivals: Iterable[OfflineRequest], config: Offline) -> Results:
    """Run all requests through the scheduler in simulated time.

    Raise ValueError for a request that can never run: longer than max_model_len or the whole KV cache, longer than a step
    without chunked prefill, or without output.
    """
    collecting = gc.isenabled()
    gc.disable()  # there are no cycles, and scanning millions of objects takes longer than the simulation
    try:
        return _Run(list(arrivals), config).run()
    finally:
        if collecting:
            gc.enable()


class _Run:
    def __init__(self, arrivals: list[OfflineRequest], config: Offline) -> None:
        bounds = config.limits
        if bounds.max_num_batched_tokens < 1 or bounds.max_num_seqs < 1:
            raise ValueError(
                f"max_num_batched_tokens {bounds.max_num_batched_tokens}, max_num_seqs {bounds.max_num_seqs}: "
                "no request can run; raise them"
            )
        self._config = config
        self._arrivals = arrivals
        self._requests = [_request(each, number, config.limits) for number, each in enumerate(arrivals)]
        acceptance = Acceptance(config.limits.speculative_tokens, config.acceptance_rate, config.seed)
        self._scheduler = Scheduler(config.limits, acceptance)
        self._pipeline = Pipeline(self._scheduler, StepClock(config.cost, config.seed))
        count = len(arrivals)
        self._row = {request: number for number, request in enumerate(self._requests)}
        self._first, self._last = [np.nan] * count, [np.nan] * count
        self._steps: list[tuple[int, int, int, int, int, float]] = []
        self._front_free_s = 0.0

    def run(self) -> Results:
        front = self._config.front_end
        pairs = zip(self._arrivals, self._requests, strict=True)
        times = ((round(each.at_s * NS_PER_S) + front.before_ns(request.prompt), request) for each, request in pairs)
        ready, pipeline = deque(sorted(times, key=itemgetter(0))), self._pipeline
        limit_ns = _NEVER_NS - 1 if self._config.max_s is None else round(self._config.max_s * NS_PER_S)
        while True:
            arrival_ns = ready[0][0] if ready else _NEVER_NS
            step_ns = _NEVER_NS if pipeline.next_ns is None else pipeline.next_ns
            if min(arrival_ns, step_ns) > limit_ns:
                break
            if arrival_ns <= step_ns:
                pipeline.submit(ready.popleft()[1], arrival_ns)
            else:
                self._record(*pipeline.finish())
        if arrival_ns == step_ns == _NEVER_NS and (waiting := self._scheduler.waiting):
            raise ValueError(f"arrival {self._row[waiting[0]]}: it was never scheduled; raise the limits")
        return self._results()

    def _record(self, step: Step, end_ns: int) -> None:
        end_s, event_s = end_ns / NS_PER_S, self._config.front_end.event_s
        start_s = max(end_s, self._front_free_s)
        for index, request in step.firsts:
            row = self._row[request]
            if self._first[row] != self._first[row]:
                self._first[row] = start_s + event_s * (index + 1)
        for index, request in step.finishing:
            self._last[self._row[request]] = start_s + event_s * (index + 1)
        scheduler, outputs = self._scheduler, len(step.sampled)
        # A late front end merges pending tokens: at most one event per request is pending.
        self._front_free_s = min(start_s, end_s + event_s * outputs) + event_s * outputs
        self._steps.append(
            (end_ns, step.tokens, outputs, len(scheduler.running), len(scheduler.waiting), scheduler.pool.usage)
        )

    def _results(self) -> Results:
        table = np.array(self._steps, dtype=np.float64).reshape(-1, 6)
        tokens, outputs, running, waiting = (table[:, column].astype(np.int64) for column in range(1, 5))
        scheduler, requests = self._scheduler, self._requests
        speculation = scheduler.speculation
        return Results(
            arrived_s=np.array([each.at_s for each in self._arrivals], dtype=np.float64),
            queued_s=_seconds([each.queued_ns for each in requests]),
            scheduled_s=_seconds([each.admitted_ns for each in requests]),
            first_s=np.array(self._first, dtype=np.float64),
            last_s=np.array(self._last, dtype=np.float64),
            prompt_tokens=np.array([each.prompt for each in requests], dtype=np.int64),
            output_tokens=np.array([each.output_tokens for each in requests], dtype=np.int64),
            cached_tokens=np.array([each.cached_tokens or 0 for each in requests], dtype=np.int64),
            preemptions=np.array([each.preemptions for each in requests], dtype=np.int64),
            steps=Steps(table[:, 0] / NS_PER_S, tokens, outputs, running, waiting, table[:, 5]),
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preempted=sum(each.preemptions for each in requests),
            speculation=speculation.counts if speculation is not None else None,
        )


def _seconds(times_ns: list[int]) -> Floats:
    """Times in seconds; NaN if negative: not reached."""
    times = np.array(times_ns, dtype=np.float64)
    return np.where(times < 0, np.nan, times / NS_PER_S)


def _obstacle(prompt: int, output: int, limits: SchedulerLimits) -> str:
    """Reason why a request can never run; empty if it can."""
    total = prompt + output
    if prompt < 1 or output < 1 or total > limits.max_model_len:
        return f"needs at least 1 each, and at most max_model_len {limits.max_model_len} together"
    ahead = limits.speculative_tokens * (2 if limits.async_scheduling else 1)
    slots = min(total - 1 + ahead, limits.max_model_len)  # the last token is never computed
    if -(-slots // limits.block_size) > limits.blocks:
        capacity = limits.blocks * limits.block_size
        return f"it needs {slots} tokens of the KV cache, which has {capacity}; raise blocks"
    if not limits.chunked_prefill and total - 1 > limits.max_num_batched_tokens:
        return f"more than max_num_batched_tokens {limits.max_num_batched_tokens}, without chunked prefill"
    return ""


def _request(arrival: OfflineRequest, number: int, limits: SchedulerLimits) -> Request:
    prompt = len(arrival.tokens) if arrival.tokens is not None else arrival.prompt_tokens
    if fault := _obstacle(prompt, arrival.output_tokens, limits):
        raise ValueError(f"arrival {number}: {prompt} prompt and {arrival.output_tokens} output tokens; {fault}")
    kind: type[Request] = Request
    more: dict[str, Any] = {}
    if arrival.tokens is None:
        name = ("one", number) if arrival.session is None else ("session", arrival.session)
        kind, more = _SessionRequest, {"own": hash((name, "own")), "shared": hash((arrival.shared, "shared"))}
        more["shared_tokens"] = arrival.shared_tokens
    return kind(
        arrival.tokens or (),
        arrival.output_tokens,
        answer=lambda first, count: [("answer", number, index) for index in range(first, first + count)],
        ends_itself=arrival.ends_itself,
        prompt=prompt,
        queued_ns=-1,
        **more,
    )
