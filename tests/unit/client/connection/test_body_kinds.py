"""A body is what its first bytes are: events under any content type, another document, or a compressed stream."""

import zlib
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import pytest
from chat_events import ANSWER, CHUNKED
from fuzz_replies import ReplyCase
from hypothesis import given
from hypothesis import strategies as st
from reader_pairs import PairClient, answered
from scripted_server import chunk

from inferload.client.answers.answer import Frames
from inferload.client.answers.body_start import BodyKind, kind_of
from inferload.client.answers.chat import ChatAnswer
from inferload.client.answers.event_stream import ReplyParser, scanner
from inferload.client.connection.http1 import Framing, ReplyHead
from inferload.client.connection.reply import Arrivals, HttpReply
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark

TYPES = (
    "application/json",
    "text/plain; charset=utf-8",
    "application/octet-stream",
    "application/x-ndjson",
    "TEXT/HTML",
    "",
    None,
)
STARTS = (
    *(b"", b"\n", b"\r\n\r\n", b": hello\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n: x\n", b"retry: 5\n\n", b"id: 1\n"),
    *(b"event: a\n", b"data\n\n", b":\n\n", b"\n" * 5_000),
)
OTHERS = (
    b'{"error": {"message": "no such model"}}',
    b'{"choices": [{"message": {"content": "data: not streamed"}}]}',
    b"<html>\ndata: x\n\n</html>",
    b"error: no model loaded\n",
    b"datafile: x\n\n",
    b"dat",
    b"\n\n",
    b"",
    b"\x1f\x8b\x00",
)
SSE, JSON = b"Content-Type: text/event-stream", b"Content-Type: application/json"
BODY = b"".join(ANSWER)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(position % (len(data) + 1) for position in at)})
    return [data[a:b] for a, b in pairwise(edges)]


def parsed(pieces: list[bytes], chunked: bool, native: bool, **headers: str) -> ReplyParser:
    """Return the parser of a reply whose reads are these pieces, at the times 1000, 1001 and so on."""
    reply, parser = HttpReply(lambda: None), ReplyParser(ChatAnswer(), Frames(scanner() if native else None))
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    reply._begin_body(ReplyHead(200, names, Framing.CHUNKED if chunked else Framing.CLOSE, None, keep_alive=True))
    ends = [*accumulate(map(len, pieces))]
    at_ns = array("q", range(1000, 1000 + len(pieces)))
    if pieces:
        parser.feed(reply, Arrivals(b"".join(pieces), array("q", ends), at_ns, array("q"), 0))
    parser.stream.finish(9999)
    parser.end(reply)
    parser.answer.settle()
    if parser.failure is None:
        parser.answer.conclude(reply_complete=True)
    assert not chunked or (reply.chunks is not None and reply.chunks.done)
    return parser


def contents(parser: ReplyParser) -> tuple[object, ...]:
    answer = parser.answer
    return (
        parser.failure,
        answer.failure,
        answer.text,
        list(answer.event_ns),
        answer.first_event_ns,
        answer.output_tokens,
    )


@given(
    kind=st.sampled_from(TYPES),
    start=st.sampled_from(STARTS),
    at=st.lists(st.integers(0, 5_400), max_size=9),
    edges=st.lists(st.integers(0, 5_400), max_size=5) | st.none(),
    native=st.booleans(),
)
def test_events_under_any_content_type_have_the_times_of_a_stream(
    kind: str | None, start: bytes, at: list[int], edges: list[int] | None, native: bool
) -> None:
    if len(start) > 4_000 and kind is not None and not kind.startswith("text/event"):
        start = start[:4_000]
    body = start + BODY
    if edges is not None:
        body = b"".join(chunk(piece) for piece in cut(body, edges)) + b"0\r\n\r\n"
    pieces = cut(body, at)
    usual = parsed(pieces, edges is not None, native, content_type="text/event-stream")
    other = parsed(pieces, edges is not None, native, **({} if kind is None else {"content_type": kind}))
    assert contents(usual)[:2] == (None, None)
    assert contents(other) == contents(usual)
    assert not usual.answer.remarks
    assert list(other.answer.remarks) == [Remark.CONTENT_TYPE]


@given(
    kind=st.sampled_from([*TYPES, "text/event-stream"]),
    body=st.sampled_from(OTHERS) | st.binary(max_size=40).filter(lambda text: kind_of(text) is not BodyKind.EVENTS),
    at=st.lists(st.integers(0, 200), max_size=6),
    native=st.booleans(),
)
def test_the_text_of_any_other_body_is_shown(kind: str | None, body: bytes, at: list[int], native: bool) -> None:
    framed = b"".join(chunk(piece) for piece in cut(body, at[::2]) if piece) + b"0\r\n\r\n"
    parser = parsed(cut(framed, at), True, native, **({} if kind is None else {"content_type": kind}))
    if kind == "text/event-stream" and kind_of(body) is BodyKind.UNKNOWN:
        assert parser.answer.failure is Failure.CUT
        return
    if parser.answer.first_event_ns is not None:  # a line of the document is a field of an event
        assert kind == "text/event-stream"
        return
    assert parser.failure is Failure.NOT_SSE
    assert parser.shown_body == body
    assert not parser.answer.remarks


@given(st.sampled_from(STARTS[:-1]), st.integers(0, 60))
def test_the_kind_of_a_body_is_unknown_until_it_is_right(start: bytes, length: int) -> None:
    assert kind_of((start + BODY)[:length]) in (BodyKind.UNKNOWN, BodyKind.EVENTS)
    assert kind_of(start + BODY) is BodyKind.EVENTS


def deflated(parts: list[bytes], wbits: int) -> list[bytes]:
    """Return the parts as one compressed stream, flushed behind each."""
    packer = zlib.compressobj(wbits=wbits)
    packed = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    return [*packed[:-1], packed[-1] + packer.flush()]


ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15, "Deflate": -15, "identity, gzip": 31}


@given(
    name=st.sampled_from(list(ENCODINGS)),
    kind=st.sampled_from(["text/event-stream", "application/json"]),
    chunked=st.booleans(),
    native=st.booleans(),
)
def test_a_compressed_stream_has_the_times_of_its_flushes(name: str, kind: str, chunked: bool, native: bool) -> None:
    packed = deflated(ANSWER, ENCODINGS[name])
    plain, reads = (([*map(chunk, parts), b"0\r\n\r\n"] if chunked else parts) for parts in (ANSWER, packed))
    parser = parsed(reads, chunked, native, content_type=kind, content_encoding=name)
    assert contents(parser) == contents(parsed(plain, chunked, native, content_type="text/event-stream"))
    assert (
        parser.answer.remarks[Remark.CONTENT_ENCODING] == f"Content-Encoding {name.lower().removeprefix('identity, ')}"
    )


@given(name=st.sampled_from(list(ENCODINGS)), at=st.lists(st.integers(0, 400), max_size=9), chunked=st.booleans())
def test_a_compressed_stream_is_read_at_any_split(name: str, at: list[int], chunked: bool) -> None:
    packed = b"".join(deflated([BODY[:90], BODY[90:]], ENCODINGS[name]))
    body = b"".join(map(chunk, cut(packed, at[1::2]))) + b"0\r\n\r\n" if chunked else packed
    parser = parsed(cut(body, at), chunked, True, content_encoding=name)
    assert (parser.failure, "".join(parser.answer.text)) == (None, "Grüße \u2028x")


@pytest.fixture(params=["python", "native"])
def client(request: pytest.FixtureRequest) -> Iterator[PairClient]:
    client = PairClient(request.param)
    yield client
    client.close()


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", b""])


@pytest.mark.parametrize(
    ("reply", "failure", "detail"),
    [
        (head(SSE, b"Content-Length: 15") + b'{"error": "no"}', Failure.NOT_SSE, '{"error": "no"}'),
        (head(JSON, b"Content-Length: 15") + b'{"error": "no"}', Failure.NOT_SSE, '{"error": "no"}'),
        (head(b"Content-Length: 12") + b"<html>hi</h>", Failure.NOT_SSE, "no content type"),
        (head(b"Location: /v2/x", b"Content-Length: 0", status=b"307 There"), Failure.HTTP_OTHER, "HTTP 307 to /v2/x"),
        (head(b"Content-Encoding: br", b"Content-Length: 3") + b"\x8b\x01\x80", Failure.NOT_SSE, "which was not asked for"),
        (head(b"Content-Encoding: gzip, zstd", b"Content-Length: 3") + b"(\xb5/", Failure.NOT_SSE, "gzip, zstd"),
        (head(b"Content-Encoding: gzip", b"Content-Length: 9") + b"data: x\n\n", Failure.BAD_HTTP, "body is not gzip"),
    ],
)  # fmt: skip
def test_the_text_of_the_server_is_in_the_detail(
    client: PairClient, reply: bytes, failure: Failure, detail: str
) -> None:
    result, _ = answered(client, ReplyCase((reply,), "open"))
    assert (result.record.failure, detail in result.detail) == (failure, True), result.detail


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("encode", [lambda parts: parts, lambda parts: deflated(parts, 31)])
@pytest.mark.parametrize("stays_open", [False, True])
def test_an_odd_reply_is_measured_by_both_readers(
    client: PairClient, framing: str, encode: Callable[[list[bytes]], list[bytes]], stays_open: bool
) -> None:
    parts = encode(ANSWER)
    lines = [b"Content-Type: application/json"] + ([b"Content-Encoding: gzip"] if parts is not ANSWER else [])
    if framing == "chunked":
        pieces = [head(*lines, CHUNKED.strip()), *map(chunk, parts), *([] if stays_open else [b"0\r\n\r\n"])]
    else:
        length = [b"Content-Length: %d" % (sum(map(len, parts)) + stays_open)] if framing == "length" else []
        pieces = [head(*lines, *length), *parts]
    ending = "close" if framing == "close" and not stays_open else "stay"
    result, _ = answered(client, ReplyCase(tuple(pieces), ending))
    assert (result.record.failure, result.text) == (None, "Grüße \u2028x"), result.detail
    assert Remark.CONTENT_TYPE in result.record.remarks
    assert (Remark.OPEN_BODY in result.record.remarks) == stays_open
