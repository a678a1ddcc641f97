"""Causes of a queue against the simulator's scheduler, a model of vLLM's: its state says why it stopped admitting requests."""

from collections import Counter

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from inferload.deploy.simulator.core.queues import SchedulerLimits
from inferload.deploy.simulator.core.request import Request
from inferload.deploy.simulator.core.scheduler import Scheduler
from window_evidence import changed, window_evidence

from inferload.servers.bottleneck.evidence import EngineQueue, KvBlocks, Scrapes, WindowEvidence
from inferload.servers.bottleneck.finding import LEAST_QUEUE_MS
from inferload.servers.bottleneck.rules import judge

STEP_S, STEPS, SETTLED, SCRAPE = 0.02, 1200, 200, 7
CODES = ("queue-bound", "prefill-bound", "kv-bound", "preemption-thrash")


def observed(
    limits: SchedulerLimits, load: tuple[int, int, int, int], engines: int = 1, used: int = 1
) -> tuple[WindowEvidence, Counter[str]]:
    """Return the evidence of a closed loop with all that can be known, and the causes of the steps at which requests waited.

    `load`: users, tokens of prompt and answer, steps until a user returns. `used`: engines that get requests.
    """
    users, prompt, output, back = load
    rng, causes = np.random.default_rng(users), Counter[str]()
    schedulers = [Scheduler(limits) for _ in range(engines)]
    due = [(user % 7, user) for user in range(users)]
    at: dict[Request, list[int]] = {}  # its user; steps at which it was sent, begun, had its first token
    rows, heads, usage, times = [], [], [], []
    for now in range(STEPS):
        for _, user in [entry for entry in due if entry[0] <= now]:
            request = Request(range(prompt), round(output * float(rng.uniform(0.5, 1.5))) + 1, int)
            at[request] = [user, now]
            schedulers[user % used].submit(request)
        due = [entry for entry in due if entry[0] > now]
        for engine in schedulers:
            step = engine.schedule()
            if step is None:
                continue
            if engine.waiting and now >= SETTLED:
                slots, budget = len(engine.running) >= limits.max_num_seqs, step.tokens >= limits.max_num_batched_tokens
                full = (slots, budget, not step.preempted, True)
                causes[next(code for code, holds in zip(CODES, full, strict=True) if holds)] += 1
            for request in step.admitted:
                at[request] += [now] if len(at[request]) == 2 else []
            for _, request in step.firsts:
                at[request] += [now + 1] if len(at[request]) == 3 else []
            engine.update(step)
            for _, request in step.finishing:
                due.append((now + 1 + back, at[request][0]))
                times += [[*at[request][1:], now + 1]] if now >= SETTLED else []
        if now >= SETTLED and not now % SCRAPE:
            rows.append([(len(engine.running), len(engine.waiting)) for engine in schedulers])
            heads.append(schedulers[0].waiting[0].length if schedulers[0].waiting else np.nan)
            usage.append(max(engine.pool.usage for engine in schedulers))
    assume(len(times) >= 20)
    each, means_ms = np.array(rows, float), 1000 * STEP_S * np.diff(times, axis=1).mean(axis=0)
    at_s = SCRAPE * STEP_S * np.arange(len(each))
    by_engine = tuple(EngineQueue(at_s, *one.T) for one in each.transpose(1, 0, 2))
    others = (np.zeros(len(each)), np.array(usage), np.array(heads, float))
    evidence = window_evidence(
        Scrapes(at_s, *each.sum(axis=1).T, *others, by_engine),
        (STEPS - SETTLED) * STEP_S,
        max_num_seqs=limits.max_num_seqs,
        engines=engines,
        kv=KvBlocks(limits.blocks, limits.block_size),
        preemptions=sum(engine.preemptions for engine in schedulers),
        finished=len(times),
        server_itl_ms=1000 * STEP_S,
        **dict(zip(("queue_ms", "prefill_ms", "decode_ms"), means_ms, strict=True)),
    )
    return evidence, causes


def limits(slots: int, budget: int, blocks: int) -> SchedulerLimits:
    return SchedulerLimits(slots, blocks, caching=False, max_num_batched_tokens=budget, async_scheduling=False)


servers = st.builds(limits, st.integers(1, 24), st.sampled_from([512, 2048]), st.sampled_from([450, 1250, 12_500]))
prompts, outputs = st.sampled_from([20, 200, 1500, 6000]), st.sampled_from([4, 30, 120])
closed_loops = st.tuples(st.integers(2, 40), prompts, outputs, st.integers(0, 20))
unknown = st.sets(st.sampled_from(["max_num_seqs", "kv"]))


@given(servers, closed_loops, unknown)
def test_the_cause_of_a_queue_is_the_reason_why_the_scheduler_stopped(
    server: SchedulerLimits, load: tuple[int, int, int, int], unknown: set[str]
) -> None:
    evidence, causes = observed(server, load)
    (truth, most), *_ = causes.most_common(1) or [("", 0)]
    clear = most >= 0.9 * causes.total() and (evidence.served.queue_ms or 0.0) >= LEAST_QUEUE_MS
    if clear and evidence.waiting_share >= 0.5:
        primary = judge(evidence).primary
        assert primary is not None
        assert primary.code == truth
    primary = judge(changed(evidence, **dict.fromkeys(unknown))).primary
    if evidence.queued and primary is not None and primary.code in CODES[:2] and not primary.probable:
        assert causes[primary.code] >= 0.5 * causes.total()


@given(st.integers(2, 12), st.integers(2, 4), outputs, st.booleans())
def test_slots_are_those_of_each_engine(slots: int, engines: int, output: int, all_on_one: bool) -> None:
    used = 1 if all_on_one else engines
    evidence, _ = observed(limits(slots, 2048, 12_500), (3 * slots * used, 20, output, 1), engines, used)
    codes = [finding.code for finding in judge(evidence).findings]
    assert codes == (["engines-unbalanced", "queue-bound"] if all_on_one else ["queue-bound"])
    assert {finding.code for finding in judge(changed(evidence, max_num_seqs=None)).findings} <= set(codes)
