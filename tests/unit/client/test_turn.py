"""One streamed turn against scripted replies: times, counts, and the failure class of each fault."""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import gevent
import pytest
import trustme
from chat_events import ANSWER, CHUNKED, DONE, event, usage
from ports import unused_port
from scripted_server import HEAD, Script, ScriptedServer, chunk, chunked, send

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.tls import TlsSettings
from inferload.client import retry
from inferload.client.answers.event_stream import EventStream, ReplyParser
from inferload.client.client import Client, ClientSettings, Credentials
from inferload.client.connection import reader_choice
from inferload.client.connection.reply import HttpReply
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnRequest, TurnResult, answer_digest
from inferload.scenario.schema.request import Timeouts
from inferload.turns.record import Failure
from inferload.workload.content.messages import ToolCall


@pytest.fixture(autouse=True, params=["python", "native"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run every test with both readers."""
    if request.param == "native" and not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    monkeypatch.setenv(reader_choice.VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def ask() -> Iterator[Callable[..., TurnResult]]:
    """Run turns against scripts: ask(script, ..., turns=1) returns the last result; `ask.server` is the server."""
    open_: list[Client | ScriptedServer] = []

    def run(*scripts: Script, turns: int = 1, url: str | None = None, **settings: object) -> TurnResult:
        server = ScriptedServer(list(scripts))
        results: list[TurnResult] = []
        client = Client(ClientSettings(Target.parse(url or server.url), "m", **settings), results.append)  # type: ignore[arg-type]
        open_.extend([server, client])
        run.server, run.client, run.results = server, client, results  # type: ignore[attr-defined]
        for index in range(turns):
            request = TurnRequest(b"{}", f"s0.{index}", "s0", index, "chat", "measure", now_ns())
            with gevent.Timeout(20):
                result = client.start(request).wait()
        assert len(results) == turns
        assert client.in_flight == 0
        return result

    yield run
    for thing in open_:
        thing.close()


@pytest.mark.usefixtures("stamping")
def test_a_complete_turn(ask: Callable[..., TurnResult]) -> None:
    metrics = {"queue_time_ms": 1.5, "time_to_first_token_ms": 20.0, "generation_time_ms": 30.0, "mean_itl_ms": 3.0}
    result = ask(send(chunked(*ANSWER[:-2], usage(7, 2, 4, metrics), DONE)))
    record = result.record
    assert record.failure is None, result.detail
    assert result.text == "Grüße \u2028x"
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (7, 2, 4)
    assert (record.server_queue_ms, record.server_ttft_ms, record.server_generation_ms) == (1.5, 20.0, 30.0)
    assert record.event_ns is not None
    assert len(record.event_ns) == 2
    assert record.event_tokens is None
    assert record.finish_reason == "length"
    assert record.request_id == "chatcmpl-1"
    assert record.status == 200
    assert record.connect_ns is not None
    instants = [record.planned_ns, record.sent_ns, record.written_ns, record.first_ns, record.last_ns, record.closed_ns]
    assert None not in instants
    assert record.sent_ns <= record.first_event_ns <= record.first_ns <= record.last_ns <= record.closed_ns  # type: ignore[operator]
    assert record.delay_ns is not None  # the kernel stamped at least one read
    assert min(record.delay_ns) >= 0


def test_turn_headers_override_client_headers() -> None:
    settings = ClientSettings(Target.parse("http://h:1"), "m", headers=(("X-Team", "a"), ("x-session-id", "old")))
    client = Client(settings, lambda _result: None)
    usual, own = client.request_bytes(b"{}"), client.request_bytes(b"{}", (("X-Session-ID", "s7"),))
    client.close()
    assert b"\r\nx-session-id: old\r\n" in usual
    assert b"\r\nX-Session-ID: s7\r\n" in own
    assert b"old" not in own
    assert b"\r\nX-Team: a\r\n" in own
    assert own.endswith(b"\r\n\r\n{}")


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 7, 64, 1000])
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_the_result_is_independent_of_split_and_framing(
    ask: Callable[..., TurnResult], piece_bytes: int, framing: str
) -> None:
    body = b"".join(ANSWER)
    if framing == "chunked":
        reply = chunked(body[:100], body[100:101], body[101:])
    else:
        length = b"Content-Length: %d\r\n" % len(body) if framing == "length" else b"Connection: close\r\n"
        reply = HEAD + length + b"\r\n" + body
    result = ask(send(reply, piece_bytes=piece_bytes, close=framing == "close"))
    assert result.record.failure is None, result.detail
    assert result.text == "Grüße \u2028x"
    assert result.record.output_tokens == 2


def test_connections_are_reused(ask: Callable[..., TurnResult]) -> None:
    result = ask(send(chunked(*ANSWER)), turns=3)
    assert ask.server.connections == 1  # type: ignore[attr-defined]
    assert result.record.connect_ns is None


def test_a_connection_closed_while_idle_is_replaced(ask: Callable[..., TurnResult]) -> None:
    result = ask(send(chunked(*ANSWER), close=True), turns=2)
    assert result.record.failure is None
    assert ask.server.connections == 2  # type: ignore[attr-defined]


@pytest.fixture
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send requests again after any time: the machine may be busy."""
    monkeypatch.setattr(retry, "SLACK_NS", 3600 * NS_PER_S)


@pytest.mark.usefixtures("no_limit")
def test_a_request_on_a_closing_connection_is_retried_once(ask: Callable[..., TurnResult]) -> None:
    def close_unanswered(sock: socket.socket, _request: bytes) -> None:
        sock.shutdown(socket.SHUT_RDWR)

    result = ask(send(chunked(*ANSWER)), close_unanswered, send(chunked(*ANSWER)), turns=2)
    assert result.record.failure is None
    assert result.record.attempts == 2


class StaleServer(ScriptedServer):
    """Server that ends each connection at its second request, in one of the ways of a server whose keep-alive time is over."""

    def __init__(self, how: str, idle: int) -> None:
        self._how = how
        self._all_idle = threading.Barrier(
            idle
        )  # the first requests are answered together, so that each has a connection
        self._of_connection = threading.local()  # each connection has its thread
        super().__init__([self._script])

    def _script(self, sock: socket.socket, _request: bytes) -> None:
        if getattr(self._of_connection, "answered", False):
            if self._how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            return
        self._of_connection.answered = True
        if self.connections <= self._all_idle.parties:
            self._all_idle.wait(10)
        sock.sendall(chunked(*ANSWER))


@pytest.mark.usefixtures("no_limit")
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(("burst", "body_bytes"), [(4, 2), (9, 2), (7, 8_000_000)])
def test_a_burst_on_connections_that_the_server_has_closed_takes_new_ones(
    how: str, body_bytes: int, burst: int
) -> None:
    server = StaleServer(how, idle=6)
    client = Client(ClientSettings(Target.parse(server.url), "m"), lambda _result: None)

    def ask_at_once(turns: int, body: bytes) -> list[TurnResult]:
        started = [client.start(TurnRequest(body, f"s{n}", "s", 0, "chat", "measure", now_ns())) for n in range(turns)]
        with gevent.Timeout(20):
            return [turn.wait() for turn in started]

    try:
        assert [result.record.failure for result in ask_at_once(6, b"{}")] == [None] * 6
        assert len(client._idle) == 6
        again = ask_at_once(burst, bytes(body_bytes))
    finally:
        client.close()
        server.close()
    assert [(result.record.failure, result.detail) for result in again] == [(None, "")] * burst
    assert sorted(result.record.attempts for result in again) == [*[1] * (burst - min(burst, 6)), *[2] * min(burst, 6)]
    assert all((result.record.connect_ns is None) == (result.record.attempts == 2) for result in again)
    assert all(result.record.sent_ns <= result.record.written_ns for result in again)  # type: ignore[operator]


def test_running_counts_assign_tokens_to_events(ask: Callable[..., TurnResult]) -> None:
    events = [
        event("", usage=(7, 0), role="assistant"),
        event("", usage=(7, 1)),  # half a character: the first token, without text
        event("ab", usage=(7, 4)),
        event("", usage=(7, 4)),  # no new token
        event("c", usage=(7, 5), finish="stop"),
        usage(7, 5),
        DONE,
    ]
    record = ask(send(chunked(*events))).record
    assert record.event_tokens is not None
    assert list(record.event_tokens) == [1, 3, 1]
    assert record.first_visible_ns is not None
    assert record.first_ns is not None


def test_a_usage_with_the_finish_reason_is_no_output_event(ask: Callable[..., TurnResult]) -> None:
    record = ask(send(chunked(event("a"), event("b"), event("", usage=(7, 2), finish="stop"), DONE))).record
    assert record.event_ns is not None
    assert len(record.event_ns) == 2
    assert record.event_tokens is None
    assert record.output_tokens == 2


def test_reasoning_and_tool_calls_are_output_but_not_visible(ask: Callable[..., TurnResult]) -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": "{"}}
    record = ask(
        send(chunked(event(reasoning_content="hm"), event(tool_calls=[call]), event(finish="tool_calls"), DONE))
    ).record
    assert record.failure is None
    assert record.event_ns is not None
    assert len(record.event_ns) == 2
    assert record.first_visible_ns is None


def test_reasoning_and_tool_calls_are_in_the_result(ask: Callable[..., TurnResult]) -> None:
    def part(index: int, arguments: str, **first: str) -> dict[str, object]:
        name = {"name": first["name"]} if first else {}
        return {"index": index, **({"id": first["id"]} if first else {}), "function": {**name, "arguments": arguments}}

    events = [
        event(reasoning="Let me "),
        event(reasoning_content="see."),
        event("I look."),
        event("Now", tool_calls=[part(0, "", id="c0", name="read")]),  # text and call in one event
        event(tool_calls=[part(0, '{"path"'), part(1, '{"a": 1}', id="c1", name="add")]),
        event(tool_calls=[part(0, ': "x"}')]),
        event(finish="tool_calls"),
        DONE,
    ]
    result = ask(send(chunked(*events)), answer_digests=True)
    assert (result.text, result.reasoning) == ("I look.Now", "Let me see.")
    digest = answer_digest("I look.Now", "Let me see.", result.tool_calls)
    assert (
        result.record.answer_digest == digest == ask(send(chunked(*events)), answer_digests=True).record.answer_digest
    )
    assert ask(send(chunked(*events))).record.answer_digest is None
    others = [("", "I look.NowLet me see."), ("I look.Now", "")]
    assert digest not in [answer_digest(*texts, result.tool_calls) for texts in others]
    assert digest != answer_digest("I look.Now", "Let me see.", result.tool_calls[:1])
    assert result.tool_calls == (ToolCall("c0", "read", '{"path": "x"}'), ToolCall("c1", "add", '{"a": 1}'))
    assert result.record.event_ns is not None
    assert len(result.record.event_ns) == 6


TEXT = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"


@pytest.mark.parametrize(
    ("reply", "failure", "detail"),
    [
        (TEXT % (b"401 Unauthorized", b"application/json", 17, b'{"error": "sk-x"}'), Failure.HTTP_4XX, "HTTP 401"),
        (TEXT % (b"429 Too Many", b"text/plain", 4, b"slow"), Failure.HTTP_429, "slow"),
        (TEXT % (b"503 Oh", b"text/plain", 0, b""), Failure.HTTP_5XX, "HTTP 503"),
        (TEXT % (b"302 Found", b"text/plain", 0, b""), Failure.HTTP_OTHER, "HTTP 302"),
        (TEXT % (b"200 OK", b"text/html", 14, b"<html>hi</html"), Failure.NOT_SSE, "text/html"),
        (chunked(event("a"), b'data: {"error": {"message": "boom"}}\n\n', DONE), Failure.SERVER_ERROR, "boom"),
        (chunked(event("a"), b'data: {"object": "error", "message": "boom"}\n\n', DONE), Failure.SERVER_ERROR, "boom"),
        (
            chunked(event("a"), event("", finish="abort"), usage(7, 1), DONE),
            Failure.SERVER_ERROR,
            "finish_reason abort",
        ),
        (chunked(event("a"), event("", finish="error"), DONE), Failure.SERVER_ERROR, "finish_reason error"),
        (chunked(event("a"), b"data: {nonsense\n\n", DONE), Failure.BAD_EVENT, "nonsense"),
        (chunked(event("a")), Failure.CUT, "DONE"),
        (chunked(event("a"))[:-5], Failure.CUT, "closed"),
        (chunked(event("a"))[:-9], Failure.CUT, "closed"),
        (HEAD[:20], Failure.CUT, "closed"),
        (b"", Failure.CUT, "closed"),
        (b"SSH-2.0-OpenSSH\r\n", Failure.BAD_HTTP, "SSH"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", Failure.BAD_HTTP, "chunk size"),
        (chunked(event("", role="assistant"), event(finish="stop"), DONE), Failure.EMPTY, "without output tokens"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_each_fault_has_its_failure_class(
    ask: Callable[..., TurnResult], reply: bytes, failure: Failure, detail: str
) -> None:
    result = ask(send(reply, close=True))
    assert result.record.failure is failure
    assert detail in result.detail
    assert result.record.closed_ns >= result.record.planned_ns


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % 2**63,
        HEAD + b"Content-Length: %d\r\n\r\n" % 10**15,
        HEAD + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        HEAD + b"X-Trace : y\r\n" + CHUNKED + b"\r\n",
        HEAD + b"X-Trace\xa0: y\r\n" + CHUNKED + b"\r\n",
    ],
    ids=["above int64", "16 digits", "5,000 digits", "blank before colon", "no-break space before colon"],
)
def test_a_malformed_head_fails_only_its_turn(ask: Callable[..., TurnResult], head: bytes) -> None:
    body = b"".join(chunk(event("x" * 900)) for _ in range(100))
    result = ask(send(head + body), send(chunked(*ANSWER)), turns=2)
    assert result.record.failure is None, result.detail
    assert ask.results[0].record.failure is Failure.BAD_HTTP  # type: ignore[attr-defined]


def test_text_before_a_cut_is_kept(ask: Callable[..., TurnResult]) -> None:
    result = ask(
        send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")) + chunk(event("b"))[:30], close=True)
    )
    assert result.record.failure is Failure.CUT
    assert result.text == "a"


def test_a_refused_connection_is_a_connect_failure(ask: Callable[..., TurnResult]) -> None:
    result = ask(send(b""), url=f"http://127.0.0.1:{unused_port()}")
    assert result.record.failure is Failure.CONNECT
    assert result.record.sent_ns is None
    assert "refused" in result.detail


@pytest.mark.parametrize(
    ("sent", "limits", "failure"),
    [
        (b"", Timeouts(first_event_s=0.3), Failure.TIMEOUT_FIRST_EVENT),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b": still here\n\n"),
            Timeouts(first_event_s=0.3),
            Failure.TIMEOUT_FIRST_EVENT,
        ),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")),
            Timeouts(between_events_s=0.3),
            Failure.TIMEOUT_BETWEEN_EVENTS,
        ),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")),
            Timeouts(turn_s=0.3),
            Failure.TIMEOUT_TURN,
        ),
    ],
)
def test_timeouts_have_their_failure_class(
    ask: Callable[..., TurnResult], sent: bytes, limits: Timeouts, failure: Failure
) -> None:
    release = threading.Event()

    def script(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(sent)
        release.wait(20)

    result = ask(script, timeouts=limits)
    release.set()
    assert result.record.failure is failure


@pytest.mark.parametrize(
    ("first", "limits", "failure"),
    [
        (b"", Timeouts(first_event_s=0.3), Failure.TIMEOUT_FIRST_EVENT),
        (chunk(event("a")), Timeouts(between_events_s=0.3), Failure.TIMEOUT_BETWEEN_EVENTS),
    ],
)
def test_frequent_comments_are_no_events(
    ask: Callable[..., TurnResult], first: bytes, limits: Timeouts, failure: Failure
) -> None:
    recorded = threading.Event()

    def script(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + first)
        for _ in range(4_000):  # for longer than the timeout of `ask`
            sock.sendall(chunk(b": still here\n\n"))
            if recorded.wait(0.01):
                break

    result = ask(script, timeouts=limits)
    recorded.set()
    assert result.record.failure is failure


@pytest.mark.parametrize("limit", ["turn_s", "first_event_s"])
def test_an_answer_that_arrived_in_time_during_a_pause_of_the_client_is_no_timeout(limit: str) -> None:
    paused, sent = threading.Event(), threading.Event()

    def script(sock: socket.socket, _request: bytes) -> None:
        paused.wait(20)
        sock.sendall(chunked(*ANSWER))
        sent.set()

    server = ScriptedServer([script])
    client = Client(ClientSettings(Target.parse(server.url), "m"), lambda _result: None)
    turn = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns()))
    with gevent.Timeout(20):
        while not server.requests:
            gevent.sleep(0.01)
    paused.set()
    assert sent.wait(20)  # blocks the event loop
    limit_s = (now_ns() - turn.started_ns) / NS_PER_S + 0.05
    client.timeouts = Timeouts(**{limit: limit_s})
    turn.next_check_ns = 0
    time.sleep(0.4)
    assert now_ns() - turn.started_ns > limit_s * NS_PER_S
    with gevent.Timeout(20):
        result = turn.wait()
    client.close()
    server.close()
    assert result.record.failure is None, result.detail


def test_give_up_all_records_turns_in_flight_as_unfinished(ask: Callable[..., TurnResult]) -> None:
    release = threading.Event()

    def script(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")))
        release.wait(20)

    def stop() -> None:
        while not ask.server.requests:  # type: ignore[attr-defined]
            gevent.sleep(0.01)
        ask.client.give_up_all()  # type: ignore[attr-defined]

    stopper = gevent.spawn_later(0.05, stop)
    result = ask(script)
    release.set()
    stopper.join()
    assert result.record.failure is Failure.UNFINISHED
    assert not result.record.finished


def test_a_cancelled_turn_keeps_its_text() -> None:
    release = threading.Event()

    def script(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")) + chunk(event("b")[:10]))
        release.wait(20)

    server, results = ScriptedServer([script]), list[TurnResult]()
    client = Client(ClientSettings(Target.parse(server.url), "m"), results.append)
    turn = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "agent", "measure", now_ns(), final=None))
    with gevent.Timeout(20):
        while not turn._reply.body_bytes:
            gevent.sleep(0.01)
        assert not turn.wait_until(now_ns())
        turn.cancel()
        result = turn.wait()
    turn.cancel()  # after the end: no effect
    release.set()
    client.close()
    server.close()
    assert results == [result]
    assert result.record.cancelled
    assert (result.record.failure, result.text, result.record.final) == (None, "a", False)
    assert result.record.first_ns == result.record.last_ns


def test_the_api_key_is_sent_and_redacted_in_errors(ask: Callable[..., TurnResult]) -> None:
    def echo(sock: socket.socket, request: bytes) -> None:
        body = b"denied: " + request.split(b"Bearer ")[1].split(b"\r\n")[0]
        sock.sendall(TEXT % (b"401 Unauthorized", b"text/plain", len(body), body))

    credentials = Credentials("sk-canary")
    result = ask(echo, credentials=credentials)
    assert b"Bearer sk-canary" in ask.server.requests[0]  # type: ignore[attr-defined]
    assert result.detail == "HTTP 401: denied: ***"
    assert "canary" not in repr(credentials)


@pytest.mark.parametrize("name", ["X-Api-Key", "Authorization", "x-tenant"])
def test_header_values_are_redacted_in_errors(ask: Callable[..., TurnResult], name: str) -> None:
    def echo(sock: socket.socket, request: bytes) -> None:
        body = b"you sent " + request.split(b"\r\n\r\n")[0].split(b"canary-")[1].split(b"\r\n")[0]
        sock.sendall(TEXT % (b"403 Forbidden", b"text/plain", len(body), body))

    result = ask(echo, headers=((name, "canary-0123456789abcdef"),))
    assert result.detail == "HTTP 403: you sent ***"


@pytest.mark.parametrize("sse", [False, True])
@pytest.mark.parametrize("before", [170, 190, 195, 199, 270, 285, 292, 299, 4070, 4090])
def test_a_key_at_the_cut_of_an_error_is_redacted_completely(
    ask: Callable[..., TurnResult], before: int, sse: bool
) -> None:
    key = "sk-0123456789abcdefghij"
    body = b"x" * before + key.encode() + b"y" * 5000
    bad = b'data: {"error": "' + body + b'"}\n\n'
    script = send(chunked(bad)) if sse else send(TEXT % (b"500 Oh", b"text/plain", len(body), body))
    result = ask(script, credentials=Credentials(key))
    assert not any(key[at : at + 8] in result.detail for at in range(len(key) - 7))
    assert len(result.detail) <= 300


def test_a_key_returned_as_request_id_or_finish_reason_is_redacted(ask: Callable[..., TurnResult]) -> None:
    key = "sk-0123456789abcdefghij"
    named = event("a").replace(b"chatcmpl-1", key.encode())
    ended = event("", finish=key).replace(b"chatcmpl-1", key.encode())
    assert key.encode() in named
    result = ask(send(chunked(named, ended, usage(7, 1), DONE)), credentials=Credentials(key))
    assert (result.record.failure, result.record.finish_reason, result.record.request_id) == (None, "***", "***")


SERVER_HEADER, TOKEN_HEADER = "X-Served-By", "x-session-token"


@pytest.mark.parametrize(
    ("named", "server", "token"),
    [
        (b"X-Served-By: 10.0.0.1:8000\r\nX-Session-Token: abc=\r\n", "10.0.0.1:8000", "abc="),
        (b"x-served-by: sk-0123456789abcdefghij\r\n", "***", ""),
        (b"X-Served-By:\r\n", None, ""),
        (b"X-Served-By: " + b"a" * 5_000 + b"\r\n", "a" * 300, ""),
        (b"", None, ""),
    ],
    ids=["both", "a key", "empty", "long", "none"],
)
def test_the_server_and_the_session_token_are_read_from_headers(
    ask: Callable[..., TurnResult], named: bytes, server: str | None, token: str
) -> None:
    body = b"".join(chunk(piece) for piece in ANSWER) + b"0\r\n\r\n"
    settings = {
        "server_header": SERVER_HEADER,
        "session_token_header": TOKEN_HEADER,
        "credentials": Credentials("sk-0123456789abcdefghij"),
    }
    result = ask(send(HEAD + named + CHUNKED + b"\r\n" + body), **settings)
    assert (result.record.failure, result.record.server, result.session_token) == (None, server, token)
    unasked = ask(send(HEAD + named + CHUNKED + b"\r\n" + body))
    assert (unasked.record.server, unasked.session_token) == (None, "")


def test_request_headers_and_path(ask: Callable[..., TurnResult]) -> None:
    ask(send(chunked(*ANSWER)), headers=(("X-Tenant", "a"), ("user-agent", "mine")))
    request = ask.server.requests[0]  # type: ignore[attr-defined]
    assert request.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"X-Tenant: a\r\n" in request
    assert b"user-agent: mine\r\n" in request
    assert b"User-Agent" not in request


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.usefixtures("stamping")
def test_tls_verified_with_a_ca_file(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    settings = TlsSettings(ca_file=tmp_path / "ca.pem")
    result = run_tls(server_context(authority, "127.0.0.1"), settings)
    assert result.record.failure is None, result.detail
    assert result.text == "Grüße \u2028x"
    assert result.record.delay_ns is not None  # stamped below TLS


@pytest.mark.parametrize(("name", "trusted"), [("127.0.0.1", False), ("other.example", True)])
def test_unverifiable_tls_is_a_tls_failure(authority: trustme.CA, tmp_path: Path, name: str, trusted: bool) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    settings = TlsSettings(ca_file=tmp_path / "ca.pem" if trusted else None)
    result = run_tls(server_context(authority, name), settings)
    assert result.record.failure is Failure.TLS
    assert "ertificate" in result.detail or "IP address mismatch" in result.detail


def test_insecure_tls_is_not_verified(authority: trustme.CA) -> None:
    result = run_tls(server_context(authority, "other.example"), TlsSettings(insecure=True))
    assert result.record.failure is None, result.detail


@pytest.fixture
def identity(authority: trustme.CA, tmp_path: Path) -> TlsSettings:
    """Settings with a client's certificate and key in two files."""
    issued = authority.issue_cert("client.example")
    issued.private_key_pem.write_to_path(tmp_path / "client.key")
    (tmp_path / "client.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return TlsSettings(client_cert=tmp_path / "client.pem", client_key=tmp_path / "client.key", insecure=True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shown", [True, False])
def test_a_server_that_asks_for_a_certificate(
    authority: trustme.CA, identity: TlsSettings, version: ssl.TLSVersion, shown: bool
) -> None:
    context = server_context(authority, "127.0.0.1")
    context.minimum_version = context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    result = run_tls(context, identity if shown else TlsSettings(insecure=True))
    assert result.record.failure is (None if shown else Failure.TLS)
    assert ("the server asks for a client certificate" in result.detail) is not shown


def run_tls(context: ssl.SSLContext, settings: TlsSettings) -> TurnResult:
    server = ScriptedServer([send(chunked(*ANSWER), piece_bytes=9)], context)
    client = Client(ClientSettings(Target.parse(server.url), "m", tls=settings), lambda _result: None)
    with gevent.Timeout(20):
        result = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns())).wait()
    client.close()
    server.close()
    return result


def test_a_proxy_from_the_environment_is_used(ask: Callable[..., TurnResult], monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = ScriptedServer([send(chunked(*ANSWER))])
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    result = ask(send(b""), url="http://model.example:9000")
    proxy.close()
    assert result.record.failure is None, result.detail
    assert proxy.requests[0].startswith(b"POST http://model.example:9000/v1/chat/completions HTTP/1.1\r\n")


def test_concurrent_turns_are_recorded_once_each() -> None:
    server = ScriptedServer([send(chunked(*ANSWER))])
    turn_ids: list[str] = []
    client = Client(
        ClientSettings(Target.parse(server.url), "m"), lambda result: turn_ids.append(result.record.turn_id)
    )
    turns = [client.start(TurnRequest(b"{}", f"s{i}.0", f"s{i}", 0, "chat", "measure", now_ns())) for i in range(50)]
    with gevent.Timeout(20):
        results = [turn.wait() for turn in turns]
    client.close()
    server.close()
    assert all(result.record.ok for result in results)
    assert sorted(turn_ids) == sorted(f"s{i}.0" for i in range(50))


class RecordedTurns:
    """A client of an endless stream, and its results."""

    def __init__(self) -> None:
        self.server = ScriptedServer([send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")))])
        self.results: list[TurnResult] = []
        self.client = Client(ClientSettings(Target.parse(self.server.url), "m"), self.results.append)

    def run(self) -> TurnResult:
        """Run one turn and all remaining parse steps after its end."""
        request = TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns())
        with gevent.Timeout(20):
            turn = self.client.start(request)
            while turn.result is None:
                turn.queue_parsing()
                gevent.sleep(0.001)
            result = turn.wait()
            while len(self.client.parse_queue):
                gevent.sleep(0)
        return result

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def endless() -> Iterator[RecordedTurns]:
    turns = RecordedTurns()
    yield turns
    turns.close()


def raising(*_arguments: object, **_named: object) -> None:
    raise ZeroDivisionError("a fault of the parser")


def test_an_answer_that_cannot_be_parsed_fails_its_turn_once(
    endless: RecordedTurns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(EventStream, "feed", raising)
    result = endless.run()
    assert result.record.failure is Failure.CLIENT_ERROR
    assert result.detail == "ZeroDivisionError: a fault of the parser"
    assert endless.results == [result]
    assert endless.client.in_flight == 0
    assert "a fault of the parser" in (caplog.records[-1].exc_text or "")


def test_an_end_that_cannot_be_parsed_fails_only_its_turn(
    ask: Callable[..., TurnResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    end, calls = ReplyParser.end, count()

    def once_broken(parser: ReplyParser, reply: HttpReply) -> None:
        if not next(calls):
            raise ZeroDivisionError("a fault of the parser")
        end(parser, reply)

    monkeypatch.setattr(ReplyParser, "end", once_broken)
    result = ask(send(chunked(*ANSWER)), turns=2)
    assert result.record.failure is None, result.detail
    assert ask.results[0].record.failure is Failure.CLIENT_ERROR  # type: ignore[attr-defined]
    assert ask.results[0].detail == "ZeroDivisionError: a fault of the parser"  # type: ignore[attr-defined]
