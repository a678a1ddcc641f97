"""Exceptions of a locustfile's own code in the log: the first of each place with its traceback, the others counted."""

import logging
from types import TracebackType

from inferload.errors import UsageError

_LISTENER = "Uncaught exception in event handler"
_TASKS = ("locust.user.task", "locust.user.users")


class FirstOfEach(logging.Filter):
    """Passes the first record of each place that raised. `listeners`: how often listeners of events raised."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners = 0
        self._seen: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to show the record; a record of a UsageError is reduced to its message."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        if str(record.msg).startswith(_LISTENER):
            self.listeners += 1
            text = str(arguments[0] if arguments else "")
            return self._first(text.rstrip().rpartition("\n")[0])  # without the message, which may differ
        error = arguments[0] if arguments else None
        if not isinstance(error, Exception):
            return True
        if isinstance(error, UsageError):
            record.msg, record.args = "%s", (error,)
        return self._first((type(error), _place(error.__traceback__)))

    def take_listeners(self) -> int:
        """Return the number of exceptions of listeners since the last call."""
        taken, self.listeners = self.listeners, 0
        return taken

    def _first(self, place: object) -> bool:
        known = place in self._seen
        self._seen.add(place)
        return not known


def _place(trace: TracebackType | None) -> tuple[tuple[str, int], ...]:
    """Files and lines that an exception passed."""
    places = []
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(places)


first_of_each = FirstOfEach()


def install() -> None:
    """Filter what Locust logs of tasks and of listeners. Idempotent."""
    for name in (*_TASKS, None):  # Locust logs listeners' exceptions by the root logger
        logging.getLogger(name).addFilter(first_of_each)
