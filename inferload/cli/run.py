"""`inferload run`: run a scenario without a locustfile, by Locust with the equivalent command line, in this process."""

import argparse
import contextlib
import gc
import os
import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from inferload.base.deployments import locustfile
from inferload.base.errors import UsageError
from inferload.base.on_use import OnUse
from inferload.base.run_options import RUN_OPTIONS
from inferload.base.run_options import words as option_words
from inferload.cli import quick_options

DEFAULT_SCENARIO = "chat"  # the one of the bundled locustfile
_REFUSE = OnUse[Callable[[object], None]]({"ci": "inferload.results.ci:refuse"})  # which imports much
_EPILOG = """\
Examples:
  inferload run smoke --host http://server:8000 --users 20 --duration 60s --processes 2
  inferload run chat-open --host http://server:8000 --rate 2 --gate "p95(ttft_ms) < 800"
  inferload run mine.yaml --host http://server:8000 --web-port 8089  # with Locust's web UI
  inferload run chat --clock virtual --variant llama31-base --duration 5m  # a rehearsal without a server
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        description="Run a scenario against a server: headless, or with Locust's web UI if one of its options is given.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "scenario",
        metavar="SCENARIO",
        nargs="?",
        default=DEFAULT_SCENARIO,
        help=f"a bundled scenario's name, or a file (default: {DEFAULT_SCENARIO})",
    )
    parser.add_argument("-H", "--host", metavar="URL", help="the server, as http://server:8000; or see --also-host")
    load = quick_options.add_to(parser)
    for option in RUN_OPTIONS:
        (load if option.name == "set" else parser).add_argument(option.flag, **option.keywords())
    _add_locust_options(parser)
    parser.set_defaults(run=run, extra=())
    error = parser.error
    parser.error = lambda why: (_REFUSE["ci"](why), error(why))


def run(arguments: argparse.Namespace) -> int:
    """Run Locust in this process, as `python -m locust` does; its end raises SystemExit."""
    if arguments.scenario.endswith(".py"):
        raise UsageError(
            f"{arguments.scenario}: is a locustfile, no scenario; run it with: {_of_locustfile(arguments)}"
        )
    gc.disable()  # until `inferload.users` has been imported
    import_module("locust")  # first: other modules must not use what gevent replaces
    try:
        arguments.set = quick_options.settings(arguments)
    except UsageError as error:
        _REFUSE["ci"](error)
        raise
    sys.argv[1:] = locust_words(arguments, locustfile())
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    try:
        with contextlib.redirect_stdout(sys.__stdout__):
            runpy.run_module("locust", run_name="__main__", alter_sys=True)
    except BrokenPipeError:  # its reader has gone, which must not make a failed run a passed one
        return 1
    return 0


def locust_words(arguments: argparse.Namespace, locustfile: Path) -> list[str]:
    """Return Locust's command line for the arguments."""
    words = ["-f", str(locustfile)]
    words += [] if _shows_web_ui(arguments.extra) else ["--headless"]
    words += ["--host", arguments.host] if arguments.host else []
    words += ["--scenario", arguments.scenario] if arguments.scenario else []
    return words + option_words(vars(arguments)) + list(arguments.extra)


def _of_locustfile(arguments: argparse.Namespace) -> str:
    """Return the command line of Locust for the options of a run whose scenario is a locustfile.

    Quick options of a scenario that Locust does not have are left out, and named in a shell's comment.
    """
    file, arguments.scenario, lost = Path(arguments.scenario), "", list[str]()
    words = locust_words(arguments, file)
    for name in quick_options.NAMES:
        if (text := getattr(arguments, name)) is not None:
            option = {"users": "--users", "duration": "--run-time"}.get(name)
            words += [option, text] if option else []
            lost += [] if option else [f"--{name.replace('_', '-')}"]
    return shlex.join(["locust", *words]) + (f"  # without {', '.join(lost)}, of a scenario" if lost else "")


# Options of Locust, which are passed on to it. Shown in --help; the others are accepted as well.
_SHOWN = {
    ("-r", "--spawn-rate"): "users started per second",
    ("--processes",): "number of worker processes on this machine",
    ("--master",): "run as the master of workers on other machines",
    ("--worker",): "run as a worker",
    ("--master-host",): "address of the master, for a worker",
    ("--expect-workers",): "number of workers that the master waits for and uses at most",
    ("--web-port", "-P"): "show the web UI on this port instead of running headless",
    ("--web-host",): "show the web UI on this address",
    ("--autostart",): "show the web UI and start at once",
    ("--csv",): "prefix of Locust's CSV files",
    ("--loglevel", "-L"): "DEBUG, INFO, WARNING, ERROR or CRITICAL",
}
_VALUED = (
    *(("--config",), ("--config-users",), ("--autoquit",), ("--tls-cert",), ("--tls-key",), ("--web-base-path",)),
    *(("--master-bind-host",), ("--master-bind-port",), ("--expect-workers-max-wait",), ("--master-port",)),
    *(("-T", "--tags"), ("-E", "--exclude-tags"), ("--html",), ("--json-file",), ("--logfile",)),
    *(("--exit-code-on-error",), ("-s", "--stop-timeout"), ("--profile",)),
)
_SWITCHES = (
    *(("--master",), ("--worker",), ("--autostart",), ("-l", "--list"), ("--headless",), ("--web-login",)),
    *(("--class-picker",), ("--enable-rebalancing",), ("--csv-full-history",), ("--print-stats",)),
    *(("--only-summary",), ("--reset-stats",), ("--json",), ("--skip-log-setup",), ("--show-task-ratio",)),
    *(("--show-task-ratio-json",), ("--equal-weights",), ("--otel",)),
)
_WEB_UI = {
    *("--web-port", "-P", "--web-host", "--web-login", "--web-base-path", "--tls-cert", "--tls-key", "--class-picker"),
    *("--autostart", "--autoquit"),
}


def _add_locust_options(parser: argparse.ArgumentParser) -> None:
    """Add Locust's options; the ones on the command line are collected in `extra`."""
    group = parser.add_argument_group(
        "Locust's options", "All of Locust's options are accepted, here or after --; locust --help describes them."
    )
    hidden = [flags for flags in (*_VALUED, *_SWITCHES) if flags not in _SHOWN]
    for flags in (*_SHOWN, *hidden):
        group.add_argument(
            *flags,
            action=_PassOn,
            nargs=0 if flags in _SWITCHES else None,
            metavar=None if flags in _SWITCHES else "VALUE",
            help=_SHOWN.get(flags, argparse.SUPPRESS),
            default=argparse.SUPPRESS,
        )


class _PassOn(argparse.Action):
    """Collect the option and its value for Locust."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        words = (str(option_string), *([values] if isinstance(values, str) else []))
        namespace.extra = (*namespace.extra, *words)


def _shows_web_ui(extra: Sequence[str]) -> bool:
    """Return True if the options start the web UI or a worker: both run without --headless."""
    names = {word.partition("=")[0] for word in extra}
    return "--worker" in names or ("--headless" not in names and not names.isdisjoint(_WEB_UI))
