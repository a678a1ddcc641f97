"""SIGTERM and SIGHUP raise KeyboardInterrupt, so that started processes are stopped. Standard library only."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM and SIGHUP, with the signal's number."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise Ended for SIGTERM and SIGHUP in the block, once: a second one must not interrupt the clean-up."""

    def end(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Terminated(number)

    caught = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
