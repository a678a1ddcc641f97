"""The connection between master and workers: with a token, only processes that have it can join a run.

The connection then uses ZeroMQ's CURVE (https://rfc.zeromq.org/spec/26/), which encrypts and authenticates it. The master's
key pair is derived from the token, and its public key is not published: a peer without the token cannot complete the handshake.
"""

import hashlib
import logging
import secrets
import sys
from typing import Any

import gevent

from inferload.base.errors import UsageError
from inferload.locust_adapters import compat
from inferload.locust_adapters.compat import parameters

logger = logging.getLogger(__name__)

NAME = "membership"  # of the adaptation
_token: str | None = None


def use_token(token: str | None) -> None:
    """Set the token of this process and of workers that it forks later; None: connections are not authenticated."""
    global _token  # noqa: PLW0603  sockets are created by Locust, once per process
    if token is not None and NAME in compat.left_out:
        raise UsageError(
            "--token-file: the installed Locust or ZeroMQ cannot encrypt; see docs/reference/locust-versions.md"
        )
    _token = token


def random_token() -> str | None:
    """Return a token for a master and the workers that it forks; None if the connection cannot be authenticated."""
    return None if NAME in compat.left_out else secrets.token_hex(32)


def creates_sockets() -> bool:
    """Return True if Locust creates its sockets by replaceable functions, and ZeroMQ can encrypt."""
    import zmq
    from locust.rpc.zmqrpc import BaseSocket, Client, Server

    creators = (Client.__init__, Server.__init__)
    return (
        zmq.has("curve")
        and all("BaseSocket" in compat.names_in(create) for create in creators)
        and parameters(BaseSocket.__init__) == ["self", "sock_type", "ipv4_only"]
    )


def authenticate() -> None:
    """Have sockets of Locust use the token, if this process has one."""
    import zmq.green as zmq
    from locust.rpc.zmqrpc import BaseSocket

    original = BaseSocket.__init__

    @compat.replacing(BaseSocket, "__init__")
    def create(self: Any, sock_type: int, ipv4_only: bool) -> None:
        original(self, sock_type, ipv4_only)
        if _token is not None:
            secret, public = _master_keys(_token)
            if sock_type == zmq.ROUTER:
                self.socket.curve_server, self.socket.curve_secretkey = True, secret
            else:
                self.socket.curve_serverkey = public
                self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
        _log_refusal(self.socket, is_master=sock_type == zmq.ROUTER)


def _master_keys(token: str) -> tuple[bytes, bytes]:
    """Return the master's secret and public key of a token."""
    import zmq
    from zmq.utils import z85

    secret = z85.encode(hashlib.sha256(b"inferload master " + token.encode()).digest())
    return secret, zmq.curve_public(secret)


def _log_refusal(connection: Any, *, is_master: bool) -> None:
    """Log the first handshake that fails: ZeroMQ is silent. What does not speak its protocol may be a probe of a master's port."""
    import zmq.green as zmq
    from zmq.utils.monitor import parse_monitor_message

    by_protocol = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    ended = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_SUCCEEDED
    monitor = connection.get_monitor_socket(by_protocol | (0 if is_master else ended))

    def next_event() -> int:
        return int(parse_monitor_message(monitor.recv_multipart())["event"])

    def wait() -> None:
        event = next_event()
        if is_master:
            logger.warning("refused a worker that has another token or none; give both the same --token-file")
        elif event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            logger.error(
                "master %s: refused this worker, which has another token or none, or it is no master; give --token-file with the "
                "same content on master and worker (a run with --processes accepts its own workers only)",
                connection.LAST_ENDPOINT.decode().rstrip("\0"),
            )
            while event not in (by_protocol, zmq.EVENT_HANDSHAKE_SUCCEEDED):
                event = next_event()
        connection.disable_monitor()
        monitor.close(linger=0)
        if event == by_protocol and not is_master:
            sys.exit(2)  # ZeroMQ does not connect again, and Locust's next message would raise an exception

    gevent.spawn(wait)
