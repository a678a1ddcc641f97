"""Exceptions of a locustfile's own code in the log: the first of each place with its traceback, the others counted."""

import logging
import sys
from collections import Counter
from types import TracebackType

from inferload.errors import UsageError
from inferload.verdict.failures import add_message, message

_LISTENER = "Uncaught exception in event handler"
_TASKS = ("locust.user.task", "locust.user.users")


class FirstOfEach(logging.Filter):
    """Passes the first record of each place that raised. `listeners`: exceptions of event listeners, by message."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: Counter[str] = Counter()
        self._seen: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to show the record; a record of a UsageError is reduced to its message."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        if str(record.msg).startswith(_LISTENER):
            text = str(arguments[0] if arguments else "")
            add_message(self.listeners, _raised(text), 1)
            return self._first(text.rstrip().rpartition("\n")[0])  # without the message, which may differ
        error = arguments[0] if arguments else None
        if not isinstance(error, Exception):
            return True
        if isinstance(error, UsageError):
            record.msg, record.args = "%s", (error,)
        return self._first((type(error), _place(error.__traceback__)))

    def take_listeners(self) -> dict[str, int]:
        """Return the exceptions of event listeners since the last call, by message."""
        taken, self.listeners = self.listeners, Counter()
        return dict(taken)

    def _first(self, place: object) -> bool:
        known = place in self._seen
        self._seen.add(place)
        return not known


def _raised(trace: str) -> str:
    """Type and message of the exception that is being handled, as one line; without one, the end of its traceback."""
    error = sys.exc_info()[1]
    text = trace.rstrip().rpartition("\n")[2] if error is None else f"{type(error).__name__}: {error}"
    return message(text.partition("\n")[0])


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
