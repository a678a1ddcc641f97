"""Bounded log of exceptions that affect one turn only."""

import logging

_MAX_KINDS = 20


class ErrorLog:
    """Logs the first exception of each kind (type and line) with its traceback; further ones are not logged."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: set[tuple[type, str, int]] = set()

    def log(self, message: str, error: Exception) -> None:
        """Log an exception, unless its kind was logged before or too many kinds were."""
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = ("", 0) if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)
        kind = (type(error), *where)
        if kind not in self._kinds and len(self._kinds) < _MAX_KINDS:
            self._kinds.add(kind)
            self._logger.error("%s; further exceptions of this kind are not logged", message, exc_info=error)
