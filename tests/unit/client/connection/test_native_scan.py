"""Compiled parsers against the Python parsers: framing, heads, and events with their timestamps."""

import json
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from native_parsers import Pieces, answered, cut, decoded, fed, framing_of, walked
from scripted_server import chunk

from inferload.client.answers.answer import Frames, Scan
from inferload.client.connection.http1 import Framing, News, parse_head

native = pytest.importorskip("inferload.client.connection._parser", reason="the compiled parser was not built")


# ---- chunk framing


@pytest.mark.parametrize("length", [8_191, 8_192, 8_193])
@pytest.mark.parametrize("line", [b"1;%s\r\nx\r\n0\r\n\r\n", b"0\r\n%s\r\n\r\n", b"%s"])
@pytest.mark.parametrize("step", [1, 4096, 100_000])
def test_overlong_chunk_lines_fail_at_the_same_length(length: int, line: bytes, step: int) -> None:
    body = line % (b"y" * (length - 2 if line.startswith(b"1;") else length))
    pieces = cut(body, list(range(0, len(body), step)))
    assert walked(native.Reply(), pieces) == decoded(pieces)


@pytest.mark.parametrize("too_much", [0, 1])
@pytest.mark.parametrize("step", [1, 1_000, 100_000])
def test_overlong_trailers_fail_at_the_same_length(too_much: int, step: int) -> None:
    lines = [b"X: %s\r\n" % (b"y" * 1_019)] * 63
    lines.append(b"X: %s\r\n" % (b"y" * (65_536 + too_much - sum(map(len, lines)) - 5)))
    body = b"0\r\n" + b"".join(lines) + b"\r\n"
    near = (
        len(body) - 1_100
    )  # single bytes only around the limit: the Python parser reads the trailers again with each piece
    pieces = cut(body, [*range(0, near, max(step, 1_000)), *range(near, len(body), step)])
    assert walked(native.Reply(), pieces) == decoded(pieces) == (2 if too_much else 1)


# ---- heads

header_lines = st.one_of(
    st.sampled_from(
        [
            *("Transfer-Encoding: chunked", "transfer-encoding:\tchunked ", "Transfer-Encoding: gzip, chunked"),
            *(
                "Content-Length: 12",
                "content-length:0",
                "Content-Length: 1, 1",
                "Content-Length: x",
                "Content-Length: -1",
            ),
            *("Transfer-Encoding : chunked", " folded: yes", "no colon", ": no name", "Date: today", "X: a\rb", ""),
        ]
    ),
    st.text(st.characters(max_codepoint=255), max_size=12),
)
status_lines = st.sampled_from(
    ["HTTP/1.1 200 OK", "HTTP/1.1 200", "HTTP/1.0 200 OK", "HTTP/1.1 204 No", "HTTP/1.1 404 No", "HTTP/2 200"]
)


@given(status_lines, st.lists(header_lines, max_size=5))
def test_a_head_is_parsed_equally_or_left_to_python(status: str, lines: list[str]) -> None:
    head = "\r\n".join([status, *lines]).encode("latin-1").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    framing, length = framing_of(native.Reply(), head)
    if not framing:
        return
    parsed = parse_head(head)
    assert parsed is not None
    assert parsed[0].framing is {1: Framing.CHUNKED, 2: Framing.LENGTH}[framing]
    assert (parsed[0].length or 0) == length


def test_plain_heads_are_parsed_natively() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ndate: x\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n%s\r\n\r\n"
    )
    assert framing_of(native.Reply(), head % b"transfer-encoding: chunked") == (1, 0)
    assert framing_of(native.Reply(), head % b"content-length: 123") == (2, 123)


def test_reads_may_arrive_before_the_answer_about_the_head() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n"
    reply = native.Reply()
    assert [reply.push(piece, at, -1) for at, piece in enumerate((head, b"ab", b"cd", b"ef"), 1)] == [
        News.ASKS_FOR_HEAD,
        0,
        0,
        0,
    ]
    assert reply.waiting() == (4, len(head) + 6, 4, False)
    with pytest.raises(ValueError, match="no such head"):
        reply.frame(len(head) + 7, 2, 3)
    assert reply.frame(len(head), 2, 3) == News.COMPLETE | News.SURPLUS
    assert reply.push(b"gh", 5, -1) == News.SURPLUS
    of_head, data, ends, at_ns, delays, unstamped = reply.take(0)
    assert (of_head, data, array("q", ends).tolist(), array("q", at_ns).tolist()) == (
        head,
        b"abc",
        [0, 2, 3],
        [1, 2, 3],
    )
    assert (delays, unstamped) == (b"", 3)


# ---- events


def content(text: str, field: str = "content", **more: object) -> bytes:
    choice = {"index": 0, "delta": {field: text}, "logprobs": None, "finish_reason": None}
    document = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def escaped(text: str) -> bytes:
    return content("MARK").replace(b"MARK", json.dumps(text).encode()[1:-1])


CALL = {"name": "f", "arguments": "{}"}
COUNTS = {"prompt_tokens": 3, "completion_tokens": 9}
# Fields beside a text: where, name, value, and the attribute of the answer that shows that it was read.
BESIDE = [
    *[("delta", name, "hm", "reasoning") for name in ("reasoning", "reasoning_content", "thinking")],
    ("delta", "reasoning_details", [{"text": "hm"}], "reasoning"),
    ("delta", "tool_calls", [{"index": 0, "id": "c", "function": CALL}], "tool_calls"),
    ("delta", "function_call", CALL, "tool_calls"),
    ("choice", "finish_reason", "length", "finish_reason"),
    *[(where, "error", {"message": "boom"}, "failure") for where in ("choice", "event")],
    *[(where, "usage", COUNTS, "input_tokens") for where in ("choice", "event")],
    ("event", "metrics", {"queue_time_ms": 1.5}, "metrics"),
]


@pytest.mark.parametrize(("where", "name", "value", "shown"), BESIDE)
@pytest.mark.parametrize("scan", [None, native.scan])
def test_no_field_beside_a_text_is_skipped_in_a_long_answer(
    where: str, name: str, value: object, shown: str, scan: Scan | None
) -> None:
    """Nearly all events of an answer have a short path or a frame, which know a text only."""
    event = json.loads(content("a"))
    (choice,) = event["choices"]
    {"delta": choice["delta"], "choice": choice, "event": event}[where][name] = value
    usual, odd = content("a"), json.dumps(event, separators=(",", ":")).encode()
    with_it, without = (
        fed(b"".join(b"data: %s\n\n" % data for data in (*[usual] * 6, *more, b"[DONE]")), [], False, 64, scan)[1]
        for more in ([odd] * 5, [])
    )
    assert getattr(with_it, shown) != getattr(without, shown)


texts = st.text(max_size=6)
plain_data = st.one_of(
    texts.map(content),
    st.text(st.sampled_from('\\"\n\t/é\u2028\x01'), max_size=5).map(escaped),
    texts.map(escaped),
    texts.map(lambda text: content(text, "reasoning_content")),
)
odd_data = st.one_of(
    st.sampled_from(
        [
            *(b"[DONE]", b"", b"{", b'{"error": "boom"}', b'{"choices": []}', b'{"choices": [{}, {}]}', b"[]", b"null"),
            b'{"id": "x", "choices": [{"delta": {"role": "assistant", "content": ""}}]}',
            b'{"id": "x", "choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}',
            b'{"id": "x", "choices": [{"text": "plain"}]}',
            b'{"id": "x", "choices": [{"text": "plain", "delta": {}}]}',
            b'{"id": "x", "choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}}]}',
            b'{"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}',
            content("a", usage={"prompt_tokens": 3, "completion_tokens": 1}),
            content("a", usage={"prompt_tokens": 3, "completion_tokens": 0}),
            content("a", usage={"prompt_tokens": 3, "completion_tokens": 2}),
            *(content("a", error=False), content("a", error={"message": "error: x"}), content("event: error")),
            b'{"id": "x", "choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}',
            b'{"id": "x", "choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}]}',
            content("MARK").replace(b"MARK", b"\\ud83d"),
            content("MARK").replace(b"MARK", b"\\ude00"),
            content("MARK").replace(b"MARK", b"\xff"),
            content("MARK").replace(b"MARK", b"\xed\xa0\x80"),
            content("MARK").replace(b"MARK", b"\\x"),
            content("MARK").replace(b"MARK", b'","role":"x'),
        ]
    ),
    st.binary(max_size=5),
)
blocks = st.one_of(
    st.tuples(st.just(b"data: %s\n\n"), plain_data),
    st.tuples(st.just(b"data: %s\n\n"), plain_data),
    st.tuples(st.just(b"data: %s\n\n"), odd_data),
    st.tuples(st.sampled_from([b"event: x\ndata: %s\n\n", b"data:%s\nid: 3\n\n", b": c\ndata: %s\n\n"]), plain_data),
    st.tuples(
        st.sampled_from(
            [
                *(
                    b"event: error\ndata: %s\n\n",
                    b"data: %s\nevent:error\n\n",
                    b"event: error\n: %s\n\n",
                    b"error: %s\n\n",
                ),
                *(b"event: errors\ndata: %s\n\n", b": event: error\ndata: %s\n\n", b"xerror: 1\ndata: %s\n\n"),
            ]
        ),
        plain_data,
    ),
    st.tuples(
        st.sampled_from([b"data: %s\r\n\r\n", b"data: %s\n", b"%s\n\n", b"\n\ndata: %s\n\n\n", b"data\n\n: %s\n\n"]),
        plain_data,
    ),
).map(lambda pair: pair[0].replace(b"%s", pair[1]))


def framed(events: Pieces, splits: list[int], chunked: bool) -> bytes:
    """Chunks of one event each, or of several events or of a part of one according to `splits`."""
    if not chunked:
        return b"".join(events)
    chunks: Pieces = []
    for number, event in enumerate(events):
        how = splits[number % len(splits)] if splits else 0
        if how == 1 and chunks:
            chunks[-1] += event
        elif how == 2 and len(event) > 3:
            chunks += [event[:3], event[3:]]
        else:
            chunks.append(event)
    return b"".join(chunk(piece) for piece in chunks if piece) + b"0\r\n\r\n"


@given(
    st.lists(blocks, max_size=12),
    st.lists(st.integers(0, 5_000), max_size=12),
    st.lists(st.integers(0, 4), max_size=5),
    st.booleans(),
    st.integers(1, 9),
)
@example([b"data: %s\n\n" % content(text) for text in ("", "a", "b", "ü", "c")], [], [], True, 9)
def test_scanning_natively_equals_parsing_in_python(
    events: Pieces, at: list[int], splits: list[int], chunked: bool, slice_: int
) -> None:
    body = framed(events, splits, chunked)
    frames, expected = Frames(native.scan), answered(body, at, chunked, slice_, None)
    for _ in range(2):  # without frames, and with those of the stream
        assert answered(body, at, chunked, slice_, frames) == expected


IDS = ["chatcmpl-1", "cmpl_9.b:c", "x", "é", 'a"b', "", "a b", None, 7]
WITHOUT_ID = (
    b"{}",
    b'{"id":null,"choices":[]}',
    b'{"choices":[],"usage":{"prompt_tokens":3}}',
    b'{"object":"x","id":"late"}',
    b'{"id":"x","damaged":}',
)
BEGINS = (content("", role="assistant"), *WITHOUT_ID)
CREATED = [1764365189, 1, 0, -1, 1.5, "1764365189", None, 10**30]


def of_stream(data: bytes, changes: dict[str, object], order: Sequence[str] = ()) -> bytes:
    """Return an event with other values beside its text, and its fields in an order."""
    document = {**json.loads(data), **changes}
    document = {name: document[name] for name in order or document}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


@given(
    st.lists(
        st.fixed_dictionaries({"id": st.sampled_from(IDS), "created": st.sampled_from(CREATED)}), min_size=1, max_size=4
    ),
    st.lists(
        st.tuples(st.integers(0, 3), texts, st.sampled_from(["content", "reasoning", "reasoning_content"])), max_size=12
    ),
    st.lists(st.sampled_from(BEGINS), max_size=3),
    st.booleans(),
    st.integers(1, 9),
)
@example([{"id": "x"}], [(0, "a", "content")] * 4, [b"{}"], True, 9)
@example([{"id": "x"}], [(0, "a", "content")] * 4, [b'{"id":"x","damaged":}'], True, 9)
def test_frames_of_other_streams_change_no_answer(
    values: list[dict[str, object]],
    events: list[tuple[int, str, str]],
    begun: list[bytes],
    chunked: bool,
    slice_: int,
) -> None:
    """Streams with ids and instants of any form, which may change within a stream, perhaps behind events without an id."""
    frames = Frames(native.scan)
    for first in range(3):
        sent = [*begun, *(content(text, field) for _, text, field in events), b"[DONE]"]
        changed = [
            of_stream(data, values[(first + n) % len(values)])
            for (n, _, _), data in zip(events, sent[len(begun) : -1], strict=True)
        ]
        body = framed([b"data: %s\n\n" % data for data in (*begun, *changed, sent[-1])], [], chunked)
        assert answered(body, [], chunked, slice_, frames) == answered(body, [], chunked, slice_, None)


@pytest.mark.parametrize("order", [("id", "object", "created", "choices"), ("choices", "created", "id", "object")])
def test_a_second_stream_has_the_frames_of_the_first(order: tuple[str, ...]) -> None:
    """Only its first event and those behind the text are decoded one by one, whatever its id and its instant."""
    frames, left = Frames(native.scan), []
    for number in range(2):
        values = {"id": f"chatcmpl-{number}", "created": 1764365189 + number}
        words = [of_stream(content(f"word{n}"), values, order) for n in range(20)]
        role, finish = (of_stream(content(""), values, order) for _ in range(2))
        sent = [role, *words, finish, b"[DONE]"]
        body = framed([b"data: %s\n\n" % data for data in sent], [], chunked=True)
        answer = fed(body, [], True, 64, frames)[1]
        assert ("".join(answer.text), answer.request_id) == ("".join(f"word{n}" for n in range(20)), values["id"])
        at = array("q", [len(body)])
        items, stop, _ = native.scan(body, at, array("q", [1]), 0, 0, True, frames.known, 1 << 30, False)
        left.append([len(item[1]) // 8 if len(item) > 2 else 0 for item in items])
        assert stop == len(body) - len(b"0\r\n\r\n")
    assert left == [[0, 20, 0, 0]] * 2
    assert len(frames.known) == 1


def test_invalid_frames_are_refused() -> None:
    numbers, piece = array("q", [3]), (b"a",)
    odd = [((piece, piece),) * 5, (((), piece),), ((piece * 5, piece),), ((piece, (b"",)),), ((piece, b"a"),), (piece,)]
    for frames in odd:
        with pytest.raises(ValueError, match=r"^scan: "):
            native.scan(b"abc", numbers, numbers, 0, 0, True, frames, 1, False)
    for wrong in [[(piece, piece)], ((("a",), piece),)]:
        with pytest.raises(TypeError):
            native.scan(b"abc", numbers, numbers, 0, 0, True, wrong, 1, False)
