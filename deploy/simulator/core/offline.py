"""Simulation without sockets and faster than real time: arrivals in, instants and counters out.

    results = simulate([Arrival(at_s=0.1, prompt_tokens=800, output_tokens=200), ...], Offline.preset("a100-llama3-8b"))
    results.ttft_s.mean(), results.steps.running.max(), results.prefix_hits / results.prefix_queries

It uses the server's scheduler and step time. Differences: the front end delays an output by its place in the batch of its
step, without merging, and answers have the given length.
"""

import gc
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .hardware import Build, Preset, find, kv_blocks, step_cost
from .pipeline import Pipeline
from .queues import Limits
from .request import Request
from .scheduler import Scheduler, Step
from .speculation import Acceptance, SpecCounts
from .step_time import FrontEnd, StepClock, StepCost

NS_PER_S = 1_000_000_000
_AHEAD = 8  # hashes that are made before they are needed: several at once are quicker
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. Shared prefixes are given in one of two ways.

    `tokens`: the prompt as hashable tokens; `prompt_tokens` is then not needed. Or `session`: prompts of one session start
    with the session's earlier prompts and answers; their first `shared_tokens` tokens are common to all arrivals with the
    same `shared`. Without either nothing is shared.
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
    """Settings of a simulation. `max_s`: simulated end; None runs until all requests have ended."""

    limits: Limits
    cost: StepCost
    front_end: FrontEnd = field(default_factory=FrontEnd)
    acceptance_rate: float | tuple[float, ...] = 0.0  # of each draft, given those before it
    seed: int = 0
    max_s: float | None = None

    @classmethod
    def preset(cls, name: str, build: Build | None = None, **changes: Any) -> "Offline":
        """A preset's server with vLLM's defaults; `changes` are fields of `Limits`, or `seed`, `max_s` and the like."""
        found: Preset = find(name)
        build = build or Build()
        own = {key: changes.pop(key) for key in ("acceptance_rate", "seed", "max_s") if key in changes}
        size = changes.pop("block_size", found.block_size)
        blocks = changes.pop("blocks", None) or kv_blocks(found, build, 0.92, size) - 1
        settings: dict[str, Any] = {
            "max_num_seqs": found.max_num_seqs,
            "max_num_batched_tokens": found.max_num_batched_tokens,
            "max_model_len": min(found.model.max_model_len, blocks * size),
            "async_scheduling": found.async_scheduling,
        }
        limits = Limits(blocks=blocks, block_size=size, **{**settings, **changes})
        cost = step_cost(found, build, limits.max_num_seqs, 1 + limits.speculative_tokens)
        return cls(limits, cost, found.front_end, **own)


@dataclass(frozen=True, slots=True)
class Steps:
    """One row per step: its end, its tokens, and the state after it."""

    end_s: Floats
    tokens: Ints
    outputs: Ints
    running: Ints
    waiting: Ints
    kv_cache_usage: Floats


@dataclass(frozen=True, slots=True)
class Results:
    """One row per arrival, in the given order; NaN if not reached. Seconds on the arrivals' clock."""

    arrived_s: Floats
    queued_s: Floats  # when the scheduler had it, behind the front end and between two steps
    scheduled_s: Floats  # when the first step with a part of its prompt was planned
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


class _Session:
    """Block content by identity: block i of a session, or of the prefix that sessions share."""

    __slots__ = ("_own", "_shared", "_tokens")

    def __init__(self, name: Hashable, shared: Hashable, shared_tokens: int) -> None:
        self._own, self._shared, self._tokens = hash((name, "own")), hash((shared, "shared")), shared_tokens

    def extend(self, hashes: list[int], blocks: int, block_size: int) -> None:
        """Append hashes of (session or shared prefix, block number)."""
        common, begun, own = self._tokens // block_size, len(hashes), self._own
        if begun < common:
            hashes += [hash((self._shared, place)) for place in range(begun, min(common, blocks))]
            begun = len(hashes)
        if begun < blocks:
            hashes += [hash((own, place)) for place in range(begun, blocks + _AHEAD)]


def simulate(arrivals: Iterable[Arrival], config: Offline) -> Results:
    """Run every arrival through the scheduler, in simulated time.

    ValueError for a request that could never run: longer than max_model_len or than the whole KV cache, longer than a step
    where prompts are not computed in chunks, or without output.
    """
    collecting = gc.isenabled()
    gc.disable()  # nothing here refers to itself, and looking through millions of objects takes longer than the rest
    try:
        return _Run(list(arrivals), config).play()
    finally:
        if collecting:
            gc.enable()


class _Run:
    def __init__(self, arrivals: list[Arrival], config: Offline) -> None:
        bounds = config.limits
        if bounds.max_num_batched_tokens <= bounds.draft_slots or bounds.max_num_seqs < 1:
            raise ValueError(
                f"max_num_batched_tokens {bounds.max_num_batched_tokens}, draft_slots {bounds.draft_slots}, "
                f"max_num_seqs {bounds.max_num_seqs}: no request could ever run"
            )
        self._config = config
        self._arrivals = arrivals
        self._requests = [_request(each, number, config.limits) for number, each in enumerate(arrivals)]
        acceptance = Acceptance(config.limits.speculative_tokens, config.acceptance_rate, config.seed)
        self._scheduler = Scheduler(config.limits, acceptance if config.limits.speculative_tokens else None)
        self._pipeline = Pipeline(self._scheduler, StepClock(config.cost, config.seed))
        count = len(arrivals)
        self._row = {request: number for number, request in enumerate(self._requests)}
        self._scheduled, self._first, self._last = ([np.nan] * count for _ in range(3))
        self._steps: list[tuple[int, int, int, int, int, float]] = []
        self._front_free_s = 0.0

    def play(self) -> Results:
        front = self._config.front_end
        ready = [(round(a.at_s * NS_PER_S) + front.before_ns(r.prompt), r) for a, r in self._with_requests()]
        ready.sort(key=lambda pair: pair[0])
        pipeline, place, count = self._pipeline, 0, len(ready)
        limit_ns = None if self._config.max_s is None else round(self._config.max_s * NS_PER_S)
        while True:
            next_ns = pipeline.next_ns
            if place < count and (next_ns is None or ready[place][0] <= next_ns):
                now_ns, request = ready[place]
                place += 1
            elif next_ns is None:
                self._check_none_waits()
                break
            else:
                now_ns, request = next_ns, None
            if limit_ns is not None and now_ns > limit_ns:
                break
            if request is not None:
                pipeline.submit(request, now_ns)
                continue
            self._book(*pipeline.finish())
        return self._results()

    def _check_none_waits(self) -> None:
        """Raise ValueError for a request that is still queued when nothing else will happen."""
        for request in self._scheduler.waiting:
            raise ValueError(f"arrival {self._row[request]}: it never got into a step; see limits")

    def _with_requests(self) -> Iterable[tuple[Arrival, Request]]:
        return zip(self._arrivals, self._requests, strict=True)

    def _book(self, step: Step, end_ns: int) -> None:
        end_s, event_s = end_ns / NS_PER_S, self._config.front_end.event_s
        start_s = max(end_s, self._front_free_s)
        for request in step.admitted:
            if not request.preemptions:
                self._scheduled[self._row[request]] = step.planned_ns / NS_PER_S
        for place, request in step.firsts:
            row = self._row[request]
            if self._first[row] != self._first[row]:
                self._first[row] = start_s + event_s * (place + 1)
        for place, request in step.finishing:
            self._last[self._row[request]] = start_s + event_s * (place + 1)
        scheduler, outputs = self._scheduler, len(step.sampled)
        # A late front end merges pending tokens: at most one event of each request is pending.
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
            queued_s=np.array([each.queued_ns / NS_PER_S if each.queued_ns >= 0 else np.nan for each in requests]),
            scheduled_s=np.array(self._scheduled, dtype=np.float64),
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


def _never(prompt: int, output: int, limits: Limits) -> str:
    """Reason why a request could never run; empty if it can."""
    total = prompt + output
    if prompt < 1 or output < 1 or total > limits.max_model_len:
        return f"at least 1 each, and together at most max_model_len {limits.max_model_len}"
    ahead = limits.lookahead_tokens + limits.speculative_tokens * (2 if limits.async_scheduling else 1)
    slots = min(total - 1 + ahead, limits.max_model_len)  # the last token is never computed
    if -(-slots // limits.block_size) > limits.blocks:
        capacity = limits.blocks * limits.block_size
        return f"it would hold {slots} tokens, and the KV cache has {capacity}: raise blocks"
    if not limits.chunked_prefill and total - 1 > limits.max_num_batched_tokens - limits.draft_slots:
        return f"without chunked prefill more than max_num_batched_tokens {limits.max_num_batched_tokens}"
    return ""


def _request(arrival: Arrival, number: int, limits: Limits) -> Request:
    prompt = len(arrival.tokens) if arrival.tokens is not None else arrival.prompt_tokens
    if fault := _never(prompt, arrival.output_tokens, limits):
        raise ValueError(f"arrival {number}: {prompt} prompt and {arrival.output_tokens} output tokens; {fault}")
    name = ("one", number) if arrival.session is None else ("session", arrival.session)
    own = None if arrival.tokens is not None else _Session(name, arrival.shared, arrival.shared_tokens)
    return Request(
        arrival.tokens or (),
        arrival.output_tokens,
        answer=lambda place: ("answer", number, place),
        ends_itself=arrival.ends_itself,
        content=own,
        prompt=prompt,
        queued_ns=-1,
    )
