"""The answer that events add up to is the same, however many of them are taken at once."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inferload.measure.blockhashes import HASHED_TOKENS, block_hashes
from inferload.measure.record import Failure
from inferload.wire.answer import Answer
from inferload.wire.tokenids import TokenIds

text = st.none() | st.sampled_from(["", "a", "ü\u2028", "日"])
deltas = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": text,
        "reasoning_content": text,
        "tool_calls": st.just([{"index": 0, "function": {"name": "f", "arguments": "{"}}]),
    },
)
choices = st.fixed_dictionaries(
    {"index": st.just(0), "delta": deltas, "finish_reason": st.sampled_from([None, None, None, "stop"])}
)
counts = st.none() | st.integers(0, 9)
usages = st.none() | st.fixed_dictionaries({"prompt_tokens": counts, "completion_tokens": counts})
documents = st.fixed_dictionaries(
    {"id": st.just("c1"), "choices": st.lists(choices, max_size=2)},
    optional={
        "usage": usages,
        "metrics": st.just({"queue_time_ms": 1.0}),
        "error": st.none() | st.just({"message": "no"}),
    },
)
odd = st.sampled_from([b"[DONE]", b"{", b"1],[2", b"", b'{"choices": 3}', b"\xff"])
events = st.lists(documents.map(lambda document: json.dumps(document).encode()) | odd, max_size=12)


def seen(answer: Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in Answer.__slots__ if name not in ("detail", "metrics")} | {
        "queue_ms": None if answer.metrics is None else answer.metrics.queue_time_ms
    }


@given(events, st.integers(1, 12))
def test_many_at_once_are_as_one_by_one(data: list[bytes], size: int) -> None:
    one, many = Answer(), Answer()
    for at_ns, event in enumerate(data):
        one.event(event, at_ns)
    for start in range(0, len(data), size):
        batch = data[start : start + size]
        many.events(batch, list(range(start, start + len(batch))))
    assert seen(many) == seen(one)


def test_the_tokens_that_a_server_says_are_kept_and_hashed() -> None:
    first = {"choices": [{"delta": {"role": "assistant"}}], "prompt_token_ids": [*range(30)]}
    rest = [{"choices": [{"delta": {"content": "a"}, "token_ids": [7, 8]}]} for _ in range(9)]
    told = {"choices": [{"text": "a", "token_ids": [7], "prompt_token_ids": [*range(30)]}]}  # as completions have it
    for documents, answer_ids in (([first, *rest], [7, 8] * 9), ([told], [7])):
        data = [json.dumps(document).encode() for document in documents]
        for size in (1, len(data)):
            answer = Answer()
            for start in range(0, len(data), size):
                answer.events(data[start : start + size], [1] * len(data[start : start + size]))
            assert answer.block_hashes() == block_hashes([*range(30), *answer_ids[:-1]])
            assert answer.template_of(data[-1]) is None
    assert Answer().block_hashes() is None


@given(
    st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 9), max_size=3000),
    st.lists(st.integers(0, 9), max_size=40),
    st.sampled_from([",", ", "]),
)
def test_token_ids_are_read_in_slices_whose_work_has_a_limit(prompt: list[int], answer: list[int], comma: str) -> None:
    ids = TokenIds()
    ids.prompt(b"null")
    ids.prompt(json.dumps(prompt, separators=(comma, ":")).encode())
    ids.answer(answer)
    done = 0
    for _ in range(100):
        over = ids.step()
        assert len(ids._hasher.hashes) - done <= 2_100 / HASHED_TOKENS
        done = len(ids._hasher.hashes)
        if over:
            break
    assert over
    assert ids.hashes() == block_hashes([*prompt, *answer[:-1]])


def test_token_ids_that_are_none_make_the_event_a_bad_one() -> None:
    answer = Answer()
    answer.event(b'{"choices": [{"delta": {"content": "a"}}], "prompt_token_ids": [1, "x"]}', 1)
    assert answer.block_hashes() is None
    assert answer.failure is Failure.BAD_EVENT
    assert "prompt_token_ids" in answer.detail
