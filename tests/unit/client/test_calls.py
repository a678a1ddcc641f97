"""Arguments of calls in tasks: request bodies, and refusals in one line."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.requests.call_checks import OWN, CallError
from inferload.client.requests.calls import call_of, check_conversation
from inferload.run.worker.session_context import SessionContext
from inferload.run.worker.user_turns import TaskContext, TaskSession
from inferload.scenario.schema.endpoints import EndpointName, names_of
from inferload.scenario.schema.request import RequestOptions
from inferload.turns.record import PhaseWindow
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet

PLAIN = RequestOptions(ignore_eos=False)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def body(endpoint: EndpointName, context: Any, **options: Any) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(call_of(endpoint, context, options).request_body(PLAIN, "m"))
    return sent


def test_a_text_becomes_a_user_message() -> None:
    assert body("chat", "Hi", max_tokens=5, temperature=0.5) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "temperature": 0.5,
    }


def test_each_endpoint_has_its_field_names() -> None:
    assert body("completions", "Once", max_tokens=5)["prompt"] == "Once"
    assert body("completions", [1, 2, 3])["prompt"] == [1, 2, 3]
    responses = body("responses", "Hi", max_tokens=5, tools=[TOOL])
    assert (responses["input"], responses["max_output_tokens"]) == ("Hi", 5)
    assert responses["tools"] == [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    messages = body("messages", "Hi", system="Be brief.", max_tokens=5)
    assert (messages["system"], messages["max_tokens"]) == ("Be brief.", 5)
    assert messages["messages"] == [{"role": "user", "content": "Hi"}]


def test_messages_are_sent_unchanged() -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": "me"}]
    assert body("chat", messages)["messages"] == messages
    native = {"type": "web_search"}
    assert body("responses", "Hi", tools=[native], tool_choice="auto")["tools"] == [native]
    called = {"role": "assistant", "content": None, "tool_calls": []}
    assert body("chat", [called])["messages"] == [called]


def test_a_lone_surrogate_of_an_earlier_answer_can_be_sent() -> None:
    messages = [{"role": "assistant", "content": "cut \ud83d"}, {"role": "user", "content": "Go on"}]
    assert body("chat", messages)["messages"][0]["content"] == "cut \ufffd"


def test_fields_of_the_call_override_the_scenario() -> None:
    call = call_of("chat", "Hi", {"top_p": 0.9, "extra_body": {"my_server": 1}})
    sent = json.loads(call.request_body(RequestOptions(ignore_eos=False, extra_body={"top_p": 0.1, "seed": 7}), "m"))
    assert (sent["top_p"], sent["seed"], sent["my_server"]) == (0.9, 7, 1)


@pytest.mark.parametrize(
    ("context", "options", "message"),
    [
        ("Hi", {"max_token": 5}, "chat: unknown argument 'max_token'; did you mean max_tokens?"),
        ("Hi", {"temprature": 1}, "chat: unknown argument 'temprature'; did you mean temperature?"),
        (
            "Hi",
            {"my_server": 1},
            "chat: unknown argument 'my_server'; put a server-specific field into extra_body=",
        ),
        ("Hi", {"max_completion_tokens": 5}, "chat: max_completion_tokens is max_tokens here"),
        ("Hi", {"extra_body": {"stream": False}}, "chat: stream is always on; leave it out"),
        ("Hi", {"max_tokens": 0}, "chat: max_tokens is 0; give a whole number from 1"),
        ("Hi", {"max_tokens": 2**31}, "chat: max_tokens is 2147483648; give a whole number from 1 to 2,147,483,647"),
        ("Hi", {"model": 5}, "chat: model is 5; give the name of a model"),
        ("Hi", {"timeout_s": "1"}, "chat: timeout_s is '1'; give seconds above 0"),
        ("Hi", {"name": ""}, "chat: name is ''; give a word without blanks and braces, for tables and gates"),
        ("Hi", {"name": "GET /x"}, "chat: name is 'GET /x'; give a word without blanks"),
        ("Hi", {"name": "x" * 101}, "chat: name has 101 characters; give at most 100"),
        ("Hi", {"headers": {"X-A": "b\r\nX-C: d"}}, "chat: header X-A: must be printable ASCII"),
        (
            "Hi",
            {"headers": {"Authorization": "Bearer 1"}},
            "credentials are not allowed in a locustfile; use --api-key-file",
        ),
        ("Hi", {"tools": "look"}, "chat: tools is str; give a list of tool definitions"),
        ("Hi", {"extra_body": {"x": object()}}, "a request may contain only text, numbers, lists and dicts"),
        ([], {}, "chat: messages is empty; give text, or a list of"),
        (None, {}, "chat: messages is NoneType; give text, or a list of"),
        (["Hi"], {}, "chat: messages[0] is str; give {'role': 'user', 'content': '...'}"),
        ([{"role": "usr", "content": "Hi"}], {}, "chat: messages[0]: role is 'usr'; did you mean user?"),
        (
            [{"rol": "user", "content": "Hi"}],
            {},
            "chat: messages[0]: role is missing; choose from system, developer, user",
        ),
        ([{"role": "user"}], {}, "chat: messages[0]: content is missing; give text, or a list of parts"),
        ([{"role": "user", "content": None}], {}, "chat: messages[0]: content is NoneType; give text"),
    ],
)
def test_an_invalid_call_is_one_line_with_a_remedy(context: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CallError) as caught:
        body("chat", context, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sytem": "Be brief."}, r"^conversation: unknown argument 'sytem'; did you mean system\?$"),
        ({"max_token": 5}, r"^conversation: unknown argument 'max_token'; did you mean max_tokens\?$"),
        ({"max_tokens": 0}, r"^chat: max_tokens is 0; give a whole number from 1 to 2,147,483,647$"),
    ],
)
def test_an_invalid_argument_of_a_conversation_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CallError, match=message):
        check_conversation(options)


@pytest.mark.parametrize(
    ("endpoint", "context", "options", "error"),
    [
        ("embeddings", [], {}, "embeddings: input is empty; give a text, or a list of texts"),
        ("pooling", "a", {"max_tokens": 5}, "pooling: max_tokens is of answers with text; leave it out"),
        ("embeddings", "a", {"encoding_format": "bytes"}, "embeddings: encoding_format is bytes, not JSON; use"),
        ("pooling", "a", {"extra_body": {"encoding_format": "bytes_only"}}, "pooling: encoding_format is bytes_only"),
        ("rerank", ["a"], {}, "rerank: give a dict with query and documents"),
        ("score", {"text_1": "a", "text_2": 5}, {}, "score: text_2 is int; give a text, or a list of texts"),
    ],
)
def test_an_invalid_call_of_texts(endpoint: EndpointName, context: Any, options: dict[str, Any], error: str) -> None:
    with pytest.raises(CallError, match=error):
        body(endpoint, context, **options)


@given(endpoint=st.sampled_from(names_of(lambda row: not row.query)), data=st.data())
def test_known_fields_are_accepted_and_misspelled_ones_refused(endpoint: EndpointName, data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(DIALECTS[endpoint].fields)))
    assert body(endpoint, "Hi", **{name: 1})[name] == 1
    position = data.draw(st.integers(0, len(name)))
    wrong = f"{name[:position]}q{name[position:]}"
    if wrong not in DIALECTS[endpoint].fields and wrong not in OWN:
        with pytest.raises(CallError, match=f"unknown argument '{wrong}'"):
            body(endpoint, "Hi", **{wrong: 1})


def test_timeouts_of_a_call_start_at_the_call() -> None:
    limits_ns: list[int] = []
    result = SimpleNamespace(native=b"", record=SimpleNamespace(ok=True))
    turn = SimpleNamespace(wait_until=lambda at_ns: limits_ns.append(at_ns) or True, wait=lambda: result)
    planned_ns: list[int] = []

    def send(request: Any, *_others: Any) -> Any:
        planned_ns.append(request.planned_ns)
        return turn

    part: Any = SimpleNamespace(
        quota=SimpleNamespace(take_session=lambda phase: True),
        assignment=SimpleNamespace(model="m", stripe=0, stripes=1),
        scenario=SimpleNamespace(of_tasks=True, request=PLAIN),
    )
    windows = RunWindows()
    windows.set((PhaseWindow("measure", 1),))
    turns: Any = SimpleNamespace(await_turn=lambda: None, send=send)
    run = SessionContext(part, windows, turns, TallySet(), lambda call: call(), lambda: None)
    before_ns = now_ns()
    TaskSession(TaskContext(run)).send(call_of("chat", "Hi", {"timeout_s": 2}), "ask", late_ns=NS_PER_S)
    assert planned_ns[0] <= now_ns() - NS_PER_S
    assert limits_ns[0] >= before_ns + 2 * NS_PER_S
