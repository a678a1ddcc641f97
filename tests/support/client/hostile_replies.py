"""Malformed and endless replies of the hostile server, by name."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from chat_events import ANSWER, DONE, event
from scripted_server import HEAD, chunk, chunked

BLOCK = 65_536
BODY = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = chunked(*ANSWER)
TEXT = "Grüße \u2028x"
LONG = chunked(*[event("long " * 20)] * 500, DONE)


@dataclass(frozen=True, slots=True)
class Hostile:
    """Reply of `first`, then `again` repeated as long as the client reads.

    `then`: "open" keeps the connection open, "close" and "reset" end it. `legal`: a client may accept the reply.
    """

    first: bytes
    again: bytes = b""
    then: str = "open"
    legal: bool = False

    def pieces(self) -> Iterator[bytes]:
        yield self.first
        if self.again:
            block = self.again * (BLOCK // len(self.again) + 1)
            yield from itertools.repeat(block)


def replies() -> dict[str, Hostile]:
    return {**_heads(), **_lengths(), **_chunks(), **_events(), **_endless(), "good": Hostile(GOOD, legal=True)}


def _with_header(line: bytes, reply: bytes = GOOD) -> bytes:
    first, _, rest = reply.partition(b"\r\n")
    return first + b"\r\n" + line + b"\r\n" + rest


def _heads() -> dict[str, Hostile]:
    bad = {
        "nothing": b"",
        "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "http 2": b"HTTP/2 200\r\n\r\n",
        "letters in the status": b"HTTP/1.1 2x0 OK\r\n\r\n",
        "a header without a colon": _with_header(b"nope"),
        "a header without a name": _with_header(b": v"),
        "a space before the colon": _with_header(b"X-Trace : y", LONG),
        "a folded header": _with_header(b" folded: z"),
        "a head over 64 kB": _with_header(b"X-Long: " + b"y" * 70_000)[:69_000],
        "line feeds only": GOOD.replace(b"\r\n", b"\n"),
        "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
        "not modified": b"HTTP/1.1 304 Not Modified\r\n\r\n",
        "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "status 999": b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
        "status 000": b"HTTP/1.1 000 What\r\nContent-Length: 0\r\n\r\n",
        "a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        "invalid utf-8 in an error": b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00\x1b",
    }
    legal = {
        "10,000 interim replies": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + GOOD,
        "1,000 headers": _with_header(b"\r\n".join(b"X-%d: y" % number for number in range(1_000))),
        "a NUL in a header": _with_header(b"X-Nul: \x00"),
        "two codings": GOOD.replace(b"Encoding: chunked", b"Encoding: gzip, chunked"),
        "a length beside chunks": _with_header(b"Content-Length: 3"),
    }
    return {
        **{name: Hostile(data, then="close") for name, data in bad.items()},
        **{name: Hostile(data, legal=True) for name, data in legal.items()},
    }


def _lengths() -> dict[str, Hostile]:
    lengths = [
        *("-1", "+5", "5a", "", "0x10", "1e3", "5, 6", "\x00", "²", "9" * 19, "9" * 20, "9" * 30, "9" * 5_000),
        *(str((1 << 63) - 1), str(1 << 63), str((1 << 64) - 1), str(1 << 64), "0" * 5_000 + "7"),
    ]
    body = b"".join(ANSWER[:-1])
    return {
        **{
            f"content length {length[:25]} ({len(length)})": Hostile(
                HEAD + b"Content-Length: " + length.encode("latin-1") + b"\r\n\r\n" + body, then="close", legal=True
            )
            for length in lengths
        },
        "a length that is too small": Hostile(HEAD + b"Content-Length: 9\r\n\r\n" + body, legal=True),
        "a length that is too large": Hostile(HEAD + b"Content-Length: 9999\r\n\r\n" + body[:200], then="close"),
        "two lengths": Hostile(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + body, then="close"),
    }


def _chunks() -> dict[str, Hostile]:
    first = chunk(ANSWER[0])
    sizes = [
        b"zz",
        b"-1",
        b"0xe",
        b"1_0",
        b"",
        b" ",
        b"1" * 16,
        b"f" * 15,
        b"8000000000000000",
        b"\xff",
        b"5 5",
        b";",
        b"9" * 9_000,
    ]
    legal = {
        "bytes behind the last chunk": GOOD + b"surplus",
        "a second reply behind the first": GOOD + GOOD,
        "trailers": GOOD[:-2] + b"X-Sum: 1\r\n" * 100 + b"\r\n",
        "a long extension": BODY + b"%x;%s\r\n%s\r\n" % (len(ANSWER[1]), b"a" * 8_000, ANSWER[1]) + GOOD[len(BODY) :],
    }
    return {
        **{
            f"chunk size {size[:20]!r}": Hostile(BODY + first + size + b"\r\nhello\r\n", then="close") for size in sizes
        },
        "a chunk that is too long": Hostile(BODY + b"5\r\nhello, you\r\n0\r\n\r\n", then="close"),
        "line feeds between chunks": Hostile(BODY + first.replace(b"\r\n", b"\n") + b"0\n\n", then="close"),
        "a long trailer": Hostile(GOOD[:-2] + b"X: " + b"y" * 9_000 + b"\r\n\r\n", then="close", legal=True),
        **{name: Hostile(data, legal=True) for name, data in legal.items()},
    }


NUMBERS = [
    *("-1", "2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551615"),
    *("1e20", "1e400", "9" * 5_000, "NaN", '"7"'),
]
COUNTS = {
    "prompt_tokens": '{"prompt_tokens": %s}',
    "completion_tokens": '{"completion_tokens": %s}',
    "cached_tokens": '{"prompt_tokens_details": {"cached_tokens": %s}}',
}


def _document(content: bytes = b'"a"', of_choice: bytes = b"", of_event: bytes = b"") -> bytes:
    choice = b'{"index": 0, "delta": {"content": %s}%s}' % (content, of_choice)
    return b'{"id": "x", "choices": [%s]%s}' % (choice, of_event)


def _events() -> dict[str, Hostile]:
    deep = b"[" * 100_000 + b"]" * 100_000
    data = {
        "deep json": _document(of_event=b', "error": ' + deep),
        "deep unknown field": _document(of_event=b', "prompt_token_ids": ' + deep),
        "metrics out of range": _document(
            of_event=b', "metrics": {"queue_time_ms": 1e308, "generation_time_ms": -1e308}'
        ),
        "a list as id": b'{"id": [], "choices": []}',
        "invalid utf-8": _document(content=b'"\xff\xfe"'),
        "half of a surrogate pair": _document(content=b'"\\ud83d"'),
        "no json": b"{nonsense",
        "an error": b'{"error": {"message": "\\u001b[2J"}}',
    }
    for number in NUMBERS:
        name = number[:22]
        for kind, usage in COUNTS.items():
            data[f"{kind} {name}"] = _document(of_event=b', "usage": ' + (usage % number).encode())
    return {
        name: Hostile(chunked(*ANSWER[:2], b"data: %s\n\n" % text, DONE), legal=True) for name, text in data.items()
    }


def _endless() -> dict[str, Hostile]:
    piece = b"y" * 1_000
    return {
        "silence": Hostile(b""),
        "an endless status line": Hostile(b"HTTP/1.1 200 ", piece),
        "endless headers": Hostile(b"HTTP/1.1 200 OK\r\n", b"X-More: " + piece + b"\r\n"),
        "endless interim replies": Hostile(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        "an endless error": Hostile(b"HTTP/1.1 500 Oh\r\n\r\n", piece),
        "an endless error in chunks": Hostile(b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(piece)),
        "an endless page": Hostile(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", piece),
        "an endless body of known length": Hostile(HEAD + b"Content-Length: 999999999999\r\n\r\n", piece),
        "an endless chunk size": Hostile(BODY, b"1" * 1_000),
        "an endless chunk extension": Hostile(BODY + b"5;", piece),
        "an endless trailer": Hostile(GOOD[:-2] + b"X: ", piece),
        "endless trailers": Hostile(GOOD[:-2], b"X: y\r\n"),
        "an endless event": Hostile(BODY + chunk(b"data: "), chunk(piece)),
        "an endless event of lines": Hostile(BODY, chunk(b"data: x\n")),
        "endless comments": Hostile(BODY, chunk(b": still here\n\n")),
        "endless empty events": Hostile(BODY, chunk(b"data:\n\n")),
        "endless carriage returns": Hostile(BODY, chunk(b"\r" * 1_000)),
        "an endless answer": Hostile(BODY, chunk(event("word"))),
        "an endless answer without framing": Hostile(HEAD + b"\r\n", event("word")),
        "endless bytes behind the last chunk": Hostile(GOOD, piece, legal=True),
    }


def reset_after(count: int, reply: bytes = GOOD) -> Hostile:
    """Return the first bytes of a valid reply, followed by a reset."""
    return Hostile(reply[:count], then="reset", legal=True)


def split(rng: random.Random, data: bytes) -> list[bytes]:
    """Split the bytes at up to five random positions."""
    edges = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]
