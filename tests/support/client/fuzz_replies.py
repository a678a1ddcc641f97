"""Random replies for the fuzz tests: valid or mutated, split into pieces; seeds and time limits.

The short form of a fuzz test has a fixed seed and number of rounds. The long form runs for LONG_S with a random seed, which it
prints. `INFERLOAD_FUZZ_SEED` repeats the rounds of a seed, `INFERLOAD_FUZZ_ROUND` a single round; `INFERLOAD_FUZZ_S` sets the
duration.
"""

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import pytest
from scripted_server import chunk

Value = TypeVar("Value")

JSON_VALUES = [
    *("-1", "0", "1", "2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551615", "1e20"),
    *("1e308", "1e400", "-0", "null", "true", '"x"', "[]", "{}", "0.5", "NaN", "[" * 300 + "]" * 300, "9" * 400),
]
EVENTS = [
    *(
        b"[DONE]",
        b"[DONE]",
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"error": "boom"}',
        b'{"object": "error"}',
        b'{"choices": []}',
    ),
    b'{"id": "x", "choices": [{"delta": {"role": "assistant", "content": ""}}]}',
    b'{"id": "x", "choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}',
    b'{"id": "x", "choices": [{"delta": {}, "finish_reason": "abort"}]}',
    b'{"id": "x", "choices": [{"text": "plain"}]}',
    b'{"id": "x", "choices": [{"delta": {"reasoning_content": "hm"}}]}',
    b'{"id": "x", "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}}]}',
    b'{"id": "x", "choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}',
    b'{"id": "x", "choices": [{"delta": {"content": "\xff"}}]}',
    b'{"id": "x", "choices": [{"delta": {"content": "\xed\xa0\x80"}}]}',
    b'{"id": "x", "choices": [{"delta": {"content": "\\ud83d"}}]}',
    b'{"id": "x", "choices": [{"delta": {"content": "\\ud83d\\ude00"}}]}',
    b'{"id": "x", "choices": [{"delta": {"content": "\\x"}}]}',
    *(b'{"error": false}', b'{"error": {"code": 0}}', b'{"choices": null}', b'{"choices": [null]}', b"ping", b"5"),
    b'{"id": "x", "choices": [{"delta": {"content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}]}}]}',
    b'{"id": 5, "choices": {"delta": {"content": 5}}, "usage": []}',
    b'{"id": "x", "choices": [{"delta": {}, "finish_reason": "insufficient_system_resource"}]}',
    b'{"id": "x", "choices": [{"message": {"content": "whole"}, "logprobs": NaN}]}',
]
STATUS_LINES = [
    *(b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 204 None", b"HTTP/1.1 304 Same"),
    *(b"HTTP/1.1 429 Slow", b"HTTP/1.1 503 Busy", b"HTTP/1.1 404 No", b"HTTP/1.1 301 There", b"HTTP/1.1 099 Odd"),
    *(b"HTTP/1.1 2x0 OK", b"HTTP/2 200", b"ICY 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 200OK", b"http/1.1 200 OK"),
]
INTERIM = [
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    b"HTTP/1.1 101 Switch\r\n\r\n",
]
HEADERS = [
    *(
        b"Date: now",
        b"X-Trace: y",
        b"X-Trace : y",
        b" folded: z",
        b"nope",
        b": v",
        b"X-Nul: \x00",
        b"Content-Encoding: gzip",
    ),
    *(b"Connection: close", b"Connection: keep-alive", b"Content-Type: text/html", b"Content-Type: application/json"),
    *(b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 5, 5", b"Content-Length : 3", b"Content-Length:"),
    *(
        b"Content-Length: 9223372036854775808",
        b"Content-Length: " + b"9" * 400,
        b"Content-Length: 0",
        b"Content-Length: +5",
    ),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity"),
    *(
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding : chunked",
        b"transfer-encoding:\tCHUNKED ",
        b"X: " + b"y" * 3000,
    ),
]
LINE_ENDS = [b"\n"] * 8 + [b"\r\n", b"\r"]
TOKENS = [
    *(
        b"\r\n",
        b"\r",
        b"\n",
        b"\n\n",
        b"\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\n",
        b"data: ",
        b"data:",
        b"data",
        b": c\n\n",
        b"\xef\xbb\xbf",
    ),
    *(
        b"0x",
        b"-1\r\n",
        b";",
        b"g",
        b"_",
        b" ",
        b"\t",
        b"\x00",
        b"\xff",
        b"1" * 16,
        b"fffffffffffffff\r\n",
        b"T: x\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ),
    *(
        b"00000\r\n",
        b"5\r\nhello\r\n",
        b"Content-Length: 3\r\n",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"[DONE]",
        b"event: x\n",
        b"id: 1\n",
    ),
]


@dataclass(frozen=True, slots=True)
class ReplyCase:
    """Reply in pieces. `ending`: action of the server after the last piece: "open" (none), "close" or "reset"."""

    pieces: tuple[bytes, ...]
    ending: str


# Faster than `random.choice` and `random.randrange`, which would take a third of the time.
def below(rng: random.Random, stop: int) -> int:
    return int(rng.random() * stop)


def one_of(rng: random.Random, values: Sequence[Value]) -> Value:
    return values[int(rng.random() * len(values))]


def random_text(rng: random.Random) -> str:
    return "".join(
        one_of(rng, ["a", "word ", "é", "\u2028", "\U0001f600", '"', "\\", "\n", "\t", "\x7f"])
        for _ in range(rng.randrange(1, 6))
    )


def content_event(rng: random.Random, text: str) -> bytes:
    """Return the data of a valid event, with escapes or UTF-8."""
    document = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return json.dumps(document, ensure_ascii=rng.random() < 0.5, separators=(",", ":")).encode()


def usage_event(rng: random.Random) -> bytes:
    prompt, output, cached = (one_of(rng, JSON_VALUES) if rng.random() < 0.3 else str(below(rng, 99)) for _ in range(3))
    return (
        f'{{"id": "x", "choices": [], "usage": {{"prompt_tokens": {prompt}, "completion_tokens": {output}, '
        f'"prompt_tokens_details": {{"cached_tokens": {cached}}}}}}}'
    ).encode()


def counted(rng: random.Random, data: list[bytes]) -> list[bytes]:
    """Add a usage to the choices of content events: a running count, zeros, a total in each, a count of each, or random ones."""
    how = below(rng, 5)
    made = []
    for at, event in enumerate(data):
        count = (at + 1, 0, len(data), 1, below(rng, 9))[how]
        usage = b', "usage": {"prompt_tokens": 5, "completion_tokens": %d}}' % count
        made.append(event[:-1] + usage if how < 4 or rng.random() < 0.8 else event)
    finish = b'{"id": "x", "choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": %d}}'
    return made if rng.random() < 0.3 else [*made, finish % one_of(rng, [0, 1, len(data), len(data) + 1, 99])]


def tool_call_event(rng: random.Random) -> bytes:
    """Return the data of a tool-call delta, with or without index, id, name and arguments."""
    call: dict[str, object] = {}
    function: dict[str, object] = {}
    if rng.random() < 0.6:
        call["index"] = one_of(rng, [0, 0, 1, None])
    if rng.random() < 0.4:
        call["id"] = one_of(rng, ["c0", "c1", 7])
    if rng.random() < 0.5:
        function["name"] = one_of(rng, ["get", "put"])
    if rng.random() < 0.7:
        function["arguments"] = one_of(rng, ["{}", '{"a"', ": 1}", {"a": 1}, "", None])
    call["function"] = function
    calls = [call] * one_of(rng, [1, 1, 1, 2])
    return json.dumps({"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": calls}}]}).encode()


def event_data(rng: random.Random) -> list[bytes]:
    """Return the data of the events of a reply."""
    data = [content_event(rng, random_text(rng)) for _ in range(one_of(rng, [1, 3, 6, 20]))]
    if rng.random() < 0.2:
        data = counted(rng, data)
    if rng.random() < 0.15:
        data += [tool_call_event(rng) for _ in range(below(rng, 6))]
    for _ in range(one_of(rng, [0, 0, 1, 2])):
        data.insert(below(rng, len(data) + 1), one_of(rng, EVENTS))
    if rng.random() < 0.7:
        data.append(usage_event(rng))
    if rng.random() < 0.8:
        data.append(b"[DONE]")
    return data


def sse(rng: random.Random, data: list[bytes]) -> list[bytes]:
    """Return the events as lines of a stream, mostly in the usual form."""
    end = one_of(rng, LINE_ENDS)
    blocks = [b"data: " + each.replace(b"\n", b"\ndata: ") + end + end for each in data]
    for _ in range(one_of(rng, [0, 0, 0, 1, 2])):
        odd = one_of(
            rng,
            [
                b": c",
                b"event: x",
                b"id: 3",
                b"data",
                b"data:",
                b"data: x",
                b"",
                b"retry: 5",
                b"event: error",
                b"error: x",
            ],
        ) + end * one_of(rng, [1, 2])
        blocks.insert(below(rng, len(blocks) + 1), odd)
    if rng.random() < 0.05:
        blocks.insert(0, b"\xef\xbb\xbf")
    return blocks


def chunked_body(rng: random.Random, blocks: list[bytes]) -> bytes:
    """Return the blocks as chunks: one for each block, a single one, or split anywhere; some with extensions and trailers."""
    how = below(rng, 4)
    if how == 0:
        blocks = cut(rng, b"".join(blocks))
    elif how == 1:
        blocks = [b"".join(blocks)]
    odd = rng.random() < 0.15
    chunks = [
        b"%x%s\r\n%s\r\n" % (len(block), one_of(rng, [b"", b";a=b", b" ", b"\t;"]), block) if odd else chunk(block)
        for block in blocks
        if block
    ]
    return b"".join(chunks) + b"0\r\n" + one_of(rng, [b"", b"", b"", b"", b"T: x\r\n"]) + b"\r\n"


def head(rng: random.Random, framing: bytes) -> bytes:
    odd = rng.random() < 0.2
    lines = [one_of(rng, STATUS_LINES) if odd else b"HTTP/1.1 200 OK", b"Content-Type: text/event-stream"]
    if framing:
        lines.append(framing)
    if odd or rng.random() < 0.2:
        for _ in range(below(rng, 3)):
            lines.insert(rng.randrange(1, len(lines) + 1), one_of(rng, HEADERS))
    interim = b"".join(one_of(rng, INTERIM) for _ in range(below(rng, 3))) if rng.random() < 0.1 else b""
    return interim + b"\r\n".join(lines) + b"\r\n\r\n"


def reply(rng: random.Random) -> bytes:
    """Return a reply, mostly valid."""
    blocks = sse(rng, event_data(rng))
    if rng.random() < 0.02:  # more than the buffer of the reader
        blocks[1:1] = [b"data: " + content_event(rng, "long " * 10) + b"\n\n"] * rng.randrange(300, 700)
    how = below(rng, 10)
    if how < 6:
        return head(rng, b"Transfer-Encoding: chunked") + chunked_body(rng, blocks)
    body = b"".join(blocks)
    if how < 9:
        length = len(body) + (one_of(rng, [-7, -1, 1, 9]) if rng.random() < 0.1 else 0)
        return head(rng, b"Content-Length: %d" % length) + body
    return head(rng, b"") + body


def mutated(rng: random.Random, data: bytes, times: int) -> bytes:
    """Return the bytes with a few random changes."""
    for _ in range(times):
        at = below(rng, len(data) + 1)
        how = below(rng, 7)
        if how == 0:
            data = data[:at] + bytes([below(rng, 256)]) + data[at + 1 :]
        elif how == 1:
            data = data[:at] + data[at + one_of(rng, [1, 1, 2, 9]) :]
        elif how == 2:
            data = data[:at] + data[max(0, at - one_of(rng, [1, 5, 40])) :]
        elif how == 3:
            data = data[:at] if rng.random() < 0.3 else data
        elif how == 4:
            data = data + one_of(rng, TOKENS)
        else:
            data = data[:at] + one_of(rng, TOKENS) + data[at:]
    return data


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Split the bytes: a single piece, a few, or single bytes of a short range."""
    how = below(rng, 4)
    if how == 0 or not data:
        return [data]
    if how == 1:
        at = below(rng, len(data))
        positions = list(range(at, min(len(data), at + 12)))
    else:
        positions = [below(rng, len(data)) for _ in range(one_of(rng, [1, 2, 5]))]
    edges = sorted({0, *positions, len(data)})
    return [data[a:b] for a, b in pairwise(edges)]


def random_case(rng: random.Random) -> ReplyCase:
    data = reply(rng)
    if rng.random() < 0.5:
        data = mutated(rng, data, one_of(rng, [1, 1, 2, 4]))
    return ReplyCase(tuple(cut(rng, data)), one_of(rng, ["open", "open", "close", "close", "reset"]))


FIXED_SEED = 15
LONG_S = 600.0
# Values of the parameter `rounds` of a fuzz test.
FORMS = [
    pytest.param(2, id="short"),
    pytest.param(None, id="long", marks=[pytest.mark.soak, pytest.mark.fuzz, pytest.mark.timeout(1800)]),
]


class Budget:
    """Rounds of a fuzz test. `inputs`: number of tested inputs."""

    def __init__(self, name: str, rounds: int | None) -> None:
        self._name = name
        self._rounds = rounds
        seed = os.environ.get("INFERLOAD_FUZZ_SEED")
        fresh = FIXED_SEED if rounds is not None else random.SystemRandom().getrandbits(32)
        self.seed = fresh if seed is None else int(seed)
        self.round = 0
        self.inputs = 0

    def rounds(self) -> Iterator[random.Random]:
        """Yield a random generator for each round, seeded by seed and round number."""
        only = os.environ.get("INFERLOAD_FUZZ_ROUND")
        print(f"\n{self._name}: seed {self.seed}", flush=True)
        start_s = time.monotonic()
        until_s = start_s + float(os.environ.get("INFERLOAD_FUZZ_S", LONG_S))
        numbers = [int(only)] if only is not None else None
        while (numbers is None or numbers) and (numbers or self._continues(until_s)):
            self.round = numbers.pop() if numbers else self.round + 1
            yield random.Random(f"{self._name} {self.seed} {self.round}")
        duration_s = time.monotonic() - start_s
        print(
            f"{self._name}: {self.inputs} inputs in {self.round} rounds, {duration_s:.0f} s, seed {self.seed}",
            flush=True,
        )

    def _continues(self, until_s: float) -> bool:
        return time.monotonic() < until_s if self._rounds is None else self.round < self._rounds

    def __str__(self) -> str:
        return f"{self._name}: INFERLOAD_FUZZ_SEED={self.seed} INFERLOAD_FUZZ_ROUND={self.round}"
