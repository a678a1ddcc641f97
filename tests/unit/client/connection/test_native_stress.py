"""The raw reader under random calls from threads while peers send, close and reset.

Checked are crashes, hangs and bytes that were not sent; `make soak-fuzz` also detects memory errors.
"""

import array
import contextlib
import random
import select
import socket
import threading
from collections.abc import Callable

import pytest
from fuzz_replies import FORMS, Budget, random_case

from inferload.client.connection.http1 import News

native = pytest.importorskip("inferload.client.connection._transport", reason="the compiled reader was not built")

PATIENCE_S = 20.0
WORKERS, STEPS, CONNECTIONS = 3, 60, 8
ENDINGS = (News.COMPLETE, News.BROKEN, News.ASKS_FOR_HEAD, News.MARKED, 128, 256, 512, 1024)
ERRORS = (KeyError, ValueError, RuntimeError, OSError)  # of late or invalid calls


class Held:
    """A connection: the reader's socket, its id, and a thread of the peer that sends."""

    def __init__(self, reader: object, rng: random.Random) -> None:
        self.near, far = socket.socketpair()
        self.sent = random_case(rng)
        self.taken = b""
        self.one_reply = True  # all bytes since the first belong to one reply
        self.number = reader.add(self.near.fileno())  # type: ignore[attr-defined]
        reader.expect(self.number)  # type: ignore[attr-defined]
        self._peer = threading.Thread(target=self._play, args=(far,))
        self._peer.start()

    def _play(self, far: socket.socket) -> None:
        with contextlib.suppress(OSError), far:
            far.settimeout(PATIENCE_S)
            for piece in self.sent.pieces:
                far.sendall(piece)
            if self.sent.ending == "close":
                far.shutdown(socket.SHUT_WR)

    def close(self, reader: object) -> None:
        with contextlib.suppress(KeyError, RuntimeError):
            reader.forget(self.number)  # type: ignore[attr-defined]
        self.near.close()
        self._peer.join(PATIENCE_S)
        assert not self._peer.is_alive()


def take(reader: object, held: Held, rng: random.Random) -> None:
    head, data, ends, at_ns, _delays, _unstamped = reader.take(held.number, rng.choice([0, 1 << 62]))  # type: ignore[attr-defined]
    held.taken += head + data
    assert not held.one_reply or b"".join(held.sent.pieces).startswith(held.taken)
    assert len(ends) == len(at_ns)
    numbers = array.array("q", ends)
    assert list(numbers) == sorted(numbers)


def expect(reader: object, held: Held, _rng: random.Random) -> None:
    reader.expect(held.number)  # type: ignore[attr-defined]
    held.one_reply = False


def frame(reader: object, held: Held, rng: random.Random) -> None:
    head = rng.choice([-1, 0, 5, 40, 1 << 40, len(reader.peek(held.number))])  # type: ignore[attr-defined]
    reader.frame(held.number, head, rng.randrange(-1, 5), rng.choice([0, 1, 99, (1 << 63) - 1]))  # type: ignore[attr-defined]


def look(reader: object, held: Held, rng: random.Random) -> None:
    number = rng.choice([held.number, held.number, held.number + (1 << 32), 1 << 63, 7])
    getattr(reader, rng.choice(["peek", "waiting", "lost"]))(number)


def hear(reader: object, _held: Held, _rng: random.Random) -> None:
    for _, ending, error, _reply in reader.ended():  # type: ignore[attr-defined]
        assert ending in ENDINGS
        assert error >= 0
    reader.pauses()  # type: ignore[attr-defined]


CALLS: list[Callable[[object, Held, random.Random], None]] = [take, take, take, expect, frame, look, hear, hear]


@pytest.mark.parametrize("rounds", [pytest.param(10, id="short"), FORMS[1]])
def test_random_reader_calls_during_peer_activity(rounds: int | None) -> None:
    budget = Budget("reader", rounds)
    for rng in budget.rounds():
        reader = native.Reader()
        faults: list[BaseException] = []
        seeds = [rng.getrandbits(32) for _ in range(WORKERS)]
        workers = [threading.Thread(target=work, args=(reader, seed, faults)) for seed in seeds]
        for worker in workers:
            worker.start()
        if rng.random() < 0.3:
            select.select([reader.fileno()], [], [], 0.01)
            reader.close()  # during calls
        for worker in workers:
            worker.join(PATIENCE_S)
            assert not worker.is_alive(), f"{budget}: a call does not return"
        reader.close()
        assert not faults, f"{budget}: {faults[0]!r}"
        budget.inputs += WORKERS * STEPS


def work(reader: object, seed: int, faults: list[BaseException]) -> None:
    """Random calls on connections of one thread."""
    rng = random.Random(seed)
    held: list[Held] = []
    try:
        for _ in range(STEPS):
            with contextlib.suppress(*ERRORS):
                step(reader, held, rng)
    except BaseException as fault:  # noqa: BLE001  reported by the thread of the test
        faults.append(fault)
    finally:
        for each in held:
            each.close(reader)


def step(reader: object, held: list[Held], rng: random.Random) -> None:
    if len(held) < CONNECTIONS and (not held or rng.random() < 0.3):
        held.append(Held(reader, rng))
    elif rng.random() < 0.2:
        held.pop(rng.randrange(len(held))).close(reader)
    else:
        rng.choice(CALLS)(reader, rng.choice(held), rng)
