"""TLS of the reading thread: the bytes and ends that the layer in Python finds, for every split into reads."""

import array
import fcntl
import gc
import random
import select
import socket
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
import tls_peer
from fuzz_replies import FORMS, Budget, below, cut, mutated, one_of
from hypothesis import given
from hypothesis import strategies as st
from test_tls_layer import BROKEN, ORDERLY, SILENT, TEXTS, client_context, outcome, split, wire_of
from tls_peer import VERSIONS, Handshake, Peer

from inferload.client.connection.reply import NO_CLOSE_NOTIFY, nothing
from inferload.client.connection.tls import TlsLayer

native = pytest.importorskip("inferload.client.connection._transport", reason="the compiled reader was not built")

from inferload.client.connection import reader_choice  # noqa: E402  it needs the compiled reader
from inferload.client.connection.native_connection import NativeReply, _Slot  # noqa: E402

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
PATIENCE_S = 20.0
RANDOM_WIRES = 20  # per round
assert reader_choice.no_tls() == ""


class Connection:
    """Both ends of a connection after its handshake. `taken_over`: read by the thread."""

    def __init__(self, version: str, reader: native.Reader) -> None:
        self.layer, handshake = TlsLayer(client_context(), "127.0.0.1"), Handshake(version)
        self.layer.handshake(handshake)
        assert handshake.peer is not None
        self.peer: Peer = handshake.peer
        self.reader = reader
        self.near, self.far = socket.socketpair()

    def taken_over(self) -> int:
        """Let the thread read the connection; return its id."""
        self.number: int = self.reader.add(self.near.fileno(), *self.layer.raw)
        return self.number

    def send(self, piece: bytes) -> None:
        """Send one read of the thread, and wait for it."""
        self.far.sendall(piece)
        unread = array.array("i", [1])
        while unread[0] and not self.reader.lost(self.number):
            fcntl.ioctl(self.near, termios.FIONREAD, unread)
        self.reader.waiting(self.number)  # under the lock that the thread holds while it reads

    def endings(self) -> list[int]:
        ready, _, _ = select.select([self.reader], [], [], PATIENCE_S)
        assert ready
        return [ending for _, ending, _, _ in self.reader.ended()]

    def close(self) -> None:
        self.reader.forget(self.number)
        self.near.close()
        self.far.close()


@contextmanager
def connected(version: str = "TLSv1.3") -> Iterator[Connection]:
    with closing(native.Reader()) as reader, closing(Connection(version, reader)) as connection:
        connection.taken_over()
        yield connection


def received(connection: Connection) -> tuple[bytes, str | None]:
    """Return the body of a reply that ends with its connection, and the end in the words of `test_tls_layer.outcome`."""
    reply, body = NativeReply(nothing, nothing, _Slot(connection.reader, connection.number)), b""
    while not reply.done:
        for ending in connection.endings():
            reply.ended(ending, 0)
        while reply.fetch_waiting():
            body += reply.body(1 << 20).data
    return body, "close_notify" if reply.error is None else str(reply.error)


def by_thread(version: str, reader: native.Reader, reads_of: Callable[[Peer], list[bytes]]) -> tuple[bytes, str | None]:
    """Return body and end of a reply that the thread decrypts; it is closed without close_notify behind the reads."""
    with closing(Connection(version, reader)) as connection:
        connection.taken_over()
        connection.reader.expect(connection.number)
        for read in reads_of(connection.peer):
            connection.send(read)
        connection.far.close()
        return received(connection)


def by_layer(version: str, reads_of: Callable[[Peer], list[bytes]]) -> tuple[bytes, str | None]:
    """Return the same of the layer in Python."""
    layer, handshake = TlsLayer(client_context(), "127.0.0.1"), Handshake(version)
    layer.handshake(handshake)
    assert handshake.peer is not None
    decrypted = outcome(layer, [*reads_of(handshake.peer), b""])
    return decrypted.data.removeprefix(HEAD), decrypted.end


@given(
    version=st.sampled_from(VERSIONS),
    records=st.lists(st.one_of(TEXTS, st.sampled_from(SILENT)), max_size=6),
    end=st.sampled_from([*ORDERLY, *BROKEN]),
    cuts=st.sets(st.integers(1, 400), max_size=6),
    behind=st.sampled_from([b"", tls_peer.garbage(), b"\x17"]),
)
def test_the_thread_decrypts_what_the_layer_does(
    version: str, records: list[str], end: str, cuts: set[int], behind: bytes
) -> None:
    if version == "TLSv1.2":
        records = [name for name in records if name not in SILENT]

    def reads(peer: Peer) -> list[bytes]:
        wire = peer.data(HEAD) + wire_of(peer, records, end)
        return split(wire + (behind if end != "cut" else b""), cuts)

    with closing(native.Reader()) as reader:
        assert by_thread(version, reader, reads) == by_layer(version, reads)


@pytest.mark.parametrize("rounds", FORMS)
def test_changed_records_end_alike(rounds: int | None) -> None:
    """Records with bytes that are changed, inserted or missing, in any split: the same text and the same end."""
    budget = Budget("tls", rounds)
    with closing(native.Reader()) as reader:
        for rng in budget.rounds():
            for _ in range(RANDOM_WIRES):
                version, seed = one_of(rng, VERSIONS), rng.random()
                got, expected = by_thread(version, reader, changed(seed)), by_layer(version, changed(seed))
                assert got == expected, f"{budget}: {version}, {seed}"
                budget.inputs += 1


def changed(seed: float) -> Callable[[Peer], list[bytes]]:
    """Return the function that makes the reads of a seed, which differ between connections by their keys only."""

    def reads(peer: Peer) -> list[bytes]:
        rng = random.Random(seed)
        records = [peer.data(rng.randbytes(one_of(rng, [1, 40, 300, 17_000]))) for _ in range(below(rng, 6))]
        wire = peer.data(HEAD) + mutated(rng, b"".join(records), below(rng, 4))
        return cut(rng, wire + (peer.close_notify() if rng.random() < 0.5 else b""))

    return reads


@pytest.mark.parametrize("record", SILENT)
def test_records_without_data_between_two_replies_leave_the_connection_open(record: str) -> None:
    with connected() as connection:
        connection.send(getattr(connection.peer, record)())
        assert not connection.reader.lost(connection.number)
        assert connection.reader.ended() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_data_between_two_replies_end_the_connection(version: str) -> None:
    with connected(version) as connection:
        connection.send(connection.peer.data(b"nobody asked"))
        assert connection.endings() == [512]  # STRAY
        assert connection.reader.lost(connection.number)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 16_384, 100_000])
def test_the_server_decrypts_the_request(version: str, size: int) -> None:
    layer, handshake = TlsLayer(client_context(), "127.0.0.1"), Handshake(version)
    layer.handshake(handshake)
    near, far = socket.socketpair()
    with closing(native.Reader()) as reader, near, far:
        number = reader.add(near.fileno(), *layer.raw)
        records = reader.encrypt(number, b"x" * size)
        handshake._incoming.write(records)
        assert handshake._object.read(200_000) == b"x" * min(size, 16_384) if size else records == b""
        reader.forget(number)


def test_a_key_update_is_answered_before_the_next_request() -> None:
    with connected() as connection:
        reader, number = connection.reader, connection.number
        before = reader.encrypt(number, b"request")
        connection.send(connection.peer.key_update())  # type: ignore[attr-defined]
        assert len(reader.encrypt(number, b"request")) > len(before)


def test_why_a_connection_failed_is_kept() -> None:
    with connected() as connection:
        connection.reader.expect(connection.number)
        connection.send(connection.peer.data(HEAD) + tls_peer.garbage())
        assert received(connection) == (b"", "TLS: DECRYPTION_FAILED_OR_BAD_RECORD_MAC")
        assert connection.reader.tls_error(connection.number) == "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"


def test_a_failed_connection_does_not_encrypt_and_says_why() -> None:
    with connected() as connection:
        connection.send(connection.peer.fatal_alert())
        with pytest.raises(ConnectionError):
            connection.reader.encrypt(connection.number, b"request")
        assert connection.endings() == [512]  # STRAY
        connection.reader.expect(connection.number)
        assert received(connection) == (b"", "TLS: TLSV1_ALERT_INTERNAL_ERROR")


def test_a_connection_without_its_close_is_cut() -> None:
    with connected() as connection:
        connection.reader.expect(connection.number)
        connection.send(connection.peer.data(HEAD + b"half"))
        connection.far.close()
        assert received(connection) == (b"half", NO_CLOSE_NOTIFY)


def test_a_plain_connection_does_not_encrypt() -> None:
    near, far = socket.socketpair()
    with closing(native.Reader()) as reader, near, far:
        number = reader.add(near.fileno())
        with pytest.raises(ValueError, match="without TLS"):
            reader.encrypt(number, b"request")
        assert reader.tls_error(number) == ""


@pytest.mark.parametrize("pair", [(object(), object()), (b"bytes", "text"), (None, None)])
def test_only_connections_of_the_ssl_module_are_taken_over(pair: tuple[object, object]) -> None:
    near, far = socket.socketpair()
    with closing(native.Reader()) as reader, near, far:
        with pytest.raises(OSError, match="no connection of the ssl module"):
            reader.add(near.fileno(), *pair)
        assert reader.add(near.fileno()) is not None


def test_the_python_objects_may_go_before_the_connection() -> None:
    with connected() as connection:
        connection.reader.expect(connection.number)
        peer = connection.peer
        del connection.layer
        gc.collect()
        connection.send(peer.data(HEAD + b"text") + peer.close_notify())
        assert received(connection) == (b"text", "close_notify")
