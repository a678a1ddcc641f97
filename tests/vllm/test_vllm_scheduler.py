"""The simulator's scheduler against vLLM on the CPU: equal counts for equal tokens.

Prompts are token ids, and the simulator uses the answers of the model. A request with several prompts begins with one as long
as the token budget of a step: all others are queued when the first step ends, so counts do not depend on time.
"""

import http.client
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec
from inferload.deploy.simulator.core.queues import SchedulerLimits
from inferload.deploy.simulator.core.request import Request
from inferload.deploy.simulator.core.scheduler import Scheduler
from ports import unused_port
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.vllm

BLOCK = 128  # tokens, of vLLM's KV blocks on the CPU
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
        "model": "tiny",
        "prompt": list(call.prompts),
        "max_tokens": call.tokens,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
        "cache_salt": call.salt,
    }
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    assert response.status == 200, document
    choices = sorted(document["choices"], key=lambda each: each["index"])
    details = document["usage"].get("prompt_tokens_details") or {}
    return Answered([each["token_ids"] for each in choices], details.get("cached_tokens") or 0)


def samples(server: LocalServer) -> dict[str, float]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    names = {*COUNTERS, *GAUGES}
    families = text_string_to_metric_families(text)
    return {each.name: each.value for family in families for each in family.samples if each.name in names}


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
            Request(prompt, call.tokens, answer.__getitem__, call.salt)
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


def twin(*flags: str, **limits: Any) -> Iterator[Twin]:
    _, cores = launch.split_cores(launch.available_cores())
    always = ("--max-num-batched-tokens", str(limits["max_num_batched_tokens"]), "--max-num-seqs", "4")
    blocks = ("--num-gpu-blocks-override", str(limits["blocks"] + 1), "--max-model-len", str(limits["max_model_len"]))
    spec = ServerSpec(engine="vllm-cpu", port=unused_port(), cores=cores, extra=(*always, *blocks, *flags))
    with local.serving(spec) as server:
        yield Twin(server, SchedulerLimits(max_num_seqs=4, block_size=BLOCK, async_scheduling=False, **limits))


@pytest.fixture(scope="module")
def roomy() -> Iterator[Twin]:
    """A cache of 39 blocks, which holds one long prompt but not four."""
    yield from twin(blocks=39, max_model_len=2048, max_num_batched_tokens=512)


@pytest.fixture(scope="module")
def plain() -> Iterator[Twin]:
    """Without prefix caching and chunked prefill."""
    flags = ("--no-enable-prefix-caching", "--no-enable-chunked-prefill")
    limits = {"blocks": 12, "max_model_len": 512, "max_num_batched_tokens": 512}
    yield from twin(*flags, **limits, caching=False, chunked_prefill=False)


def words(dice: Random, count: int) -> list[int]:
    return [dice.choice(WORDS) for _ in range(count)]


def test_sequential_prompts_hit_the_same_tokens(roomy: Twin) -> None:
    dice = Random(1)
    text = words(dice, 600)
    for length in (127, 128, 129, 255, 256, 257, 600, 600, 384, 385):
        roomy.ask(Call([text[:length]], 2))
    roomy.ask(Call([text[:400]], 2, salt="second"))
    roomy.ask(Call([text[:400]], 2, salt="second"))
    roomy.check()


def test_turns_of_a_conversation_hit_earlier_replies(roomy: Twin) -> None:
    dice = Random(2)
    history = words(dice, 200)
    for _turn in range(4):
        (answer,) = roomy.ask(Call([history], 70, salt="talk"))
        history = [*history, *answer, *words(dice, 30)]
    roomy.check()


def test_a_cache_that_is_too_small_evicts_the_same_blocks(roomy: Twin) -> None:
    dice = Random(3)
    texts = [words(dice, dice.randrange(300, 1500)) for _ in range(7)]
    for _ in range(16):
        text = dice.choice(texts)
        roomy.ask(Call([text[: dice.randrange(200, len(text))]], 3, salt="small"))
    roomy.check()


def test_concurrent_prompts_share_blocks_while_computed(roomy: Twin) -> None:
    dice = Random(4)
    for _ in range(2):
        front = words(dice, 300)
        roomy.ask(Call([words(dice, 800), *([*front, *words(dice, 50)] for _ in range(5)), front], 20, salt="many"))
    roomy.check()


def crowd(dice: Random, lengths: range, tokens: int) -> Call:
    """Return four prompts that exceed a small cache; the first fills a step."""
    return Call([words(dice, dice.choice(lengths)) for _ in range(4)], tokens, salt="crowd")


def test_a_cache_that_is_too_small_preempts_as_often(roomy: Twin) -> None:
    dice = Random(5)
    for _ in range(3):
        roomy.ask(crowd(dice, range(1050, 1270), 130))
    roomy.check()
    assert roomy.scheduler.preemptions >= 3


def test_without_prefix_caching_and_chunked_prefill(plain: Twin) -> None:
    dice = Random(6)
    for _ in range(3):
        plain.ask(crowd(dice, range(290, 383), 100))
    plain.check()
    assert plain.scheduler.prefix_queries == 0
    assert plain.scheduler.preemptions >= 3
