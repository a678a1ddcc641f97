"""The simulator with invalid input: answers 400, 413 or 431, or closes the connection, and continues to serve."""

import copy
import json
import random
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import api_cases
import pytest
import simulator_process
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from inferload.deploy.simulator.protocol.http import MAX_HEAD_BYTES, HttpFault, HttpRequest, RequestReader
from inferload.deploy.simulator.server.connection import Connection, Hooks
from simulator_process import Simulator

from inferload.base import clock

CHAT = "/v1/chat/completions"
_JSON = "content-type: application/json\r\n"
_READ_BYTES = 262_144
SOAK_S = 100.0  # per soak test; both end within the timeout of 300 s
_PER_ROUND = 100

Rounds = Callable[..., None]
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@pytest.fixture(scope="module")
def server() -> Iterator[Simulator]:
    flags = ("--ttft-ms", "0", "--itl-ms", "0", "--max-model-len", "300", "--image-tokens", "5")
    started = simulator_process.start(*flags, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    yield started
    assert simulator_process.stop(started) == 0


def post(path: str, body: bytes, more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\n{_JSON}{more}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body


def statuses(server: Simulator, wire: bytes, timeout_s: float = 20) -> list[int]:
    """Return the statuses of all replies until the server closes; half-close after `timeout_s` without bytes."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), 20) as peer:
        try:
            peer.sendall(wire)
            peer.settimeout(timeout_s)
            while data := received_or_half_closed(peer):
                received += data
        except ConnectionError:
            pass  # closed by the server during the request
    return [int(status) for status in _STATUS.findall(received)]


def received_or_half_closed(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1 << 20)
    except TimeoutError:  # an incomplete request: end it, then wait for the server
        peer.shutdown(socket.SHUT_WR)
        peer.settimeout(20)
        return peer.recv(1 << 20)


LAST = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"


class TestFront:
    def test_a_lone_surrogate_is_refused(self, server: Simulator) -> None:
        for body in (rb'{"model": "\ud800", "prompt": "x"}', rb'{"prompt": "\udfff", "max_tokens": 1}'):
            assert statuses(server, post("/v1/completions", body) + LAST) == [400, 200]
        assert statuses(server, post("/chaos", rb'{"kind": "status", "message": "\ud800"}') + LAST) == [400, 200]
        pair = rb'{"prompt": "\ud83d\ude00", "max_tokens": 1}'
        assert statuses(server, post("/v1/completions", pair) + LAST) == [200, 200]

    def test_overlong_lengths_are_refused(self, server: Simulator) -> None:
        head = "POST /v1/completions HTTP/1.1\r\ncontent-length: "
        assert statuses(server, f"{head}{'9' * 5000}\r\n\r\n".encode()) == [413]
        assert statuses(server, f"{head}{'0' * 5000}2\r\n{_JSON}\r\n{{}}".encode() + LAST) == [400, 200]

    def test_three_thousand_pipelined_requests_are_answered(self, server: Simulator) -> None:
        assert statuses(server, b"GET /version HTTP/1.1\r\n\r\n" * 3000 + LAST) == [200] * 3001

    def test_unread_answers_hold_back_pipelined_requests(self, server: Simulator) -> None:
        wire = b"GET /metrics HTTP/1.1\r\n\r\n" * 500 + LAST
        with socket.create_connection(("127.0.0.1", server.port), 20) as peer:
            peer.sendall(wire)
            assert server.call("GET", "/health")[0] == 200
            received = 0
            while data := peer.recv(1 << 20):
                received += data.count(b"HTTP/1.1 200")
        assert received > 450  # reads may split a status line

    def test_deeply_nested_json_is_refused(self, server: Simulator) -> None:
        for depth in (101, 500, 900, 990, 100_000):
            body = b'{"prompt": "x", "max_tokens": 1, "metadata": ' + b"[" * depth + b"]" * depth + b"}"
            for path in api_cases.CHAT, api_cases.TEXT, "/chaos", "/tokenize":
                assert statuses(server, post(path, body) + LAST) == [400, 200]


def connection_of(request: Callable[[Connection, HttpRequest], None]) -> tuple[socket.socket, Connection]:
    there, here = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    nothing = lambda _connection: None  # noqa: E731
    return there, Connection(here, Hooks(request, nothing, nothing))


def test_input_during_a_request_is_buffered_up_to_a_limit() -> None:
    there, connection = connection_of(lambda _connection, _request: None)
    sent, buffered = there.send(b"GET /slow HTTP/1.1\r\n\r\n"), 0
    while connection.reading:
        connection.readable()
        buffered = connection._reader.buffered_bytes
        assert buffered <= MAX_HEAD_BYTES + _READ_BYTES
        sent += there.send(b"GET /next HTTP/1.1\r\n\r\n" * 1000)
    assert buffered > MAX_HEAD_BYTES
    connection.answered(close=True)
    for each in (there, connection.sock):
        each.close()


heads = st.sampled_from([
    b"GET /health HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"\r\n", b"GET  HTTP/1.1\r\n",
    b"GET http://[ HTTP/1.1\r\n", b"GET /?a=%ff&b HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n", b"\xff\x00 / HTTP/1.1\r\n",
])  # fmt: skip
header_lines = st.sampled_from([
    b"content-length: 3\r\n", b"content-length: -1\r\n", b"content-length: 1_0\r\n", b"content-length:\r\n",
    b"transfer-encoding: chunked\r\n", b"content-type: application/json\r\n", b"expect: 100-continue\r\n", b": x\r\n",
    b"authorization: \xff\r\n", b"x-request-id: \xe9\x00\r\n", b"connection: close\r\n", b"x: " + b"y" * 70_000 + b"\r\n",
])  # fmt: skip
bodies = st.sampled_from([
    b"3\r\nabc\r\n", b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"-3\r\n", b"0x3\r\nabc\r\n", b"3;" + b"e" * 9000, b"3\r\nabcdef",
    b'{"prompt": "x"}', b"{}", b"\x00" * 100, b"f" * 40 + b"\r\n",
])  # fmt: skip
wires = st.lists(
    st.one_of(
        st.tuples(heads, st.lists(header_lines, max_size=4).map(b"".join), st.just(b"\r\n"), bodies).map(b"".join),
        st.binary(max_size=200),
    ),
    min_size=1,
    max_size=4,
).map(b"".join)


@given(wires, st.lists(st.integers(1, 5000), max_size=8))
def test_any_bytes_are_requests_or_a_fault_at_any_split(wire: bytes, steps: list[int]) -> None:
    def read(pieces: list[bytes]) -> list[Any]:
        reader, results = RequestReader(), []
        for piece in pieces:
            reader.feed(piece)
            try:
                while (request := reader.next()) is not None:
                    results.append((request.method, request.path, request.body))
            except HttpFault as fault:
                return [*results, {400: 400, 411: 411, 413: 413, 431: 431}[fault.status]]
        assert reader.buffered_bytes <= 2 * MAX_HEAD_BYTES
        return results

    pieces, start = [], 0
    for step in steps:
        pieces.append(wire[start : start + step])
        start += step
    assert read([*pieces, wire[start:]]) == read([wire])


hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
    st.sampled_from(
        ["\ud800", "\x00", "x" * 3000, [], {}, [[]], {"a": {}}, 2**63, -1, 10**4000, 1e308, [None], {"type": {}}]
    ),
)
keys = st.sampled_from([
    "type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "enum",
    "const", "anyOf", "oneOf", "allOf", "$ref", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "pattern", "format", "additionalProperties", "$defs", "not", "if",
])  # fmt: skip
words = st.sampled_from([
    "object", "array", "string", "integer", "number", "boolean", "null", "#", "#/properties/a", "#/$defs/a", "#/allOf/0", "a",
])  # fmt: skip
schemas: st.SearchStrategy[Any] = st.recursive(
    st.one_of(hostile, words),
    lambda inner: st.one_of(
        st.dictionaries(st.one_of(keys, st.sampled_from(["a", "b"])), inner, max_size=5), st.lists(inner, max_size=4)
    ),
    max_leaves=30,
)

_CASES = [case for case in api_cases.answered() if isinstance(case.body, dict)]
_TOOL_CASE = api_cases.ApiCase("tool", CHAT, api_cases.chat(tools=[api_cases.TOOL], tool_choice=api_cases.NAMED))


def paths_in(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    inner: Any = ()
    if isinstance(document, dict):
        inner = document.items()
    elif isinstance(document, list):
        inner = enumerate(document)
    for key, value in inner:
        yield (*path, key)
        yield from paths_in(value, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return changed


def hostile_request(draw: random.Random, value: Any) -> bytes:
    """A valid request with one value of its document replaced."""
    case = draw.choice([*_CASES, _TOOL_CASE])
    document = {"model": "simulator"} | {key: each for key, each in case.body.items() if key != "model"}
    body = replaced(document, draw.choice(list(paths_in(document))), value)
    return post(case.path, json.dumps(body).encode())


def assert_no_500(server: Simulator, wire: bytes) -> None:
    replies = statuses(server, wire + LAST)
    assert replies, wire[:2000]
    assert 500 not in replies, wire[:2000]
    assert server.call("GET", "/health")[0] == 200


@given(st.integers(0, 2**32), st.one_of(hostile, schemas))
def test_no_document_is_answered_500(server: Simulator, number: int, value: Any) -> None:
    assert_no_500(server, hostile_request(random.Random(number), value))


@pytest.fixture
def drawn_in_rounds(pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> Rounds:
    """`drawn_in_rounds(CHECK, STRATEGY...)`: check random examples for SOAK_S; --hypothesis-seed=N repeats a printed seed."""

    def run(check: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
        option_seed = pytestconfig.getoption("--hypothesis-seed")
        first = int(option_seed) if option_seed else random.SystemRandom().randrange(2**32)
        with capsys.disabled():
            print(f"--hypothesis-seed={first}", flush=True)
        ends_ns, rounds = clock.now_ns() + round(SOAK_S * clock.NS_PER_S), 0
        while clock.now_ns() < ends_ns:
            limits = settings(max_examples=_PER_ROUND, derandomize=False, database=None)
            seed(first + rounds)(limits(given(*strategies)(check)))()
            rounds += 1
        with capsys.disabled():
            print(f"{rounds} rounds of {_PER_ROUND} examples", flush=True)

    return run


@pytest.mark.soak
def test_no_document_is_answered_500_in_a_long_run(server: Simulator, drawn_in_rounds: Rounds) -> None:
    def check(number: int, value: Any) -> None:
        assert_no_500(server, hostile_request(random.Random(number), value))

    drawn_in_rounds(check, st.integers(0, 2**32), st.one_of(hostile, schemas))


@pytest.mark.soak
def test_no_bytes_end_the_server_in_a_long_run(server: Simulator, drawn_in_rounds: Rounds) -> None:
    def check(wire: bytes) -> None:
        assert 500 not in statuses(server, wire + LAST, timeout_s=0.1)
        assert server.call("GET", "/health")[0] == 200

    drawn_in_rounds(check, wires)
