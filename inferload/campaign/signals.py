"""SIGTERM and SIGHUP as KeyboardInterrupt, so that clean-up code stops started processes; end of an interrupted campaign."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM and SIGHUP, with the signal's number."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise Terminated for SIGTERM and SIGHUP in the block, once: a second signal must not interrupt the clean-up."""

    def terminate(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Terminated(number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, terminate)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def interrupted(interrupt: KeyboardInterrupt, continued: str) -> int:
    """Print the command line that continues a campaign; return the exit code."""
    print(f"interrupted; continue with: {continued}", file=sys.stderr)
    return 128 + (interrupt.args[0] if isinstance(interrupt, Terminated) else signal.SIGINT)
