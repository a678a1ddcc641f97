"""TLS layer: what it decrypts, and the end of the stream, for every split into reads."""

import functools
import ssl
from itertools import pairwise
from typing import NamedTuple

import pytest
import tls_peer
from hypothesis import given
from hypothesis import strategies as st
from tls_peer import VERSIONS, Handshake, Peer

from inferload.base.http_status import tls_reason
from inferload.client.connection.tls import TlsLayer

ORDERLY = ("close_notify",)
BROKEN = ("fatal_alert", "garbage", "cut")
SILENT = ("empty", "ticket", "key_update", "user_canceled")  # records of TLS 1.3 without data


class Outcome(NamedTuple):
    """Decrypted bytes, and the end: None while the stream goes on, "close_notify" or the reason of an error."""

    data: bytes
    end: str | None
    reads: int  # up to the end


@functools.cache
def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    tls_peer.authority().configure_trust(context)
    return context


def connected(version: str, *early: str) -> tuple[TlsLayer, Peer, bytes]:
    """Return the two sides after a handshake, and the bytes that the client has not read."""
    layer, handshake = TlsLayer(client_context(), "127.0.0.1"), Handshake(version, early)
    layer.handshake(handshake)
    assert handshake.peer is not None
    return layer, handshake.peer, handshake.unread


def outcome(layer: TlsLayer, reads: list[bytes]) -> Outcome:
    data = b""
    for number, read in enumerate(reads, 1):
        decrypted = layer.decrypt(read)
        data += decrypted.data
        if decrypted.ended:
            return Outcome(data, "close_notify" if decrypted.error is None else str(decrypted.error), number)
    return Outcome(data, None, len(reads))


def wire_of(peer: Peer, records: list[str], end: str | None) -> bytes:
    """Return the records of `data` and of those named, and the end behind them."""
    wire = b"".join(peer.data(name.encode()) if name not in SILENT else getattr(peer, name)() for name in records)
    if end == "garbage":
        return wire + tls_peer.garbage()
    return wire if end in (None, "cut") else wire + getattr(peer, end)()


def split(wire: bytes, cuts: set[int]) -> list[bytes]:
    return [wire[a:b] for a, b in pairwise(sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))}))]


TEXTS = st.one_of(
    st.text("ab", min_size=1, max_size=3), st.sampled_from([size * "x" for size in (2_048, 5_000, 40_000)])
)


@given(
    version=st.sampled_from(VERSIONS),
    records=st.lists(st.one_of(TEXTS, st.sampled_from(SILENT)), max_size=6),
    end=st.sampled_from([None, *ORDERLY, *BROKEN]),
    cuts=st.sets(st.integers(1, 400), max_size=6),
    behind=st.sampled_from([b"", tls_peer.garbage(), b"\x17"]),
)
def test_data_and_end_are_independent_of_the_split_into_reads(
    version: str, records: list[str], end: str | None, cuts: set[int], behind: bytes
) -> None:
    layer, peer, unread = connected(version)
    if version == "TLSv1.2":
        records = [name for name in records if name not in SILENT]
    wire = unread + wire_of(peer, records, end)
    reads = split(wire, cuts)
    if end == "cut":
        reads.append(b"")
    elif end is not None and reads:
        reads[-1] += behind  # ignored behind the end
    got = outcome(layer, reads)
    assert got.data == "".join(name for name in records if name not in SILENT).encode()
    assert got.reads == len(reads)
    assert (got.end is None, got.end == "close_notify") == (end is None, end in ORDERLY)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("end", [*ORDERLY, *BROKEN])
def test_each_end_is_found_at_each_cut(version: str, end: str) -> None:
    _, peer, _ = connected(version)
    length = len(wire_of(peer, ["data"], end))
    for cut in range(1, length):
        layer, peer, unread = connected(version)
        assert unread == b""
        reads = split(wire_of(peer, ["data"], end), {cut})
        got = outcome(layer, [*reads, b""] if end == "cut" else reads)
        assert (got.data, got.end == "close_notify") == (b"data", end in ORDERLY), cut
        assert got.end is not None, cut


@pytest.mark.parametrize("version", VERSIONS)
def test_a_half_record_at_the_end_of_the_connection_is_cut(version: str) -> None:
    layer, peer, _ = connected(version)
    wire = peer.data(b"whole") + peer.close_notify()
    got = outcome(layer, [wire[:-1], b""])
    assert got.data == b"whole"
    assert got.end == "the server closed the connection without TLS's close_notify"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("early", [("data",), ("data", "close_notify"), ("close_notify",), ("fatal_alert",)])
def test_the_handshake_leaves_all_bytes_behind_it_to_the_reads(version: str, early: tuple[str, ...]) -> None:
    layer, _, unread = connected(version, *early)
    got = outcome(layer, [unread])
    assert got.data == (b"early" if "data" in early else b"")
    assert (got.end is not None) == (early != ("data",))


def test_a_key_update_is_answered_before_the_next_request() -> None:
    layer, peer, _ = connected("TLSv1.3")
    before = layer.encrypt(b"request")
    assert outcome(layer, [peer.key_update() + peer.data(b"data")]).data == b"data"  # type: ignore[attr-defined]
    assert len(layer.encrypt(b"request")) > len(before)


class Refusing:
    """A server that speaks no TLS."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def sendall(self, _data: bytes) -> None: ...
    def recv(self, most_bytes: int) -> bytes:
        taken, self.answer = self.answer[:most_bytes], self.answer[most_bytes:]
        return taken


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "WRONG_VERSION_NUMBER|HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "HANDSHAKE_FAILURE"),
        (b"", "closed the connection"),
        (b"\x16\x03", "closed the connection"),
        (b"\x16\x03\x03\x40\x00abc", "closed the connection"),
    ],
)
def test_a_server_without_tls_fails_the_handshake_at_once(answer: bytes, why: str) -> None:
    with pytest.raises(ssl.SSLError, match=why) as raised:
        TlsLayer(client_context(), "127.0.0.1").handshake(Refusing(answer))
    assert tls_reason(raised.value)
