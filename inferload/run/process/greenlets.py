"""Sleep until an instant, greenlets that a drain waits for, log lines during a wait, forks of a process with greenlets.

Also the time for which a process has polled without a pause.
"""

import contextlib
import gc
import logging
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import NoReturn

import gevent
import gevent.hub
import gevent.monkey
import gevent.os

from inferload.base.clock import NS_PER_S, now_ns

LOG_S = 5.0


class DrainedGreenlet(gevent.Greenlet):  # type: ignore[misc]  # gevent has no types
    """Greenlet that the drain of a run waits for: the event listeners that it calls must not wait for the end of the run."""


def sleep_until(at_ns: int) -> None:
    """Sleep until an instant. Unlike intervals, instants do not accumulate delays."""
    while (left_ns := at_ns - now_ns()) > 0:
        gevent.sleep(left_ns / NS_PER_S)


@contextlib.contextmanager
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


def fork_apart(name: str, work: Callable[[], object], stdin: int, stdout: int, ended: Callable[[], None]) -> int:
    """Return the pid of a fork that does some work with what this process has imported, and exits: with 1 after an exception.

    The fork has a process group and an event loop of its own, and of the open files only stderr and these two descriptors, as 0
    and 1, which are closed here. It ignores SIGINT. `name`: as `ps` shows it; `ended`: called at its end.
    """
    try:
        pid: int = gevent.os.fork_and_watch(lambda _watcher: ended(), fork=_plain_fork)
        if pid == 0:
            _become(name, work, stdin, stdout)
    finally:
        os.close(stdin)
        os.close(stdout)
    return pid


def _plain_fork() -> int:
    """Fork without gevent's set-up of the child, in which the greenlets of this process would go on."""
    with warnings.catch_warnings():
        # Of Python 3.12 on, for threads, of which the child uses none.
        warnings.simplefilter("ignore", DeprecationWarning)
        return int(gevent.monkey.get_original("os", "fork")())


def _become(name: str, work: Callable[[], object], stdin: int, stdout: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        gc.freeze()
        gc.enable()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in map(int, os.listdir("/dev/fd")):
            # The objects of the parent keep their numbers, which would be those of other files.
            if number not in (0, 1, 2, nothing):
                os.dup2(nothing, number, inheritable=False)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:  # Linux
            comm.write(name)
        parents = gevent.get_hub()
        gevent.hub.set_hub(gevent.hub.Hub(default=False))
        work()
        code = 0 if parents else 1  # which is kept until now: its end would close descriptors
    except BaseException:  # noqa: BLE001  the boundary of this process
        traceback.print_exc()
    os._exit(code)


ROUND_S = 0.25
_STILL_S = 1.0  # after a round later than this, messages may wait that this process could not receive


class SilenceClock:
    """Time for which this process has polled without a pause. While it is stopped, silence of others proves nothing."""

    def __init__(self) -> None:
        self._round_ns = self._since_ns = now_ns()

    def listening_s(self) -> float:
        """Return the seconds since the last pause of more than about a second. Call it once a round."""
        at_ns = now_ns()
        if at_ns - self._round_ns > (ROUND_S + _STILL_S) * NS_PER_S:
            self._since_ns = at_ns
        self._round_ns = at_ns
        return (at_ns - self._since_ns) / NS_PER_S
