"""Table of the arguments and fixed values for `inferload completion`.

`python -m inferload.cli.completion_table > inferload/cli/completion.json`
"""

import argparse
import contextlib
import io
import json
import re
from typing import Any

from inferload import cli
from inferload.cli import reference
from inferload.figures.rate_figures import FAILED_RATIO, GOODPUT, OUTPUT, TURNS
from inferload.figures.turn_figures import HEADLINES
from inferload.scenario.files import catalog

# Kind of the values of an argument, by `command destination`, destination or metavar.
_KINDS = {
    **dict.fromkeys(("SCENARIO", "NAME-OR-PATH"), "scenario"),
    **dict.fromkeys(("variant", "variants", "VARIANT"), "variant"),
    **dict.fromkeys(("RUN", "SIDE", "resume"), "run"),
    **dict.fromkeys(("FIGURE", "GATE", "EXPR", "LIMIT", "slo"), "figure"),
    **dict.fromkeys(("FILE", "PEM", "PREFIX", "PATH", "LINE-OR-FILE", "DIR"), "file"),
    **{"init source": "scenario", "study name": "study", "sweep file": "sweep"},
}


def document() -> str:
    """Return the text of completion.json."""

    def rows(name: str, parser: argparse.ArgumentParser, text: str) -> dict[str, Any]:
        inner = {word: rows(f"{name} {word}", each, "") for word, each in reference.subparsers(parser).items()}
        arguments = [_row(name, parser, action) for action in parser._actions if action.dest != "help"]
        return {"help": text, "arguments": [row for row in arguments if row], **({"commands": inner} if inner else {})}

    with contextlib.redirect_stdout(io.StringIO()) as variants:
        cli.main(["deploy", "list", "--json"])
    of_turns = [f"{statistic}({each.key})" for each in HEADLINES for statistic in ("mean", "p50", "p95", "p99")]
    values = {
        "scenario": catalog.names(),
        **{kind: catalog.names(folder) for kind, folder in (("sweep", "sweeps"), ("study", "studies"))},
        "variant": [each["name"] for each in json.loads(variants.getvalue())],
        "figure": [*of_turns, *(each.key for each in (OUTPUT, TURNS, GOODPUT, FAILED_RATIO))],
    }
    texts = {name: text for group in cli.GROUPS.values() for name, text in group.items()}
    commands = {name: rows(name, reference.parsers(name)[name], text) for name, text in texts.items()}
    text = json.dumps({"values": values, "commands": commands}, indent=1)
    return re.sub(r"\[\n(?:[^][{}]|\[[^][{}]*\])*\]", lambda row: " ".join(row[0].split()), text) + "\n"


def _row(name: str, parser: argparse.ArgumentParser, action: argparse.Action) -> list[Any]:
    """Return flags, kind, number, choices and text of an argument; empty for a hidden one and the choice of a sub-command."""
    if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
        return []
    kind = next(
        (_KINDS[key] for key in (f"{name} {action.dest}", action.dest, str(action.metavar)) if key in _KINDS), ""
    )
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    choices = None if action.choices is None else [str(choice) for choice in action.choices]
    return [action.option_strings, kind, action.nargs, choices, re.split(r"; | \(", text)[0]]


if __name__ == "__main__":
    print(document(), end="")
