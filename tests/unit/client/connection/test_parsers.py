"""Parsers without I/O: SSE, chunked bodies, heads and targets, at any split of the bytes."""

import contextlib
from itertools import pairwise, takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.client.answers import sse
from inferload.client.answers.sse import SseError, SseParser, event_of_chunk
from inferload.client.connection.http1 import ChunkedDecoder, Framing, Http1Error, parse_head, request_bytes
from inferload.client.connection.proxies import Proxy
from inferload.client.connection.target import Target
from inferload.locust import options
from inferload.servers.scrape_http import MetricsUrl


def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    positions = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    edges = [0, *positions, len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Event data, and the stream that carries them at random splits; line ends, comments and fields vary."""
    end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    text = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
    payloads = [line.encode() for line in draw(st.lists(text, max_size=6))]
    stream = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    for payload in payloads:
        stream += draw(st.sampled_from([b"", b": keep-alive" + end + end, b"id: 7" + end, b"event: x" + end, end]))
        stream += (
            b"data:"
            + draw(st.sampled_from([b" ", b""]) if not payload.startswith(b" ") else st.just(b" "))
            + payload
            + end
            + end
        )
    return payloads, cuts(draw, stream)


@given(streams())
def test_sse_events_are_independent_of_the_split(case: tuple[list[bytes], list[bytes]]) -> None:
    payloads, pieces = case
    parser = SseParser()
    assert [event for piece in pieces for event in parser.feed(piece)] == [data for data in payloads if data]
    assert parser.finish() == []


@given(
    st.binary(max_size=60) | st.builds(lambda d: b"%x\r\ndata: %s\n\n\r\n" % (len(d) + 8, d), st.binary(max_size=30))
)
def test_event_of_chunk_equals_the_general_parsers(read: bytes) -> None:
    event = event_of_chunk(read)
    if event is None:
        return
    decoder, parser = ChunkedDecoder(), SseParser()
    parser.feed(b"\n")  # a byte-order mark is allowed only at the beginning
    assert parser.feed(decoder.feed(read)) == [event]
    assert decoder.between_chunks
    assert parser.between_events


@pytest.mark.parametrize(
    "read",
    [
        b"9\r\ndata: x\n\n\r\n0\r\n\r\n",  # more than one chunk
        b"8\r\ndata: x\n\n\r\n",  # a size that does not fit
        b"9;a=b\r\ndata: x\n\n\r\n",
        b"0x9\r\ndata: x\n\n\r\n",
        b"12\r\ndata: x\n\ndata: y\n\n\r\n",  # more than one event
        b"10\r\ndata: x\ndata: y\n\n\r\n",  # more than one line
        b"0\r\n\r\n",
    ],
)
def test_event_of_chunk_takes_only_one_event_in_one_chunk(read: bytes) -> None:
    assert event_of_chunk(read) is None


def test_event_of_chunk_returns_the_event_of_a_plain_chunk() -> None:
    assert event_of_chunk(b"b\r\ndata: {}x\n\n\r\n") == b"{}x"


def test_sse_joins_data_lines_and_keeps_unicode_line_separators() -> None:
    parser = SseParser()
    assert parser.feed("data: a\ndata\ndata:b\u2028c\n\n".encode()) == ["a\n\nb\u2028c".encode()]


def test_sse_finish_returns_a_last_event_without_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\n\ndata: [DONE]\n") == [b"x"]
    assert parser.finish() == [b"[DONE]"]
    assert parser.finish() == []


@given(st.lists(st.integers(0, 20), max_size=5), st.lists(st.integers(0, 100), max_size=9), st.booleans())
def test_the_event_size_limit_is_independent_of_the_split(sizes: list[int], places: list[int], complete: bool) -> None:
    stream = b"".join(b"data:" + b"x" * size + b"\n\n" for size in sizes)[: None if complete else -2]
    pieces = [stream[a:b] for a, b in pairwise(sorted({0, len(stream), *(n % (len(stream) + 1) for n in places)}))]
    parser, events = SseParser(), list[bytes]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "MAX_EVENT_BYTES", 15)
        short = list(takewhile(lambda size: size <= 10, sizes))
        with contextlib.nullcontext() if short == sizes else pytest.raises(SseError):
            for piece in pieces:
                events += parser.feed(piece)
            events += parser.feed(b"\n\n")
    if short == sizes:
        assert events == [b"x" * size for size in sizes if size]


@st.composite
def chunked_bodies(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    parts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    extension = draw(st.sampled_from([b"", b";a=b", b" "]))
    trailers = draw(st.sampled_from([b"", b"X-Sum: 1\r\n"]))
    data = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n" + trailers + b"\r\n"
    return b"".join(parts), cuts(draw, data)


@given(chunked_bodies())
def test_chunked_bodies_are_independent_of_the_split(case: tuple[bytes, list[bytes]]) -> None:
    body, pieces = case
    decoder = ChunkedDecoder()
    assert b"".join(decoder.feed(piece) for piece in pieces) == body
    assert decoder.done
    assert decoder.surplus == b""


@given(chunked_bodies(), st.integers(1, 30))
def test_a_truncated_chunked_body_is_not_done(case: tuple[bytes, list[bytes]], missing: int) -> None:
    body, pieces = case
    data = b"".join(pieces)[:-missing]
    decoder = ChunkedDecoder()
    assert body.startswith(decoder.feed(data))
    assert not decoder.done


@pytest.mark.parametrize("data", [b"x\r\n", b"-1\r\n", b"1_0\r\n", b"\r\n", b"1\r\nab\r\n", b"1" * 9000])
def test_malformed_chunks_are_errors(data: bytes) -> None:
    with pytest.raises(Http1Error):
        ChunkedDecoder().feed(data)


@pytest.mark.parametrize(
    ("head", "framing", "length", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", Framing.CHUNKED, None, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5", Framing.LENGTH, 5, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close", Framing.LENGTH, 5, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5", Framing.LENGTH, 5, False),
        (b"HTTP/1.1 200 OK\r\nServer: x", Framing.CLOSE, None, False),
        (b"HTTP/1.1 204 No Content", Framing.LENGTH, 0, True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nContent-Length: 1", Framing.LENGTH, 1, True),
    ],
)
def test_heads_are_parsed(head: bytes, framing: Framing, length: int | None, keep_alive: bool) -> None:
    full = head + b"\r\n\r\n"
    for cut in range(len(full)):
        assert parse_head(full[:cut]) is None
    parsed = parse_head(full + b"rest")
    assert parsed is not None
    assert (parsed[0].framing, parsed[0].length, parsed[0].keep_alive, parsed[1]) == (
        framing,
        length,
        keep_alive,
        b"rest",
    )


BROKEN_HEADS = [
    b"ICY 200 OK\r\n\r\n",
    b"HTTP/1.1 2x0\r\n\r\n",
    b"HTTP/1.1 200\r\nnope\r\n\r\n",
    b"HTTP/1.1 200\r\nContent-Length: 1, 2\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
    b"a" * 70000,
]


@pytest.mark.parametrize("head", BROKEN_HEADS)
def test_malformed_heads_are_errors(head: bytes) -> None:
    with pytest.raises(Http1Error):
        parse_head(head)


def test_request_bytes_have_host_and_length() -> None:
    assert (
        request_bytes("POST", "/x", {"Host": "h"}, b"{}")
        == b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert request_bytes("GET", "/x", {"Host": "h"}, b"") == b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize(
    ("url", "authority", "api", "metrics"),
    [
        ("http://server:8000", "server:8000", "/v1", "http://server:8000/metrics"),
        ("http://server:8000/v1/", "server:8000", "/v1", "http://server:8000/metrics"),
        ("https://gate.example/team/a", "gate.example", "/team/a/v1", "https://gate.example/team/a/metrics"),
        ("https://gate.example/team/a/v1", "gate.example", "/team/a/v1", "https://gate.example/team/a/metrics"),
        ("http://[::1]:8000", "[::1]:8000", "/v1", "http://[::1]:8000/metrics"),
    ],
)
def test_targets_are_parsed(url: str, authority: str, api: str, metrics: str) -> None:
    target = Target.parse(url)
    assert (target.authority, target.api, target.metrics_url) == (authority, api, metrics)


@pytest.mark.parametrize(
    "url", ["server:8000", "ftp://x", "http://", "http://u:p@h", "http://h:99999", "http://h#q=1", "http://h:x"]
)
def test_invalid_targets_are_one_line(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        Target.parse(url)
    assert "\n" not in str(raised.value)


@given(st.characters(exclude_characters=" ").filter(lambda each: not "!" <= each <= "~"), st.integers(0, 14))
@example("\n", 14)
@example("\n", 8)
@example("\r", 12)
@example(" ", 8)
@example("\t", 0)
@example("\u65e5", 8)
def test_an_address_with_another_character_is_refused(character: str, at: int) -> None:
    """The address is part of requests and of file names in headers."""
    url = "http://host/v1"
    with pytest.raises(UsageError) as raised:
        Target.parse(url[:at] + character + url[at:])
    assert str(raised.value).startswith("host ")


def test_a_proxy_password_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://me:pa55word@proxy:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(UsageError, match="proxy:1080") as raised:
        Proxy.for_target(Target.parse("http://server:8000"))
    assert "pa55" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://[bad", "http://[::1", "http://bad]:8000"])
def test_addresses_with_unmatched_brackets_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for parse in (Target.parse, MetricsUrl.parse, lambda text: options.metrics_urls([text])):
        with pytest.raises(UsageError):
            parse(url)
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(UsageError, match="HTTP_PROXY"):
        Proxy.for_target(Target.parse("http://server.test:8000"))
