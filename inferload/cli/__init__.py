"""The `inferload` command. Satellites bring their sub-commands in by entry point, so nothing here imports them."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TextIO, cast

from inferload import __version__
from inferload.errors import UsageError
from inferload.measure.untrusted import escaped_lines
from inferload.passing import PassingParser, is_key
from inferload.runoptions import KEY_ON_COMMAND_LINE

# The load path's own sub-commands: the module whose `register` adds them. Only what is asked for is imported.
BUILT_IN = {
    "run": "inferload.cli.run",
    "search": "inferload.cli.search.command",
    **dict.fromkeys(("validate", "plan", "path", "schema", "init"), "inferload.cli.scenario"),
    "from-vllm-bench": "inferload.cli.from_vllm_bench",
    "doctor": "inferload.cli.doctor",
    "scrape": "inferload.cli.scrape",
    "calibrate": "inferload.cli.calibrate",
    "collect": "inferload.cli.collect",
    "interference": "inferload.cli.interference",
}

REMOVED = {"gates": "inferload report RUN --junit FILE --markdown FILE --github"}


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The command line, sub-commands of installed satellites included; of a `command` that is known, that one alone.

    A sub-command sets `run`, a function of the parsed arguments that returns the exit code.
    """
    parser = argparse.ArgumentParser(
        prog="inferload", description="Load generation for LLM inference servers, on Locust.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"inferload {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=PassingParser)
    satellites = {entry.name: entry for entry in entry_points(group="inferload.commands")}
    known = command in BUILT_IN or command in satellites
    for module in dict.fromkeys(module for name, module in BUILT_IN.items() if not known or name == command):
        import_module(module).register(commands)
    for name in sorted(satellites):
        if not known or name == command:
            _add(satellites[name], commands)
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


class _Escaping:
    """Standard output that escapes control characters: names and texts of servers and files are among what is printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, line feeds and tabs as they are."""
        self._stream.write(escaped_lines(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; a UsageError becomes one line on stderr and exit code 2."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words[0] if words else None)
    first = words[0].partition("=")[0] if words else ""
    if first.startswith("-") and first not in parser._option_string_actions:  # its value would be shown as a command
        parser.error(
            KEY_ON_COMMAND_LINE if is_key(first) else f"{first}: unknown; a command comes first: inferload --help"
        )
    if first in REMOVED:
        parser.error(f"{first}: removed; use {REMOVED[first]}")
    arguments = parser.parse_args(words)
    try:
        with contextlib.redirect_stdout(cast(TextIO, _Escaping(sys.stdout))):
            code = int(arguments.run(arguments) or 0)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has had enough, as `| head` does: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        print(f"inferload: {escaped_lines(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
