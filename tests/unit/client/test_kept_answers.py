"""Answers in later requests: what a server streams in any pieces goes back as it came, on each endpoint."""

import json
from array import array
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from streamed_answers import block_events, chat_events, chunk, deltas_of, item_events

from inferload.client.answers import kept
from inferload.client.answers.answer import Answer, Frames
from inferload.client.answers.chat import ChatAnswer
from inferload.client.answers.event_stream import EventStream, scanner
from inferload.client.answers.merge import grow, whole
from inferload.client.connection.reply import Arrivals, HttpReply, nothing
from inferload.client.endpoints.dialect import DIALECTS, words
from inferload.scenario.schema.endpoints import EndpointName
from inferload.turns.record import CANCELLED
from inferload.workload.content.history import as_document, as_message, without_ids
from inferload.workload.content.messages import Message, Piece, ToolCall, made_call_id, sendable
from inferload.workload.content.script import TurnReply

DONE = b"[DONE]"
KNOWN = words("""
    content reasoning reasoning_content thinking reasoning_details refusal tool_calls audio role function_call function name
    arguments index id type signature format usage call_id status logprobs finish_reason stop_reason token_ids
    """)


def numbered(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"index": at, **item} for at, item in enumerate(items)]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
some_text = texts.filter(bool)
keys = some_text.filter(lambda key: key not in KNOWN and not key.lower().endswith("signature"))
scalars = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
        st.lists(st.dictionaries(keys, inner, max_size=2), max_size=3).map(numbered),
    ),
    max_leaves=8,
)
unknown = st.dictionaries(keys, values, max_size=3)


def answered(answer: Answer, documents: Iterable[Any], *, escaped: bool = False) -> TurnReply:
    answer.keeping = True
    data = [json.dumps(document, ensure_ascii=escaped).encode() for document in documents]
    answer.events([*data, DONE], [*range(len(data) + 1)])
    answer.settle()
    calls = () if answer.tool_calls is None else answer.tool_calls.calls("s1.0")
    native = answer.native(calls)
    assert native is not None
    return TurnReply("".join(answer.text), 9, reasoning="".join(answer.reasoning), tool_calls=calls, native=native)


def sent(endpoint: EndpointName, message: Message) -> Any:
    """Return the JSON of a message: an object, or the items of /responses."""
    text = json.dumps(sendable("".join(piece.literal or "" for piece in message.pieces))).encode()
    body = DIALECTS[endpoint].message(message, text)
    return json.loads(b"[%s]" % body if endpoint == "responses" else body)


functions = st.builds(lambda own, name, text: {**own, "name": name, "arguments": text}, unknown, some_text, some_text)
plain_call = {"type": "function"}
calls = st.builds(
    lambda own, mark, called: {**own, **plain_call, "id": mark, "function": called}, unknown, some_text, functions
)
parts = st.lists(
    st.builds(lambda own, text: {**own, "type": "text", "text": text}, unknown, some_text), min_size=1, max_size=3
)
messages = st.builds(
    lambda own, content, thoughts, called: (
        own | {"content": content} | thoughts | ({"tool_calls": called} if called else {})
    ),
    unknown,
    some_text | parts.map(numbered),
    st.dictionaries(st.sampled_from(["reasoning", "reasoning_content", "thinking"]), some_text, max_size=2)
    | st.fixed_dictionaries({"reasoning_details": parts.map(numbered)}),
    st.lists(calls, max_size=2, unique_by=lambda call: call["id"]),
)


@given(messages, st.data())
def test_a_chat_message_goes_back_as_it_came(message: dict[str, Any], data: st.DataObject) -> None:
    def cut(most: int) -> int:
        return data.draw(st.integers(0, max(0, most)))

    reply = answered(ChatAnswer(), chat_events(message, cut))
    assert sent("chat", reply.message()) == {"role": "assistant"} | message
    assert sent("chat", as_message(as_document(reply.message()))) == {"role": "assistant"} | message
    without = sent("chat", reply.message(reasoning=False, calls=()))
    assert not {"reasoning", "reasoning_content", "thinking", "reasoning_details", "tool_calls"} & without.keys()


blocks = st.lists(
    st.one_of(
        st.builds(lambda own, text: {**own, "type": "text", "text": text}, unknown, some_text.filter(str.strip)),
        st.builds(lambda text, mark: {"type": "thinking", "thinking": text, "signature": mark}, texts, some_text),
        st.builds(lambda mark: {"type": "redacted_thinking", "data": mark}, some_text),
        st.builds(lambda own, mark: {"type": "tool_use", "id": mark, "name": "f", "input": own}, unknown, some_text),
        st.builds(lambda own, mark: {"type": "server_tool_use", "id": mark, "name": "s", "input": own}, unknown, some_text),
        st.builds(lambda own: {"type": "web_search_tool_result", "tool_use_id": "s", "content": own}, st.lists(unknown)),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda block: block.get("id", id(block)),
)  # fmt: skip


@given(blocks, st.data())
@example([{"type": "thinking", "thinking": "hm", "signature": "abc"}, {"type": "text", "text": "a"}], None)
def test_content_blocks_go_back_as_they_came(content: list[dict[str, Any]], data: st.DataObject | None) -> None:
    def cut(most: int) -> int:
        return data.draw(st.integers(0, max(0, most))) if data else 0

    reply = answered(DIALECTS["messages"].answer(), block_events(content, cut))
    assert [call.name for call in reply.tool_calls] == ["f" for block in content if block["type"] == "tool_use"]
    back = sent("messages", reply.message())["content"]
    back = [{"type": "text", "text": back}] if isinstance(back, str) else back
    thoughts = {"thinking", "redacted_thinking"}
    only = {block["type"] for block in content} <= thoughts
    assert back == content + ([{"type": "text", "text": "..."}] if only else [])
    plain = sent("messages", reply.message(reasoning=False, calls=()))["content"]
    assert all(block["type"] not in {*thoughts, "tool_use"} for block in (plain if isinstance(plain, list) else ()))
    assert plain


items = st.lists(
    st.one_of(
        st.builds(lambda own, text: {**own, "type": "message", "id": "m", "role": "assistant", "status": "completed",
                                     "content": [{"type": "output_text", "text": text}]}, unknown, some_text),
        st.builds(lambda own, mark: {**own, "type": "reasoning", "id": mark, "summary": [], "encrypted_content": mark},
                  unknown, some_text),
        st.builds(lambda own, mark: {**own, "type": "function_call", "call_id": mark, "name": "f", "arguments": "{}"},
                  unknown, some_text),
        st.builds(lambda own: {**own, "type": "web_search_call", "id": "w"}, unknown),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda item: str(item.get("call_id", id(item))),
)  # fmt: skip


@given(items, st.sampled_from(["done", "completed", "both"]))
def test_output_items_go_back_as_they_came(output: list[dict[str, Any]], form: str) -> None:
    reply = answered(DIALECTS["responses"].answer(), item_events(output, form))
    expected = list(output)
    while expected and expected[-1]["type"] == "reasoning":  # refused without a following item
        expected.pop()
    back = sent("responses", reply.message())
    assert back[: len(expected)] == expected
    assert [item["type"] for item in back[len(expected) :]] == ([] if expected else ["message"])
    without = [
        item["type"] for item in sent("responses", reply.message(reasoning=False, calls=(ToolCall("p", "g", "{}"),)))
    ]
    assert "reasoning" not in without
    assert without.count("function_call") == 1


@given(st.dictionaries(keys, values, max_size=4), st.data())
def test_a_merge_is_independent_of_the_pieces(value: dict[str, Any], data: st.DataObject) -> None:
    merged: dict[str, Any] = {}
    for delta in deltas_of(value, lambda most: data.draw(st.integers(0, max(0, most)))):
        grow(merged, delta)
    assert whole(merged) == value


def test_streams_with_frames_of_others_are_kept_as_without() -> None:
    """The frames of a stream that is not kept may leave out fields."""
    deltas = [{"role": "assistant", "content": ""}, *[{"reasoning_content": "x", "channel": "own", "extra": "y"}] * 9]
    deltas += [{"content": f"{at}", "refusal": None} for at in range(9)]
    events = [b"data: %s\n\n" % json.dumps(chunk(delta)).encode() for delta in deltas]
    natives = []
    for frames in (Frames(None), Frames(scanner())):
        for keeping in (False, True, True):
            answer = ChatAnswer()
            answer.keeping = keeping
            stream = EventStream(answer, frames)
            for event in events:
                stream.feed(
                    HttpReply(nothing), Arrivals(event, array("q", [len(event)]), array("q", [1]), array("q"), 0)
                )
            natives.append(json.loads(answer.native(()) or b"null"))
    kept = {"reasoning_content": "x" * 9, "channel": "own", "extra": "y" * 9}
    assert natives == [None, kept, kept] * 2


def test_parts_without_an_index_are_continued_until_they_are_signed() -> None:
    def piece(thinking: str, signature: str | None = None) -> dict[str, Any]:
        return chunk({"thinking_blocks": [{"type": "thinking", "thinking": thinking, "signature": signature}]})

    parts = [piece("h"), piece("m"), piece("", "s1"), piece("so"), piece("", "s2")]
    reply = answered(ChatAnswer(), [*parts, chunk({"content": "a"})])
    blocks = [{"type": "thinking", "thinking": text, "signature": mark} for text, mark in (("hm", "s1"), ("so", "s2"))]
    assert sent("chat", reply.message()) == {"role": "assistant", "content": "a", "thinking_blocks": blocks}


def test_a_whole_message_of_a_gateway_goes_back() -> None:
    message = {"role": "assistant", "content": "a", "reasoning": "hm", "extra": 1}
    whole_answer = {"id": "x", "choices": [{"index": 0, "delta": {}, "message": message, "finish_reason": "stop"}]}
    assert sent("chat", answered(ChatAnswer(), [whole_answer]).message()) == message


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}], **more}


def hidden(kind: str, data: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, **more}


def summary(text: str, mark: str = "") -> dict[str, Any]:
    part = {"type": "summary_text", "text": text} | ({"signature": mark} if mark else {})
    return {"type": "reasoning", "summary": [part]}


def signed(mark: str) -> dict[str, Any]:
    return {"extra_content": {"google": {"thought_signature": mark}}}


function = {"name": "f", "arguments": "{}"}
calling = {"id": "c00000001", "type": "function", "function": function}
encrypted = [hidden("reasoning.encrypted", mark, id=mark, index=0) for mark in "ab"]
redacted = [hidden("redacted_thinking", mark) for mark in "ab"]
ab = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
STREAMED: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {  # deltas, and the message of later requests
    "parts, then text": (
        [{"content": [thought("h")]}, {"content": [thought("m")]}, {"content": "so"}, {"content": " be it"}],
        {"content": [thought("hm"), {"type": "text", "text": "so be it"}]},
    ),
    "parts that say whether they end": (
        [{"content": [thought("h", closed=False)]}, {"content": ""}, {"content": [thought("m", closed=True)]}],
        {"content": [thought("hm", closed=True)]},
    ),
    "a blank part": (
        [{"content": [{"type": "text", "text": ""}]}, {"content": [thought("h")]}],
        {"content": [thought("h")]},
    ),
    "a list in a part": (
        [{"content": [summary("h")]}, {"content": [summary("m")]}, {"content": [summary("", "s")]}],
        {"content": [summary("hm", "s")]},
    ),
    "a name in each delta": (
        [{"content": text, "name": "Mini Max"} for text in "ab"],
        {"content": "ab", "name": "Mini Max"},
    ),
    "fields of replies": ([{"content": "a", "token_id": 1, "executed_tools": [{"index": 0}]}], {"content": "a"}),
    "a signature twice": (
        [{"content": "a"} | signed("c2lnbmVk"), signed("c2lnbmVk")],
        {"content": "a"} | signed("c2lnbmVk"),
    ),
    "a signature in pieces": ([signed("s"), {"content": "a"}, signed("s")], {"content": "a"} | signed("ss")),
    "hidden data of one index": (
        [{"content": "a"}, *({"reasoning_details": [each]} for each in encrypted)],
        {"content": "a", "reasoning_details": encrypted},
    ),
    "hidden data without an index": (
        [{"content": "a"}, *({"thinking_blocks": [each]} for each in redacted)],
        {"content": "a", "thinking_blocks": redacted},
    ),
    "no reasoning before a call, which DeepSeek needs": (
        [{"content": None, "reasoning_content": ""}, {"tool_calls": [calling]}],
        {"content": "", "reasoning_content": "", "tool_calls": [calling]},
    ),
    "an index that is text": (
        [
            *({"tool_calls": [{"index": at} | calling | {"id": at}]} for at in ("1", "0")),
            {"tool_calls": [{"index": "1", "x": {"y": 1}}]},
        ],
        {"content": "", "tool_calls": [calling | {"id": "1", "x": {"y": 1}}, calling | {"id": "0"}]},
    ),
    "one id for two calls": (
        [{"tool_calls": [{"index": at} | calling]} for at in range(2)],
        {"content": "", "tool_calls": [calling, calling]},
    ),
    "arguments before the name": (
        [
            {"tool_calls": [{"index": 0, "id": "c00000001", "function": {"arguments": "{"}}]},
            {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "}"}}]},
        ],
        {"content": "", "tool_calls": [calling]},
    ),
    "halves of a character": ([{"content": "a\ud83d"}, {"content": "\ude00"}], {"content": "a\U0001f600"}),
    "halves of a character in a call": (
        [
            {"tool_calls": [{"index": 0, "id": "c00000001", "function": {"name": "f", "arguments": '{"a":"\ud83d'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '\ude00"}'}}]},
        ],
        {"content": "", "tool_calls": [calling | {"function": function | {"arguments": '{"a":"\U0001f600"}'}}]},
    ),
}


@pytest.mark.parametrize("case", STREAMED)
def test_streams_of_services_go_back(case: str) -> None:
    deltas, message = STREAMED[case]
    reply = answered(ChatAnswer(), map(chunk, deltas), escaped=True)
    assert sent("chat", reply.message()) == {"role": "assistant"} | message
    assert sent("chat", reply.message(reasoning=False, calls=()))["content"]
    assert sent("chat", reply.message(calls=())).get("reasoning_content") != ""


def test_calls_at_the_end_of_a_gateway_are_those_of_the_stream() -> None:
    called = calling | signed("s")
    end = {"id": "x", "choices": [{"delta": {}, "message": {"role": "assistant", "tool_calls": [called]}}]}
    reply = answered(ChatAnswer(), [chunk({"tool_calls": [called]}), end])
    assert sent("chat", reply.message())["tool_calls"] == [called]


@pytest.mark.parametrize(("reason", "options", "back"), [
    ("pause_turn", {}, "a server_tool_use"),  # goes on with this answer
    ("pause_turn", {"calls": ()}, "a"), ("length", {}, "a"), (CANCELLED, {}, "a"),
])  # fmt: skip
def test_a_tool_of_the_server_without_a_result_goes_back_only_alone(
    reason: str, options: dict[str, Any], back: str
) -> None:
    own = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    reply = answered(DIALECTS["messages"].answer(), block_events([ab[0], own], lambda _most: 0))
    reply = msgspec.structs.replace(reply, finish_reason=reason)
    blocks = sent("messages", reply.message(**options))["content"]
    assert " ".join(block.get("text", block["type"]) for block in blocks) == back


def test_an_answer_that_a_history_has_twice_has_no_ids_then() -> None:
    searched: list[dict[str, Any]] = [{"type": "web_search_call", "id": "w"}, {"type": "message", "id": "m"}]
    assert json.loads(without_ids(json.dumps(searched).encode())) == [{"type": "message"}]
    own = {"type": "server_tool_use", "id": "s"}, {"type": "web_search_tool_result", "tool_use_id": "s"}
    assert json.loads(without_ids(json.dumps([*own, ab[0]]).encode())) == [ab[0]]


def test_nulls_of_the_servers_own_tools_go_back() -> None:
    ran = {"type": "code_interpreter_call", "id": "ci", "container_id": "c", "code": "1", "outputs": None}
    assert sent("responses", answered(DIALECTS["responses"].answer(), item_events([ran], "done")).message()) == [ran]


def test_a_call_that_was_cut_after_another_one_goes_back() -> None:
    calls = [{"type": "function_call", "id": mark, "call_id": mark, "name": "f", "arguments": "{}"} for mark in "ab"]
    begun = {"type": "response.output_item.added", "output_index": 1, "item": calls[1] | {"arguments": ""}}
    cut = {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a'}
    events = [{"type": "response.output_item.done", "output_index": 0, "item": calls[0]}, begun, cut]
    reply = msgspec.structs.replace(answered(DIALECTS["responses"].answer(), events), finish_reason="length")
    assert [item["call_id"] for item in sent("responses", reply.message())] == ["a", "b"]


def test_a_call_without_an_id_gets_one_that_the_strictest_server_takes() -> None:
    for null in (None, "", "null"):
        call = {"index": 0, "id": null, "function": {"name": "f", "arguments": "{}"}}
        reply = answered(ChatAnswer(), [chunk({"tool_calls": [call, call | {"index": 1}]})])
        ids = [each["id"] for each in sent("chat", reply.message())["tool_calls"]]
        assert ids == [each.call_id for each in reply.tool_calls] == [made_call_id("s1.0/0"), made_call_id("s1.0/1")]
        assert all(len(each) == 9 and each.isalnum() and each.isascii() for each in ids)
    assert len({made_call_id(f"{at}") for at in range(10_000)}) == 10_000


@pytest.mark.parametrize("own", [{}, {"extra": "own"}])
@pytest.mark.parametrize(
    ("endpoint", "reason"), [("chat", "length"), ("responses", "content_filter"), ("chat", CANCELLED)]
)
def test_a_call_that_was_cut_goes_back_as_json(endpoint: EndpointName, reason: str, own: dict[str, Any]) -> None:
    call = {"index": 0, "id": "c00000001", "function": {"name": "f", "arguments": '{"a": '}} | own
    item = {"type": "function_call", "id": "i", "call_id": "c00000001", "name": "f", "arguments": '{"a": '} | own
    events = [chunk({"tool_calls": [call]})] if endpoint == "chat" else item_events([item], "done")
    reply = msgspec.structs.replace(answered(DIALECTS[endpoint].answer(), events), finish_reason=reason)
    back = sent(endpoint, reply.message())
    function = back["tool_calls"][0]["function"] if endpoint == "chat" else back[-1]
    assert json.loads(function["arguments"]) == {"unparsed": '{"a": '}
    assert reply.tool_calls[0].arguments == '{"a": '


def test_items_of_which_all_have_one_index_go_back_from_the_end() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e"}
    output = [thought, {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a"}]}]
    events = [event | ({"output_index": 0} if "output_index" in event else {}) for event in item_events(output)]
    assert sent("responses", answered(DIALECTS["responses"].answer(), events).message()) == output


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
def test_half_a_surrogate_pair_in_a_call_is_replaced(endpoint: EndpointName) -> None:
    call = {"type": "function_call", "call_id": "c00000001", "name": "f", "arguments": "{}"}
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": 0, "item": call | {"arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a":"\ud800"}'},
    ]
    if endpoint == "chat":
        events = [chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": {"a": "\ud800"}}}]})]
    answer = DIALECTS[endpoint].answer()
    answer.keeping = True
    answer.events([json.dumps(event).encode() for event in events], [*range(len(events))])
    (called,) = answer.tool_calls.calls("s1.0") if answer.tool_calls else ()
    assert json.loads(called.arguments) == {"a": "\ufffd"}
    assert sent(endpoint, TurnReply("", 9, tool_calls=(called,), native=answer.native((called,)) or b"").message())


def test_items_without_an_index_are_told_apart_by_their_ids() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f"}
    events = [
        {"type": "response.output_item.added", "item": {"type": "message", "id": "msg_1", "content": []}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "So"},
        {"type": "response.output_item.added", "item": call | {"arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": "{}"},
        {"type": "response.output_item.done", "item": call | {"arguments": "{}"}},
    ]
    reply = answered(DIALECTS["responses"].answer(), events)
    assert (reply.text, reply.tool_calls) == ("So", (ToolCall("call_1", "f", "{}"),))


def test_what_cannot_be_kept_is_left_out_as_a_whole() -> None:
    begun = {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": "", "signature": ""}}
    said = {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}
    reply = answered(DIALECTS["messages"].answer(), [begun, said, {"type": "message_stop"}])
    assert (reply.reasoning, sent("messages", reply.message())["content"]) == ("hm", [{"type": "text", "text": "..."}])
    blank = {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "\n\n"}}
    called = blank | {"index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}
    reply = answered(DIALECTS["messages"].answer(), [blank, called, {"type": "message_stop"}])
    assert [block["type"] for block in sent("messages", reply.message())["content"]] == ["tool_use"]
    unsigned = begun | {"content_block": {"type": "thinking", "thinking": ""}}  # as bridges send it
    reply = answered(DIALECTS["messages"].answer(), [unsigned, said, {"type": "message_stop"}])
    assert sent("messages", reply.message())["content"][0] == {"type": "thinking", "thinking": "hm"}
    summary = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]}
    text = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a"}]}
    for store, back in ((False, [text]), (True, [summary, text])):
        end = {"type": "response.completed", "response": {"store": store, "output": [summary, text]}}
        assert sent("responses", answered(DIALECTS["responses"].answer(), [end]).message()) == back
    spoken = chunk({"audio": {"id": "a1", "data": "AAAA", "transcript": "hello"}})
    assert sent("chat", answered(ChatAnswer(), [spoken]).message()) == {
        "role": "assistant",
        "content": "",
        "audio": {"id": "a1"},
    }


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_an_answer_without_text_has_a_content(endpoint: EndpointName) -> None:
    empty = sent(endpoint, TurnReply("", 9).message())
    assert (empty[0] if endpoint == "responses" else empty)["content"] == "..."
    called = json.dumps(sent(endpoint, TurnReply("", 9, tool_calls=(ToolCall("c", "f", "{}"),)).message()))
    assert "..." not in called


def test_an_answer_is_kept_up_to_a_size() -> None:
    answer = ChatAnswer()
    answer.keeping = True
    piece = "x" * (kept.MOST_BYTES // 8)
    for at in range(9):
        answer.event(json.dumps(chunk({"extra": piece, "audio": {"id": "a", "data": piece}})).encode(), at)
        assert (answer.native(()) is None) == (at > 6)
    deep = ChatAnswer()
    deep.keeping = True
    nested = b'{"choices":[{"delta":{"content":"a","x":' + b"[" * 900 + b"]" * 900 + b"}}]}"
    deep.event(nested, 1)
    assert deep.text == ["a"]
    assert deep.native(()) is None or msgspec.json.decode(deep.native(()) or b"{}")


def test_a_document_of_a_live_agent_has_the_fields_of_the_server() -> None:
    document = {"role": "assistant", "content": "a", "reasoning_content": "hm", "annotations": [{"url": "u"}]}
    assert as_document(as_message(document)) == document
    native = Message("assistant", (Piece("", None, "a"),), native=b'[{"type":"text","text":"a","citations":[1]}]')
    assert as_document(native) == {"role": "assistant", "content": "a", "native": json.loads(native.native)}
    assert as_message(as_document(native)).native == native.native
