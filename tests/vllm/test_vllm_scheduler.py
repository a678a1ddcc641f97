"""The simulator's scheduler against vLLM on the CPU: equal counts for equal tokens.

Prompts are token ids, and the simulator uses the answers of the model. A request with several prompts begins with one as long
as the token budget of a step: all others are queued when the first step ends, so counts do not depend on time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import vllm_servers
from inferload.deploy.launcher import probe
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.simulator.core.queues import SchedulerLimits
from inferload.deploy.simulator.core.request import Request
from inferload.deploy.simulator.core.scheduler import Scheduler

pytestmark = pytest.mark.vllm

WORDS = range(300, 4000)  # ids that are plain tokens of the tiny model
COUNTERS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total")
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Call:
    """Request with several prompts. `tokens`: length of each answer."""

    prompts: Sequence[list[int]]
    tokens: int
    salt: str = "first"


@dataclass(frozen=True, slots=True)
class Answered:
    """Response of vLLM: token ids by prompt, and cached tokens."""

    token_ids: list[list[int]]
    cached_tokens: int


def post(server: LocalServer, call: Call) -> Answered:
    body = {
        **{"model": "tiny", "prompt": list(call.prompts), "max_tokens": call.tokens, "ignore_eos": True},
        **{"temperature": 0, "return_token_ids": True, "cache_salt": call.salt},
    }
    document = probe.ask(server.host, server.port, "/v1/completions", body, 120)
    choices = sorted(document["choices"], key=lambda each: each["index"])
    details = document["usage"].get("prompt_tokens_details") or {}
    return Answered([each["token_ids"] for each in choices], details.get("cached_tokens") or 0)


def samples(server: LocalServer) -> dict[str, float]:
    return {name: vllm_servers.value(server, f"{name}{{") for name in (*COUNTERS, *GAUGES)}


class Twin:
    """vLLM and a scheduler of the simulator, whose counts must be equal."""

    def __init__(self, server: LocalServer, limits: SchedulerLimits) -> None:
        self.server = server
        self.scheduler = Scheduler(limits)
        self.begun = samples(server)
        self.rows: list[tuple[Any, Any]] = []

    def ask(self, call: Call) -> list[list[int]]:
        """Send the call to both; return the answers."""
        answered = post(self.server, call)
        requests = [
            Request(prompt, call.tokens, lambda first, count, of=answer: of[first : first + count], call.salt)
            for prompt, answer in zip(call.prompts, answered.token_ids, strict=True)
        ]
        for each in requests:
            self.scheduler.submit(each)
        while (step := self.scheduler.schedule()) is not None:
            self.scheduler.update(step)
        cached = requests[0].cached_tokens if len(requests) == 1 else None  # vLLM reports it for single prompts only
        now = samples(self.server)
        reported = answered.cached_tokens if len(requests) == 1 else None
        real = (reported, *(now[name] - self.begun[name] for name in COUNTERS))
        own = (cached, self.scheduler.prefix_queries, self.scheduler.prefix_hits, self.scheduler.preemptions)
        self.rows.append((real, own))
        assert [now[name] for name in GAUGES] == [0, 0, 0]
        assert (len(self.scheduler.running), len(self.scheduler.waiting), self.scheduler.pool.usage) == (0, 0, 0)
        return answered.token_ids

    def check(self) -> None:
        """Check the cached tokens of each call and the counters after it."""
        assert [real for real, _own in self.rows] == [own for _real, own in self.rows]


@pytest.fixture(scope="module")
def twin(vllm_small: LocalServer) -> Twin:
    """A cache of 39 blocks, which holds one long prompt but not four."""
    assert probe.empty_prefix_cache(vllm_small.host, vllm_small.port)
    limits = {"max_num_seqs": 4, "blocks": 39, "max_model_len": 2048, "max_num_batched_tokens": 512}
    return Twin(vllm_small, SchedulerLimits(block_size=vllm_servers.BLOCK, async_scheduling=False, **limits))


def words(dice: Random, count: int) -> list[int]:
    return [dice.choice(WORDS) for _ in range(count)]


def test_sequential_prompts_hit_the_same_tokens(twin: Twin) -> None:
    dice = Random(1)
    text = words(dice, 600)
    for length in (127, 128, 129, 255, 256, 257, 600, 600, 384, 385):
        twin.ask(Call([text[:length]], 2))
    twin.ask(Call([text[:400]], 2, salt="second"))
    twin.ask(Call([text[:400]], 2, salt="second"))
    twin.check()


def test_turns_of_a_conversation_hit_earlier_replies(twin: Twin) -> None:
    dice = Random(2)
    history = words(dice, 200)
    for _turn in range(4):
        (answer,) = twin.ask(Call([history], 70, salt="talk"))
        history = [*history, *answer, *words(dice, 30)]
    twin.check()


def test_a_cache_that_is_too_small_evicts_the_same_blocks(twin: Twin) -> None:
    dice = Random(3)
    texts = [words(dice, dice.randrange(300, 1500)) for _ in range(7)]
    for _ in range(16):
        text = dice.choice(texts)
        twin.ask(Call([text[: dice.randrange(200, len(text))]], 3, salt="small"))
    twin.check()


def test_concurrent_prompts_share_blocks_while_computed(twin: Twin) -> None:
    dice = Random(4)
    for _ in range(2):
        front = words(dice, 300)
        twin.ask(Call([words(dice, 800), *([*front, *words(dice, 50)] for _ in range(5)), front], 20, salt="many"))
    twin.check()


def test_a_cache_that_is_too_small_preempts_as_often(twin: Twin) -> None:
    dice = Random(5)
    for _ in range(3):
        twin.ask(Call([words(dice, dice.randrange(1050, 1270)) for _ in range(4)], 130, salt="crowd"))
    twin.check()
    assert twin.scheduler.preemptions >= 3
