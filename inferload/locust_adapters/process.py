"""Locust's process: command line, clock, signals, log, forked workers, end."""

import atexit
import contextlib
import fcntl
import functools
import gc
import inspect
import io
import logging
import os
import stat
import sys
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import gevent
import gevent.monkey
import locust
import locust.argument_parser
import locust.main
import locust.runners
import locust.stats
import psutil
from msgspec import Struct

from inferload.base.clock import NS_PER_S, Anchor, now_ns
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped_lines
from inferload.base.redaction import safe_urls
from inferload.locust_adapters import tables
from inferload.locust_adapters.compat import names_in, parameters
from inferload.results import ci

WORKERS_S = 60  # for all workers to connect: default of --expect-workers-max-wait, whose 0 has no limit
_WORKER_END_S = 3.0
_PROGRAMS = ("locust", "inferload")  # that leave the exit code as it is
_STARTERS = ("runpy", "inferload.cli", "inferload.cli.run")  # modules between such a program and Locust's `main`
_NOT_FLUSHED = 120  # exit code of the interpreter for output that cannot be written
CTRL_C = "Ctrl-C"
RUN_TIME_HINT = "No run time limit set, use CTRL+C to interrupt"
_OPTIONS = {
    "num_users", "--spawn-rate", "--run-time", "--headless", "--autostart", "--autoquit", "--only-summary",
    "--print-stats", "--expect-workers", "--expect-workers-max-wait", "--processes", "--worker", "--master-host", "--master-port",
    "--master-bind-host", "--master-bind-port", "--web-host", "--web-port", "--web-base-path",
}  # fmt: skip


def check_patched() -> None:
    """Raise UsageError if gevent has not patched the standard library: the first wait would block the process for ever."""
    if not gevent.monkey.is_module_patched("socket"):
        raise UsageError("LOCUST_SKIP_MONKEY_PATCH is set in the environment, and a run would block for ever; unset it")


def has_command_line() -> bool:
    """Return True if Locust has the options that inferload reads, and parses them by replaceable functions."""
    options = names_in(locust.argument_parser.setup_parser_arguments)
    return options >= _OPTIONS and {"get_parser", "parse_args"} <= names_in(locust.main.main)


# Sources of options, those that count first, as ConfigArgParse names them: by the name of each option its action and value.
Sources = Mapping[str, Mapping[str, tuple[Any, Any]]]
Check = Callable[[Any, Sources], object]


def check_after_parsing(check: Check) -> None:
    """Call `check` with the parsed command line before Locust forks workers: a later exit would leave orphans.

    It gets the sources of the options too.
    """
    get_parser = locust.main.get_parser
    known: list[Check] | None = getattr(get_parser, "checks", None)
    if known is not None:
        known += [check] if check not in known else []
        return
    checks = [check]

    def checking() -> Any:
        parser = get_parser()
        parse_args, end = parser.parse_args, parser.error

        def refuse(why: str) -> None:
            ci.refuse(why)
            end(why)

        def parse_and_check(*arguments: Any) -> Any:
            options = None
            try:
                options = parse_args(*arguments)
                for check_options in checks:
                    check_options(options, parser.get_source_to_settings_dict())
            except UsageError as error:
                ci.refuse(error, options)
                parser.exit(2, f"inferload: {escaped_lines(safe_urls(str(error)))}\n")
            return options

        parser.parse_args, parser.error = parse_and_check, refuse
        return parser

    checking.checks = checks  # type: ignore[attr-defined]
    locust.main.get_parser = checking


class NumberNotGiven(int):
    """Default of an option, distinguishable from the same number on the command line."""


class WorkerCount(Struct, frozen=True):
    """How many workers a run waits for, for how many seconds, and uses at most; `most`: None without a bound."""

    expected: int
    most: int | None
    wait_s: float = WORKERS_S


def take_options_over(parsed: Any, users: int, spawn_per_s: float) -> WorkerCount:
    """Reset the options of Locust that the controller implements; return the number of workers.

    `users`, `spawn_per_s`: defaults for the start form and for a run without these options.
    """
    given = not isinstance(parsed.expect_workers, NumberNotGiven)  # with --processes, Locust has set it to that number
    wait_s = parsed.expect_workers_max_wait
    wait_s = WORKERS_S if isinstance(wait_s, NumberNotGiven) else wait_s or inf
    workers = WorkerCount(parsed.expect_workers, parsed.expect_workers if given else None, wait_s)
    parsed.num_users = users if parsed.num_users is None else parsed.num_users
    parsed.spawn_rate = spawn_per_s if parsed.spawn_rate is None else parsed.spawn_rate
    if parsed.headless or parsed.autostart:
        parsed.run_time = None  # Locust would end streams; the controller drains the run
    if parsed.headless and not parsed.print_stats:
        parsed.only_summary = True  # instead of a table every two seconds: a terminal has status lines
        tables.omit_final_tables()
    parsed.expect_workers = 0  # Locust's wait for workers has no time limit
    return workers


def asks_for_defaults() -> bool:
    """Return True if a worker reads default arguments by a function without parameters."""
    asks = "default_args_dict" in names_in(locust.runners.WorkerRunner.handle_message)
    return asks and not parameters(locust.argument_parser.default_args_dict)


def cache_default_arguments() -> None:
    """Cache Locust's default arguments: at each spawn message a worker builds the whole parser once per option (55 to 75 ms)."""
    current = locust.argument_parser.default_args_dict
    if not hasattr(current, "cache_info"):
        locust.argument_parser.default_args_dict = functools.cache(current)


def asks_wall_clock() -> bool:
    """Return True if statistics and heartbeats read a replaceable clock."""
    clock = locust.stats.time
    locust.stats.time = SimpleNamespace(time=lambda: 5.0)
    try:
        entry = tables.new_entry()
        entry.log(1.5, 0)
    finally:
        locust.stats.time = clock
    heartbeats = "time" in names_in(locust.runners.WorkerRunner.heartbeat_timeout_checker)
    return entry.start_time == entry.last_request_timestamp == 5.0 and heartbeats and callable(locust.runners.time.time)


def use_steady_clock() -> None:
    """Replace the wall clock in Locust by one that follows the monotonic clock.

    Locust measures durations by the wall clock. After a step forward, workers take the master for dead and end; after a step
    back, they discard its later messages as old, and rates refer to a wrong duration.
    """
    if hasattr(locust.runners.time, "anchor"):
        return
    steady = SimpleNamespace(**vars(locust.runners.time))
    steady.anchor, steady.time = Anchor.take(), lambda: steady.anchor.to_wall_ns(now_ns()) / NS_PER_S
    locust.runners.time = locust.stats.time = steady


def restart_steady_clock() -> None:
    """Have Locust's clock follow another monotonic clock, that of a virtual run."""
    use_steady_clock()
    locust.runners.time.anchor = Anchor.take()


def sets_signal_handlers() -> bool:
    """Return True if Locust sets signal handlers by gevent."""
    return "signal_handler" in names_in(locust.main.main) and callable(locust.main.gevent.signal_handler)


def disable_signal_handlers() -> None:
    """Disable Locust's signal handlers: that of SIGTERM ends the process with the wrong exit code; SIGHUP has none."""
    if not hasattr(locust.main.gevent, "without_signals"):
        names = {**vars(gevent), "signal_handler": lambda *_arguments: None, "without_signals": True}
        locust.main.gevent = SimpleNamespace(**names)


def hints_at_run_time() -> bool:
    """Return True if Locust logs the hint that no run time limit is set."""
    return RUN_TIME_HINT in names_in(locust.main.main)


def drop_hint() -> None:
    logging.getLogger("locust.main").addFilter(_not_about_run_time)


def _not_about_run_time(record: logging.LogRecord) -> bool:
    """Filter Locust's hint to press Ctrl-C: the controller implements --run-time, so that Locust finds none."""
    return record.msg != RUN_TIME_HINT


def waits_for_forks() -> bool:
    """Return True if Locust waits for forked workers by a replaceable `waitpid`."""
    return "waitpid" in names_in(locust.main.main) and locust.main.os.getpid() == os.getpid()


def tolerate_reaped_workers() -> None:
    """Replace `waitpid` in Locust by one that returns "exited" for a child that was already reaped.

    gevent discards the status of a child when another ends over a minute later. Locust then polls for it for three seconds,
    writes a traceback each time, and ends with one.
    """
    if hasattr(locust.main.os, "lenient"):
        return

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        try:
            return os.waitpid(pid, options)
        except ChildProcessError:
            return pid, 0

    locust.main.os = SimpleNamespace(**{**vars(os), "waitpid": waitpid, "lenient": True})


def inspects_callers() -> bool:
    """Return True if Locust looks for the caller of a stop by replaceable functions."""
    return {"stack", "getframeinfo"} <= names_in(locust.runners.Runner.stop) and callable(locust.runners.inspect.stack)


def inspect_without_source() -> None:
    """Have Locust find the caller of a stop, for its debug log, without the source: that takes 50 ms, for files of all modules."""
    if locust.runners.inspect is inspect:
        frameinfo = functools.partial(inspect.getframeinfo, context=0)
        locust.runners.inspect = SimpleNamespace(stack=lambda: inspect.stack(0), getframeinfo=frameinfo)


def end_forked_workers() -> None:
    """Terminate forked workers that still run at the end of the master; Locust would leave them running."""
    left = _waited_for(psutil.Process().children())
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(child)
        left = _waited_for(left)


def _waited_for(children: list[psutil.Process]) -> list[psutil.Process]:
    """Wait, and return the children that still run. gevent's loop must reap them: Locust waits for them afterwards."""
    deadline_ns = now_ns() + round(_WORKER_END_S * NS_PER_S)
    while (left := [child for child in children if child.is_running()]) and now_ns() < deadline_ns:
        gevent.sleep(0.02)
    return left


def end_quickly(environment: Any) -> None:
    """End a headless process, or a worker, without the interpreter's clean-up, which destroys all modules: 0.3 s of CPU time.

    Threads are joined and all functions of `atexit` are called before. Only if Locust's `main` is the program, neither called by a
    profiler, a debugger or another program, nor left by an exception, if no other listener of the end follows, which may change the
    exit code, and if no file is still open for writing, whose rest the clean-up writes.
    """
    if not environment.parsed_options.headless and not isinstance(environment.runner, locust.runners.WorkerRunner):
        return

    def quit_event(exit_code: int, **_others: Any) -> None:
        if _is_program(sys._getframe()) and not _others_follow(environment.events.quit, quit_event):
            atexit.register(_end, exit_code)  # the last function, which is called first

    environment.events.quit.add_listener(quit_event)


def _others_follow(hook: Any, listener: object) -> bool:
    handlers = list(getattr(hook, "_handlers", ()))
    later = handlers[handlers.index(listener) + 1 :] if listener in handlers else []
    return any(not str(getattr(handler, "__module__", "")).startswith(("inferload.", "locust.")) for handler in later)


def _is_program(frame: FrameType | None) -> bool:
    """Return True if all callers of Locust's `main` belong to the commands `locust` and `inferload run`."""
    while frame is not None and frame.f_code is not locust.main.main.__code__:
        frame = frame.f_back
    known = frame is not None
    while known and frame is not None and (frame := frame.f_back) is not None:
        name, path = frame.f_globals.get("__name__"), Path(frame.f_code.co_filename)
        program = (path.parent if path.name == "__main__.py" else path).name
        known = name in _STARTERS or (name == "__main__" and program in _PROGRAMS)
    return known


def _end(code: int) -> None:
    if getattr(sys, "last_value", None) is not None:  # an exception after Locust's event has changed the exit code
        return
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    if any(map(_is_written, os.listdir("/dev/fd"))):
        _write_rest()
        return
    try:
        for stream in filter(None, (sys.__stdout__, sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        code = _NOT_FLUSHED
    os._exit(code)


def _write_rest() -> None:
    """Write what open files have in their buffers, texts first: with references to it, a file may outlive the clean-up."""
    gc.unfreeze()  # for get_objects
    kinds: Any = (io.TextIOBase.__base__, io.BufferedIOBase.__base__)  # `isinstance` asks no abstract class
    for file in sorted((each for each in gc.get_objects() if isinstance(each, kinds)), key=_depth):
        with contextlib.suppress(Exception):  # as the clean-up: whatever a class of the program raises
            if file.writable():
                (file.close if _depth(file) == 1 else file.flush)()


def _depth(file: object) -> int:
    """Return 0 for a text, 1 for another file that writes into one, as one that packs, 2 for a plain file."""
    return 0 if isinstance(file, io.TextIOWrapper) else 2 if type(file).__module__ == "_io" else 1


def _is_written(number: str) -> bool:
    """Return True for a descriptor of a file, a named pipe or a device that a program writes, beside standard streams."""
    if int(number) > 2:
        with contextlib.suppress(OSError):
            flags, mode = fcntl.fcntl(int(number), fcntl.F_GETFL), os.fstat(int(number)).st_mode
            place = os.readlink(f"/dev/fd/{number}") if os.path.islink(f"/dev/fd/{number}") else "/"
            named = place.startswith("/") and place not in (os.devnull, "/dev/tty")
            kept = stat.S_ISREG(mode) or ((stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)) and named)
            return kept and flags & os.O_ACCMODE != os.O_RDONLY
    return False
