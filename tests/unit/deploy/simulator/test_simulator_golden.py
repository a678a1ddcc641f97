"""Digests of all results of the simulated clock by setting: they must not change between versions."""

import hashlib
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest
from inferload.deploy.simulator.core.hardware import Build
from inferload.deploy.simulator.core.offline import Offline, OfflineRequest, Results, simulate

BATCH = Offline.preset("h200-qwen3-32b", Build(tensor_parallel=8), seed=3)
SMALL = Offline.preset("t4-qwen3-4b", seed=4)
TIGHT = replace(SMALL.limits, max_num_seqs=24, blocks=180, max_model_len=2048)

SETTINGS: dict[str, Offline] = {
    "many at once": BATCH,
    "many at once, cut off": replace(BATCH, max_s=2.0),
    "no caching": replace(BATCH, limits=replace(BATCH.limits, caching=False)),
    "no planning ahead": replace(BATCH, limits=replace(BATCH.limits, async_scheduling=False)),
    "starved": replace(SMALL, limits=TIGHT),
    "starved, no caching": replace(SMALL, limits=replace(TIGHT, caching=False)),
    "starved, no planning ahead": replace(SMALL, limits=replace(TIGHT, async_scheduling=False)),
    "watermark": replace(SMALL, limits=replace(TIGHT, watermark=0.05)),
    "small chunks": replace(SMALL, limits=replace(TIGHT, max_num_batched_tokens=64)),
    "budget of a batch": replace(SMALL, limits=replace(TIGHT, max_num_batched_tokens=16)),
    "whole prompts": replace(SMALL, limits=replace(TIGHT, max_num_batched_tokens=2048, chunked_prefill=False)),
    "long prompts held back": replace(SMALL, limits=replace(TIGHT, long_prefill_token_threshold=50)),
    "chunks before all of them fits": replace(SMALL, limits=replace(TIGHT, reserve_full_prompt=False)),
    "drafts": replace(SMALL, limits=replace(TIGHT, speculative_tokens=3), acceptance_rate=0.7),
    "drafts with room": replace(BATCH, limits=replace(BATCH.limits, speculative_tokens=2), acceptance_rate=0.6),
}


def alone(dice: Random, at_s: float, ends_itself: bool) -> OfflineRequest:
    """A request with a unique prompt."""
    return OfflineRequest(at_s, dice.randrange(1, 200), dice.randrange(1, 400), ends_itself=ends_itself)


def in_session(dice: Random, at_s: float, ends_itself: bool) -> OfflineRequest:
    """A request of one of 20 sessions, with one of two system prompts."""
    own = dice.randrange(20)
    output, prompt = dice.randrange(1, 200), dice.randrange(60, 400)
    return OfflineRequest(at_s, output, prompt, session=own, shared=own % 2, shared_tokens=50, ends_itself=ends_itself)


def in_words(dice: Random, at_s: float, ends_itself: bool) -> OfflineRequest:
    """A request with prompt tokens; the first four may be shared."""
    words = tuple(f"{dice.randrange(2)}" if index < 4 else f"w{index}" for index in range(dice.randrange(1, 300)))
    return OfflineRequest(at_s, dice.randrange(1, 150), tokens=words, ends_itself=ends_itself)


def mixed(dice: Random, at_s: float, ends_itself: bool) -> OfflineRequest:
    """A request of any kind."""
    return dice.choice((alone, in_session, in_words))(dice, at_s, ends_itself)


KINDS: dict[str, Callable[[Random, float, bool], OfflineRequest]] = {
    "alone": alone,
    "in sessions": in_session,
    "mixed": mixed,
}


def arrivals(kind: Callable[[Random, float, bool], OfflineRequest], seed: str) -> list[OfflineRequest]:
    """150 requests in three seconds; a third has a forced length."""
    dice = Random(seed)
    at_s = sorted(dice.random() * 3 for _ in range(150))
    return [kind(dice, each, dice.random() < 0.67) for each in at_s]


def digest(results: Results) -> str:
    """Return a hash of all values."""
    hasher = hashlib.sha256()
    for part in (results, results.steps):
        for each in fields(part):
            value = getattr(part, each.name)
            if isinstance(value, np.ndarray):
                hasher.update(value.tobytes())
            elif each.name != "steps":
                hasher.update(repr(value).encode())
    return hasher.hexdigest()[:24]


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_the_simulated_clock_do_not_change(kind: str, golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, config in SETTINGS.items():
        results = simulate(arrivals(KINDS[kind], f"{kind}/{name}"), config)
        counts = f"{len(results.steps.end_s)} steps, {results.prefix_hits} hits, {results.preempted} preempted"
        lines.append(f"{name}: {counts}, {digest(results)}\n")
    golden(f"simulated-{kind.replace(' ', '-')}.txt", "".join(lines))
