"""The `inferload` command. Satellites bring their sub-commands in by entry point, so nothing here imports them."""

import argparse
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from inferload import __version__
from inferload.cli import calibrate, collect, doctor, frombench, interference, run, scenario
from inferload.cli.search import command as search
from inferload.errors import UsageError
from inferload.passing import PassingParser

# The load path's own sub-commands, as functions of the sub-parsers.
BUILT_IN: tuple[Callable[[Any], None], ...] = (
    run.register,
    search.register,
    scenario.register,
    frombench.register,
    doctor.register,
    calibrate.register,
    collect.register,
    interference.register,
)


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
        _add(entry, commands)
    return parser


def _add(entry: EntryPoint, commands: Any) -> None:
    """A satellite's sub-command; one that cannot be loaded says why when it is asked for, and spoils no other."""
    try:
        register = entry.load()
    except ImportError as error:
        reason = (
            f"{entry.name}: cannot be loaded: {error}; install inferload anew: pip install --force-reinstall inferload"
        )
        commands.add_parser(entry.name, help="(cannot be loaded)", add_help=False).set_defaults(
            run=_refuse(reason), extra=()
        )
    else:
        register(commands)


def _refuse(reason: str) -> Callable[[argparse.Namespace], int]:
    def run(_arguments: argparse.Namespace) -> int:
        raise UsageError(reason)

    return run


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; a UsageError becomes one line on stderr and exit code 2."""
    arguments = build_parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has had enough, as `| head` does: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        print(f"inferload: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
