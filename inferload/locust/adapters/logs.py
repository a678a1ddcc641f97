"""What every log record passes on its way out of a process: secrets are removed, control characters escaped."""

import logging
import traceback

from inferload.client.connection.redaction import Redaction
from inferload.escaping import escaped, indented

_LOGGERS = (None, "locust", "locust.stats_logger")  # those to which Locust gives handlers


def protect(redaction: Redaction) -> None:
    """Have every handler of this process's log pass its records through a filter; later calls replace it."""
    for handler in {handler for name in _LOGGERS for handler in logging.getLogger(name).handlers}:
        for old in [one for one in handler.filters if isinstance(one, SafeRecords)]:
            handler.removeFilter(old)
        handler.addFilter(SafeRecords(redaction))


class SafeRecords(logging.Filter):
    """Makes a record's text safe to show. A message of inferload is one line; further lines of others' are indented."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, which several handlers may share; True."""
        escape = escaped if record.name.startswith("inferload") else indented
        record.msg, record.args = escape(self._redaction(record.getMessage())), None
        if record.exc_info and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.exc_text:
            record.exc_text = indented(self._redaction(record.exc_text))
        if record.stack_info:
            record.stack_info = indented(self._redaction(record.stack_info))
        return True
