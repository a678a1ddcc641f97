"""`marks.jsonl`: events of a run, one line each, written soon after they occur."""

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import gevent.socket
import msgspec

from inferload.base.clock import NS_PER_S, Anchor, now_ns
from inferload.base.escaping import escaped
from inferload.base.redaction import Redaction
from inferload.base.rundir import MARK_CHARACTERS, MARK_SOCKET, Mark, mark_address, reason
from inferload.base.threads import AppendedFile

logger = logging.getLogger(__name__)

MOST_SENT = 1000  # marks of other processes in a run


class Marks:
    """Writer of a run's marks; `t_s` counts from the run's start. The run's anchor makes times independent of clock steps."""

    def __init__(self, path: Path, started: Anchor, redaction: Redaction) -> None:
        self._path = path
        self._redaction = redaction
        self._started = started
        self.entries: list[Mark] = []
        self.error: str | None = None  # the first write that failed
        self._file = AppendedFile(path, self._failed)

    def add(self, kind: str, text: str, at_ns: int | None = None, **detail: Any) -> None:
        """Write a mark of an instant on the monotonic clock; None: now."""
        wall_ns = self._started.to_wall_ns(now_ns() if at_ns is None else at_ns)
        at_s = round((wall_ns - self._started.wall_ns) / NS_PER_S, 3)
        mark = self._redaction.document({"t_s": at_s, "wall_ns": wall_ns, "kind": kind, "text": text, **detail})
        self.entries.append(msgspec.convert(mark, Mark))
        self._file.add(json.dumps(mark, ensure_ascii=False) + "\n")

    def flush(self) -> None:
        """Wait until all marks so far are written."""
        self._file.flush()

    def _failed(self, error: OSError) -> None:
        if self.error is None:
            self.error = f"{self._path}: {reason(error)}"
            logger.error("marks cannot be written: %s; the run goes on without them", self.error)


class SentMarks:
    """Marks that other processes send to a run (`inferload mark`), until `close`."""

    def __init__(self, folder: Path, marks: Marks) -> None:
        self._path, self._marks, self._left = folder / MARK_SOCKET, marks, MOST_SENT
        self._socket = gevent.socket.socket(gevent.socket.AF_UNIX, gevent.socket.SOCK_DGRAM)
        try:
            with mark_address(folder) as address:
                self._socket.bind(address)
            self._path.chmod(0o600)
        except OSError as error:
            logger.info("no marks of other processes: %s: %s", self._path, reason(error))
        self._reading = gevent.spawn(self._read)

    def close(self) -> None:
        """Take what was sent so far, and no more."""
        self._reading.kill()
        self._path.unlink(missing_ok=True)
        self._socket.settimeout(0.0)
        with suppress(OSError):
            self._read()
        self._socket.close()

    def _read(self) -> None:
        while True:
            sent = self._socket.recv(8 * MARK_CHARACTERS)
            text = escaped(sent.decode(errors="replace"))[:MARK_CHARACTERS]
            if self._left > 0:
                last = "" if self._left > 1 else " (the last one that is taken)"
                self._left -= 1
                self._marks.add("mark", text + last)
