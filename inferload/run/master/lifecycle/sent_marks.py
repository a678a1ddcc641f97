"""Marks that other processes send to a run in progress."""

import logging
from contextlib import suppress
from pathlib import Path

import gevent
import gevent.socket

from inferload.base.escaping import escaped
from inferload.base.rundir import MARK_CHARACTERS, MARK_SOCKET, mark_address, reason
from inferload.run.master.lifecycle.marks import Marks

logger = logging.getLogger(__name__)

MOST_SENT = 1000


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
