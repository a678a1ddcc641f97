"""Sleep until an instant, greenlets that a drain waits for, and log lines during a wait."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent

from inferload.base.clock import NS_PER_S, now_ns

LOG_S = 5.0


class DrainedGreenlet(gevent.Greenlet):  # type: ignore[misc]  # gevent has no types
    """Greenlet that the drain of a run waits for: the event listeners that it calls must not wait for the end of the run."""


def sleep_until(at_ns: int) -> None:
    """Sleep until an instant. Unlike intervals, instants do not accumulate delays."""
    while (left_ns := at_ns - now_ns()) > 0:
        gevent.sleep(left_ns / NS_PER_S)


@contextmanager
def logged_wait(logger: logging.Logger, text: Callable[[], str]) -> Iterator[None]:
    """Log what the code in this context waits for, every LOG_S seconds."""

    def repeat() -> None:
        while True:
            gevent.sleep(LOG_S)
            logger.info("%s", text())

    greenlet = gevent.spawn(repeat)
    try:
        yield
    finally:
        greenlet.kill()
