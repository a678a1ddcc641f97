"""Requests to each endpoint, and answers read from its event stream."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from endpoint_answers import STREAMED
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from pydantic import ValidationError
from streamed_answers import WAYS, item_events

import inferload.client.endpoints
from inferload.client.answers.answer import Answer
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import from_text
from inferload.scenario.schema.endpoints import ENDPOINTS, LIMITS, OF_TEXTS, EndpointName
from inferload.scenario.schema.request import RequestOptions
from inferload.turns.record import Failure
from inferload.workload.content.messages import Message, Piece, Role, ToolCall
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import Ask
from inferload.workload.isolation import Isolation


def message_of(role: Role, text: str, **more: Any) -> Message:
    return Message(role, (Piece(text, None, text),), **more)


def written(
    endpoint: EndpointName, *messages: Message, isolated: Isolation | None = None, **ask: Any
) -> dict[str, Any]:
    request = RequestOptions(endpoint=endpoint)
    writer = BodyWriter(Texts(approximate(), 0), BodySettings("m", request), isolated or Isolation())
    document = json.loads(writer.body(Ask(messages, ask.pop("output_tokens", 9), **ask)))
    assert isinstance(document, dict)
    return document


TOOL = {"type": "function", "function": {"name": "read", "description": "reads", "parameters": {"type": "object"}}}
CONVERSATION = (
    message_of("system", "Be brief."),
    message_of("user", "Look at ü.", images=("data:image/png;base64,AAAA", "http://host/b.jpg")),
    message_of(
        "assistant", "", reasoning="Hm.", tool_calls=(ToolCall("c0", "read", '{"path": "x"}'), ToolCall("c1", "", "["))
    ),
    message_of("tool", "It says 1.", tool_call_id="c0"),
    message_of("system", "You have used half of the context."),
    message_of("user", "And?"),
)


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_a_context_with_all_features(endpoint: EndpointName, golden: Callable[[str, str], None]) -> None:
    document = written(
        endpoint,
        *CONVERSATION,
        isolated=Isolation("salt", "run-1"),
        tools=json.dumps([TOOL]).encode(),
        tool_choice={"type": "function", "function": {"name": "read"}},
    )
    golden(f"body-{endpoint}.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def test_tool_choices_of_each_endpoint() -> None:
    choices = {
        word: written("messages", message_of("user", "a"), tool_choice=word)["tool_choice"] for word in ("auto", "none")
    }
    assert choices == {"auto": {"type": "auto"}, "none": {"type": "none"}}
    assert written("messages", message_of("user", "a"), tool_choice="required")["tool_choice"] == {"type": "any"}
    assert written("responses", message_of("user", "a"), tool_choice="required")["tool_choice"] == "required"


def test_the_output_limit_has_the_endpoints_field_name() -> None:
    user = message_of("user", "a")
    keys = {
        endpoint: set(written(endpoint, user)) - set(written(endpoint, user, output_tokens=None))
        for endpoint in ENDPOINTS
    }
    assert keys == {
        "chat": {"max_tokens"},
        "completions": {"max_tokens"},
        "responses": {"max_output_tokens"},
        "messages": set(),  # the endpoint requires max_tokens
        **{name: set() for name in OF_TEXTS},
    }


def test_a_chat_has_the_key_of_the_limit_that_its_model_takes() -> None:
    request = RequestOptions(max_tokens_field="max_completion_tokens")
    ask = Ask((message_of("user", "a"),), 7)
    assert DIALECTS["chat"].options(request, ask)["max_completion_tokens"] == 7
    limits = {name: set(DIALECTS[name].options(request, ask)) & set(LIMITS) for name in STREAMED}
    assert limits == {
        "chat": {"max_completion_tokens"},
        "completions": {"max_tokens"},
        "responses": {"max_output_tokens"},
        "messages": {"max_tokens"},
    }
    for endpoint, limit in limits.items():
        assert {DIALECTS[endpoint].limit_key(request)} == limit


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_token_counts_are_not_requested_from_a_server_that_refuses_it(endpoint: EndpointName) -> None:
    ask = Ask((message_of("user", "a"),), 7)
    assert "stream_options" in DIALECTS[endpoint].options(RequestOptions(endpoint=endpoint), ask)
    options = DIALECTS[endpoint].options(RequestOptions(endpoint=endpoint, usage=False), ask)
    assert options == {"stream": True, "max_tokens": 7, "ignore_eos": True}


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "responses", "usage": False},
        {"usage": False, "continuous_usage": True},
        {"endpoint": "completions", "max_tokens_field": "max_completion_tokens"},
        {"max_tokens_field": "max_output_tokens"},
    ],
)
def test_options_that_an_endpoint_does_not_have_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RequestOptions(**options)


def test_a_single_message_is_the_whole_prompt() -> None:
    document = written("completions", message_of("user", 'Say "ü"\n'), isolated=Isolation("first_line", "run-1"))
    assert document["prompt"] == '[run-1]\nSay "ü"\n'
    assert document["stream_options"] == {"include_usage": True}


texts = st.text(max_size=12)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), texts)
def test_a_later_prompt_begins_with_the_previous_one_and_its_answer(turns: list[tuple[str, str]], system: str) -> None:
    context = [message_of("system", system)] if system else []
    before = ""
    for question, answer in turns:
        context.append(message_of("user", question))
        prompt = written("completions", *context)["prompt"]
        assert prompt.startswith(before)
        assert prompt.endswith(question)
        context.append(message_of("assistant", answer))
        meet = question[-1:] + answer[:1]
        before = f"{prompt} {answer}" if len(meet) == 2 and meet.isascii() and meet.isalnum() else prompt + answer


def test_a_prompt_carries_no_images() -> None:
    with pytest.raises(ValueError, match="does not support images"):
        written("completions", *CONVERSATION)


def test_each_endpoint_has_a_row_and_a_module() -> None:
    folder = Path(inferload.client.endpoints.__file__).parent
    common = {"__init__", "dialect", "table"}
    assert {path.stem for path in folder.glob("*.py")} - common == set(ENDPOINTS) == set(DIALECTS)
    assert RequestOptions.model_json_schema()["properties"]["endpoint"]["enum"] == list(ENDPOINTS)


def test_no_other_module_lists_endpoints() -> None:
    """A string literal with the name of an endpoint is the default or something else, and never one of several in a module."""
    listed = {}
    for folder in ("inferload", "analysis", "deploy", "locustfiles"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if sum(name in text for name in ENDPOINTS) < 2:
                continue
            literals = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
            names = literals & (set(ENDPOINTS) - {"messages"})
            if len(names) > 1:
                listed[str(path.relative_to(ROOT))] = names
    spans = "inferload/workload/traces/otel.py"  # kinds of spans have some of these names
    assert set(listed) == {"inferload/locust/users.py", "inferload/scenario/schema/endpoints.py", spans}


SCENARIO = """\
schema: 1
name: a
workload: {kind: chat, prompt_tokens: 10, output_tokens: 5}
arrivals: {kind: constant, sessions_per_s: 2}
phases: {measure_s: 10}
request: {%s}
"""


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        ("endpoint: chats", "is 'chats'; did you mean chat?"),
        ("endpoint: messages, ignore_eos: true", "endpoint messages does not support it"),
        (
            "endpoint: responses, continuous_usage: true",
            "endpoint responses does not support it; use chat or completions",
        ),
        ("endpoint: completions, extra_body: {prompt: a}", "comes from the workload"),
    ],
)
def test_unsupported_features_of_an_endpoint_are_refused(request_text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_text(SCENARIO % request_text, "a.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("a.yaml:6: request.")


def test_lengths_are_forced_if_the_endpoint_supports_it() -> None:
    forced = {name: RequestOptions.model_validate({"endpoint": name}).ignore_eos for name in ENDPOINTS}
    assert forced == {"chat": True, "completions": True, "responses": True, "messages": False} | dict.fromkeys(
        OF_TEXTS, False
    )
    resolved = from_text(SCENARIO % "endpoint: messages", "a")
    assert from_text(resolved.resolved_text(), "b") == resolved


# -- answers


def read(endpoint: EndpointName, *documents: dict[str, Any]) -> Answer:
    """Return the answer of these events; event i has timestamp i."""
    answer = DIALECTS[endpoint].answer()
    answer.events([json.dumps(document).encode() for document in documents], list(range(len(documents))))
    answer.conclude(reply_complete=True)
    return answer


def response(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": 0, **more}


CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read", "arguments": ""}
USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 25,
}
RESPONSES = [
    response("created", response={"id": "resp_1", "status": "in_progress", "usage": None}),
    response("in_progress", response={"id": "resp_1", "status": "in_progress", "usage": None}),
    response("output_item.added", output_index=0, item={"type": "reasoning", "id": "rs_1", "summary": []}),
    response("reasoning_text.delta", output_index=0, delta="Hm."),
    response("output_item.added", output_index=1, item={"type": "message", "id": "msg_1", "content": []}),
    response("content_part.added", output_index=1, part={"type": "output_text", "text": ""}),
    response("output_text.delta", output_index=1, delta=""),
    response("output_text.delta", output_index=1, delta="So"),
    response("output_text.delta", output_index=1, delta=" it is."),
    response("output_text.done", output_index=1, text="So it is."),
    response("output_item.added", output_index=2, item=CALL),
    response("function_call_arguments.delta", output_index=2, delta='{"a":'),
    response("function_call_arguments.delta", output_index=2, delta=" 1}"),
    response("output_item.done", output_index=2, item=CALL),
    response(
        "completed",
        response={
            "id": "resp_1",
            "status": "completed",
            "usage": USAGE,
            "metrics": {"queue_time_ms": 1.5, "time_to_first_token_ms": 9.0},
        },
    ),
]


some = st.text(min_size=1)
ITEMS = st.one_of(
    some.map(lambda text: {"type": "message", "content": [{"type": "output_text", "text": text}]}),
    some.map(lambda text: {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}),
    some.map(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}),
    st.sampled_from(("", "{}", '{"a": 1}')).map(lambda arguments: CALL | {"arguments": arguments}),
    some.map(lambda text: CALL | {"type": "custom_tool_call", "arguments": None, "input": text}),
)


@given(st.lists(ITEMS, min_size=1, max_size=4), st.lists(st.sampled_from(WAYS), min_size=4, max_size=4))
def test_items_without_deltas_are_read_from_their_end(items: list[dict[str, Any]], ways: list[str]) -> None:
    """Each item is read once, whether it comes in deltas, whole, or only in the last event."""
    called = [item | {"call_id": f"c{index}"} for index, item in enumerate(items)]
    events = list(item_events(called, ways))
    answers = [read("responses", *events), read("responses", events[-1])]
    for answer in answers:
        assert answer.failure is None, answer.detail
        assert "".join(answer.text) == "".join(
            item["content"][0]["text"] for item in called if item["type"] == "message"
        )
        assert "".join(answer.reasoning) == "".join(
            (item.get("content") or item["summary"])[0]["text"] for item in called if item["type"] == "reasoning"
        )
        calls = () if answer.tool_calls is None else answer.tool_calls.calls()
        expected = [item for item in called if "call" in item["type"]]
        assert [(call.call_id, call.name, call.arguments) for call in calls] == [
            (item["call_id"], "read", item["arguments"] or item.get("input") or "{}") for item in expected
        ]
    assert len(answers[1].event_ns) == len(items)


def block(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


MESSAGES = [
    block("message_start", message={"id": "msg_1", "usage": {"input_tokens": 20, "output_tokens": 0}}),
    block("ping"),
    block("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
    block("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Hm."}),
    block("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "s"}),
    block("content_block_stop", index=0),
    block("content_block_start", index=1, content_block={"type": "text", "text": ""}),
    block("content_block_delta", index=1, delta={"type": "text_delta", "text": "So it is."}),
    block("content_block_stop", index=1),
    block("content_block_start", index=2, content_block={"type": "tool_use", "id": "c1", "name": "read", "input": {}}),
    block("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": ""}),
    block("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": '{"a": 1}'}),
    block("content_block_stop", index=2),
    block(
        "message_delta",
        delta={"stop_reason": "tool_use", "stop_sequence": None},
        usage={"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 5},
    ),
    block("message_stop"),
]


@pytest.mark.parametrize(
    ("endpoint", "events", "at", "call_id", "request_id"),
    [
        ("responses", RESPONSES, [3, 7, 8, 10, 11, 12], "call_1", "resp_1"),
        ("messages", MESSAGES, [3, 7, 9, 11], "c1", "msg_1"),
    ],
)
def test_a_stream_is_read(
    endpoint: EndpointName, events: list[dict[str, Any]], at: list[int], call_id: str, request_id: str
) -> None:
    answer = read(endpoint, *events)
    assert answer.failure is None, answer.detail
    assert (list(answer.event_ns), answer.tokens_by_event) == (at, None)
    assert (answer.first_event_ns, answer.first_visible_ns) == (0, 7)
    assert ("".join(answer.text), answer.reasoning) == ("So it is.", ["Hm."])
    assert answer.tool_calls is not None
    assert answer.tool_calls.calls() == (ToolCall(call_id, "read", '{"a": 1}'),)
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (20, 5, 16)
    assert (answer.finish_reason, answer.request_id) == ("tool_calls", request_id)
    assert (answer.metrics and answer.metrics.queue_time_ms) == (1.5 if endpoint == "responses" else None)


@pytest.mark.parametrize(
    ("endpoint", "events", "end_marker"),
    [("responses", RESPONSES, "response.completed"), ("messages", MESSAGES, "message_stop")],
)
def test_a_stream_without_its_end_is_cut(endpoint: EndpointName, events: list[dict[str, Any]], end_marker: str) -> None:
    last_but_one = -1 if endpoint == "responses" else -2
    answer = DIALECTS[endpoint].answer()
    answer.events(
        [json.dumps(document).encode() for document in events[:last_but_one]], [0] * len(events[:last_but_one])
    )
    answer.conclude(reply_complete=True)
    assert answer.failure is Failure.CUT
    assert f"ended without {end_marker} " in answer.detail


def test_a_chat_stream_without_its_end_is_cut() -> None:
    answer = read("chat", {"choices": [{"delta": {"content": "So"}}]})
    assert answer.failure is Failure.CUT
    assert "ended without [DONE] " in answer.detail


@pytest.mark.parametrize(("endpoint", "events"), [("responses", RESPONSES), ("messages", MESSAGES)])
def test_the_first_status_event_is_no_output(endpoint: EndpointName, events: list[dict[str, Any]]) -> None:
    answer = DIALECTS[endpoint].answer()
    for at_ns, document in enumerate(events[:2]):
        answer.event(json.dumps(document).encode(), at_ns)
    assert (answer.first_event_ns, answer.last_event_ns) == (0, None)
    answer.event(json.dumps(events[2]).encode(), 2)
    assert answer.last_event_ns == 2


@pytest.mark.parametrize(
    ("endpoint", "event", "failure", "message"),
    [
        (
            "responses",
            response("failed", response={"id": "r", "error": {"message": "no memory"}}),
            "server_error",
            "no memory",
        ),
        ("responses", {"type": "error", "code": "500", "message": "broken"}, "server_error", "broken"),
        ("responses", {"error": {"message": "out of memory", "code": 500}}, "server_error", "out of memory"),
        ("responses", {"choices": []}, "cut", "choices"),
        (
            "messages",
            {"type": "error", "error": {"type": "internal_error", "message": "broken"}},
            "server_error",
            "broken",
        ),
        ("messages", {"error": {"message": "out of memory", "code": 500}}, "server_error", "out of memory"),
        ("messages", {"error": None}, "cut", "error"),
        ("messages", {"type": "message_start", "message": 3, "error": None}, "cut", "message_stop"),
    ],
)
def test_errors_in_the_stream(endpoint: EndpointName, event: dict[str, Any], failure: str, message: str) -> None:
    answer = read(endpoint, event)
    assert answer.failure == failure
    assert message in answer.detail


def test_finish_reasons_are_those_of_chat_completions() -> None:
    def ended(reason: str) -> str | None:
        return read(
            "messages", block("message_delta", delta={"stop_reason": reason}), block("message_stop")
        ).finish_reason

    def stopped(**more: Any) -> str | None:
        return read("responses", response("completed", response={"id": "r", **more})).finish_reason

    assert [ended(reason) for reason in ("end_turn", "max_tokens", "refusal")] == ["stop", "length", "refusal"]
    assert stopped(status="incomplete", incomplete_details={"reason": "max_output_tokens"}) == "length"
    assert stopped(status="completed") == "stop"
