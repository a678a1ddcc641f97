"""Filter of all log records of a process: removes secrets, and escapes control characters."""

import logging
import traceback

from inferload.client.connection.redaction import Redaction
from inferload.escaping import escaped, indented

_LOGGERS = (None, "locust", "locust.stats_logger")  # loggers to which Locust adds handlers


def protect(redaction: Redaction) -> None:
    """Add the filter to every log handler of this process; later calls replace it."""
    for handler in {handler for name in _LOGGERS for handler in logging.getLogger(name).handlers}:
        for old in [known for known in handler.filters if isinstance(known, SafeRecords)]:
            handler.removeFilter(old)
        handler.addFilter(SafeRecords(redaction))


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
