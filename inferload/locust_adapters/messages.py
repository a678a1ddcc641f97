"""Locust's messages between master and workers."""

import logging
from collections import Counter
from typing import Any

import gevent
import locust
import locust.runners

from inferload.base.clock import NS_PER_MS, now_ns
from inferload.locust_adapters import compat
from inferload.locust_adapters.compat import names_in, parameters

logger = logging.getLogger(__name__)

_FLUSH_MS = 2_000  # for messages to a master that does not read them
_SWITCH_NS = 20 * NS_PER_MS  # time for which the master may receive messages without a switch to other greenlets
_MAX_SHOWN = 120  # characters of an untrusted text in the log
_FIRST_MESSAGES = ("client_ready", "locustfile")  # of senders that are not registered yet


class IgnoredMessages:
    """Counts of ignored messages to the master, by reason; the first of each reason is logged."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, reason: str, detail: object) -> None:
        """Count a message. `detail`: from the network, so it is escaped and truncated."""
        self.counts[reason] += 1
        if self.counts[reason] == 1:
            logger.warning(
                "%s ignored (%s); further ones are only counted", reason, ascii(str(detail)[:_MAX_SHOWN])[:_MAX_SHOWN]
            )


ignored_messages = IgnoredMessages()


def receives_packets() -> bool:
    """Return True if the master receives packets by `Server.recv_from_client`."""
    from locust.exception import RPCError
    from locust.rpc.protocol import Message
    from locust.rpc.zmqrpc import Server

    fields = parameters(Message.__init__)[1:]
    return (
        issubclass(RPCError, Exception)
        and parameters(Server.recv_from_client) == ["self"]
        and fields == ["message_type", "data", "node_id"]
    )


def survive_malformed_packets() -> None:
    """Count and skip packets that cannot be decoded, and let other greenlets run while many packets wait.

    Locust catches two of the exceptions that decoding raises; any other ends the greenlet that receives from all workers. It
    also logs each such packet, so that a flood of packets fills the log. A socket with a waiting packet returns it without a
    switch: behind by a second, the greenlet would stop heartbeats, acknowledgements and live figures until it has caught up.
    """
    from locust.exception import RPCError
    from locust.rpc.zmqrpc import Server

    original, switched_ns = Server.recv_from_client, 0

    @compat.replacing(Server, "recv_from_client")
    def recv_from_client(self: Any) -> tuple[str, Any]:
        nonlocal switched_ns
        while True:
            if now_ns() - switched_ns > _SWITCH_NS:
                gevent.sleep(0)
                switched_ns = now_ns()
            try:
                client_id, message = original(self)
                if not (isinstance(message.type, str) and isinstance(message.node_id, str)):
                    raise TypeError("type or sender of a message is not a string")
            except RPCError:  # of the connection, not of the packet: Locust reconnects
                raise
            except Exception as error:  # noqa: BLE001  decoding raises bare Exception too
                ignored_messages.add("malformed packet", repr(error))
                gevent.sleep(0)  # other greenlets must run during a flood
                continue
            if message.node_id == client_id:
                return client_id, message
            ignored_messages.add("message under another sender's name", f"{message.node_id} from {client_id}")
            gevent.sleep(0)


def handles_messages() -> bool:
    """Return True if the master handles each message by `handle_message`, and knows its workers by ID."""
    master = locust.runners.MasterRunner
    return len(parameters(master.handle_message)) == 3 and "worker_indexes" in names_in(master.__init__)


def check_senders() -> None:
    """Ignore messages of senders that are not registered, and messages that raise an exception.

    Locust merges statistics of unregistered senders, and an exception while it handles a message, as of missing fields, ends the
    greenlet that receives from all workers.
    """
    original = locust.runners.MasterRunner.handle_message

    @compat.replacing(locust.runners.MasterRunner, "handle_message")
    def handle_message(self: Any, client_id: str, message: Any) -> None:
        if message.type not in _FIRST_MESSAGES and client_id not in self.worker_indexes:
            ignored_messages.add("message of an unknown sender", f"{message.type} from {client_id}")
            return
        try:
            original(self, client_id, message)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            ignored_messages.add("message that cannot be handled", f"{message.type} from {client_id}: {error!r}")


def flush_messages(runner: Any) -> None:
    """Wait until a worker's messages to the master are sent, at most _FLUSH_MS: the exit of the process drops others."""
    client = runner.client
    client.close(linger=_FLUSH_MS)
    client.socket.context.term()


def complete_early_report(data: dict[str, Any], **_event: Any) -> None:
    """Add the counts of users to a report that a worker sends before Locust's own listener is registered.

    A worker that must quit while it connects sends such a report, and Locust's master fails on the missing keys.
    """
    data.setdefault("user_classes_count", {})
    data.setdefault("user_count", 0)


def sends_stats() -> bool:
    """Return True if a worker can send its statistics at any time."""
    return parameters(locust.runners.WorkerRunner._send_stats) == ["self"]


def send_last_stats(runner: Any) -> None:
    """Send a worker's share of Locust's own tables, complete to the last request; do nothing for a local runner."""
    if "last_stats" not in compat.left_out and hasattr(runner, "_send_stats"):
        runner._send_stats()
