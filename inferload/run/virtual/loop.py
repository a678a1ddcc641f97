"""Event loop below gevent whose timers are virtual: it jumps to the next timer when nothing else is ready.

Sockets, child processes, signals and native threads stay those of the kernel. While a socket or a child process is awaited the
clock stands still, at most HOLD_S of real time; after that timers expire at the speed of real time, so that a timeout ends a
wait for a program that never answers.
"""

import _socket
import heapq
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import gevent
from gevent.libev import corecext
from gevent.threadpool import ThreadPool

from inferload.base.clock import NS_PER_S, SYSTEM
from inferload.base.errors import UsageError

HOLD_S = 10.0
# Passes of the loop at one instant: beyond them a greenlet polls, and waits for the clock.
MOST_PASSES = 10_000
# Readings of the clock at one instant by the program of a user: beyond them it polls without a wait, and each takes time.
MOST_READINGS, READING_NS = 10_000, 1_000


class VirtualTimer:
    """Timer of a `VirtualLoop`, with the interface of gevent's."""

    ref = True
    pending = False
    priority = 0

    def __init__(self, loop: "VirtualLoop", after_s: float, repeat_s: float) -> None:
        self.loop = loop
        self.active = False
        self.callback: Callable[..., object] | None = None
        self.args: tuple[Any, ...] = ()
        self._after_s, self._repeat_s = after_s, repeat_s
        self._start = 0  # number of the latest start: entries of earlier ones in the loop's heap are void

    def start(self, callback: Callable[..., object], *args: Any, update: bool | None = None) -> None:
        """Call `callback` after the timer's delay."""
        self._begin(self._after_s, callback, args)

    def again(self, callback: Callable[..., object], *args: Any, update: bool | None = None) -> None:
        """Call `callback` after the timer's interval, instead of the call that is due."""
        self._begin(self._repeat_s, callback, args)

    def stop(self) -> None:
        """Discard the call that is due."""
        self.active = False
        self._start += 1

    close = stop

    def __enter__(self) -> "VirtualTimer":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def is_due(self, start: int) -> bool:
        return self.active and self._start == start

    def expire(self) -> None:
        assert self.callback is not None
        if self._repeat_s:
            self._start += 1
            self.loop.schedule(self, self._repeat_s, self._start)
        else:
            self.active = False
        try:
            self.callback(*self.args)
        except BaseException:  # noqa: BLE001  as gevent's own loop does
            self.loop.handle_error(self, *sys.exc_info())

    def _begin(self, after_s: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback, self.args, self.active = callback, args, True
        self._start += 1
        self.loop.schedule(self, after_s, self._start)


def _is_own(watcher: Any) -> bool:
    """Return True for a pair of connected sockets without names, such as the one by which asyncio wakes itself."""
    if not isinstance(watcher, corecext.io):
        return False
    try:
        one = _socket.socket(fileno=os.dup(watcher.fd))
    except OSError:  # no socket
        return False
    try:
        return one.family == _socket.AF_UNIX and not one.getsockname() and not one.getpeername()
    except OSError:  # not connected
        return False
    finally:
        one.close()


def _holding(kind: Any) -> Any:
    """Return a class of gevent's watchers whose active instances hold the clock of their loop."""

    class Holding(kind):  # type: ignore[misc]  # gevent has no types
        def start(self, *arguments: Any, **options: Any) -> None:
            super().start(*arguments, **options)
            if self.ref and not _is_own(self):
                self.loop.foreign.add(self)
                self.loop.be_patient()

        def stop(self) -> None:
            self.loop.foreign.discard(self)
            super().stop()

        def close(self) -> None:
            self.loop.foreign.discard(self)
            super().close()

    return Holding


_Io, _Child, _Async = _holding(corecext.io), _holding(corecext.child), _holding(corecext.async_)


class VirtualLoop(corecext.loop):  # type: ignore[misc]  # gevent has no types
    """Loop of a hub. `at_ns`: virtual time since its creation; `held_ns`: real time for which the clock was held."""

    def __init__(self, flags: Any = None, default: Any = None, ptr: int = 0) -> None:
        super().__init__(flags, default, ptr)
        self.at_ns = 0
        self.foreign: set[Any] = set()  # active watchers of sockets, child processes and threads
        self._passes = 0  # of the loop at this instant
        self._read_ns, self._readings = 0, 0
        self._due: list[tuple[int, int, VirtualTimer, int]] = []
        self._numbers = itertools.count()
        self._held_ns = 0
        self._hold_began_ns: int | None = None
        self._jump = self.idle(priority=self.MINPRI)  # called when no other watcher is pending
        self._patience: Any = None  # real timer
        self._before_poll = self.prepare(ref=False, priority=self.MINPRI)
        self._before_poll.start(self._prepare)

    @property
    def held_ns(self) -> int:
        """Real time so far for which sockets, child processes and threads held the clock."""
        began_ns = self._hold_began_ns
        return self._held_ns + (0 if began_ns is None else SYSTEM.now_ns() - began_ns)

    def hold(self, took_ns: int) -> None:
        """Count real time of a call during which the loop did not run."""
        if self._hold_began_ns is None:  # else it is a part of that time
            self._held_ns += took_ns

    def timer(self, after: float, repeat: float = 0.0, ref: bool = True, priority: int | None = None) -> VirtualTimer:
        return VirtualTimer(self, after, repeat)

    def io(self, fd: int, events: int, ref: bool = True, priority: int | None = None) -> Any:
        """Return a watcher of a socket, which holds the clock while it is active."""
        return _Io(self, fd, events, ref, priority)

    def child(self, pid: int, trace: int = 0, ref: bool = True) -> Any:
        """Return a watcher of a child process, which holds the clock while it is active."""
        return _Child(self, pid, trace, ref)

    def async_(self, ref: bool = True, priority: int | None = None) -> Any:
        """Return a watcher for the result of a thread, which holds the clock while it is active."""
        return _Async(self, ref, priority)

    def read(self) -> int:
        """Return the virtual time in nanoseconds to a program that may poll it."""
        if self._read_ns != self.at_ns:
            self._read_ns, self._readings = self.at_ns, 0
        self._readings += 1
        if self._readings > MOST_READINGS:
            self.at_ns += READING_NS
            self._read_ns = self.at_ns
        return self.at_ns

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.at_ns / NS_PER_S

    def schedule(self, timer: VirtualTimer, after_s: float, start: int) -> None:
        due_ns = self.at_ns + max(0, round(after_s * NS_PER_S))
        heapq.heappush(self._due, (due_ns, next(self._numbers), timer, start))

    def _prepare(self) -> None:
        """Decide, before each poll, whether the loop may jump if the poll finds nothing."""
        due = self._next()
        if any(watcher.active for watcher in self.foreign) and (due is None or due[0] > self.at_ns):
            self._stand_still()
            return
        if self._hold_began_ns is not None:
            self._go_on()
        self._passes += 1
        if self._passes > MOST_PASSES:
            self._expire_next()
            due = self._next()
        if due is None:
            self._jump.stop()
        elif not self._jump.active:
            self._jump.start(self._advance)

    def be_patient(self) -> None:
        """Stand still for up to HOLD_S from now on."""
        if self._patience is not None:
            self._patience.stop()
            self._patience.close()
            self._patience = None

    def _stand_still(self) -> None:
        if self._hold_began_ns is None:
            self._hold_began_ns = SYSTEM.now_ns()
            self._jump.stop()
        if self._patience is None:
            self._expire_in_real_time(HOLD_S)

    def _go_on(self) -> None:
        assert self._hold_began_ns is not None
        self._held_ns += SYSTEM.now_ns() - self._hold_began_ns
        self._hold_began_ns = None
        self.be_patient()

    def _expire_in_real_time(self, later_s: float) -> None:
        """Expire the next timer, and those after it, at the speed of real time."""
        due = self._next()
        if due is not None:
            self._patience = super().timer(later_s + (due[0] - self.at_ns) / NS_PER_S)
            self._patience.start(self._lose_patience)

    def _lose_patience(self) -> None:
        self.be_patient()
        self._advance()
        self._expire_in_real_time(0.0)

    def _next(self) -> tuple[int, int, VirtualTimer, int] | None:
        due = self._due
        while due and not due[0][2].is_due(due[0][3]):
            heapq.heappop(due)
        return due[0] if due else None

    def _advance(self) -> None:
        """Jump to the next timer, and expire it, unless callbacks wait: gevent makes a limited number between two polls."""
        if not self._callbacks:
            self._expire_next()

    def _expire_next(self) -> None:
        self._passes = 0
        if self._next() is None:
            return
        at_ns, _, timer, _ = heapq.heappop(self._due)
        self.at_ns = max(self.at_ns, at_ns)
        timer.expire()


class InlinePool(ThreadPool):  # type: ignore[misc]  # gevent has no types
    """Pool of native threads that makes each call in the calling greenlet instead: in a fixed order, and in no virtual time."""

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call, and return its result as an AsyncResult."""
        result = gevent.event.AsyncResult()
        began_ns = SYSTEM.now_ns()
        try:
            result.set(func(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  passed to the reader of the result
            result.set_exception(error)
        self.hub.loop.hold(SYSTEM.now_ns() - began_ns)
        return result

    def apply(self, func: Callable[..., Any], args: tuple[Any, ...] = (), kwds: dict[str, Any] | None = None) -> Any:
        return self.spawn(func, *args, **(kwds or {})).get()


def replace_hub() -> VirtualLoop:
    """Replace this thread's hub by one on a virtual loop. Raise UsageError if a greenlet is about to start on the old one."""
    if gevent.get_hub().loop._callbacks:
        raise UsageError(
            "--clock virtual: the program starts greenlets while it is imported; start them in on_start, or in a listener of "
            "events.init"
        )
    gevent.get_hub().destroy(destroy_loop=True)
    config = gevent.config
    loop, pool = config.loop, config.threadpool
    config.loop, config.threadpool = VirtualLoop, InlinePool
    try:
        virtual: VirtualLoop = gevent.get_hub().loop
        gevent.get_hub().threadpool  # noqa: B018  created with the hub: those of other threads are the usual ones
    finally:
        config.loop, config.threadpool = loop, pool
    return virtual
