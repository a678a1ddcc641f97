"""Turn records on their way to disk: gathered in columns by the event loop, written in parts by a native thread."""

from collections.abc import Sequence
from pathlib import Path

import gevent
import gevent.lock

from inferload import turnfile
from inferload.measure.clock import Anchor
from inferload.measure.record import TurnRecord

# A part is closed this often: a worker that is killed loses no turn that ended longer ago than twice this.
PART_S = 4.0


class TurnWriter:
    """One worker's turns of one run."""

    def __init__(self, folder: Path, worker: str, anchor: Anchor, run_id: str = "") -> None:
        self._folder = folder
        self._worker = worker
        self._anchor = anchor
        self._run_id = run_id
        self._columns = turnfile.TurnColumns()
        self._part = 0
        self._writing = gevent.lock.Semaphore()
        self._closing = gevent.spawn(self._close_parts)
        folder.mkdir(parents=True, exist_ok=True)
        turnfile.warm_up()  # the first table of a process would hold up its event loop

    def extend(self, records: Sequence[TurnRecord]) -> None:
        """Keep records; they are on disk within two parts' time."""
        self._columns.extend(records)

    def finish(self) -> None:
        """Write what is left and join all parts into one."""
        with self._writing:  # a part that a thread is writing would come after the join, and stand beside it
            self._closing.kill()
        self._write_part()
        self._threadpool.apply(turnfile.join_parts, (self._folder, self._worker))

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
            arguments = (self._folder, self._worker, self._part, columns, self._anchor)
            self._threadpool.apply(turnfile.write_part, arguments, {"run_id": self._run_id})

    @property
    def _threadpool(self) -> "gevent.threadpool.ThreadPool":
        return gevent.get_hub().threadpool
