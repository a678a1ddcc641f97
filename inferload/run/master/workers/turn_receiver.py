"""Turn files of workers on other file systems, received piece by piece into the master's run directory."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import gevent.lock
import gevent.queue
from msgspec import Struct, field

from inferload.base import rundir
from inferload.base.clock import now_ns
from inferload.base.errors import UsageError
from inferload.base.threads import in_thread
from inferload.locust_adapters import messages
from inferload.turns import turns_file
from inferload.turns.open_files import Origin

if TYPE_CHECKING:
    from inferload.run.process.file_pieces import FilePiece, IncomingParts

logger = logging.getLogger(__name__)

_MOST_WAITING = 32  # queued messages of one worker; a sender of this version has fewer in flight
_WRITE_BYTES = 1 << 20  # of a part, gathered for one write
_ALIVE_S = 2.0  # interval of acknowledgements to workers whose pieces wait for the disk, so that they go on waiting
_MB = 1_000_000


class _Source(Struct):
    """One worker's transfer."""

    parts: "IncomingParts"
    gathered: bytearray = field(default_factory=bytearray)  # of the current part, not written yet
    begun: bool = False  # the current part has a file
    waiting: int = 0
    failures: int = 0
    stop: str | None = None


class TurnReceiver:
    """Receiver of the parts of a run. `answer(name, data)`: sends an acknowledgement to a worker.

    File names consist of the worker's name in the roster and the number of the part, never of a message's text.
    """

    def __init__(self, folder: Path, run_id: str, max_mb: int, answer: Callable[[str, dict[str, Any]], None]) -> None:
        self._folder = folder
        self._run_id = run_id
        self._max_mb = max_mb
        self._answer = answer
        self._sources: dict[str, _Source] = {}
        self._bytes = 0
        self.advanced_ns = now_ns()  # instant of the last piece, or of the end of the last write
        self._queue: gevent.queue.Queue[tuple[str, FilePiece]] = gevent.queue.Queue()
        self._storing = gevent.lock.Semaphore()
        self._working = gevent.spawn(self._work)
        self._keeping_alive = gevent.spawn(self._keep_alive)

    @property
    def names(self) -> list[str]:
        """Workers that have sent anything."""
        return list(self._sources)

    def stopped(self, name: str) -> str | None:
        """The reason why a worker's records were refused; None if they were not."""
        return self._sources[name].stop if name in self._sources else None

    def on_piece(self, name: str, data: dict[str, Any]) -> None:
        """Queue a message of the worker with this name in the roster."""
        from inferload.run.process.file_pieces import FilePiece, IncomingParts, PieceError  # of such workers only

        source = self._sources.setdefault(name, _Source(IncomingParts()))
        try:
            piece = FilePiece.from_wire(data)
        except PieceError as error:
            messages.ignored_messages.add("piece of a turn file that is malformed", f"{error}, from {name}")
            return
        if source.waiting >= _MOST_WAITING:  # the sender repeats what is not acknowledged
            messages.ignored_messages.add("pieces of turn files beyond those that may be in flight", name)
            return
        source.waiting += 1
        self._queue.put((name, piece))

    def close(self) -> None:
        """Accept no more pieces, and stop workers that still send."""
        with self._storing:  # a thread that stores a piece would come after the removal of its file
            self._working.kill()
            self._keeping_alive.kill()
        for name, source in self._sources.items():
            with contextlib.suppress(OSError):
                self._temporary(name).unlink(missing_ok=True)
            if source.stop is None:
                self._acknowledge(name, source, "the run is over")

    def _work(self) -> None:
        while True:
            name, piece = self._queue.get()
            source = self._sources[name]
            with self._storing:
                self._try(name, source, piece)
            source.waiting -= 1
            self._acknowledge(name, source, source.stop)

    def _keep_alive(self) -> None:
        while True:
            gevent.sleep(_ALIVE_S)
            for name, source in list(self._sources.items()):
                if source.waiting:
                    self._acknowledge(name, source, source.stop)

    def _try(self, name: str, source: _Source, piece: "FilePiece") -> None:
        """Store a piece unless its worker has been stopped. An error stops this worker only."""
        if source.stop is not None:
            return
        try:
            self._take(name, source, piece)
        except Exception as error:  # noqa: BLE001  one worker must not end the receiver
            source.stop, source.gathered = rundir.reason(error), bytearray()
            logger.error("turn records of worker %s cannot be received: %s", name, source.stop)

    def _take(self, name: str, source: _Source, piece: "FilePiece") -> None:
        if not source.parts.expects(piece):
            return
        self.advanced_ns = now_ns()
        if not piece.offset and self._bytes + piece.size > self._max_mb * _MB:
            source.stop = f"the limit of --max-turns-mb {self._max_mb} is reached"
            return
        last = piece.offset + len(piece.data) == piece.size
        source.gathered += piece.data
        if last or len(source.gathered) >= _WRITE_BYTES:
            in_thread(_store, self._temporary(name), source.gathered, source.begun)
            source.gathered, source.begun = bytearray(), not last
            self.advanced_ns = now_ns()
        if source.parts.add(piece):
            path = turns_file.part_path(self._folder, name, piece.part)
            in_thread(_keep, self._temporary(name), path, Origin(self._run_id, name))
            self.advanced_ns = now_ns()
            self._bytes += piece.size
            source.failures = 0
            source.parts.next_part()
        elif last:
            source.failures += 1
            if source.failures >= 3:
                raise UsageError(f"part {piece.part} arrived damaged {source.failures} times")

    def _acknowledge(self, name: str, source: _Source, stop: str | None) -> None:
        data = {"run_id": self._run_id, "part": source.parts.part, "offset": source.parts.offset, "stop": stop}
        self._answer(name, data)

    def _temporary(self, name: str) -> Path:
        return turns_file.part_path(self._folder, name, 0).with_suffix(".receiving")


def _store(path: Path, data: bytearray, begun: bool) -> None:
    """Write pieces to the file of their part, with one write; the first make the file anew. In a native thread."""
    if not begun:
        path.unlink(missing_ok=True)
    with path.open("ab" if begun else "xb") as file:
        file.write(data)


def _keep(temporary: Path, path: Path, origin: Origin) -> None:
    """Give a complete part its name if it is the worker's and of the run; UsageError otherwise. In a native thread."""
    turns_file.check_part(temporary, origin)
    temporary.replace(path)
