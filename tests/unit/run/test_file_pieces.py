"""Turn files in pieces over unreliable channels: parts arrive complete and in order, or not at all."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from inferload.run.process import file_pieces
from inferload.run.process.file_pieces import FilePiece, FlightLimit, IncomingParts, OutgoingPart, PieceError

SIZES = st.lists(st.integers(1, 3 * file_pieces.PIECE_BYTES), min_size=1, max_size=4)


class Receiver:
    """Receiver that keeps the accepted pieces in memory; the master stores them in files."""

    def __init__(self) -> None:
        self.incoming = IncomingParts()
        self.parts: list[bytes] = []
        self._current = b""

    def take(self, wire: dict[str, Any]) -> tuple[int, int]:
        piece = FilePiece.from_wire(wire)
        if self.incoming.expects(piece):
            self._current = (self._current if piece.offset else b"") + piece.data
            if self.incoming.add(piece):
                self.parts.append(self._current)
                self.incoming.next_part()
        return self.incoming.part, self.incoming.offset


class Wire:
    """A channel that loses, repeats, reorders and damages messages."""

    def __init__(self, seed: int, loss: float, twice: float, shuffled: bool, damage: float) -> None:
        self._dice = random.Random(seed)
        self._loss, self._twice, self._shuffled, self._damage = loss, twice, shuffled, damage

    def through(self, messages: list[Any], damage: Callable[[Any], Any] = lambda message: message) -> list[Any]:
        arrived = []
        for message in messages:
            if self._dice.random() < self._loss:
                continue
            arrived.append(damage(message) if self._dice.random() < self._damage else message)
            if self._dice.random() < self._twice:
                arrived.append(message)
        if self._shuffled:
            self._dice.shuffle(arrived)
        return arrived


def damaged(wire: dict[str, Any]) -> dict[str, Any]:
    return wire | {"data": bytes([wire["data"][0] ^ 1]) + wire["data"][1:]}


def sent_through(contents: list[bytes], wire: Wire, limit_bytes: int) -> list[bytes]:
    """Return the parts at the receiver after all parts are acknowledged."""
    receiver = Receiver()
    for number, content in enumerate(contents, 1):
        part = OutgoingPart(number, content)
        for _ in range(10_000):
            due = []
            while (piece := part.next_piece(limit_bytes, 0)) is not None:
                assert len(piece.data) <= file_pieces.PIECE_BYTES
                due.append(piece.to_wire())
            assert sum(len(sent_piece["data"]) for sent_piece in due) <= limit_bytes
            answers = [receiver.take(sent_piece) for sent_piece in wire.through(due, damaged)]
            for answer in wire.through(answers):
                part.acknowledge(*answer, at_ns=1)
            if part.done:
                break
            part.repeat()  # as after a timeout of the acknowledgement
        assert part.done
    return receiver.parts


@settings(max_examples=60, deadline=None)
@given(
    sizes=SIZES,
    seed=st.integers(0, 2**32),
    faults=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5), st.booleans(), st.sampled_from([0.0, 0.1])),
    limit_bytes=st.integers(file_pieces.MIN_IN_FLIGHT_BYTES, file_pieces.MAX_IN_FLIGHT_BYTES),
)
def test_parts_arrive_complete_and_in_order_over_a_lossy_channel(
    sizes: list[int], seed: int, faults: tuple[float, float, bool, float], limit_bytes: int
) -> None:
    contents = [random.Random(seed + number).randbytes(size) for number, size in enumerate(sizes)]
    assert sent_through(contents, Wire(seed, *faults), limit_bytes) == contents


def test_a_reliable_channel_carries_each_byte_once() -> None:
    content = random.Random(1).randbytes(700_000)
    part, receiver, sent = OutgoingPart(1, content), Receiver(), 0
    while not part.done:
        piece = part.next_piece(300_000, 0)
        assert piece is not None
        sent += len(piece.data)
        part.acknowledge(*receiver.take(piece.to_wire()), at_ns=0)
    assert (sent, receiver.parts) == (len(content), [content])


def test_a_damaged_part_is_sent_again_completely() -> None:
    content = bytes(10)
    part, receiver = OutgoingPart(1, content), Receiver()
    piece = part.next_piece(100, 0)
    assert piece is not None
    assert receiver.take(damaged(piece.to_wire())) == (1, 0)
    part.acknowledge(1, 0, 0)
    assert part.next_piece(100, 0) is None  # an acknowledgement without progress makes no piece due
    part.repeat()
    again = part.next_piece(100, 0)
    assert again == piece
    part.acknowledge(*receiver.take(again.to_wire()), at_ns=0)
    assert part.done
    assert receiver.parts == [content]


def test_slow_acknowledgements_lower_the_limit() -> None:
    limit = FlightLimit()
    assert limit.limit_bytes == file_pieces.MIN_IN_FLIGHT_BYTES
    for _ in range(20):
        limit.acknowledged(0.01)
    assert limit.limit_bytes == file_pieces.MAX_IN_FLIGHT_BYTES
    limit.acknowledged(0.3)  # neither fast nor slow
    assert limit.limit_bytes == file_pieces.MAX_IN_FLIGHT_BYTES
    limit.acknowledged(2.0)
    assert file_pieces.MIN_IN_FLIGHT_BYTES < limit.limit_bytes < file_pieces.MAX_IN_FLIGHT_BYTES
    for _ in range(20):
        limit.acknowledged(2.0)
    assert limit.limit_bytes == file_pieces.MIN_IN_FLIGHT_BYTES
    limit.acknowledged(0.01)
    limit.timed_out()
    assert limit.limit_bytes == file_pieces.MIN_IN_FLIGHT_BYTES


def test_acknowledgement_times_are_of_the_last_piece() -> None:
    part = OutgoingPart(1, bytes(300))
    assert part.next_piece(100, 1_000_000_000) is not None
    assert part.next_piece(100, 1_000_000_000) is None  # the limit of bytes in flight is reached
    assert part.acknowledge(1, 100, 1_500_000_000) == 0.5
    assert part.acknowledge(1, 100, 1_600_000_000) is None  # no progress
    assert part.next_piece(100, 2_000_000_000) is not None
    assert part.acknowledge(2, 0, 2_250_000_000) == 0.25
    assert part.done


PIECE = FilePiece(1, 1000, bytes(32), 0, bytes(100))


@pytest.mark.parametrize(
    "changes",
    [
        {"part": 0},
        {"part": -1},
        {"part": True},
        {"part": "1"},
        {"part": "../../etc/passwd"},
        {"part": None},
        {"part": 2**70},
        {"size": 0},
        {"size": file_pieces.MAX_PART_BYTES + 1},
        {"size": 1e3},
        {"offset": -1},
        {"offset": 901},
        {"data": b""},
        {"data": bytes(file_pieces.MAX_PIECE_BYTES + 1), "size": file_pieces.MAX_PART_BYTES},
        {"data": "text"},
        {"data": [1, 2]},
        {"digest": b"short"},
        {"digest": "0" * 32},
    ],
)
def test_a_malformed_piece_is_refused(changes: dict[str, Any]) -> None:
    assert FilePiece.from_wire(PIECE.to_wire() | {"run_id": "r", "name": "w0"}) == PIECE
    with pytest.raises(PieceError):
        FilePiece.from_wire(PIECE.to_wire() | changes)
    name = next(iter(changes))
    with pytest.raises(PieceError):
        FilePiece.from_wire({key: value for key, value in PIECE.to_wire().items() if key != name})


@given(
    st.dictionaries(
        st.sampled_from(FilePiece.__struct_fields__), st.one_of(st.integers(), st.binary(), st.text(), st.none())
    )
)
def test_any_message_is_a_piece_or_refused(wire: dict[str, Any]) -> None:
    try:
        piece = FilePiece.from_wire(wire)
    except PieceError:
        return
    assert piece.offset + len(piece.data) <= piece.size


@pytest.mark.parametrize("changes", [{"size": 900}, {"digest": bytes([1] * 32)}])
def test_a_part_that_changes_during_transfer_is_refused(changes: dict[str, Any]) -> None:
    incoming = IncomingParts()
    assert incoming.expects(PIECE)
    assert not incoming.add(PIECE)
    assert incoming.expects(replace(PIECE, offset=100))
    with pytest.raises(PieceError, match="size or digest changed"):
        incoming.expects(replace(PIECE, offset=100, **changes))
