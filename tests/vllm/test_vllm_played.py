"""The simulator's scheduler against vLLM's scheduler classes: async scheduling, drafts, stop tokens."""

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from inferload.deploy.servers.engines import vllm_venv
from inferload.deploy.simulator.core.queues import SchedulerLimits
from inferload.deploy.simulator.core.request import Request
from inferload.deploy.simulator.core.scheduler import Scheduler, Step
from inferload.deploy.simulator.core.speculation import Acceptance
from inferload.deploy.vllm_cpu import tiny_model

pytestmark = pytest.mark.vllm

END = 9_999
TIGHT = SchedulerLimits(max_num_seqs=4, blocks=24, block_size=16, max_model_len=320, max_num_batched_tokens=96)
RATE = 0.6


def case(seed: int, asynchronous: bool, drafts: int, plain: bool) -> dict[str, Any]:
    """Return requests with common prefixes that exceed a small cache and end by length or stop token."""
    dice = Random(seed)
    fronts = [[dice.randrange(9000) for _ in range(150)] for _ in range(3)]
    requests = []
    for _ in range(14):
        own = [dice.randrange(9000) for _ in range(dice.randrange(1, 40))]
        prompt = dice.choice(fronts)[: dice.randrange(20, 150)] + own
        limit = dice.randrange(1, 90)
        answer = [dice.randrange(9000) for _ in range(limit)]
        if dice.random() < 0.5:
            answer[dice.randrange(limit)] = END
            answer = answer[: answer.index(END) + 1]
        requests.append({"prompt": prompt, "answer": answer, "max_tokens": limit})
    bounds = replace(TIGHT, async_scheduling=asynchronous, speculative_tokens=drafts)
    if plain:
        bounds = replace(bounds, caching=False, chunked_prefill=False, max_num_batched_tokens=bounds.max_model_len)
    return {
        **{"seed": seed, "rate": RATE, "asynchronous": asynchronous, "drafts": drafts},
        **{"limits": asdict(bounds), "requests": requests},
    }


def counts_of(this: dict[str, Any]) -> dict[str, Any]:
    """Run a case with the simulator's scheduler; return its counts."""
    bounds = SchedulerLimits(**this["limits"])
    acceptance = Acceptance(this["drafts"], this["rate"], this["seed"]) if this["drafts"] else None
    scheduler = Scheduler(bounds, acceptance)
    requests = []
    for request in this["requests"]:
        answer = request["answer"]
        ends = answer[-1] == END and len(answer) < request["max_tokens"]
        tokens = lambda first, count, of=answer: of[first : first + count]  # noqa: E731
        requests.append(Request(request["prompt"], len(answer), tokens, ends_itself=ends))
        scheduler.submit(requests[-1])
    steps, under_way = [], list[Step]()
    while True:
        while len(under_way) < (2 if bounds.async_scheduling else 1) and (step := scheduler.schedule()) is not None:
            steps.append(step.tokens)
            under_way.append(step)
        if not under_way:
            break
        scheduler.update(under_way.pop(0))
    return {
        "steps": steps,
        "queries": scheduler.prefix_queries,
        "hits": scheduler.prefix_hits,
        "preemptions": scheduler.preemptions,
        "cached": {str(number): each.cached_tokens for number, each in enumerate(requests)},
        "accepted": acceptance.counts.accepted if acceptance else 0,
    }


def test_steps_hits_and_preemptions_are_equal(tmp_path: Path) -> None:
    kinds = [(asynchronous, drafts, False) for asynchronous in (False, True) for drafts in (0, 2, 3)]
    kinds += [(False, 0, True), (True, 0, True)]  # without prefix caching and chunked prefill
    cases = [case(seed, *kind) for seed in range(4) for kind in kinds]
    python = str(vllm_venv() / "bin" / "python")
    building = [python, str(tiny_model.__file__), "--into", str(tmp_path), "--name", "tiny"]
    model = subprocess.run(building, check=True, capture_output=True, text=True).stdout.split()[-1]
    command = [python, str(Path(__file__).with_name("run_vllm_scheduler.py")), model]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout[done.stdout.index("[{") :])
    for this, real in zip(cases, theirs, strict=True):
        kind = {key: this[key] for key in ("seed", "asynchronous", "drafts")}
        assert (kind, counts_of(this)) == (kind, real)
    assert sum(real["preemptions"] for real in theirs) > 20
    assert sum(real["hits"] for real in theirs) > 0
