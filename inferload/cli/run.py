"""`inferload run`: run a scenario without a locustfile, by executing the equivalent `locust` command."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from inferload.base.deployments import locustfile
from inferload.base.run_options import RUN_OPTIONS, words
from inferload.cli import locust_options, quick_options

DEFAULT_SCENARIO = "chat"  # the one of the bundled locustfile
_EXAMPLE = "example: inferload run smoke --host http://server:8000 --users 20 --duration 60s --processes 2"


def register(commands: Any) -> None:
    """Add the sub-command."""
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
    """Replace this process by Locust."""
    arguments.set = quick_options.settings(arguments)
    command = locust_command(arguments, locustfile())
    os.execv(command[0], command)


def locust_command(arguments: argparse.Namespace, locustfile: Path) -> list[str]:
    """Return the `locust` command line for the arguments."""
    command = [sys.executable, "-m", "locust", "-f", str(locustfile)]
    command += [] if locust_options.shows_web_ui(arguments.extra) else ["--headless"]
    command += ["--host", arguments.host] if arguments.host else []
    command += ["--scenario", arguments.scenario]
    return command + words(vars(arguments)) + list(arguments.extra)
