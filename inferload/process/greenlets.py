"""Sleep until an instant, greenlets that a drain waits for, and calls in gevent's pool of native threads."""

from collections.abc import Callable
from typing import TypeVar

import gevent

from inferload.measure.clock import NS_PER_S, now_ns

T = TypeVar("T")


class DrainedGreenlet(gevent.Greenlet):  # type: ignore[misc]  # gevent has no types
    """Greenlet that the drain of a run waits for: the event listeners that it calls must not wait for the end of the run."""


def sleep_until(at_ns: int) -> None:
    """Sleep until an instant. Unlike intervals, instants do not accumulate delays."""
    while (left_ns := at_ns - now_ns()) > 0:
        gevent.sleep(left_ns / NS_PER_S)


def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Return the result of a call in a native thread while the greenlet waits; an exception is raised in the greenlet."""
    outcome: tuple[list[T], Exception | None] = gevent.get_hub().threadpool.apply(_outcome_of, (call, *arguments))
    results, error = outcome
    if error is not None:
        raise error
    return results[0]


def _outcome_of(call: Callable[..., T], *arguments: object) -> tuple[list[T], Exception | None]:
    """Return (result, error) of a call: gevent prints a traceback for an exception that leaves its thread."""
    try:
        return [call(*arguments)], None
    except Exception as error:  # noqa: BLE001  raised again in the greenlet
        return [], error
