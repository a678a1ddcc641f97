"""Streams of servers, gateways and bridges that differ from vLLM's: counts, errors, ends, odd fields and tool calls."""

import json
from itertools import pairwise
from typing import Any

import pytest
from endpoint_answers import STREAMED
from hypothesis import assume, given
from hypothesis import strategies as st
from streamed_answers import chunk, end_events, text_event

from inferload.client.answers.answer import Answer, PerRequestMetrics
from inferload.client.answers.chat import ChatAnswer
from inferload.client.answers.sse import SseParser, is_error
from inferload.client.endpoints.dialect import DIALECTS
from inferload.scenario.schema.endpoints import EndpointName
from inferload.turns.record import Failure
from inferload.turns.remarks import OF_TOKENS, Remark

DONE = b"[DONE]"
STEP_NS = 20


def read(documents: list[Any], answer: Answer | None = None, finish_reasons: bool = False) -> Answer:
    """Return the answer to these events (bytes as they are), an event every 20 ns, then [DONE]. It is kept for a history."""
    answer = ChatAnswer() if answer is None else answer
    answer.keeping = True
    data = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in documents]
    answer.events([*data, DONE], [at * STEP_NS for at in range(len(data) + 1)])
    answer.settle([100, 50])  # the server sends drafts
    answer.conclude(reply_complete=True, finish_reasons=finish_reasons)
    native = answer.native(() if answer.tool_calls is None else answer.tool_calls.calls("t"))
    assert native is not None
    json.loads(native or b"null")
    return answer


# ---- token counts

pieces = st.lists(st.integers(1, 4), min_size=2, max_size=30)  # tokens of each event with text


def with_usage(tokens: list[int], beside: list[int | None], of_end: int | None, in_choice: bool = False) -> list[Any]:
    """Return a stream with these counts beside each text, and one beside the finish reason."""

    def counted(document: dict[str, Any], count: int | None) -> dict[str, Any]:
        if count is not None:
            usage = {"prompt_tokens": 7, "completion_tokens": count}
            (document["choices"][0] if in_choice else document)["usage"] = usage
        return document

    texts = [counted(chunk({"content": "a" * 12}), count) for count in beside]
    return [chunk({"role": "assistant", "content": ""}), *texts, counted(chunk(finish="stop"), of_end)]


@pytest.mark.parametrize("each", [False, True], ids=["at the end", "per token"])
def test_the_timings_of_llamacpp_are_times_without_the_queue(each: bool) -> None:
    """`timings_per_token` has them in each event."""
    at_end = {"cache_n": 9, "prompt_n": 3, "prompt_ms": 7.5, "predicted_n": 3, "predicted_ms": 2.5}
    texts = [chunk({"content": "word "}) for _ in range(3)]
    usage = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}, "timings": at_end}
    if each:
        for at, event in enumerate(texts):
            event["timings"] = at_end | {"predicted_n": at + 1, "predicted_ms": float(at)}
    answer = read([chunk({"role": "assistant", "content": None}), *texts, chunk(finish="length"), usage])
    assert answer.metrics == PerRequestMetrics(None, 7.5, 2.5)
    assert list(answer.event_ns) == text_times([1, 1, 1])
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (12, 3, 9)
    assert answer.remarks == {}
    ended = {"id": "r", "status": "completed", "usage": {"input_tokens": 12, "output_tokens": 3}}
    response = DIALECTS["responses"].answer()
    response.event(json.dumps({"type": "response.completed", "response": ended, "timings": at_end}).encode(), 5)
    assert response.metrics == answer.metrics


def text_times(tokens: list[int]) -> list[int]:
    return [(at + 1) * STEP_NS for at in range(len(tokens))]


@given(pieces, st.booleans())
def test_a_running_count_gives_the_tokens_of_each_event(tokens: list[int], in_choice: bool) -> None:
    running = [sum(tokens[: at + 1]) for at in range(len(tokens))]
    answer = read(with_usage(tokens, list(running), running[-1], in_choice))
    assert answer.tokens_by_event is not None
    assert list(answer.tokens_by_event) == tokens
    assert list(answer.event_ns) == text_times(tokens)
    assert (answer.output_tokens, answer.input_tokens, answer.remarks) == (sum(tokens), 7, {})


@given(pieces, st.integers(1, 4), st.booleans())
def test_a_total_after_zeros_is_no_running_count(tokens: list[int], per_event: int, in_choice: bool) -> None:
    total = per_event * len(tokens)
    answer = read(with_usage(tokens, [0] * len(tokens), total, in_choice))
    assert list(answer.event_ns) == text_times(tokens), "the finish reason is no output"
    assert (answer.uncounted, answer.output_tokens, set(answer.remarks) - {*OF_TOKENS}) == (True, total, set())


@given(pieces, st.sampled_from(["beside the finish reason", "alone", "both"]), st.booleans())
def test_the_total_in_each_event_is_a_total(tokens: list[int], at: str, in_choice: bool) -> None:
    total = sum(tokens)
    beside: list[int | None] = [None if at == "alone" else total] * len(tokens)
    documents = with_usage(tokens, beside, None if at == "alone" else total, in_choice)
    if at != "beside the finish reason":
        documents.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": total}})
    answer = read(documents)
    assert list(answer.event_ns) == text_times(tokens)
    assert (answer.uncounted, answer.output_tokens, set(answer.remarks) - {*OF_TOKENS}) == (True, total, set())


@given(st.lists(st.integers(0, 4), min_size=3, max_size=30), st.integers(0, 3), st.booleans())
def test_counts_of_single_events_are_never_a_total(tokens: list[int], of_end: int, total_alone: bool) -> None:
    assume(max(tokens) > 0)
    assume(any(later < earlier for earlier, later in pairwise(tokens) if later) or max(tokens) == 1)
    documents = with_usage(tokens, list(tokens), of_end or None)
    if total_alone:
        documents.append({"choices": [], "usage": {"completion_tokens": sum(tokens)}})
    answer = read(documents)
    assert list(answer.event_ns) == text_times(tokens)
    assert answer.uncounted
    if total_alone:
        assert answer.output_tokens == sum(tokens)
    elif max(tokens) == 1 and of_end >= len(tokens):
        assert answer.output_tokens == of_end  # looks like a total
    else:
        assert answer.output_tokens is None
        assert Remark.PIECE_USAGE in answer.remarks


@given(pieces)
def test_a_count_that_grows_but_not_with_the_texts_is_no_running_count(tokens: list[int]) -> None:
    assume(len(tokens) > 2)
    beside: list[int | None] = [1] * (len(tokens) - 1) + [2]
    answer = read(with_usage(tokens, beside, None))
    assert answer.tokens_by_event is None
    assert list(answer.event_ns) == text_times(tokens)


@pytest.mark.parametrize("endpoint", STREAMED)
@given(st.integers(1, 40))
def test_a_usage_of_zero_with_text_is_unknown(endpoint: EndpointName, count: int) -> None:
    answer = answer_of(endpoint, count, usage=(9, 0))
    assert (answer.failure, answer.output_tokens, answer.input_tokens) == (None, None, 9)
    assert Remark.ZERO_USAGE in answer.remarks


@pytest.mark.parametrize("endpoint", STREAMED)
@given(st.integers(1, 400), st.integers(1, 400))
def test_a_total_below_the_events_is_named(endpoint: EndpointName, count: int, output: int) -> None:
    answer = answer_of(endpoint, count, usage=(9, output))
    assert (answer.failure, answer.output_tokens) == (None, output)
    assert (Remark.LOW_USAGE in answer.remarks, answer.hidden_tokens is None) == (output < count,) * 2 or output > count


def answer_of(endpoint: EndpointName, count: int, usage: tuple[int, int]) -> Answer:
    """Return a whole answer of `count` texts with this usage."""
    documents = [*[text_event(endpoint, "a")] * count, *end_events(endpoint, usage[1], "stop", prompt=usage[0])]
    return read(documents, DIALECTS[endpoint].answer())


reported = st.none() | st.integers(0, 50)


@given(*[st.tuples(reported, reported, reported, reported)] * 2)
def test_fields_of_a_message_that_one_of_two_events_fills_in(first: tuple[Any, ...], last: tuple[Any, ...]) -> None:
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    usages = [
        {name: value for name, value in zip(names, event, strict=True) if value is not None} for event in (first, last)
    ]
    documents = [
        {"type": "message_start", "message": {"id": "m", "usage": usages[0]}},
        {"type": "content_block_delta", "delta": {"text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usages[1]},
        {"type": "message_stop"},
    ]
    answer = read(documents, DIALECTS["messages"].answer())
    known = [last[at] or (first[at] if first[at] is not None else last[at]) for at in range(3)]
    if known[0] is None:
        assert answer.input_tokens is None
    else:
        assert answer.input_tokens == (sum(count or 0 for count in known) or None)
        assert answer.cached_tokens == known[1]
    assert answer.output_tokens == (last[3] or None)


# ---- errors

nothing = st.recursive(
    st.sampled_from([None, False, "", 0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
)
something = st.sampled_from(["x", 1, True, {"message": "no"}, {"code": 500, "message": ""}, [{"detail": "no"}]])


@given(nothing, something)
def test_only_an_error_that_says_something_is_one(empty: Any, error: Any) -> None:
    assert not is_error(empty)
    assert is_error(error)
    ok = read([chunk({"content": "a"}, error=empty), chunk(finish="stop", error=empty)])
    assert (ok.failure, ok.text) == (None, ["a"])
    failed = read([chunk({"content": "a"}), {"error": error}])
    assert failed.failure is Failure.SERVER_ERROR
    assert json.dumps(error).strip('"') in failed.detail


error_data = st.sampled_from(
    [
        *("", "data: overloaded\n", 'data: {"message": "busy"}\n', 'data: {"error": {"message": "busy"}}\n'),
        *("data: null\n", ": upstream timed out\n", "data: {broken\n", "data\n"),
        'data: {"choices": [{"delta": {"content": "b"}}]}\n',
        'data: {"type": "error", "error": {"type": "overloaded_error"}}\n',
    ]
)


@pytest.mark.parametrize("endpoint", STREAMED)
@given(error_data, st.sampled_from(["event: error\n", "event:error\n", "event: ERROR \n"]), st.booleans())
def test_an_error_event_is_an_error_whatever_its_data(
    endpoint: EndpointName, data: str, name: str, first: bool
) -> None:
    block = (name + data if first else data + name) + "\n"
    (event,) = SseParser().feed(block.encode())
    answer = DIALECTS[endpoint].answer()
    answer.event(event, 1)
    assert answer.failure is Failure.SERVER_ERROR
    said = data.partition(":")[2].strip()
    words = [word for word in said.replace('"', " ").split() if word.isalpha()]
    assert all(word in answer.detail for word in words)


def test_a_field_named_error_is_an_error() -> None:
    """As llama.cpp sends it."""
    (event,) = SseParser().feed(b'error: {"code": 500, "message": "no slot"}\n\n')
    answer = read([event])
    assert answer.failure is Failure.SERVER_ERROR
    assert "no slot" in answer.detail


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        *(("stop", "stop"), ("length", "length"), ("tool_calls", "tool_calls"), ("content_filter", "content_filter")),
        *(("eos_token", "stop"), ("STOP", "stop"), ("function_call", "tool_calls"), ("model_length", "length")),
        *(("MAX_TOKENS", "length"), ("SAFETY", "SAFETY"), ("refusal", "refusal"), ("repetition", "repetition")),
    ],
)
def test_finish_reasons_of_complete_answers(reason: str, kept: str) -> None:
    answer = read([chunk({"content": "a"}), chunk(finish=reason)])
    assert (answer.failure, answer.finish_reason, answer.remarks) == (None, kept, {})


@pytest.mark.parametrize(
    "reason",
    [
        *("abort", "error", "insufficient_system_resource", "overloaded", "engine_overloaded"),
        *("server_overloaded_error", "network_error", "timeout", "cancelled", "internal_error", "ABORTED"),
        *("rate_limit", "unavailable", "interrupted"),
    ],
)
def test_finish_reasons_of_interrupted_answers(reason: str) -> None:
    answer = read([chunk({"content": "a"}), chunk(finish=reason)])
    assert answer.failure is Failure.SERVER_ERROR
    assert reason in answer.detail


@given(st.integers(1, 9), st.booleans(), st.booleans())
def test_an_answer_without_a_finish_reason_is_cut_if_others_have_one(count: int, sent: bool, usage: bool) -> None:
    documents: list[Any] = [chunk({"content": "a"})] * count
    if usage:
        documents.append({"choices": [], "usage": {"completion_tokens": count}})
    answer = read(documents, finish_reasons=sent)
    if sent:
        assert answer.failure is Failure.CUT
        assert "finish reason" in answer.detail
    else:
        assert answer.failure is None
        assert Remark.NO_FINISH_REASON in answer.remarks


def test_an_event_without_output_is_shown_if_nothing_else_comes() -> None:
    answer = read([{"status": "model is loading"}])
    assert answer.failure is Failure.EMPTY
    assert "model is loading" in answer.detail


# ---- odd fields

values = st.sampled_from(
    [None, True, 5, -1, 0.5, "x", "7", [], {}, [None], [1, "a"], {"a": {"b": 1}}, [[]], float("nan")]
)
unneeded = st.sampled_from(
    ["id", "object", "created", "model", "logprobs", "usage", "metrics", "system_fingerprint", "prompt_token_ids"]
)
of_choice = st.sampled_from(["index", "logprobs", "token_ids", "usage", "message", "prompt_token_ids", "matched_stop"])
of_delta = st.sampled_from(["role", "reasoning_content", "refusal", "function_call", "annotations", "audio"])


@given(
    st.lists(
        st.tuples(st.sampled_from(["event", "choice", "delta"]), unneeded, of_choice, of_delta, values),
        min_size=1,
        max_size=4,
    ),
    st.integers(2, 6),
)
def test_a_field_of_another_type_costs_no_answer(odd: list[tuple[str, str, str, str, Any]], count: int) -> None:
    documents = [chunk({"content": f"t{at}"}) for at in range(count)]
    for at, (where, event_field, choice_field, delta_field, value) in enumerate(odd):
        document = documents[at % count]
        if where == "event":
            document[event_field] = "error?" if event_field == "object" and value == "error" else value
        elif where == "choice":
            document["choices"][0][choice_field] = value
        else:
            document["choices"][0]["delta"][delta_field] = value
    answer = read([*documents, chunk(finish="stop")])
    assert (answer.failure, "".join(answer.text)) == (None, "".join(f"t{at}" for at in range(count))), answer.detail
    assert list(answer.event_ns) == [at * STEP_NS for at in range(count)]


@given(
    st.lists(
        st.sampled_from(
            [
                *(b"null", b"5", b'"x"', b"[]", b"true", b"", b"ping", b"keep-alive", b"[PING]", b'{"choices": null}'),
                *(b'{"choices": [null]}', b'{"choices": {}}', b"{}", b'{"choices": "x"}', b'{"choices": [5]}'),
            ]
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_events_without_an_answer_are_ignored_and_named(odd: list[bytes], at: int) -> None:
    texts: list[Any] = [chunk({"content": "a"})] * 3
    answer = read([*texts[:at], *odd, *texts[at:], chunk(finish="stop")])
    assert (answer.failure, "".join(answer.text)) == (None, "aaa")
    assert len(answer.event_ns) == 3
    if {*odd} - {b"{}"}:
        assert Remark.ODD_EVENT in answer.remarks


@pytest.mark.parametrize("escape", ["\\ud83d", "\\ude00", "\\udfff\\ud800", "\\ud83d\\ude00\\ud83d"])
def test_half_of_a_surrogate_pair_costs_its_character_only(escape: str) -> None:
    data = b'{"choices": [{"delta": {"content": "a%sb"}}]}' % escape.encode()
    answer = read([data, chunk(finish="stop")])
    text = "".join(answer.text)
    assert answer.failure is None
    assert text[0] + text[-1] == "ab"
    assert "\ufffd" in text
    text.encode()
    assert Remark.ODD_EVENT in answer.remarks


@given(st.lists(st.sampled_from([b"\xff", b"\xed\xa0\x80", b"a", "é".encode()]), min_size=1, max_size=4))
def test_invalid_utf_8_costs_its_bytes_only(parts: list[bytes]) -> None:
    answer = read([b'{"choices": [{"delta": {"content": "<%s>"}}]}' % b"".join(parts), chunk(finish="stop")])
    text = "".join(answer.text)
    assert (answer.failure, text[0], text[-1]) == (None, "<", ">")


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
visible_parts = st.one_of(
    texts.map(lambda text: ({"type": "text", "text": text}, text, "")),
    texts.map(lambda text: (text, text, "")),
    texts.map(lambda text: ({"type": "output_text", "text": text}, text, "")),
    texts.map(lambda text: ({"type": "thinking", "thinking": text}, "", text)),
    texts.map(lambda text: ({"type": "thinking", "thinking": [{"type": "text", "text": text}]}, "", text)),
    st.just(({"type": "reference", "reference_ids": [1]}, "", "")),
)


@given(st.lists(visible_parts, max_size=4), st.sampled_from(["delta", "message"]))
def test_content_as_a_list_of_parts(parts: list[tuple[Any, str, str]], where: str) -> None:
    event = {"choices": [{where: {"content": [part for part, _, _ in parts]}}]}
    answer = read([event, chunk({"content": "!"}), chunk(finish="stop")])
    text, thought = ("".join(part[at] for part in parts) for at in (1, 2))
    assert ("".join(answer.text), "".join(answer.reasoning)) == (text + "!", thought)
    assert (answer.failure, answer.remarks) == (None, {})


@given(st.sampled_from(["7", " 7 ", "7.0", 7.0]), st.sampled_from(["9", 9]))
def test_numbers_as_text(output: Any, prompt: Any) -> None:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    answer = read([*[chunk({"content": "a"})] * 7, chunk(finish="stop"), {"choices": [], "usage": usage}])
    assert (answer.failure, answer.input_tokens, answer.output_tokens) == (None, 9, 7)


def test_several_events_on_lines_of_one() -> None:
    lines = b"\n".join(json.dumps(chunk({"content": text})).encode() for text in "abc")
    answer = read([lines, chunk(finish="stop")])
    assert (answer.failure, "".join(answer.text)) == (None, "abc")


@pytest.mark.parametrize(
    "data", [b"{", b'{"choices": [{"delta": {"content": "a"', b'{"choices": [}', b'{"a": 1}{', b"[" * 100_000]
)
def test_damaged_json_fails_the_answer(data: bytes) -> None:
    answer = read([chunk({"content": "a"}), data, chunk(finish="stop")])
    assert answer.failure is Failure.BAD_EVENT


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
@given(
    st.lists(
        st.sampled_from([b"null", b"{}", b'{"type": 5}', b'{"type": null}', b"ping", b"[]", b'{"x": "y"}']), max_size=4
    )
)
def test_events_without_a_type_are_ignored(endpoint: EndpointName, odd: list[bytes]) -> None:
    whole = answer_of(endpoint, 3, (9, 3))
    answer = DIALECTS[endpoint].answer()
    text = json.dumps(text_event(endpoint, "a")).encode()
    for data in (text, *odd, text, *odd, text):
        answer.event(data, 1)
    assert (answer.failure, "".join(answer.text)) == (None, "".join(whole.text))


# ---- tool calls

arguments = st.lists(st.sampled_from(['{"a"', ": 1}", "", '{"x": "y"}']), min_size=1, max_size=4)
calls = st.lists(st.tuples(st.sampled_from(["get", "put"]), arguments), min_size=1, max_size=4)


@given(
    calls,
    st.sampled_from(["by position", "all 0", "none"]),
    st.sampled_from(["first delta", "each delta", "no id"]),
    st.booleans(),
)
def test_tool_calls_by_index_id_or_name(
    made: list[tuple[str, list[str]]], index: str, ids: str, one_event: bool
) -> None:
    """Calls with the same index, or without one, are distinguished by their ids, or by a name after arguments."""
    if ids == "no id" and index != "by position":
        assume(all("".join(parts) for _, parts in made))
    deltas: list[dict[str, Any]] = []
    for number, (name, parts) in enumerate(made):
        for at, part in enumerate(parts):
            function = {"arguments": part} | ({"name": name} if at == 0 else {})
            delta: dict[str, Any] = {"type": "function", "function": function}
            if index != "none":
                delta["index"] = number if index == "by position" else 0
            if ids == "each delta" or (ids == "first delta" and at == 0):
                delta["id"] = f"call{number}"
            deltas.append(delta)
    whole = [[delta] for delta in deltas]
    answer = read([*[chunk({"tool_calls": each}) for each in whole], chunk(finish="tool_calls")])
    assert answer.failure is None
    assert answer.tool_calls is not None
    found = [(call.name, call.arguments, call.call_id) for call in answer.tool_calls.calls()]
    assert found == [
        (name, "".join(parts) or "{}", "" if ids == "no id" else f"call{number}")
        for number, (name, parts) in enumerate(made)
    ]


def test_arguments_as_an_object() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "get", "arguments": {"text": "é", "n": [1]}}}
    answer = read([chunk({"tool_calls": [call]}), chunk(finish="tool_calls")])
    assert answer.tool_calls is not None
    (made,) = answer.tool_calls.calls()
    assert json.loads(made.arguments) == {"text": "é", "n": [1]}


def test_several_whole_calls_in_one_event_without_an_index() -> None:
    made = [{"id": f"c{at}", "function": {"name": "get", "arguments": "{}"}} for at in range(3)]
    answer = read([chunk({"tool_calls": made}), chunk(finish="tool_calls")])
    assert answer.tool_calls is not None
    assert [call.call_id for call in answer.tool_calls.calls()] == ["c0", "c1", "c2"]


def test_a_new_id_for_each_delta_of_an_index_continues_the_call() -> None:
    """As vLLM did before it sent the id once."""
    deltas = [{"index": 0, "id": f"r{at}", "function": {"arguments": part}} for at, part in enumerate(['{"a"', ": 1}"])]
    first = {"index": 0, "id": "r", "function": {"name": "get"}}
    answer = read([*[chunk({"tool_calls": [each]}) for each in (first, *deltas)], chunk(finish="tool_calls")])
    assert answer.tool_calls is not None
    assert [(call.call_id, call.name, call.arguments) for call in answer.tool_calls.calls()] == [
        ("r", "get", '{"a": 1}')
    ]


# ---- streams of bridges


def test_a_usage_before_the_answer_is_not_its_total() -> None:
    """As bridges pass on the usage of Anthropic's message_start."""
    early = {"choices": [], "usage": {"prompt_tokens": 25, "completion_tokens": 1}}
    texts = [chunk({"content": "a"})] * 3
    end = chunk(finish="stop", usage={"prompt_tokens": 25, "completion_tokens": 30})
    assert read([early, chunk({"role": "assistant"}), *texts, end]).output_tokens == 30
    running = [chunk({"content": "a"}, usage={"completion_tokens": at}) for at in (1, 2, 3)]
    answer = read([early, *running, chunk(finish="stop")])
    assert answer.tokens_by_event is not None
    assert (answer.output_tokens, list(answer.tokens_by_event)) == (3, [1, 1, 1])


@pytest.mark.parametrize("empty", ["", "null", "None", None])
@pytest.mark.parametrize("together", [False, True])
def test_calls_whose_ids_are_none(empty: str | None, together: bool) -> None:
    calls = [
        {"index": 0, "id": empty, "function": {"name": "get", "arguments": json.dumps({"n": n})}} for n in range(3)
    ]
    events = [calls] if together else [[call] for call in calls]
    answer = read([*[chunk({"tool_calls": each}) for each in events], chunk(finish="tool_calls")])
    assert answer.tool_calls is not None
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls.calls()] == [
        ("get", {"n": n}) for n in range(3)
    ]


@pytest.mark.parametrize(
    "delta",
    [
        {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]},
        {"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        *({"thinking": "hm"}, {"reasoning": "hm"}, {"reasoning_content": "hm"}),
    ],
)
def test_reasoning_by_any_name_is_output(delta: dict[str, Any]) -> None:
    answer = read([chunk({"role": "assistant"}), chunk(delta), chunk({"content": "a"}), chunk(finish="stop")])
    assert (answer.reasoning, answer.text, answer.failure) == (["hm"], ["a"], None)
    assert list(answer.event_ns) == [STEP_NS, 2 * STEP_NS]


def test_reasoning_of_typed_events() -> None:
    thinking = {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": "hm"}}
    assert read([thinking], DIALECTS["messages"].answer()).reasoning == ["hm"]
    assert read([{"type": "response.reasoning.delta", "delta": "hm"}], DIALECTS["responses"].answer()).reasoning == [
        "hm"
    ]


@given(st.sampled_from(["\n", "\r\n", " \n "]), texts)
def test_an_end_marker_without_an_empty_line_before_it(gap: str, text: str) -> None:
    events = [json.dumps(chunk({"content": text}), ensure_ascii=False), json.dumps(chunk(finish="stop"))]
    answer = ChatAnswer()
    answer.event(gap.join([*events, "[DONE]"]).encode(), 1)
    answer.settle()
    answer.conclude(reply_complete=True)
    assert (answer.failure, answer.text, answer.finish_reason, answer.closed) == (None, [text], "stop", True)
    assert Remark.ODD_EVENT in answer.remarks


@given(values)
def test_parts_of_any_type(kind: Any) -> None:
    answer = read([chunk({"content": [{"type": kind, "text": "x"}]}), chunk(finish="stop")])
    assert answer.text + answer.reasoning == ["x"]


@pytest.mark.parametrize(
    ("end", "failure", "reason"),
    [
        ({"type": "response.incomplete", "response": {}}, None, "incomplete"),
        (
            {"type": "response.completed", "response": {"status": "failed", "error": {"message": "boom"}}},
            "server_error",
            "stop",
        ),
    ],
)
def test_ends_of_a_response_without_success(end: dict[str, Any], failure: str | None, reason: str) -> None:
    answer = read([{"type": "response.output_text.delta", "delta": "a"}, end], DIALECTS["responses"].answer())
    assert (answer.failure, answer.finish_reason) == (failure, reason)
    assert failure is None or "boom" in answer.detail


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"delta": {"content": ""}, "finish_reason": "stop", "error": {"code": 502, "message": "boom"}}]},
        {"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "boom"}}]},
        *({"type": "error", "message": "boom"}, {"text": "boom", "error_code": 50001}),
        *({"error_code": 7, "error_msg": "boom"}, {"code": "InternalError", "message": "boom"}, {"detail": "boom"}),
    ],
)
def test_errors_in_other_places(event: dict[str, Any]) -> None:
    for known in (False, True):
        answer = read([chunk({"content": "a"}), event], finish_reasons=known)
        assert answer.failure is Failure.SERVER_ERROR
        assert "boom" in answer.detail


def test_an_error_or_reasoning_beside_a_text_of_a_long_answer() -> None:
    """Nearly all events have a short path, which must not skip them."""
    texts = [chunk({"content": "a"})] * 5
    failing = {"choices": [{"delta": {"content": "b"}, "error": {"message": "boom"}}]}
    answer = read([*texts, failing, chunk(finish="stop")])
    assert answer.failure is Failure.SERVER_ERROR
    assert "boom" in answer.detail
    thinking = [
        chunk({"content": "b", name: value})
        for name, value in (("thinking", "hm"), ("reasoning_details", [{"text": "hm"}]))
    ]
    answer = read([*texts, *thinking, chunk(finish="stop")])
    assert (answer.reasoning, "".join(answer.text), len(answer.event_ns)) == (["hm", "hm"], "aaaaabb", 7)


@pytest.mark.parametrize("none", ["null", "None", "", " ", "FINISH_REASON_UNSPECIFIED"])
def test_finish_reasons_that_are_none(none: str) -> None:
    answer = read([chunk({"content": "a"}, finish=none)])
    assert (answer.failure, answer.finish_reason) == (None, None)
    assert Remark.NO_FINISH_REASON in answer.remarks


def test_reasoning_beside_the_output_tokens_is_added() -> None:
    """As xAI counts it."""
    usage: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 23}
    usage["completion_tokens_details"] = {"reasoning_tokens": 10}
    thoughts, said = [chunk({"reasoning_content": "hm"})] * 10, [chunk({"content": "a"})] * 6
    assert read([*thoughts, *said, chunk(finish="stop"), {"choices": [], "usage": usage}]).output_tokens == 16
    whole = usage | {"completion_tokens": 16}  # OpenAI counts it as a part of them
    assert read([*thoughts, *said, chunk(finish="stop"), {"choices": [], "usage": whole}]).output_tokens == 16


def test_whole_outputs_in_other_places() -> None:
    pieces = [chunk({"function_call": {"name": "f", "arguments": ""}}), chunk({"function_call": {"arguments": "{}"}})]
    answer = read([*pieces, chunk(finish="function_call")])
    assert answer.tool_calls is not None
    assert [(call.name, call.arguments) for call in answer.tool_calls.calls()] == [("f", "{}")]
    whole = {"choices": [{"delta": {}, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    assert read([whole]).text == ["hi"]
    assert read([{"choices": [{"delta": {}, "text": "hi", "finish_reason": "stop"}]}]).text == ["hi"]
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    answer = read([{"type": "content_block_start", "content_block": block}], DIALECTS["messages"].answer())
    assert answer.tool_calls is not None
    assert json.loads(answer.tool_calls.calls()[0].arguments) == {"a": 1}


@pytest.mark.parametrize("none", [{}, [], [{}], None])
def test_tool_calls_without_a_call_are_no_output(none: Any) -> None:
    answer = read(
        [chunk({"role": "assistant", "tool_calls": none}), chunk({"content": "a"}), chunk({"tool_calls": none}, "stop")]
    )
    assert (list(answer.event_ns), answer.tool_calls) == ([STEP_NS], None)


def test_cached_tokens_are_not_taken_back() -> None:
    first = {"prompt_tokens": 70, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}}
    for details in ({"cached_tokens": 0}, {"audio_tokens": 0}, None):
        last = {"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 1, "prompt_tokens_details": details}}
        assert read([chunk({"content": "a"}), chunk(finish="stop", usage=first), last]).cached_tokens == 64


def test_an_event_without_data_is_none() -> None:
    assert SseParser().feed(b"event: ping\ndata:\n\ndata: \n\ndata\n\n: c\n\n") == []
