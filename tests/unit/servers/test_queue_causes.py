"""Causes of a queue at a made scheduler, which counts why it stopped admitting requests."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Struct, field
from window_evidence import changed, window_evidence

from inferload.servers.bottleneck.evidence import EngineQueue, KvBlocks, Scrapes, WindowEvidence
from inferload.servers.bottleneck.finding import LEAST_QUEUE_MS
from inferload.servers.bottleneck.rules import judge

STEP_S, STEPS, SETTLED, BLOCK = 0.02, 1500, 300, 16
CAUSE_OF = {"slots": "queue-bound", "blocks": "kv-bound", "budget": "prefill-bound"}


class Request(Struct):
    """Request with the tokens that are left of it. `at`: steps at which it was sent, begun, had its first token, ended."""

    user: int
    prompt: int
    output: int
    size: int
    at: list[int]


class Engine(Struct):
    """Scheduler like that of vLLM: a token budget for each step, sequence slots, and free KV cache for the whole request."""

    slots: int
    budget: int
    tokens: int
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)
    stopped_by: Counter[str] = field(default_factory=Counter)

    @property
    def used(self) -> int:
        """Tokens of the KV cache in use."""
        return sum(request.size for request in self.running)

    def step(self, now: int) -> list[Request]:
        """Run one step, and return the requests that end."""
        budget = self.budget - sum(not request.prompt for request in self.running)
        for request in self.running:
            budget -= self._prefill(request, budget)
        while self.waiting:
            head = self.waiting[0]
            full = {
                "slots": len(self.running) >= self.slots,
                "budget": budget <= 0,
                "blocks": head.size > self.tokens - self.used,
            }
            why = next((name for name, holds in full.items() if holds), None)
            if why is not None:
                self.stopped_by[why] += now >= SETTLED
                break
            head.at.append(now)
            self.running.append(self.waiting.popleft())
            budget -= self._prefill(head, budget)
        for request in self.running:
            if not request.prompt:
                request.at += [now + 1] if len(request.at) == 2 else []
                request.output -= 1
        ended = [request for request in self.running if not request.output]
        self.running = [request for request in self.running if request.output]
        for request in ended:
            request.at.append(now + 1)
        self.ended += ended if now >= SETTLED else []
        return ended

    @staticmethod
    def _prefill(request: Request, budget: int) -> int:
        part = max(0, min(request.prompt, budget))
        request.prompt -= part
        return part


def observed(
    engines: list[Engine], route: Callable[[int], int], *, users: int, prompt: int, output: int, back: int = 1
) -> WindowEvidence:
    """Return the evidence of a closed loop with all that can be known. `back`: steps until a user returns."""
    rng = np.random.default_rng(users)
    due = [(user % 7, user) for user in range(users)]
    rows, heads, usage = [], [], []
    for now in range(STEPS):
        for _, user in [entry for entry in due if entry[0] <= now]:
            tokens = round(output * float(rng.uniform(0.5, 1.5))) + 1
            engines[route(user)].waiting.append(Request(user, prompt, tokens, prompt + tokens, [now]))
        due = [entry for entry in due if entry[0] > now]
        for engine in engines:
            due += [(now + 1 + back, request.user) for request in engine.step(now)]
        if now >= SETTLED and not now % 7:
            rows.append([(len(engine.running), len(engine.waiting)) for engine in engines])
            heads.append(engines[0].waiting[0].size if engines[0].waiting else np.nan)
            usage.append(max(engine.used / engine.tokens for engine in engines))
    each, steps = np.array(rows, dtype=float), np.array([r.at for engine in engines for r in engine.ended])
    assume(len(steps) >= 20)
    queue_ms, prefill_ms, decode_ms = 1000 * STEP_S * np.diff(steps, axis=1).mean(axis=0)
    scrapes = Scrapes(
        7 * STEP_S * np.arange(len(each)), *each.sum(axis=1).T, np.zeros(len(each)), np.array(usage), np.array(heads, float),
        tuple(EngineQueue(*of.T) for of in each.transpose(1, 0, 2)) if len(engines) > 1 else (),
    )  # fmt: skip
    return window_evidence(
        scrapes,
        (STEPS - SETTLED) * STEP_S,
        max_num_seqs=engines[0].slots,
        engines=len(engines),
        kv=KvBlocks(engines[0].tokens / BLOCK, BLOCK),
        finished=len(steps),
        queue_ms=queue_ms,
        prefill_ms=prefill_ms,
        decode_ms=decode_ms,
        server_itl_ms=1000 * STEP_S,
    )


def truth_of(engines: list[Engine]) -> tuple[str | None, float]:
    """Return the cause of most of the steps at which requests had to wait, and its share."""
    (why, most), *_ = sum((engine.stopped_by for engine in engines), Counter[str]()).most_common(1) or [("", 0)]
    return CAUSE_OF.get(why), most / max(1, sum(engine.stopped_by.total() for engine in engines))


closed_loops = st.fixed_dictionaries(
    {
        "users": st.integers(2, 40),
        "prompt": st.sampled_from([20, 200, 1500, 6000]),
        "output": st.sampled_from([1, 4, 30, 120]),
        "back": st.integers(0, 20),
    }
)


machines = st.builds(
    Engine, st.integers(1, 24), st.sampled_from([512, 2048]), st.sampled_from([7_000, 20_000, 200_000])
)


@given(machines, closed_loops)
def test_with_all_figures_the_cause_of_a_queue_is_the_reason_why_the_scheduler_stopped(
    one: Engine, load: dict[str, Any]
) -> None:
    evidence = observed([one], lambda user: 0, **load)
    primary, (truth, share) = judge(evidence).primary, truth_of([one])
    if share >= 0.9 and evidence.waiting_share >= 0.5 and (evidence.served.queue_ms or 0) >= LEAST_QUEUE_MS:
        assert primary is not None
        assert primary.code == truth


@given(
    machines, closed_loops, st.sampled_from([{"max_num_seqs": None}, {"kv": None}, {"max_num_seqs": None, "kv": None}])
)
def test_with_some_figures_a_certain_cause_is_the_reason(
    one: Engine, load: dict[str, Any], unknown: dict[str, Any]
) -> None:
    evidence = changed(observed([one], lambda user: 0, **load), **unknown)
    primary = judge(evidence).primary
    if evidence.queued and primary is not None and primary.code != "kv-bound" and not primary.probable:
        why = next(name for name, code in CAUSE_OF.items() if code == primary.code)
        assert one.stopped_by[why] >= 0.5 * one.stopped_by.total()


@given(st.integers(2, 12), st.integers(2, 4), st.sampled_from([4, 30, 120]), st.booleans())
def test_slots_are_those_of_each_engine(slots: int, count: int, output: int, all_on_one: bool) -> None:
    engines = [Engine(slots, 2048, 200_000) for _ in range(count)]
    users = 3 * slots * (1 if all_on_one else count)
    evidence = observed(engines, lambda user: 0 if all_on_one else user % count, users=users, prompt=20, output=output)
    codes = [finding.code for finding in judge(evidence).findings]
    assert codes == (["engines-unbalanced", "queue-bound"] if all_on_one else ["queue-bound"])
    assert {finding.code for finding in judge(changed(evidence, max_num_seqs=None)).findings} <= set(codes)
