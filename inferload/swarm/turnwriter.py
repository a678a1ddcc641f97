"""Turn records on their way to disk: gathered in columns by the event loop, written in parts by a native thread."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import gevent
import gevent.lock

from inferload import rundir, turnfile
from inferload.errors import UsageError
from inferload.measure.arrow import pa
from inferload.measure.clock import Anchor
from inferload.measure.record import TurnRecord

logger = logging.getLogger(__name__)
T = TypeVar("T")

# A part is closed this often: a worker that is killed loses no turn that ended longer ago than twice this.
PART_S = 4.0


@dataclass(frozen=True, slots=True)
class Written:
    """How many records a worker has on disk at the end of a run. `error`: the first write that failed; None: all went well."""

    records: int
    error: str | None = None


class TurnWriter:
    """One worker's turns of one run. A write that fails loses the records of its part, and nothing else of the run."""

    def __init__(self, folder: Path, worker: str, anchor: Anchor, run_id: str = "") -> None:
        self._folder = folder
        self._worker = worker
        self._anchor = anchor
        self._run_id = run_id
        self._columns = turnfile.TurnColumns()
        self._part = 0
        self._error: str | None = None
        self._writing = gevent.lock.Semaphore()
        self._closing = gevent.spawn(self._close_parts)
        folder.mkdir(parents=True, exist_ok=True)
        turnfile.warm_up()  # the first table of a process would hold up its event loop

    def extend(self, records: Sequence[TurnRecord]) -> None:
        """Keep records; they are on disk within two parts' time."""
        self._columns.extend(records)

    def finish(self) -> Written:
        """Write what is left and join all parts into one; what is then on disk."""
        with self._writing:  # a part that a thread is writing would come after the join, and stand beside it
            self._closing.kill()
        self._write_part()
        self._in_thread(turnfile.join_parts, self._folder, self._worker)  # where it fails, the parts hold the same
        records = self._in_thread(turnfile.rows_of, self._folder, self._worker)
        return Written(records or 0, self._error)

    def _close_parts(self) -> None:
        while True:
            gevent.sleep(PART_S)
            self._write_part()

    def _write_part(self) -> None:
        with self._writing:
            if not len(self._columns):
                return
            columns, self._columns = self._columns, turnfile.TurnColumns()
            self._part += 1
            write = partial(turnfile.write_part, run_id=self._run_id)
            self._in_thread(write, self._folder, self._worker, self._part, columns, self._anchor)

    def _in_thread(self, call: Callable[..., T], *arguments: object) -> T | None:
        """Return the result of a call in a native thread; of errors, keep the first and return None.

        The next call may succeed: there may be room on the disk for the next part.
        """
        made: tuple[T | None, Exception | None] = self._threadpool.apply(_outcome_of, (call, *arguments))
        result, error = made
        if error is not None and self._error is None:
            self._error = f"{self._folder}: {rundir.reason(error)}"
            logger.error(
                "turn records cannot be written: %s; the measurement is invalid if they stay missing", self._error
            )
        return result

    @property
    def _threadpool(self) -> "gevent.threadpool.ThreadPool":
        return gevent.get_hub().threadpool


def _outcome_of(call: Callable[..., T], *arguments: object) -> tuple[T | None, Exception | None]:
    """Return (result, error) of a call: gevent prints a traceback for an exception that leaves its thread."""
    try:
        return call(*arguments), None
    except (UsageError, OSError, pa.ArrowException, ValueError, OverflowError) as error:
        return None, error
