"""Streams of the engine from completion requests."""

import itertools
import random

from inferload.base.clock import wall_ns

from ..answers.completion_events import CompletionEvents
from ..core.request import Request
from ..engine.chaos import Faults
from ..engine.engine import Engine
from ..engine.stream import Stream
from ..protocol.completion_request import CompletionRequest
from ..protocol.http import HttpRequest, head_bytes
from .connection import Connection
from .server_info import Options

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = (CHAT, TEXT)


class Completions:
    """Starts the stream of each request."""

    def __init__(self, options: Options, engine: Engine) -> None:
        self._options = options
        self._engine = engine
        self._number = itertools.count(random.getrandbits(48))

    def start(
        self,
        connection: Connection,
        request: HttpRequest,
        completion: CompletionRequest,
        faults: Faults | None,
        arrived_ns: int,
    ) -> None:
        """Send the response head and submit the answer to the engine."""
        number = request.headers.get("x-request-id") or f"{next(self._number):016x}"
        events = CompletionEvents(
            completion,
            self._options.usage_options,
            request_id=f"{'chatcmpl' if completion.chat else 'cmpl'}-{number}",
            created_s=wall_ns() // 1_000_000_000,
            model=self._options.model.name,
        )
        stream = Stream(completion, _request(completion), events, connection, request.keep_alive, faults)
        connection.stream = stream
        if completion.stream:
            framing = "transfer-encoding: chunked"
            connection.write(head_bytes(200, "text/event-stream; charset=utf-8", framing, stream.keep_alive))
        self._engine.submit(stream, arrived_ns)


def _request(completion: CompletionRequest) -> Request:
    script = completion.script
    return Request(completion.tokens, completion.output_tokens, script.token, completion.cache_salt, script.tokens)
