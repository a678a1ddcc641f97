"""Calls in gevent's pool of native threads, since a slow disk must not hold up the event loop; their memory and processes."""

import ctypes
import io
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gevent
import gevent.event
import gevent.lock
import gevent.os
import gevent.socket
from gevent._fileobjectcommon import OpenDescriptor
from gevent.monkey import get_original

T = TypeVar("T")

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_POLL_S = 0.01
_C = ctypes.CDLL(None)
_native_lock: Callable[[], Any] = get_original("_thread", "allocate_lock")


def share_heap() -> None:
    """Have threads take memory from one heap (glibc): in one of its own, each keeps what the others could use.

    Call it before threads are started: those of libraries, too. A number of heaps in the environment counts instead.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError):  # another C library
            _C.mallopt(_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Return free memory to the system, after work that needed more than what follows: it takes a few ms."""
    with suppress(AttributeError):  # another C library
        _C.malloc_trim(ctypes.c_size_t(0))


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


def let_threads_start_processes() -> None:
    """Let native threads use `subprocess`, which gevent has for the main thread only. Call it there, once or more often.

    A process is of no thread: another one may use its pipes and wait for its end.
    """
    from gevent import subprocess  # loaded where gevent has replaced the standard one

    main = gevent.get_hub().loop
    subprocess.fork_and_watch, os.waitpid = partial(_fork_and_watch, main), partial(_waitpid, main)
    subprocess.AsyncResult, subprocess.FileObject = _End, _opened


def _fork_and_watch(main: Any, callback: Callable[[Any], None], loop: Any, ref: bool, fork: Callable[[], int]) -> int:
    """Do what gevent's function does: fork, and call back when the child has ended. `main`: loop of the main thread.

    Only that loop hears of children, of all at once. It rests while another thread forks, so that no end is missed.
    """
    rests, goes_on = _native_lock(), _native_lock()

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


class AppendedFile:
    """UTF-8 file that grows while a run lasts. `on_error`: called with each failed write, whose text is lost."""

    def __init__(self, path: Path, on_error: Callable[[OSError], None]) -> None:
        self._path = path
        self._on_error = on_error
        self._waiting: list[str] = []
        self._writing = gevent.lock.Semaphore()

    def add(self, text: str) -> None:
        """Append a text soon, without waiting for the disk. A lone surrogate, as in texts of servers, is escaped."""
        self._waiting.append(text)
        if len(self._waiting) == 1:
            gevent.spawn(self.flush)

    def flush(self) -> None:
        """Write all waiting texts at once, and wait until they are written."""
        with self._writing:
            texts, self._waiting = self._waiting, []
            if not texts:
                return
            try:
                in_thread(_append, self._path, "".join(texts).encode(errors="backslashreplace"))
            except OSError as error:
                self._on_error(error)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
