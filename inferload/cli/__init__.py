"""The `inferload` command. Other packages add sub-commands by entry points, which are imported on use."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TextIO, cast

from inferload import __version__
from inferload.base.argparse_ext import HelpfulParser, PassingParser, is_key
from inferload.base.errors import UsageError, instead
from inferload.base.escaping import escaped_lines
from inferload.base.on_use import OnUse
from inferload.base.redaction import safe_urls
from inferload.base.run_options import KEY_ON_COMMAND_LINE
from inferload.base.status_lines import Written, painting, print_error, progress
from inferload.scenario import language

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Sub-commands of this package, with the functions that add them to a parser's sub-commands.
BUILT_IN = OnUse[Callable[[Any], None]](
    {
        "run": "inferload.cli.run:register",
        "search": "inferload.cli.search_command:register",
        "ab": "inferload.cli.ab:register",
        **dict.fromkeys(("validate", "plan", "init"), "inferload.cli.scenario:register"),
        "fetch": "inferload.cli.fetch:register",
        "doctor": "inferload.cli.doctor:register",
        "scrape": "inferload.cli.scrape:register",
        "mark": "inferload.cli.mark:register",
        "calibrate": "inferload.cli.calibrate:register",
        "clean": "inferload.cli.clean:register",
        "completion": "inferload.cli.completion:register",
    }
)

# Groups of commands in `inferload --help`, with a line each.
GROUPS = {
    "run": {"run": "run a scenario against a server", "mark": "add an event to the run in progress"},
    "scenarios": {
        "init": "write a commented scenario file and a locustfile",
        "validate": "check scenario files",
        "plan": "explain sessions, turns, tokens and load of a scenario",
        "schema": "print the JSON Schema of scenarios or of run files",
        "import": "translate command lines of vLLM",
        "fetch": "download a data set",
    },
    "results": {
        "report": "write report.html, report.md and timeline.csv of a run",
        "compare": "compare configurations with a baseline, best one by goal",
        "baseline": "maintain a baseline of earlier runs",
    },
    "campaigns": {
        "ab": "compare running servers by pairs of runs",
        "search": "find the highest load that holds an SLO",
        "sweep": "compare variants with a baseline on scenarios",
        "study": "repeat the experiment of a published text",
    },
    "servers": {
        "deploy": "start, inspect and stop servers",
        "render": "write a run as files for a cluster or for containers",
        "simulator": "run the embedded vLLM-like server",
        "throughput": "measure the engine's limit on a variant",
        "scrape": "record the Prometheus metrics of servers",
    },
    "machine": {
        "doctor": "check this machine and a server",
        "calibrate": "measure how many streams one worker handles",
        "clean": "remove caches",
        "completion": "print the script for a shell's Tab key",
    },
}

_EXAMPLES = """\
Examples:
  inferload simulator --port 8000  # a server to try it with
  inferload run smoke --host http://127.0.0.1:8000 --duration 30s
  inferload report runs/latest
"""


@cache
def _satellites() -> "Sequence[EntryPoint]":
    """Return the commands of other packages. The search reads files of all that is installed."""
    from importlib.metadata import entry_points  # not of a run

    return tuple(entry_points(group="inferload.commands"))


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser with the sub-command `command`; with none if there is no such command. Only its module is imported.

    A sub-command sets `run`, a function of the parsed arguments that returns the exit code.
    """
    satellites = {} if command in BUILT_IN else {entry.name: entry for entry in _satellites()}
    parser = HelpfulParser(
        prog="inferload",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Load generation for LLM inference servers, on Locust.",
        epilog=_EXAMPLES
        + _commands_text([name for name in satellites if not any(name in group for group in GROUPS.values())]),
    )
    parser.add_argument("--version", action="version", version=f"inferload {__version__}")
    commands = parser.add_subparsers(
        prog="inferload", metavar="COMMAND", required=True, parser_class=PassingParser, help=argparse.SUPPRESS
    )
    if command is not None and command in BUILT_IN:
        BUILT_IN[command](commands)
    elif command in satellites:
        _add(satellites[command], commands)
    elif command is not None and not command.startswith("-"):
        hint = instead(command, [*BUILT_IN, *satellites], "inferload --help lists the commands")
        parser.error(f"{escaped_lines(command)}: unknown command; {hint}")
    return parser


def _commands_text(others: Sequence[str]) -> str:
    """Return the commands by group. `others`: commands of entry points without a group."""
    groups = {**GROUPS, **({"other": dict.fromkeys(sorted(others), "")} if others else {})}
    lines = [
        line
        for title, commands in groups.items()
        for line in ("", f"{title}:", *(f"  {name:<17} {text}".rstrip() for name, text in commands.items()))
    ]
    return "\n".join([*lines, "", "inferload COMMAND --help describes a command."]).lstrip()


def _add(entry: "EntryPoint", commands: Any) -> None:
    """Add the sub-command of an entry point; if it cannot be loaded, a command that reports the error."""
    try:
        register = entry.load()
    except ImportError as error:
        reason = (
            f"{entry.name}: cannot be loaded: {error}; install inferload anew: pip install --force-reinstall inferload"
        )
        commands.add_parser(entry.name, add_help=False).set_defaults(run=partial(_refuse, reason), extra=())
    else:
        register(commands)


def _refuse(reason: str, _arguments: argparse.Namespace) -> int:
    raise UsageError(reason)


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; a UsageError becomes one line on stderr and exit code 2."""
    if "_ARGCOMPLETE" in os.environ:
        from inferload.cli.completion import complete

        complete()
    words = sys.argv[1:] if argv is None else argv
    progress.is_shown = words[:1] != ["run"]  # which has status lines of its own
    parser = build_parser(words[0] if words else None)
    first = words[0].partition("=")[0] if words else ""
    # argparse would report the value of an unknown option as a command.
    if first.startswith("-") and first not in parser._option_string_actions:
        parser.error(
            KEY_ON_COMMAND_LINE if is_key(first) else f"{first}: unknown; a command comes first: inferload --help"
        )
    arguments = parser.parse_args(words)
    chosen = language.used(getattr(arguments, "lang", None))
    try:
        # Printed texts may come from servers and files.
        escaping = contextlib.redirect_stdout(cast(TextIO, Written(painting(sys.stdout), escaped_lines)))
        with chosen, escaping, contextlib.redirect_stderr(painting(sys.stderr)):
            code = int(arguments.run(arguments) or 0)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of a pipe has closed it, as `| head` does: no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        print_error(escaped_lines(safe_urls(str(error))))
        return 2
    except KeyboardInterrupt:
        return 130
