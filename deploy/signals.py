"""TERM and HUP taken as Ctrl-C is, so that what was started ends too."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Ended(KeyboardInterrupt):
    """A signal that ends what is under way as Ctrl-C does."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """TERM and a closed terminal interrupt too, once: what they set off takes its time, and a second one must not cut it."""

    def end(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Ended(number)

    caught = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
