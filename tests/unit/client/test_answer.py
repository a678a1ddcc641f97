"""Answers built from stream events: batches, and values out of range."""

import json
from typing import Any

import msgspec
import pytest
from endpoint_answers import STREAMED
from hypothesis import given
from hypothesis import strategies as st

from inferload.client.answers.answer import Answer
from inferload.client.answers.chat import ChatAnswer
from inferload.client.answers.number_bounds import MAX_OUTPUT_TOKENS, MAX_TOKENS
from inferload.client.endpoints.dialect import DIALECTS
from inferload.scenario.schema.endpoints import EndpointName
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark

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


def state(answer: ChatAnswer) -> dict[str, Any]:
    return {
        name: getattr(answer, name)
        for name in (*Answer.__slots__, *ChatAnswer.__slots__)
        if name not in ("detail", "metrics")
    } | {"queue_ms": None if answer.metrics is None else answer.metrics.queue_time_ms}


@given(events, st.integers(1, 12))
def test_events_in_batches_equal_single_events(data: list[bytes], size: int) -> None:
    single, batched = ChatAnswer(), ChatAnswer()
    for at_ns, event in enumerate(data):
        single.event(event, at_ns)
    for start in range(0, len(data), size):
        batch = data[start : start + size]
        batched.events(batch, list(range(start, start + len(batch))))
    assert state(batched) == state(single)


FIELDS = {  # names of prompt, output and cached tokens in each endpoint's usage
    "chat": ("prompt_tokens", "completion_tokens", "cached_tokens"),
    "completions": ("prompt_tokens", "completion_tokens", "cached_tokens"),
    "responses": ("input_tokens", "output_tokens", "cached_tokens"),
    "messages": ("input_tokens", "output_tokens", "cache_read_input_tokens"),
}


def usage_event(endpoint: EndpointName, position: int, value: str) -> bytes:
    """The usage event of an endpoint with `value` as one of its counts."""
    numbers = {name: msgspec.Raw(b"2") for name in FIELDS[endpoint]} | {
        FIELDS[endpoint][position]: msgspec.Raw(value.encode())
    }
    details = {"cached_tokens": numbers.get("cached_tokens")}
    usage = numbers | {"prompt_tokens_details": details, "input_tokens_details": details}
    return msgspec.json.encode(
        {
            "type": {"responses": "response.completed", "messages": "message_delta"}.get(endpoint, ""),
            "choices": [],
            "usage": usage,
            "response": {"usage": usage},
        }
    )


@pytest.mark.parametrize("value", ["18446744073709551615", "9223372036854775808", "-1", "1e20", "16777217", "9" * 5000])
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("endpoint", STREAMED)
def test_a_count_out_of_range_is_unknown_and_named(endpoint: EndpointName, position: int, value: str) -> None:
    answer = DIALECTS[endpoint].answer()
    answer.event(usage_event(endpoint, position, value), 1)
    answer.settle()
    assert answer.failure is None
    counts = [answer.input_tokens, answer.output_tokens, answer.cached_tokens]
    assert counts[position] is None
    whole = 4 if endpoint == "messages" and position == 1 else 2  # its prompt tokens exclude the cached ones
    assert {*counts[:position], *counts[position + 1 :]} <= {None, 2, whole}
    assert counts[1] == (2 if position != 1 else None)
    example = answer.remarks[Remark.ODD_EVENT]
    if len(value) < 30:  # a larger number cannot be decoded
        assert FIELDS[endpoint][position] in example.partition(": ")[0]
        assert f"got {msgspec.json.encode(json.loads(value)).decode()}: " in example


@pytest.mark.parametrize("endpoint", STREAMED)
def test_the_largest_valid_counts_are_accepted(endpoint: EndpointName) -> None:
    for count, known in ((MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS), (MAX_OUTPUT_TOKENS + 1, None)):
        answer = DIALECTS[endpoint].answer()
        answer.event(usage_event(endpoint, 0, str(MAX_TOKENS)), 1)
        assert answer.input_tokens == MAX_TOKENS + (2 if endpoint == "messages" else 0)
        answer = DIALECTS[endpoint].answer()
        answer.event(usage_event(endpoint, 1, str(count)), 1)
        answer.settle()
        assert (answer.failure, answer.output_tokens) == (None, known)


@pytest.mark.parametrize("value", ["1e308", "-1", "1e999", "1e10"])
def test_a_duration_out_of_range_is_unknown_and_named(value: str) -> None:
    answer = ChatAnswer()
    answer.event(b'{"choices": [], "metrics": {"queue_time_ms": %s}}' % value.encode(), 1)
    assert answer.failure is None
    assert answer.metrics is not None
    assert answer.metrics.queue_time_ms is None
    assert "metrics.queue_time_ms" in answer.remarks[Remark.ODD_EVENT]


@pytest.mark.parametrize(
    ("endpoint", "event", "failure"),
    [
        ("responses", r'{"type": "response.failed", "response": {"error": "\ud800"}}', Failure.SERVER_ERROR),
        ("messages", r'{"type": "error", "error": {"message": "\ud800"}}', Failure.SERVER_ERROR),
        (
            "messages",
            r'{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "n", '
            r'"input": {"x": "\ud800"}}}',
            None,
        ),
        ("chat", r'{"choices": [], "usage": {"prompt_tokens": "\ud800"}}', None),
    ],
)
def test_half_of_a_surrogate_pair_is_text_of_the_server(
    endpoint: EndpointName, event: str, failure: Failure | None
) -> None:
    answer = DIALECTS[endpoint].answer()
    answer.event(event.encode(), 1)
    answer.settle()
    assert answer.failure == failure


@pytest.mark.parametrize("endpoint", STREAMED)
@pytest.mark.parametrize("field", ["error", "delta", "other"])
def test_json_nested_too_deeply_is_a_bad_event(endpoint: EndpointName, field: str) -> None:
    for depth in (900, 100_000):
        answer = DIALECTS[endpoint].answer()
        nested = b"[" * depth + b"]" * depth
        answer.events([b'{"type": "error", "choices": [], "%s": %s}' % (field.encode(), nested)], [1])
        if depth == 100_000:
            assert answer.failure is Failure.BAD_EVENT


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses"])
def test_cached_tokens_beyond_the_prompt_are_unknown(endpoint: EndpointName) -> None:
    answer = DIALECTS[endpoint].answer()
    answer.event(usage_event(endpoint, 2, "3"), 1)
    assert (answer.failure, answer.input_tokens, answer.cached_tokens) == (None, 2, None)


def test_a_decreasing_running_count_gives_no_tokens_by_event() -> None:
    answer = ChatAnswer()
    for at_ns, total in enumerate([1, 5, 3, 6]):
        event = {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": total}}
        answer.event(json.dumps(event).encode(), at_ns)
    answer.event(b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}', 9)
    answer.settle()
    assert len(answer.event_ns) == 4
    assert answer.tokens_by_event is None
    assert answer.output_tokens is None
    assert Remark.PIECE_USAGE in answer.remarks
