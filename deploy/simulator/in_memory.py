"""Server of the simulator without sockets: bytes of HTTP requests in, bytes of replies out.

The caller advances the clock to `next_due_ns` and calls `pump`, which writes the events that are due at that instant.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from inferload.base.errors import UsageError

from . import flags
from .command import options_of
from .protocol.http import HttpRequest, HttpResponse
from .server.api import Api
from .server.connection import Connection, Hooks
from .server_config import resolve


class _Socket:
    """Stand-in for the socket of a connection: bytes from the client, and to it all at once."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self.inbox = b""
        self._receive = receive

    def recv(self, _size: int) -> bytes:
        data, self.inbox = self.inbox, b""
        return data

    def send(self, data: bytes) -> int:
        self._receive(data)
        return len(data)


_OF_SOCKETS = ("host", "port", "tls_cert", "tls_key", "api_key", "exit_after_s")


class InMemoryServer:
    """Server with the command line of `inferload simulator`. Raise UsageError for an invalid one.

    `seed`: of the noise of step times and of accepted drafts.
    """

    def __init__(self, argv: Sequence[str], seed: int) -> None:
        arguments, defaults = flags.read(argv), flags.read([])
        for name in _OF_SOCKETS:
            if getattr(arguments, name) != getattr(defaults, name):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag}: not with a server in memory, which has no address; leave it out")
        config = resolve(arguments)
        options = options_of(config)
        self.stands_for = f"{config.stands_for} (virtual clock)"
        self.model = options.model.name
        self.max_model_len = options.model.max_model_len
        self._engine = config.engine(seed)
        self._connections = 0
        options = replace(options, stands_for=self.stands_for, api_key="")
        self._api = Api(options, self._engine, lambda: self._connections)
        self._hooks = Hooks(self._api.handle, lambda _connection: None, self._lost)

    def connect(self, receive: Callable[[bytes], None], closed: Callable[[], None]) -> "ServerEnd":
        """Open a connection. `receive`: takes the bytes of replies; `closed`: called when the server closes it."""
        self._connections += 1
        return ServerEnd(_Socket(receive), self._hooks, closed)

    def get(self, path: str) -> HttpResponse:
        """Return the reply to a GET request that is answered at once."""
        return self._api.page(HttpRequest("GET", path, {}, True))

    def post(self, path: str, body: bytes = b"") -> HttpResponse:
        """Return the reply to a POST request with a JSON body that is answered at once."""
        return self._api.page(HttpRequest("POST", path, {"content-type": "application/json"}, True, body))

    @property
    def next_due_ns(self) -> int | None:
        """Due time of the next work; None if nothing is planned."""
        return self._engine.next_due_ns()

    def pump(self, now_ns: int) -> None:
        """Do all work that is due now."""
        self._engine.pump(now_ns, now_ns + 1)

    def _lost(self, connection: Connection) -> None:
        self._connections -= 1
        if connection.stream is not None:
            self._engine.abort(connection.stream)
        cast(ServerEnd, connection).closed()


class ServerEnd(Connection):
    """Server's end of a connection in memory. `closed`: called at its end."""

    __slots__ = ("_stand_in", "closed")

    def __init__(self, stand_in: _Socket, hooks: Hooks, closed: Callable[[], None]) -> None:
        super().__init__(cast(socket.socket, stand_in), hooks)
        self._stand_in, self.closed = stand_in, closed

    def send(self, data: bytes) -> None:
        """Pass bytes of requests to the server."""
        if not self.dead:
            self._stand_in.inbox += data
            self.readable()

    def close(self) -> None:
        """Close the connection at the client: an answer in progress is aborted."""
        self.lose()
