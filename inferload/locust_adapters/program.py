"""Locust as the program of this process: its start within another command, and its end without the interpreter's clean-up."""

import locust  # isort: skip  # first: gevent patches the standard library before other modules use it
import atexit
import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import locust.main
import locust.runners

_NAMES = ("locust", "inferload")  # of programs that leave the exit code as it is
_NOT_FLUSHED = 120  # exit code of the interpreter for output that cannot be written
_BUFFERED: Any = tuple(
    each.__base__ for each in (io.TextIOBase, io.BufferedIOBase)
)  # `isinstance` asks no abstract class
_STARTERS = (__name__, "contextlib", "inferload.cli", "inferload.cli.run")  # modules that call Locust's `main`


def start(words: Sequence[str]) -> None:
    """Run Locust with a command line in this process. Its end raises SystemExit."""
    sys.argv = ["locust", *words]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # as for `python -m locust`
    with contextlib.redirect_stdout(sys.__stdout__):
        locust.main.main()


def end_quickly(environment: Any) -> None:
    """End a headless process, or a worker, without the interpreter's clean-up, which destroys all modules: 0.3 s of CPU time.

    Threads are joined and all functions of `atexit` are called before. Only if Locust's `main` is the program, neither called by a
    profiler, a debugger or another program, nor left by an exception.
    """
    if not environment.parsed_options.headless and not isinstance(environment.runner, locust.runners.WorkerRunner):
        return

    def quit_event(exit_code: int, **_others: Any) -> None:
        if _is_program(sys._getframe()):
            atexit.register(_end, exit_code)  # the last function, which is called first

    environment.events.quit.add_listener(quit_event)


def _is_program(frame: FrameType | None) -> bool:
    """Return True if `main` of Locust is called by the main module, which Python itself has started."""
    while frame is not None and frame.f_code is not locust.main.main.__code__:
        frame = frame.f_back
    frame = frame and frame.f_back
    while frame is not None and frame.f_globals.get("__name__") in _STARTERS:
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") != "__main__":
        return False
    path = Path(frame.f_code.co_filename)
    if (path.parent if path.name == "__main__.py" else path).name not in _NAMES:
        return False
    frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__") == "runpy":
        frame = frame.f_back
    return frame is None


def _end(code: int) -> None:
    if getattr(sys, "last_value", None) is not None:  # an exception after Locust's event has changed the exit code
        return
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    _close_files()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        code = _NOT_FLUSHED
    os._exit(code)


def _close_files() -> None:
    """Write what the open files of a program have in their buffers, as the clean-up does, the texts first."""
    gc.unfreeze()  # for get_objects
    files = [each for each in gc.get_objects() if isinstance(each, _BUFFERED)]
    for file in sorted(files, key=lambda file: not isinstance(file, io.TextIOWrapper)):
        with contextlib.suppress(Exception):  # as the clean-up: whatever a class of the program raises
            if file.writable() and file.fileno() > 2:
                file.close()
