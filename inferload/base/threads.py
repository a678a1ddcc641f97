"""Calls in gevent's pool of native threads, since a slow disk must not hold up the event loop; memory of all threads."""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import gevent
import gevent.lock
import gevent.monkey

T = TypeVar("T")

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_C = ctypes.CDLL(None)

# Lock between threads. A greenlet that waits for one of gevent's may miss its release in another thread.
native_lock: Callable[[], Any] = gevent.monkey.get_original("_thread", "allocate_lock")


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
