"""`inferload completion`: the script of a shell, and what the shell asks for at each Tab.

A Tab imports no command: arguments and fixed values are in completion.json, made from the parsers by
`inferload.cli.completion_table`.
"""

import argparse
import glob
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from inferload.base import rundir

_TABLE = Path(__file__).with_suffix(".json")
# Ends of the files that are values of a kind.
_FILES = {**dict.fromkeys(("scenario", "sweep", "study"), (".yaml", ".yml")), "run": (".json",), "file": ("",)}
_EPILOG = """\
Examples:
  inferload completion bash > ~/.local/share/bash-completion/completions/inferload
  inferload completion zsh > ~/.zfunc/_inferload  # a folder of fpath
  inferload completion fish > ~/.config/fish/completions/inferload.fish
For one session of bash or zsh: eval "$(inferload completion bash)". It completes commands, options, scenarios,
variants, run directories, and the folders of campaigns."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        description="Print the script by which a shell completes the arguments of inferload at Tab.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode  # not of a run

    print(shellcode(["inferload"], use_defaults=False, shell=arguments.shell).strip())
    return 0


def complete(**options: Any) -> None:
    """Answer the shell, which has set the line and the position in the environment, and exit. `options`: of argcomplete."""
    from argcomplete import autocomplete
    from argcomplete.completers import ChoicesCompleter

    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()
    parser = argparse.ArgumentParser(prog="inferload", allow_abbrev=False)
    _build(parser, table, {"commands": table["commands"]}, words[1:2])
    autocomplete(parser, always_complete_options=False, default_completer=ChoicesCompleter({}), **options)


def _build(parser: argparse.ArgumentParser, table: Any, rows: Any, only: Iterable[str] = ()) -> None:
    """Add arguments and commands of the table to a parser. `only`: the commands that get their arguments; all if empty."""
    for number, (flags, kind, nargs, choices, text) in enumerate(rows.get("arguments", ())):
        options = {"action": "store_true"} if nargs == 0 else {"nargs": nargs, "choices": choices}
        action: Any = parser.add_argument(*(flags or [f"argument{number}"]), **options)
        action.help = text
        if kind:
            action.completer = _completer(kind, table["values"])
    if "commands" in rows:
        commands = parser.add_subparsers(metavar="COMMAND")
        for name, inner in rows["commands"].items():
            added = commands.add_parser(name, help=inner["help"], allow_abbrev=False)
            if not only or name in only:
                _build(added, table, inner)


def _completer(kind: str, values: dict[str, list[str]]) -> Callable[..., list[str]]:
    """Return the function that lists the values of a kind that begin with a prefix. `values`: the fixed ones by kind."""

    def completed(prefix: str, **_asked: Any) -> list[str]:
        before, sign, begun = prefix.rpartition("=") if kind == "run" else ("", "", prefix)
        listed, comma, last = begun.rpartition(",") if kind == "variant" else ("", "", begun)
        known = [f"{listed}{comma}{name}" for name in values.get(kind, ()) if name.startswith(last)]
        known += _paths(begun or ("runs/" if kind == "run" else ""), _FILES[kind]) if kind in _FILES else []
        return [f"{before}{sign}{value}" for value in known]

    return completed


def _paths(begun: str, ends: tuple[str, ...]) -> list[str]:
    """Return folders, and files with one of these ends; a run directory is no folder with more to choose from."""
    found = [f"{path}/" if os.path.isdir(path) else path for path in glob.glob(f"{glob.escape(begun)}*")]
    is_run = {path for path in found if (Path(path) / rundir.MANIFEST).is_file()}
    return [path.rstrip("/") if path in is_run else path for path in found if path.endswith(("/", *ends))]
