"""Answers in later requests: what a server streams in any pieces goes back as it came, on each endpoint."""

import json
from array import array
from collections.abc import Iterable
from functools import partial
from operator import or_
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scripted_server import sse
from streamed_answers import WAYS, Cut, Json, block_events, chat_events, chunk, deltas_of, item_events

from inferload.client.answers import kept
from inferload.client.answers.answer import _NO_WORD, Frames
from inferload.client.answers.chat import ChatAnswer
from inferload.client.answers.event_stream import EventStream, scanner
from inferload.client.answers.merge import grow, whole
from inferload.client.connection.reply import Arrivals, HttpReply, nothing
from inferload.client.endpoints.dialect import DIALECTS, words
from inferload.scenario.schema.endpoints import EndpointName
from inferload.turns.record import CANCELLED
from inferload.workload.content.history import as_document, as_message, has_reasoning, without_ids
from inferload.workload.content.messages import Message, Piece, ToolCall, made_call_id, sendable
from inferload.workload.content.script import TurnReply

KNOWN = words("""
    content reasoning reasoning_content thinking reasoning_details refusal tool_calls audio role function_call function name
    arguments index id type signature format usage call_id status logprobs finish_reason stop_reason token_ids
    """)


def numbered(items: list[Json]) -> list[Json]:
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
cuts = st.randoms(use_true_random=False).map(lambda random: partial(random.randint, 0))


def objects(kind: str = "", **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Objects of a type with these fields and unknown ones."""
    return st.builds(or_, unknown, st.fixed_dictionaries(fields | ({"type": st.just(kind)} if kind else {})))


def answered(endpoint: EndpointName, documents: Iterable[Any], *, ascii_only: bool = False) -> TurnReply:
    answer = DIALECTS[endpoint].answer()
    answer.keeping = True
    data = [json.dumps(document, ensure_ascii=ascii_only).encode() for document in documents]
    answer.events([*data, b"[DONE]"], [*range(len(data) + 1)])
    answer.settle()
    calls = () if answer.tool_calls is None else answer.tool_calls.calls("s1.0")
    native = answer.native(calls)
    assert native is not None
    return TurnReply("".join(answer.text), 9, reasoning="".join(answer.reasoning), tool_calls=calls, native=native)


def sent(endpoint: EndpointName, message: Message) -> Any:
    """Return the JSON of a message without its role: an object, the content of /messages, or the items of /responses."""
    text = json.dumps(sendable("".join(piece.literal or "" for piece in message.pieces))).encode()
    body = DIALECTS[endpoint].message(message, text)
    if endpoint == "responses":
        return json.loads(b"[%s]" % body)
    document = json.loads(body)
    assert document.pop("role") == "assistant"
    return document["content"] if endpoint == "messages" else document


def content_of(message: Message) -> list[Json]:
    """Return the content blocks of a message on /messages."""
    content = sent("messages", message)
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


functions = objects(name=some_text, arguments=some_text)
call_ids = some_text.filter(lambda mark: mark.lower() not in _NO_WORD)
calls = objects("function", id=call_ids, function=functions)
parts = st.lists(objects("text", text=some_text), min_size=1, max_size=3).map(numbered)
messages = st.builds(
    lambda own, thoughts, called: own | thoughts | ({"tool_calls": called} if called else {}),
    objects(content=some_text | parts),
    st.dictionaries(st.sampled_from(["reasoning", "reasoning_content", "thinking"]), some_text, max_size=2)
    | st.fixed_dictionaries({"reasoning_details": parts}),
    st.lists(calls, max_size=2, unique_by=lambda call: call["id"]),
)


@example(
    {"content": [{"index": 0, "type": "text", "text": "a"}]}
    | {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    int,
)
@given(messages, cuts)
def test_a_chat_message_goes_back_as_it_came(message: Json, cut: Cut) -> None:
    reply = answered("chat", chat_events(message, cut))
    assert sent("chat", reply.message()) == message
    assert sent("chat", as_message(as_document(reply.message()))) == message
    without = sent("chat", reply.message(reasoning=False, calls=()))
    thoughts = {"reasoning", "reasoning_content", "thinking", "reasoning_details"}
    assert not {*thoughts, "tool_calls"} & without.keys()
    assert has_reasoning(reply.native) == bool(thoughts & message.keys())


blocks = st.lists(
    st.one_of(
        objects("text", text=some_text.filter(str.strip)),
        st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts, "signature": some_text}),
        st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": some_text}),
        *(
            st.fixed_dictionaries({"type": st.just(kind), "id": call_ids, "name": st.just(name), "input": unknown})
            for kind, name in (("tool_use", "f"), ("server_tool_use", "s"))
        ),
        st.fixed_dictionaries({"type": st.just("web_search_tool_result"), "content": st.lists(unknown)}),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda block: block.get("id", id(block)),
)


@given(blocks, cuts)
@example([{"type": "thinking", "thinking": "hm", "signature": "abc"}, {"type": "text", "text": "a"}], lambda _most: 0)
def test_content_blocks_go_back_as_they_came(content: list[Json], cut: Cut) -> None:
    reply = answered("messages", block_events(content, cut))
    assert [call.name for call in reply.tool_calls] == ["f" for block in content if block["type"] == "tool_use"]
    thoughts = {"thinking", "redacted_thinking"}
    only = {block["type"] for block in content} <= thoughts
    assert content_of(reply.message()) == content + ([{"type": "text", "text": "..."}] if only else [])
    plain = content_of(reply.message(reasoning=False, calls=()))
    assert plain
    assert {block["type"] for block in plain}.isdisjoint({*thoughts, "tool_use"})


said = st.builds(lambda text: [{"type": "output_text", "text": text}], some_text)
of_message = {"id": st.just("m"), "role": st.just("assistant"), "status": st.just("completed"), "content": said}
items = st.lists(
    st.one_of(
        objects("message", **of_message),
        objects("reasoning", id=some_text, summary=st.just([]), encrypted_content=some_text),
        objects("function_call", call_id=call_ids, name=st.just("f"), arguments=st.just("{}")),
        objects("web_search_call", id=st.just("w")),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda item: str(item.get("call_id", id(item))),
)


@given(items, st.lists(st.sampled_from(WAYS), min_size=5, max_size=5), st.sampled_from(["done", "completed", "both"]))
def test_output_items_go_back_as_they_came(output: list[Json], ways: list[str], form: str) -> None:
    events = list(item_events(output, ways, listed=form != "done"))
    reply = answered("responses", events[-1:] if form == "completed" else events)
    expected = list(output)
    while expected and expected[-1]["type"] == "reasoning":  # refused without a following item
        expected.pop()
    back = sent("responses", reply.message())
    assert back[: len(expected)] == expected
    assert [item["type"] for item in back[len(expected) :]] == ([] if expected else ["message"])
    planned = (ToolCall("p", "g", "{}"),)
    without = [item["type"] for item in sent("responses", reply.message(reasoning=False, calls=planned))]
    assert "reasoning" not in without
    assert has_reasoning(reply.native) == any(item["type"] == "reasoning" for item in expected)
    left = [item for item in expected if item["type"] != "web_search_call"]  # which cannot be without its id
    assert json.loads(without_ids(reply.native)) == [
        {name: field for name, field in item.items() if name != "id"} for item in left
    ]
    assert without.count("function_call") == 1


@given(st.dictionaries(keys, values, max_size=4), cuts)
def test_a_merge_is_independent_of_the_pieces(value: Json, cut: Cut) -> None:
    merged: Json = {}
    for delta in deltas_of(value, cut):
        grow(merged, delta)
    assert whole(merged) == value


def test_streams_with_frames_of_others_are_kept_as_without() -> None:
    """The frames of a stream that is not kept may leave out fields."""
    deltas = [{"role": "assistant", "content": ""}, *[{"reasoning_content": "x", "channel": "own", "extra": "y"}] * 9]
    deltas += [{"content": f"{at}", "refusal": None} for at in range(9)]
    natives = []
    for frames in (Frames(None), Frames(scanner())):
        for keeping in (False, True, True):
            answer = ChatAnswer()
            answer.keeping = keeping
            stream = EventStream(answer, frames)
            for event in map(sse, map(chunk, deltas)):
                stream.feed(
                    HttpReply(nothing), Arrivals(event, array("q", [len(event)]), array("q", [1]), array("q"), 0)
                )
            natives.append(json.loads(answer.native(()) or b"null"))
    kept = {"reasoning_content": "x" * 9, "channel": "own", "extra": "y" * 9}
    assert natives == [None, kept, kept] * 2


def thought(text: str, **signed: str | None) -> Json:
    return {"type": "thinking", "thinking": text, **signed}


def thinking(text: str) -> list[Json]:
    return [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]


def ended(text: str, **closed: bool) -> Json:
    return thinking(text)[0] | closed


def hidden(kind: str, data: str, **more: Any) -> Json:
    return {"type": kind, "data": data, **more}


def summary(text: str, mark: str = "") -> Json:
    part = {"type": "summary_text", "text": text} | ({"signature": mark} if mark else {})
    return {"type": "reasoning", "summary": [part]}


def signed(mark: str) -> Json:
    return {"extra_content": {"google": {"thought_signature": mark}}}


function = {"name": "f", "arguments": "{}"}
calling = {"id": "c00000001", "type": "function", "function": function}
encrypted = [hidden("reasoning.encrypted", mark, id=mark, index=0) for mark in "ab"]
redacted = [hidden("redacted_thinking", mark) for mark in "ab"]
ab = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
STREAMED: dict[str, tuple[list[Json], Json]] = {  # deltas, and the message of later requests
    "parts that say whether they end": (
        [{"content": [ended("h", closed=False)]}, {"content": ""}, {"content": [ended("m", closed=True)]}],
        {"content": [ended("hm", closed=True)]},
    ),
    "a blank part": (
        [{"content": [{"type": "text", "text": ""}]}, {"content": [ended("h")]}],
        {"content": [ended("h")]},
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
    reply = answered("chat", map(chunk, deltas), ascii_only=True)
    assert sent("chat", reply.message()) == message
    assert sent("chat", reply.message(reasoning=False, calls=()))["content"]
    assert sent("chat", reply.message(calls=())).get("reasoning_content") != ""


def test_calls_at_the_end_of_a_gateway_are_those_of_the_stream() -> None:
    called = calling | signed("s")
    end = {"id": "x", "choices": [{"delta": {}, "message": {"role": "assistant", "tool_calls": [called]}}]}
    reply = answered("chat", [chunk({"tool_calls": [called]}), end])
    assert sent("chat", reply.message())["tool_calls"] == [called]


@pytest.mark.parametrize(("reason", "options", "back"), [
    ("pause_turn", {}, "a server_tool_use"),  # goes on with this answer
    ("pause_turn", {"calls": ()}, "a"), ("length", {}, "a"), (CANCELLED, {}, "a"),
])  # fmt: skip
def test_a_tool_of_the_server_without_a_result_goes_back_only_alone(reason: str, options: Json, back: str) -> None:
    own = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    reply = answered("messages", block_events([ab[0], own], lambda _most: 0))
    reply = msgspec.structs.replace(reply, finish_reason=reason)
    blocks = sent("messages", reply.message(**options))
    assert " ".join(block.get("text", block["type"]) for block in blocks) == back


def test_an_answer_that_a_history_has_twice_has_no_ids_then() -> None:
    searched: list[Json] = [{"type": "web_search_call", "id": "w"}, {"type": "message", "id": "m"}]
    assert json.loads(without_ids(json.dumps(searched).encode())) == [{"type": "message"}]
    own = {"type": "server_tool_use", "id": "s"}, {"type": "web_search_tool_result", "tool_use_id": "s"}
    assert json.loads(without_ids(json.dumps([*own, ab[0]]).encode())) == [ab[0]]


def test_nulls_of_the_servers_own_tools_go_back() -> None:
    ran = {"type": "code_interpreter_call", "id": "ci", "container_id": "c", "code": "1", "outputs": None}
    assert sent("responses", answered("responses", item_events([ran], listed=False)).message()) == [ran]


def test_a_call_that_was_cut_after_another_one_goes_back() -> None:
    calls = [{"type": "function_call", "id": mark, "call_id": mark, "name": "f", "arguments": "{}"} for mark in "ab"]
    begun = {"type": "response.output_item.added", "output_index": 1, "item": calls[1] | {"arguments": ""}}
    cut = {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a'}
    events = [{"type": "response.output_item.done", "output_index": 0, "item": calls[0]}, begun, cut]
    reply = msgspec.structs.replace(answered("responses", events), finish_reason="length")
    assert [item["call_id"] for item in sent("responses", reply.message())] == ["a", "b"]


OPEN, SIGN = thought("h", signature=None), thought("", signature="s")
WHOLE = {"content": "a", "reasoning": "hm", "extra": 1}
BEGUN = {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": "", "signature": ""}}
UNSIGNED = {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}}  # as bridges send it
SAID = {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}
BLANK = {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "\n\n"}}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
HIDDEN = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e"}
SUMMARY = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]}
ODD = {"type": "tool_use", "call_id": [1]}
TEXT = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a"}]}


def completed(store: bool) -> list[Json]:
    return [{"type": "response.completed", "response": {"store": store, "output": [SUMMARY, TEXT]}}]


@pytest.mark.parametrize(
    ("endpoint", "events", "back"),
    [
        (  # parts without an index are continued until they are signed
            "chat",
            [chunk({"thinking_blocks": [block]}) for block in (OPEN, thought("m"), SIGN, thought("so"), SIGN)],
            {"content": "...", "thinking_blocks": [thought("hm", signature="s"), thought("so", signature="s")]},
        ),
        (
            "chat",
            [{"choices": [{"delta": {}, "message": {"role": "assistant"} | WHOLE, "finish_reason": "stop"}]}],
            WHOLE,
        ),
        (
            "chat",
            [chunk({"content": content}) for content in (thinking("h"), thinking("m"), "so", " be it", thinking("ok"))],
            {"content": [*thinking("hm"), {"type": "text", "text": "so be it"}, *thinking("ok")]},
        ),
        ("chat", [chunk({"audio": {"id": "a1", "data": "AAAA"}})], {"content": "", "audio": {"id": "a1"}}),
        ("messages", [BEGUN, SAID], [{"type": "text", "text": "..."}]),
        ("messages", [UNSIGNED, SAID], [thought("hm"), {"type": "text", "text": "..."}]),
        ("messages", [BLANK, BLANK | {"index": 2, "content_block": USE}], [USE]),
        ("responses", item_events([ODD]), [ODD]),
        ("responses", completed(store=False), [TEXT]),
        ("responses", completed(store=True), [SUMMARY, TEXT]),
        ("responses", [event | {"output_index": 0} for event in item_events([HIDDEN, TEXT])], [HIDDEN, TEXT]),
    ],
)
def test_an_answer_goes_back_as_servers_take_it(endpoint: EndpointName, events: Iterable[Json], back: Any) -> None:
    assert sent(endpoint, answered(endpoint, events).message()) == back


def test_thoughts_of_a_content_are_left_out_with_the_reasoning() -> None:
    reply = answered("chat", [chunk({"content": thinking("hm")}), chunk({"content": "so"})])
    assert sent("chat", reply.message(reasoning=False)) == {"content": [{"type": "text", "text": "so"}]}


@pytest.mark.parametrize("null", [None, "", "null"])
def test_a_call_without_an_id_gets_one_that_the_strictest_server_takes(null: str | None) -> None:
    call = {"index": 0, "id": null, "function": {"name": "f", "arguments": "{}"}}
    reply = answered("chat", [chunk({"tool_calls": [call, call | {"index": 1}]})])
    ids = [each["id"] for each in sent("chat", reply.message())["tool_calls"]]
    assert ids == [each.call_id for each in reply.tool_calls] == [made_call_id("s1.0/0"), made_call_id("s1.0/1")]
    block = {"type": "tool_use", "id": null, "name": "f", "input": {}}
    assert [each["id"] for each in content_of(answered("messages", block_events([block] * 2, int)).message())] == ids
    item = {"type": "function_call", "call_id": null, "name": "f", "arguments": "{}"}
    back = sent("responses", answered("responses", item_events([item] * 2)).message())
    assert [each["call_id"] for each in back] == ids
    assert all(len(each) == 9 and each.isalnum() and each.isascii() for each in ids)
    assert len({made_call_id(f"{at}") for at in range(10_000)}) == 10_000


@pytest.mark.parametrize("own", [{}, {"extra": "own"}])
@pytest.mark.parametrize(
    ("endpoint", "reason"), [("chat", "length"), ("responses", "content_filter"), ("chat", CANCELLED)]
)
def test_a_call_that_was_cut_goes_back_as_json(endpoint: EndpointName, reason: str, own: Json) -> None:
    call = {"index": 0, "id": "c00000001", "function": {"name": "f", "arguments": '{"a": '}} | own
    item = {"type": "function_call", "id": "i", "call_id": "c00000001", "name": "f", "arguments": '{"a": '} | own
    events = [chunk({"tool_calls": [call]})] if endpoint == "chat" else item_events([item], listed=False)
    reply = msgspec.structs.replace(answered(endpoint, events), finish_reason=reason)
    back = sent(endpoint, reply.message())
    function = back["tool_calls"][0]["function"] if endpoint == "chat" else back[-1]
    assert json.loads(function["arguments"]) == {"unparsed": '{"a": '}
    assert reply.tool_calls[0].arguments == '{"a": '


CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": ""}
ADDED = {"type": "response.output_item.added", "item": CALL}


@pytest.mark.parametrize(
    ("endpoint", "event"),
    [
        ("responses", {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": '{"a":"\ud800"}'}),
        ("chat", chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": {"a": "\ud800"}}}]})),
    ],
)
def test_half_a_surrogate_pair_in_a_call_is_replaced(endpoint: EndpointName, event: Json) -> None:
    reply = answered(endpoint, [ADDED, event] if endpoint == "responses" else [event], ascii_only=True)
    assert json.loads(reply.tool_calls[0].arguments) == {"a": "\ufffd"}
    assert sent(endpoint, reply.message())


def test_items_without_an_index_are_told_apart_by_their_ids() -> None:
    events = [
        {"type": "response.output_item.added", "item": {"type": "message", "id": "msg_1", "content": []}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "So"},
        ADDED,
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": "{}"},
        {"type": "response.output_item.done", "item": CALL | {"arguments": "{}"}},
    ]
    reply = answered("responses", events)
    assert (reply.text, reply.tool_calls) == ("So", (ToolCall("call_1", "f", "{}"),))


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_an_answer_without_text_has_a_content(endpoint: EndpointName) -> None:
    assert json.dumps(sent(endpoint, TurnReply("", 9).message())).count('"..."') == 1
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
