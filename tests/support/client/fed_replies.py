"""One reply in three ways: read by the thread over a socket pair, and pushed to the compiled and to the Python parser."""

import array
import fcntl
import random
import socket
import struct
import termios
import time
from typing import Any, NamedTuple
from unittest import mock

from fuzz_replies import ReplyCase, below, one_of

from inferload.base.clock import NS_PER_S
from inferload.client.connection import reader_choice
from inferload.client.connection.http1 import News
from inferload.client.connection.native_connection import NativeReply, _Slot
from inferload.client.connection.reply import ConnectionLost, GatheredReply, nothing

PATIENCE_S = 20.0
LONGEST_READ = 30_000  # below the buffers of the thread and of the socket
FLOOR_NS = 1_000


class Seen(NamedTuple):
    """What a reply shows: head, bytes, ends of reads, and end; `times`, with the marks, of a reply that is pushed."""

    reply: tuple[object, ...]
    reusable: bool
    times: tuple[object, ...]


class Fed:
    """A reply to which pieces are fed, and from which reads are handed over."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        reply.floor_ns = FLOOR_NS
        self.data = b""
        self.number = self.unstamped = 0
        self.ends, self.at_ns, self.delay_ns, self.marked = [array.array("q") for _ in range(4)]

    def hand_over(self, most_reads: int) -> None:
        """Take reads of the reply."""
        if self.reply.fetch_waiting():
            reads = self.reply.body(most_reads)
            self.ends.extend(len(self.data) + end for end in reads.ends)
            self.data += reads.data
            self.at_ns += reads.at_ns
            self.delay_ns += reads.delay_ns
            self.unstamped += reads.unstamped

    def seen(self) -> Seen:
        """Return what the reply shows after its last reads."""
        while self.reply.fetch_waiting():
            self.hand_over(1_000)
        reply, head = self.reply, self.reply.head
        of_end = reply.done, reply.complete, type(reply.error), str(reply.error), reply.hides_marks
        reusable = reply.complete and not reply.surplus and head is not None and head.keep_alive
        times = self.at_ns, self.delay_ns, self.unstamped, self.marked
        return Seen((head, self.data, self.ends, *of_end), reusable, times)


class Pushed(Fed):
    """Reply to which the pieces are pushed. `parser`: see `reader_choice.parser`."""

    def __init__(self, parser: Any, marks: tuple[bytes, ...]) -> None:
        with mock.patch.object(reader_choice, "_parser", parser):
            super().__init__(GatheredReply(nothing, nothing, marks))
        self.reply.on_mark = lambda: self.marked.append(self.number)

    def feed(self, piece: bytes, at_ns: int, age_ns: int | None) -> None:
        self.number += 1
        if not self.reply.done:
            wall_ns = 10**18 + at_ns
            stamp = [] if age_ns is None else [(1, 35, struct.pack("qq", *divmod(wall_ns - age_ns, NS_PER_S)))]
            self.reply.take(piece, at_ns, wall_ns, stamp)

    def end(self, ending: str) -> None:
        if not self.reply.done:
            lost = ConnectionLost("the connection broke: Connection reset by peer")
            self.reply.end(lost if ending == "reset" else None)


class Threaded(Fed):
    """Reply that a thread reads. `reader`: a `_transport.Reader` without other connections."""

    def __init__(self, reader: Any) -> None:
        self.raw = reader
        self.near, self.far = socket.socketpair()
        self.id = reader.add(self.near.fileno())
        super().__init__(NativeReply(nothing, nothing, _Slot(reader, self.id)))
        reader.expect(self.id)

    def feed(self, piece: bytes, _at_ns: int, _age_ns: int | None) -> None:
        if not self.reply.done:
            self.far.sendall(piece)
            unread, until = array.array("i", [1]), time.monotonic() + PATIENCE_S
            while unread[0] and not self.raw.lost(self.id):
                assert time.monotonic() < until
                fcntl.ioctl(self.near.fileno(), termios.FIONREAD, unread)
            self.heed_news()

    def end(self, ending: str) -> None:
        if self.reply.done:
            return
        if ending == "reset":
            self.near.sendall(b"unread")
        self.far.close()
        until = time.monotonic() + PATIENCE_S
        while not self.raw.lost(self.id):
            assert time.monotonic() < until
        self.heed_news()

    def heed_news(self) -> None:
        """Handle the notifications of the thread, of which the bytes are processed once the lock of the connection is free."""
        while self.raw.waiting(self.id) and (endings := self.raw.ended()):
            for _, ending, error, _ in endings:
                if ending != News.MARKED and not self.reply.done:
                    self.reply.ended(ending, error)

    def seen(self) -> Seen:
        seen, kept = super().seen(), not self.raw.lost(self.id)
        self.raw.forget(self.id)
        self.near.close()
        self.far.close()
        return seen._replace(reusable=seen.reusable and kept)


def play(fed: Pushed | Threaded, case: ReplyCase, rng: random.Random) -> Seen:
    """Feed a reply in pieces with random instants, hand over reads in between, and return what it shows."""
    at_ns = FLOOR_NS - 300  # the clock of the first reads may be behind
    for whole in case.pieces:
        for begin in range(0, len(whole), LONGEST_READ):
            at_ns += below(rng, 500)
            age_ns = one_of(rng, [None, 0, -5, below(rng, 300), 5_000])
            fed.feed(whole[begin : begin + LONGEST_READ], at_ns, age_ns)
            if rng.random() < 0.2:
                fed.hand_over(1 + below(rng, 4))
    if case.ending != "open":
        fed.end(case.ending)
    return fed.seen()
