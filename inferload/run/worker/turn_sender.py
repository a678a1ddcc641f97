"""Transfer of a worker's turn files to a master on another file system, over Locust's connection."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import gevent.queue

from inferload.base import rundir
from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.threads import in_thread
from inferload.run.process import protocol
from inferload.run.process.file_pieces import FlightLimit, OutgoingPart

logger = logging.getLogger(__name__)

# Without an acknowledgement for so long, pieces are sent again; twice as long each time, since a link may be slow.
REPEAT_S, MAX_REPEAT_S = 5.0, 60.0
GIVE_UP_S = 15.0  # at the end of a run, without an acknowledgement


class TurnSender:
    """Sends closed parts in order, from `start` on; once stopped, no more of its run. `send(kind, data)`: sends a message."""

    def __init__(self, run_id: str, name: str, send: Callable[[str, dict[str, Any]], None]) -> None:
        self.stopped: str | None = None  # the reason; None if nothing was left out
        self._about = {"run_id": run_id, "name": name}
        self._send = send
        self._paths: gevent.queue.Queue[Path | None] = gevent.queue.Queue()
        self._part: OutgoingPart | None = None
        self._limit = FlightLimit()
        self._news = gevent.event.Event()
        self._heard_ns = now_ns()
        self._ending = False
        self._sending = gevent.Greenlet(self._send_parts)

    def start(self) -> None:
        self._sending.start()

    def add(self, path: Path) -> None:
        """Send a part that has been closed."""
        if self.stopped is None:
            self._paths.put(path)

    def finish(self) -> None:
        """Wait until the master has every part, or sending has stopped."""
        self._ending, self._heard_ns = True, now_ns()
        self._paths.put(None)
        self._sending.join()

    def on_taken(self, data: dict[str, Any]) -> None:
        self._heard_ns = now_ns()
        if data.get("stop") is not None:
            self.stop(str(data["stop"]))
        elif self._part is not None:
            after_s = self._part.acknowledge(int(data["part"]), int(data["offset"]), self._heard_ns)
            if after_s is not None:
                self._limit.acknowledged(after_s)
        self._news.set()

    def stop(self, reason: str) -> None:
        """Send nothing more; the first reason counts."""
        if self.stopped is None and not self._sending.ready():
            self.stopped = reason
            logger.warning("turn records are no longer sent to the master: %s", reason)
            self._news.set()
            self._paths.put(None)

    def _send_parts(self) -> None:
        number = 0
        while (path := self._paths.get()) is not None and self.stopped is None:
            number += 1
            try:
                # Its digest takes too long for the event loop.
                self._part = in_thread(lambda number, path: OutgoingPart(number, path.read_bytes()), number, path)
            except OSError as error:
                self.stop(f"{path}: {rundir.reason(error)}")
                return
            self._send_part(self._part)
            self._part = None

    def _send_part(self, part: OutgoingPart) -> None:
        repeat_s = REPEAT_S
        while not part.done and self.stopped is None:
            self._news.clear()
            while (piece := part.next_piece(self._limit.limit_bytes, now_ns())) is not None:
                self._send(protocol.TURNS, self._about | piece.to_wire())
                gevent.sleep(0)  # heartbeats and reports are sent between pieces
            if self._news.wait(min(repeat_s, GIVE_UP_S)):
                repeat_s = REPEAT_S
            else:
                part.repeat()
                self._limit.timed_out()
                repeat_s = min(MAX_REPEAT_S, 2 * repeat_s)
            silent_s = (now_ns() - self._heard_ns) / NS_PER_S
            if self._ending and silent_s > GIVE_UP_S:
                self.stop(f"the master acknowledged nothing for {silent_s:.0f} s")
