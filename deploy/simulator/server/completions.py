"""Streams of the engine from completion requests, for all generating endpoints."""

import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferload.measure import clock

from ..answers.completion_events import CompletionEvents
from ..answers.event_builder import EventBuilder
from ..answers.message_events import MessageEvents
from ..answers.response_events import ResponseEvents
from ..answers.usage import Group
from ..core.request import Request
from ..engine.chaos import Faults
from ..engine.engine import Engine
from ..engine.stream import Peer, Stream
from ..protocol import message_input, response_input
from ..protocol.completion_request import CompletionRequest, parse_completions
from ..protocol.http import HttpRequest, head_bytes
from ..protocol.text import Lexicon
from .connection import Connection
from .server_info import Options
from .server_log import LogWriter

CHAT, TEXT, RESPONSE, MESSAGE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ENDPOINTS = (CHAT, TEXT, RESPONSE, MESSAGE)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Valid request and its planned answers."""

    request: HttpRequest
    document: Mapping[str, Any]
    completions: Sequence[CompletionRequest]
    arrived_ns: int


class Completions:
    """Starts the streams of requests: one stream per choice, all on one connection."""

    def __init__(self, options: Options, engine: Engine, lexicon: Lexicon, log: LogWriter) -> None:
        self._options = options
        self._engine = engine
        self._lexicon = lexicon
        self._log = log
        self._number = itertools.count(secrets.randbits(48))

    def prepare(self, request: HttpRequest, document: Mapping[str, Any]) -> Prepared:
        """Check a request and plan its answers. Raise ApiError if vLLM would refuse it."""
        now_ns, model = clock.now_ns(), self._options.model
        chat: Mapping[str, Any] = document
        if request.path == RESPONSE:
            chat = response_input.check_tools(response_input.chat_of(document), model.tool_parser and model.auto_tools)
        elif request.path == MESSAGE:
            chat = message_input.chat_of(document)
        return Prepared(request, document, parse_completions(chat, request.path != TEXT, model, self._lexicon), now_ns)

    def start(self, connection: Connection, prepared: Prepared, faults: Faults | None) -> None:
        """Send the response head and submit the answers to the engine. Faults apply to requests with one answer only."""
        completions, options, request = prepared.completions, self._options, prepared.request
        number = request.headers.get("x-request-id") or completions[0].request_id or f"{next(self._number):016x}"
        stream = completions[0].stream
        framed = stream and options.chunked
        group = Group(completions, options.usage_options)
        peer: Peer = connection if len(completions) == 1 else SharedConnection(connection, len(completions))
        builders = [self._events(prepared, completion, group, number, framed) for completion in completions]
        streams = tuple(
            Stream(
                completion=completion,
                request=_request(completion),
                events=builder,
                peer=peer,
                keep_alive=request.keep_alive and (framed or not stream),
                framed=framed,
                request_id=number if options.request_id_headers else "",
                faults=faults if len(completions) == 1 else None,
            )
            for completion, builder in zip(completions, builders, strict=True)
        )
        connection.streams = streams
        connection.status = 200
        if options.log_requests:
            self._log.received(_prefixed(request.path, number), completions[0])
        if stream:
            self._send_head(connection, streams[0], prepared.arrived_ns)
        for started in streams:
            self._engine.submit(started, prepared.arrived_ns)

    def _events(
        self, prepared: Prepared, completion: CompletionRequest, group: Group, number: str, framed: bool
    ) -> EventBuilder:
        path, model, created_s = prepared.request.path, self._options.model.name, clock.wall_ns() // 1_000_000_000
        request_id = _prefixed(path, number)
        if path == RESPONSE:
            return ResponseEvents(
                completion, group, prepared.document, number=number, created_s=created_s, model=model, framed=framed
            )
        if path == MESSAGE:
            return MessageEvents(completion, group, request_id=request_id, model=model, framed=framed)
        return CompletionEvents(
            completion, group, self._lexicon, request_id=request_id, created_s=created_s, model=model, framed=framed
        )

    def _send_head(self, connection: Connection, stream: Stream, now_ns: int) -> None:
        framing = "transfer-encoding: chunked" if stream.framed else ""
        more = (("x-request-id", stream.request_id),) if stream.request_id else ()
        head = head_bytes(200, "text/event-stream; charset=utf-8", framing, stream.keep_alive, more)
        if isinstance(stream.events, ResponseEvents):
            head += stream.events.opening()
        delay_ns = stream.faults.ns("slow_header") if stream.faults is not None else 0
        if delay_ns:
            stream.header_due_ns = now_ns + delay_ns
            self._engine.call_at(stream.header_due_ns, lambda: _late_head(connection, stream, head))
        else:
            connection.write(head)


def _request(completion: CompletionRequest) -> Request:
    script = completion.script
    return Request(completion.tokens, completion.output_tokens, script.token, completion.cache_salt, script.tokens)


def _late_head(connection: Connection, stream: Stream, head: bytes) -> None:
    if stream in connection.streams and not connection.dead:
        connection.write(head)


def _prefixed(path: str, number: str) -> str:
    return f"{'cmpl' if path == TEXT else 'resp' if path == RESPONSE else 'chatcmpl'}-{number}"


class SharedConnection:
    """Connection shared by several answers, and ended by the last of them."""

    def __init__(self, peer: Peer, answers: int) -> None:
        self._peer = peer
        self._left = answers

    def write(self, data: bytes) -> bool:
        """Send bytes. Return False if the kernel did not take all of them; the rest follows later."""
        return self._peer.write(data)

    def answered(self, close: bool) -> None:
        """End one answer; the last one ends the connection's request."""
        self._left -= 1
        if not self._left:
            self._peer.answered(close)

    def cut(self, reset: bool) -> None:
        """Close immediately, in the middle of the answers."""
        self._peer.cut(reset)
