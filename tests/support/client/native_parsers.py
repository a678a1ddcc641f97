"""Chunk framing and answers read by the Python parsers, or by the compiled ones."""

from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from inferload.client.answers.answer import Frames
from inferload.client.answers.chat import ChatAnswer
from inferload.client.answers.event_stream import EventStream
from inferload.client.connection.http1 import ChunkedDecoder, Framing, Http1Error, News, ReplyHead
from inferload.client.connection.reply import Arrivals, HttpReply

Pieces = list[bytes]
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def cut(data: bytes, at: list[int]) -> Pieces:
    positions = sorted({0, len(data), *(position % (len(data) + 1) for position in at)})
    return [data[a:b] for a, b in pairwise(positions)]


def pushed(parser: Any, pieces: Pieces) -> list[int]:
    """Return the news of each piece of a chunked body, pushed to a new parser of a reply up to its end."""
    news = [parser.push(CHUNKED_HEAD, 0, -1)]
    if news == [News.ASKS_FOR_HEAD]:
        news = [parser.frame(len(CHUNKED_HEAD), 1, 0)]
    while pieces and not news[-1] & (News.COMPLETE | News.BROKEN):
        first, *pieces = pieces
        news.append(parser.push(first, 0, -1))
    return news


MOST_MEASURED = 65_535  # bytes of a body: before the end of a longer one, the parser already reports bytes to read


def framing_of(parser: Any, head: bytes) -> tuple[int, int]:
    """Return framing and length, at most MOST_MEASURED, by a head that is pushed to a new parser of a reply; framing 0: it asks."""
    news, framing, length = parser.push(head, 0, -1), parser.waiting()[3], 0
    assert (framing == 0) == (news == News.ASKS_FOR_HEAD)
    while framing == 2 and not news and length < MOST_MEASURED:
        news, length = parser.push(b"x", 0, -1), length + 1
    return framing, length


def walked(parser: Any, pieces: Pieces) -> int:
    """Return the state of a chunked body after these pieces: 0 incomplete, 1 complete, 2 broken."""
    return pushed(parser, pieces)[-1] & (News.COMPLETE | News.BROKEN)


def decoded(pieces: Pieces) -> int:
    """Return the state of `walked` by the decoder."""
    decoder = ChunkedDecoder()
    try:
        for piece in pieces:
            decoder.feed(piece)
            if decoder.done:
                return 1
    except Http1Error:
        return 2
    return 0


def fed(
    body: bytes, at: list[int], chunked: bool, slice_: int, scan: Callable[..., Any] | Frames | None
) -> tuple[HttpReply, ChatAnswer]:
    """Return reply and answer after the body arrived in these pieces, `slice_` reads at a time. Raise Http1Error.

    `scan`: the native path, if it is used, or the frames of earlier streams with it.
    """
    reply, answer = HttpReply(lambda: None), ChatAnswer()
    headers = {"content-type": "text/event-stream"}
    reply._begin_body(ReplyHead(200, headers, Framing.CHUNKED if chunked else Framing.CLOSE, None, keep_alive=True))
    stream = EventStream(answer, scan if isinstance(scan, Frames) else Frames(scan))
    pieces = cut(body, at)
    for first in range(0, len(pieces), slice_):
        part = pieces[first : first + slice_]
        ends = array("q", [sum(map(len, part[: n + 1])) for n in range(len(part))])
        at_ns = array("q", [1_000 + first + n for n in range(len(part))])
        stream.feed(reply, Arrivals(b"".join(part), ends, at_ns, array("q"), 0))
    stream.finish(9_999)
    answer.settle()
    answer.conclude(reply.chunks is None or reply.chunks.done)
    return reply, answer


def answered(
    body: bytes, at: list[int], chunked: bool, slice_: int, scan: Callable[..., Any] | Frames | None
) -> tuple[object, ...]:
    """Return the contents of the answer of `fed`, or the error."""
    try:
        reply, answer = fed(body, at, chunked, slice_, scan)
    except Http1Error as error:
        return (str(error),)
    tokens = answer.tokens_by_event
    return (
        *("".join(answer.reasoning), answer.tool_calls and answer.tool_calls.calls()),
        *("".join(answer.text), list(answer.event_ns), None if tokens is None else list(tokens)),
        *(answer.first_event_ns, answer.last_event_ns, answer.first_visible_ns, answer.failure, answer.detail),
        *(answer.finish_reason, answer.request_id, answer.input_tokens, answer.output_tokens, answer.closed),
        *(reply.chunks is not None and reply.chunks.done, answer.remarks, answer.hidden_tokens),
        *("".join(answer.pieces), list(answer.lengths), list(answer.blank_ns)),
    )
