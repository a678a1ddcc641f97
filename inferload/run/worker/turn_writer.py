"""Write turn records: the event loop gathers them in columns, a native thread writes them in parts."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gevent
import gevent.lock

from inferload.base import rundir
from inferload.base.arrow import pa
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.threads import in_thread
from inferload.run.process.protocol import Assignment
from inferload.turns import turns_file
from inferload.turns.record import TurnRecord
from inferload.turns.turn_columns import TurnColumns

if TYPE_CHECKING:
    from inferload.run.worker.turn_sender import TurnSender

logger = logging.getLogger(__name__)
T = TypeVar("T")

# A part is closed this often: a worker that is killed loses no turn that ended longer ago than twice this.
PART_S = 4.0


class TurnWriter:
    """Writer of one worker's turns of one run. A failed write loses the records of its part only. Call `start` first.

    `sender`: sends parts to a master on another file system; None if the folder is the master's, who has created it. Otherwise
    a folder is created with the first part, so that a run that does not start leaves none.
    """

    def __init__(
        self, folder: Path, worker: str, anchor: Anchor, run_id: str = "", sender: "TurnSender | None" = None
    ) -> None:
        self.folder = folder
        self.anchor = anchor
        self.sender = sender
        self.records = 0  # on the worker's disk, known after `finish`
        self.error: str | None = None  # the first reason why some are missing
        self.writes = 0  # so far, with renamings and removals of files: it grows while the disk responds
        self._worker = worker
        self._run_id = run_id
        self._columns = TurnColumns()
        self._part = 0
        self._paths: list[Path] = []  # of all parts that were written
        self._has_folder = sender is None
        self._writing = gevent.lock.Semaphore()
        self._closing = gevent.Greenlet(self._close_parts)

    @classmethod
    def of(
        cls, assignment: Assignment, anchor: Anchor, run_dir: Path | None, send: Callable[[str, dict[str, Any]], None]
    ) -> "TurnWriter":
        """Return the writer of a worker. `run_dir`: of a worker on another file system than the master's, if it is set.

        `send`: sends a message to the master. The assignment's token shows if the master's run directory is on this file system.
        """
        name, run_id = assignment.name, assignment.run_id
        if rundir.shared(assignment.run_dir, assignment.token):
            return cls(Path(assignment.run_dir) / rundir.TURNS, name, anchor, run_id)
        from inferload.run.worker.turn_sender import TurnSender  # of a worker on another file system

        folder = own_folder(assignment, run_dir) / rundir.TURNS
        return cls(folder, name, anchor, run_id, TurnSender(run_id, name, send))

    def start(self) -> None:
        turns_file.warm_up()  # the first table of a process would hold up its event loop
        self._closing.start()
        if self.sender is not None:
            self.sender.start()

    @property
    def run_dir(self) -> Path:
        """Run directory of this worker, the master's if they share a disk."""
        return self.folder.parent

    def extend(self, records: Sequence[TurnRecord]) -> None:
        """Append records; they are on disk after at most twice PART_S, if it is not slow."""
        self._columns.extend(records)

    def finish(self) -> None:
        """Write the last part; join the parts into one file unless they are being sent. Count the records."""
        with self._writing:  # a part that a thread is writing would come after the join, and stand beside it
            self._closing.kill()
        self._write_part()
        if removed := self._in_thread(lambda: sum(not path.is_file() for path in self._paths)):
            self._failed(f"{removed} of {len(self._paths)} files were removed while the run lasted")
        if self.sender is None:
            # If it fails, the parts have the same records.
            self._in_thread(turns_file.join_parts, self.folder, self._worker, self._count_write)
        self.records = self._in_thread(turns_file.rows_of, self.folder, self._worker) or 0

    def deliver(self) -> str | None:
        """Wait, after `finish`, until the master has every part. Return the reason if it has not, else None.

        Files that the master has are removed here. Without a sender there is nothing to wait for.
        """
        sender = self.sender
        if sender is None:
            return None
        sender.finish()
        if sender.stopped is not None or self.error is not None:
            self._in_thread(turns_file.join_parts, self.folder, self._worker, self._count_write)
            return sender.stopped
        self._in_thread(turns_file.remove_worker, self.folder, self._worker)
        for folder in (self.folder, self.folder.parent):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
        return None

    def _close_parts(self) -> None:
        while True:
            gevent.sleep(PART_S)
            self._write_part()

    def _write_part(self) -> None:
        with self._writing:
            if not len(self._columns):
                return
            columns, self._columns = self._columns, TurnColumns()
            self._part += 1
            path = self._in_thread(self._write, columns)
            if path is not None:
                self._paths.append(path)
                if self.sender is not None:
                    self.sender.add(path)

    def _write(self, columns: TurnColumns) -> Path:
        """Write a part; in a native thread."""
        if not self._has_folder:
            self.folder, self._has_folder = rundir.take_free(self.run_dir) / rundir.TURNS, True
        return turns_file.write_part(
            self.folder,
            self._worker,
            self._part,
            columns,
            self.anchor,
            run_id=self._run_id,
            on_write=self._count_write,
        )

    def _count_write(self) -> None:
        self.writes += 1

    def _in_thread(self, call: Callable[..., T], *arguments: object) -> T | None:
        """Return the result of a call in a native thread; of errors, keep the first and return None.

        The next call may succeed: there may be room on the disk for the next part.
        """
        try:
            return in_thread(call, *arguments)
        except (UsageError, OSError, pa.ArrowException, ValueError, OverflowError) as error:
            self._failed(rundir.reason(error))
            return None

    def _failed(self, why: str) -> None:
        if self.error is None:
            self.error = f"{self.folder}: {why}"
            text = "turn records cannot be written: %s; the measurement is invalid if they stay missing"
            logger.error(text, self.error)


def own_folder(assignment: Assignment, run_dir: Path | None) -> Path:
    """Return the run directory of a worker that does not share the master's; UsageError if it cannot be written.

    `run_dir`: that of its own options, if it has any. A folder of an earlier run, or of another worker, may have the name.
    """
    name = Path(assignment.run_dir).name
    if not name or name in (".", ".."):
        raise UsageError(f"run directory {assignment.run_dir!r}: not a name that a worker can use")
    path = rundir.next_free((run_dir or Path("runs") / name).absolute())
    rundir.check(path)
    return path
