"""Causes from the records of turns: made servers whose way of serving is known, and messages of servers."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.diagnosis.turn_causes import AtOnce, Refused, counted_as_finished, refused, served_at_once

from inferload.results.documents.summary_document import FirstError, Results, Turns


def observed(
    rng: np.random.Generator, slots: int | None, users: int, spread: float, slows: float = 0.0
) -> AtOnce | None:
    """Judge the turns of a closed loop whose users pause little.

    `slots`: requests that the server answers at once, in any order; None: all. `spread`: of the times of a turn. `slows`: how much
    each request in flight slows the others down.
    """
    arrivals = [(float(rng.uniform(0, 1)), user) for user in range(users)]
    heapq.heapify(arrivals)
    free = [0.0] * (users if slots is None else slots)
    rows, ends = [], []
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
    sent, first, last, closed = np.array(rows).T
    return served_at_once(sent, first, last, closed)


seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(seeds, st.integers(1, 4), st.integers(2, 8), st.floats(0, 0.5))
def test_a_server_that_answers_few_requests_at_once_is_recognised(
    rng: np.random.Generator, slots: int, more: int, spread: float
) -> None:
    found = observed(rng, slots, slots + more, spread)
    assert found is not None
    assert found.served == slots
    assert found.others_ms > found.alone_ms


@given(seeds, st.integers(1, 16), st.floats(0, 2), st.floats(0, 0.3))
def test_a_server_that_answers_all_at_once_is_not(
    rng: np.random.Generator, users: int, spread: float, slows: float
) -> None:
    assert observed(rng, None, users, spread, slows) is None


def results(
    by_failure: dict[str, int], by_status: dict[str, int], text: str = "", status: int | None = None, ok: int = 100
) -> Results:
    """Results of a run whose failures have this message."""
    failed = sum(by_failure.values())
    errors = [FirstError(text=text, at_s=1.0, failure=failure, status=status) for failure in by_failure]
    counts = {"sent": ok + failed, "ok": ok, "failed": failed, "unfinished": 0}
    return Results(turns=Turns(**counts, by_failure=by_failure, by_status=by_status | {"200": ok}, first_errors=errors))


# Refusals of a prompt that is too long, and other messages.
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
]
OTHERS = [
    "Internal Server Error",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "the request queue length exceeds the limit",
    "upstream request timeout",
    "The service is temporarily overloaded: too many requests are waiting",
]


@pytest.mark.parametrize("text", [*TOO_LONG, *OTHERS])
def test_too_long_prompts_are_refused_whatever_the_status(text: str) -> None:
    long = text in TOO_LONG
    assert refused(results({"http_4xx": 5}, {"400": 5}, text, 400)) == Refused(5, long)
    for failure, status in (("http_5xx", 500), ("server_error", 200)):
        of = results({failure: 5}, {} if status == 200 else {"500": 5}, text, status)
        assert refused(of) == Refused(5 if long else 0, long)


@pytest.mark.parametrize(
    ("failure", "status", "refuses"),
    [
        *(("http_4xx", status, True) for status in (400, 401, 403, 404, 413, 422)),
        *(("http_4xx", status, False) for status in (408, 425)),
        ("http_429", 429, False),
        ("http_5xx", 503, False),
        ("cut", 200, False),
    ],
)
def test_a_client_error_is_no_sign_of_load_and_a_busy_server_is(failure: str, status: int, refuses: bool) -> None:
    counts = {} if status == 200 else {str(status): 7}
    assert refused(results({failure: 7}, counts, "no", status)).turns == (7 if refuses else 0)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 4), st.integers(0, 400))
def test_failures_that_the_server_finished_are_known_only_by_its_count(
    cut: int, refused: int, before: int, other_clients: int
) -> None:
    """The server counts those that it finished, the preflight, and requests of others."""
    of = results({"cut": cut, "connect": refused}, {})
    found = counted_as_finished(of, 100 + cut + before, before)
    assert found == (None if cut < 5 else (cut, cut))
    assert counted_as_finished(of, 100 + before, before) is None  # it counts none of them
    if other_clients > cut + 4:
        assert counted_as_finished(of, 100 + cut + before + other_clients, before) is None
