"""Log filters of a process: remove secrets, escape control characters, and show repeated exceptions of a locustfile once."""

import logging
import sys
import traceback
from collections import Counter
from pathlib import Path
from types import TracebackType

import inferload
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped, indented
from inferload.base.redaction import Redaction
from inferload.base.status_lines import painting
from inferload.locust_adapters.compat import names_in
from inferload.results.verdict.failures import add_message, message

_LISTENER = "Uncaught exception in event handler"
_PACKAGE = Path(inferload.__file__).parent
_TASKS = ("locust.user.task", "locust.user.users")


def logs_listeners() -> bool:
    """Return True if Locust logs exceptions of event listeners with the known text."""
    from locust.event import EventHook

    return any(text.startswith(_LISTENER) for text in names_in(EventHook.fire))


class FirstOfEach(logging.Filter):
    """Filter that passes the first record of each origin of an exception. `listeners`: exceptions of event listeners by message."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: Counter[str] = Counter()
        self._origins: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to show the record; a record of a UsageError is reduced to its location and message."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        if str(record.msg).startswith(_LISTENER):
            text = str(arguments[0] if arguments else "")
            add_message(self.listeners, _raised(text), 1)
            return self._is_first(text.rstrip().rpartition("\n")[0])  # without the message, which may differ
        error = arguments[0] if arguments else None
        if not isinstance(error, Exception):
            return True
        if isinstance(error, UsageError):
            at = location(error.__traceback__)
            record.msg, record.args = "%s", (str(error) if at is None else f"{at}: {error}",)
        return self._is_first((type(error), _origin(error.__traceback__)))

    def take_listeners(self) -> dict[str, int]:
        """Return the exceptions of event listeners since the last call, by message."""
        taken, self.listeners = self.listeners, Counter()
        return dict(taken)

    def _is_first(self, origin: object) -> bool:
        known = origin in self._origins
        self._origins.add(origin)
        return not known


def _raised(trace: str) -> str:
    """Return type and message of the current exception in one line; without one, the last line of the traceback."""
    error = sys.exc_info()[1]
    text = trace.rstrip().rpartition("\n")[2] if error is None else f"{type(error).__name__}: {error}"
    return message(text.partition("\n")[0])


def _origin(trace: TracebackType | None) -> tuple[tuple[str, int], ...]:
    """Return files and lines of a traceback."""
    lines = []
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(lines)


def location(trace: TracebackType | None) -> str | None:
    """Return file and line of the innermost frame outside of inferload, as FILE:LINE; None without one."""
    lines = [(path, line) for path, line in _origin(trace) if not Path(path).is_relative_to(_PACKAGE)]
    if not lines:
        return None
    path, line = lines[-1]
    here = Path.cwd()
    return f"{Path(path).relative_to(here) if Path(path).is_relative_to(here) else path}:{line}"


first_of_each = FirstOfEach()


def install() -> None:
    """Add the filter to Locust's loggers of tasks and listeners. Idempotent."""
    for name in (*_TASKS, None):  # Locust logs listeners' exceptions with the root logger
        logging.getLogger(name).addFilter(first_of_each)


_LOGGERS = (None, "locust", "locust.stats_logger")  # loggers to which Locust adds handlers


def protect(redaction: Redaction) -> None:
    """Add the filter to every log handler of this process, and styles to those of a terminal; later calls replace the filter."""
    for handler in {handler for name in _LOGGERS for handler in logging.getLogger(name).handlers}:
        for old in [known for known in handler.filters if isinstance(known, SafeRecords)]:
            handler.removeFilter(old)
        handler.addFilter(SafeRecords(redaction))
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setStream(painting(handler.stream))


class SafeRecords(logging.Filter):
    """Filter that makes a record safe to show. Messages of inferload become one line; further lines of others are indented."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, which several handlers may share. Return True."""
        escape = escaped if record.name.startswith("inferload") else indented
        record.msg, record.args = escape(self._redaction(record.getMessage())), None
        if record.exc_info and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.exc_text:
            record.exc_text = indented(self._redaction(record.exc_text))
        if record.stack_info:
            record.stack_info = indented(self._redaction(record.stack_info))
        return True
