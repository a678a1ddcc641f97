"""A line at the foot of a terminal that says how far a long piece of work is; elsewhere nothing is said."""

import contextlib
import os
import shutil
from typing import TextIO

_BACK_AND_CLEAR = "\r\x1b[2K"


class Foot:
    """One line that is written over. A terminal that takes no more costs the line alone."""

    def __init__(self, stream: TextIO) -> None:
        self.wanted = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._stream = stream

    def show(self, text: str) -> None:
        """In place of what stands there, as far as it fits."""
        columns = shutil.get_terminal_size().columns or 80
        self._write(_BACK_AND_CLEAR + text[: columns - 1])

    def clear(self) -> None:
        """Take it away, so that something can be printed."""
        self._write(_BACK_AND_CLEAR)

    def _write(self, text: str) -> None:
        if self.wanted:
            with contextlib.suppress(OSError):
                self._stream.write(text)
                self._stream.flush()
