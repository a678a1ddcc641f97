"""The `inferload` command. Satellites bring their sub-commands in by entry point, so nothing here imports them."""

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from inferload import __version__
from inferload.cli import calibrate, doctor, run, scenario
from inferload.errors import UsageError
from inferload.passing import PassingParser

# The load path's own sub-commands, as functions of the sub-parsers.
BUILT_IN: tuple[Callable[[Any], None], ...] = (run.register, scenario.register, doctor.register, calibrate.register)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, sub-commands of installed satellites included.

    A sub-command sets `run`, a function of the parsed arguments that returns the exit code.
    """
    parser = argparse.ArgumentParser(
        prog="inferload", description="Load generation for LLM inference servers, on Locust."
    )
    parser.add_argument("--version", action="version", version=f"inferload {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=PassingParser)
    for register in BUILT_IN:
        register(commands)
    for entry in sorted(entry_points(group="inferload.commands"), key=lambda entry: entry.name):
        entry.load()(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; a UsageError becomes one line on stderr and exit code 2."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except UsageError as error:
        print(f"inferload: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
