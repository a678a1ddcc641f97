"""`inferload run`: run a scenario without a locustfile, by Locust with the equivalent command line, in this process."""

import argparse
import contextlib
import gc
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from inferload.base.deployments import locustfile
from inferload.base.run_options import RUN_OPTIONS
from inferload.base.run_options import words as option_words
from inferload.cli import locust_options, quick_options

DEFAULT_SCENARIO = "chat"  # the one of the bundled locustfile
_EXAMPLE = "example: inferload run smoke --host http://server:8000 --users 20 --duration 60s --processes 2"


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        description="Run a scenario against a server: headless, or with Locust's web UI if one of its options is given.",
        epilog=_EXAMPLE,
    )
    parser.add_argument(
        "scenario",
        metavar="SCENARIO",
        nargs="?",
        default=DEFAULT_SCENARIO,
        help=f"a bundled scenario's name, or a file (default: {DEFAULT_SCENARIO})",
    )
    parser.add_argument("-H", "--host", metavar="URL", help="the server, as http://server:8000")
    load = quick_options.add_to(parser)
    for option in RUN_OPTIONS:
        (load if option.name == "set" else parser).add_argument(option.flag, **option.keywords())
    locust_options.add_to(parser)
    parser.set_defaults(run=run, extra=())


def run(arguments: argparse.Namespace) -> int:
    """Run Locust in this process, as `python -m locust` does; its end raises SystemExit."""
    gc.disable()  # until `inferload.users` has been imported
    import_module("locust")  # first: other modules must not use what gevent replaces
    arguments.set = quick_options.settings(arguments)
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
    words += [] if locust_options.shows_web_ui(arguments.extra) else ["--headless"]
    words += ["--host", arguments.host] if arguments.host else []
    words += ["--scenario", arguments.scenario]
    return words + option_words(vars(arguments)) + list(arguments.extra)
