"""Causes from the records of turns: made servers whose way of serving is known, and messages of servers."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.diagnosis.turn_causes import AtOnce, counted_as_finished, refused, served_at_once
from msgspec.structs import replace

from inferload.results.documents.summary_document import FirstError, Results, Turns


def observed(seed: int, slots: int, users: int, spread: float, slows: float = 0.0) -> AtOnce | None:
    """Judge the turns of a closed loop whose users pause little.

    `slots`: requests that the server answers at once, in any order. `spread`: of the times of a turn. `slows`: how much each
    request in flight slows the others down.
    """
    rng = np.random.default_rng(seed)
    arrivals = sorted((float(rng.uniform(0, 1)), user) for user in range(users))
    free, rows, ends = [0.0] * slots, [], []
    for _ in range(100):
        sent_s, user = heapq.heappop(arrivals)
        begin_s = max(sent_s, heapq.heappop(free))
        load = 1 + slows * sum(end > begin_s for end in ends[-users:])
        first_s = begin_s + 0.2 * load * float(rng.uniform(1, 1 + spread))
        last_s = first_s + load * float(rng.uniform(1, 1 + 4 * spread))
        heapq.heappush(free, last_s)
        ends.append(last_s)
        rows.append((sent_s, first_s, last_s, last_s + 0.001))
        heapq.heappush(arrivals, (last_s + float(rng.exponential(0.01)), user))
    return served_at_once(*np.array(rows).T)


seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(1, 4), st.integers(2, 8), st.floats(0, 0.25))
def test_a_server_that_answers_few_requests_at_once_is_recognised(
    seed: int, slots: int, more: int, spread: float
) -> None:
    found = observed(seed, slots, slots + more, spread)
    assert found is not None
    assert found.served == slots
    assert found.others_s > found.alone_s


@given(seeds, st.integers(1, 16), st.floats(0, 2), st.floats(0, 0.3))
def test_a_server_that_answers_all_at_once_is_not(seed: int, users: int, spread: float, slows: float) -> None:
    assert observed(seed, users, users, spread, slows) is None


def results(failure: str, count: int, status: int | None, *texts: str) -> Results:
    """Results of a run whose failures have these first messages."""
    errors = [FirstError(text=text, at_s=1.0, failure=failure, status=status) for text in texts]
    counts = {"sent": 100 + count, "ok": 100, "failed": count, "unfinished": 0, "by_failure": {failure: count}}
    by_status = {"200": 100} | ({} if status is None else {str(status): count + 100 * (status == 200)})
    return Results(turns=Turns(**counts, by_status=by_status, first_errors=errors))


TOO_LONG = [
    "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.",  # vLLM
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",  # SGLang
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",  # TGI
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
    "the request exceeds the available context size, try increasing it",  # llama.cpp
    "The sum of prompt length (5000.0), query length (0) should not exceed max_num_tokens (4096)",  # TensorRT-LLM
    "prompt is too long: 210000 tokens > 200000 maximum",  # Anthropic
    "litellm.ContextWindowExceededError: ContextWindowExceededError",
    "input (3000 tokens) is too large to process. increase the physical batch size",  # llama.cpp, embeddings
    "internal error happened, status code ResponseType.INPUT_LENGTH_ERROR",  # LMDeploy
    "Request prompt has 5000 tokens in total, larger than the model input length limit 4096.",  # MLC
]
OTHERS = [
    "Internal Server Error",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "the request queue length exceeds the limit",
    "upstream request timeout",
    "Context size has been exceeded.",  # llama.cpp: the cache of all slots is full
    "Prompt processing took too long",
    "prompt tokens in the queue exceed the limit of 100000 tokens",
    "The input tokens of your organization exceed the maximum of 40000 per minute",
    "The service is temporarily overloaded: too many requests are waiting",
    "the KV cache is full: the prompt is too long for the free blocks",
    "the input tokens exceed the limit of this worker, try again later",
]


@pytest.mark.parametrize("text", [*TOO_LONG, *OTHERS])
def test_too_long_prompts_are_refused_whatever_the_status(text: str) -> None:
    for failure, status in (("http_5xx", 500), ("server_error", 200)):
        assert refused(results(failure, 5, status, text)) == (5 if text in TOO_LONG else 0)
        assert refused(results(failure, 5, status, text, OTHERS[0])) == 0  # how many of each is not known
    of = results("server_error", 5, 200, text, text)
    first, second = of.turns.first_errors
    of = replace(of, turns=replace(of.turns, failed=10, first_errors=[first, replace(second, status=None)]))
    assert refused(of) == (5 if text in TOO_LONG else 0)  # the others were cut


def test_a_client_error_is_no_sign_of_load_and_a_busy_server_is() -> None:
    for status in (400, 401, 403, 404, 413, 422):
        assert refused(results("http_4xx", 7, status, "no")) == 7
    for failure, status in (("http_4xx", 408), ("http_4xx", 425), ("http_429", 429), ("http_5xx", 503), ("cut", None)):
        of = results(failure, 7, status, "no")
        assert refused(of) == 0
        of.turns.by_status["400"] = 7  # of unfinished turns
        assert refused(of) == 0


@given(st.integers(0, 50), st.integers(0, 4), st.integers(0, 400))
def test_failures_that_the_server_finished_are_known_only_by_its_count(cut: int, before: int, other: int) -> None:
    """The server counts those that it finished, the preflight, and requests of other clients."""
    of = results("cut", cut, None)
    assert counted_as_finished(of, 100 + cut + before, before) == (None if cut < 5 else (cut, cut))
    assert counted_as_finished(of, 100 + before, before) is None  # it counts none of them
    assert counted_as_finished(of, 101 + cut + before + other, before) is None
    assert counted_as_finished(results("connect", cut, None), 100 + cut, 0) is None
    of_texts = replace(of, turns=replace(of.turns, texts=8 * of.turns.sent))
    assert counted_as_finished(of_texts, 100 + cut + before, before) is None
