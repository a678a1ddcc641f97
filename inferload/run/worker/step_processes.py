"""Programs that the steps of live agents start: from native threads, in which gevent's `subprocess` does not work."""

import io
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import gevent.event
import gevent.os
import gevent.socket
from gevent import subprocess
from gevent._fileobjectcommon import OpenDescriptor

from inferload.base.threads import native_lock

_POLL_S = 0.01


def let_threads_start_processes() -> None:
    """Let native threads use `subprocess`, which gevent has for the main thread only. Call it there, once or more often.

    A process is of no thread: another one may use its pipes and wait for its end.
    """
    main = gevent.get_hub().loop
    subprocess.fork_and_watch, os.waitpid = partial(_fork_and_watch, main), partial(_waitpid, main)
    subprocess.AsyncResult, subprocess.FileObject = _End, _opened


def _fork_and_watch(main: Any, callback: Callable[[Any], None], loop: Any, ref: bool, fork: Callable[[], int]) -> int:
    """Do what gevent's function does: fork, and call back when the child has ended. `main`: loop of the main thread.

    Only that loop hears of children, of all at once. It rests while another thread forks, so that no end is missed.
    """
    rests, goes_on = native_lock(), native_lock()

    def rest() -> None:
        rests.release()
        goes_on.acquire()

    with rests, goes_on:
        if loop is not main:
            main.run_callback_threadsafe(rest)
            rests.acquire()
        pid: int = gevent.os.fork_and_watch(callback, main, ref and loop is main, fork)
    return pid


def _waitpid(main: Any, pid: int, options: int) -> tuple[int, int]:
    """Wait as gevent's function does, which other threads than the main one, as those of asyncio, may not."""
    polls = gevent.get_hub().loop is not main and not options & os.WNOHANG
    while (ended := gevent.os.waitpid(pid, options | polls * os.WNOHANG)) == (0, 0) and polls:
        gevent.sleep(_POLL_S)
    return ended  # type: ignore[no-any-return]


class _End(gevent.event.AsyncResult):  # type: ignore[misc]
    """Exit code of a process, for all threads: a loop with nothing else to wait for would give up."""

    def wait(self, timeout: float | None = None) -> Any:
        with gevent.get_hub().loop.async_() as waits:
            waits.start(int)
            return super().wait(timeout)


class _Pipe(io.FileIO):
    """Pipe of a process, for all threads: gevent's is of the event loop in which it was made."""

    read, readall = io.RawIOBase.read, io.RawIOBase.readall  # type: ignore[assignment]

    def readinto(self, buffer: Any) -> int:
        while (size := super().readinto(buffer)) is None:
            gevent.socket.wait_read(self.fileno())
        return size

    def write(self, data: Any) -> int:
        while (size := super().write(data)) is None:
            gevent.socket.wait_write(self.fileno())
        return size


def _opened(descriptor: int, mode: str, *arguments: Any, **options: Any) -> Any:
    gevent.os.make_nonblocking(descriptor)
    return OpenDescriptor(_Pipe(descriptor, mode[0]), mode, *arguments, **options).opened()
