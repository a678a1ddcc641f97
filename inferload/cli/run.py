"""`inferload run`: run a scenario without a locustfile, by Locust with the equivalent command line, in this process."""

import argparse
from pathlib import Path
from typing import Any

from inferload.base.deployments import locustfile
from inferload.base.run_options import RUN_OPTIONS
from inferload.base.run_options import words as option_words
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
    """Run Locust in this process; its end raises SystemExit."""
    import inferload.base.collection  # noqa: F401 - none until `inferload.users` has been imported
    from inferload.locust_adapters import program  # Locust comes first: other modules use what gevent patches

    arguments.set = quick_options.settings(arguments)
    program.start(locust_words(arguments, locustfile()))
    return 0


def locust_words(arguments: argparse.Namespace, locustfile: Path) -> list[str]:
    """Return Locust's command line for the arguments."""
    words = ["-f", str(locustfile)]
    words += [] if locust_options.shows_web_ui(arguments.extra) else ["--headless"]
    words += ["--host", arguments.host] if arguments.host else []
    words += ["--scenario", arguments.scenario]
    return words + option_words(vars(arguments)) + list(arguments.extra)
