"""Reference of all commands and options, from their parsers: `python -m inferload.cli.reference > docs/reference/cli.md`."""

import argparse
from collections.abc import Iterator

from inferload.base.argparse_ext import EXAMPLES
from inferload.cli import GROUPS, build_parser

_HEAD = """# Commands

<!-- Generated: python -m inferload.cli.reference > docs/reference/cli.md -->

`inferload COMMAND --help` prints the same in a terminal. `locust -f FILE` has the options of `inferload run`
except those of the group *load*, of which it has `--set`. The exit codes are in the [README](../../README.md#exit-codes).
"""

Parsers = dict[str, argparse.ArgumentParser]

_PLAIN_GROUPS = ("positional arguments", "options")


def document() -> str:
    """Return the text of docs/reference/cli.md."""
    sections = []
    for title, commands in GROUPS.items():
        sections.append(f"## {title.capitalize()}\n")
        sections += [_section(name, parser) for command in commands for name, parser in parsers(command).items()]
    return "\n".join([_HEAD, _contents(), *sections])


def parsers(command: str) -> Parsers:
    """Return the parsers of a command and of its sub-commands, by name."""
    return _nested(command, subparsers(build_parser(command))[command])


def _nested(name: str, parser: argparse.ArgumentParser) -> Parsers:
    members = {name: parser}
    for word, subparser in subparsers(parser).items():
        members |= _nested(f"{name} {word}", subparser)
    return members


def subparsers(parser: argparse.ArgumentParser) -> Parsers:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _contents() -> str:
    rows = [(f"[`{name}`](#inferload-{name})", text) for commands in GROUPS.values() for name, text in commands.items()]
    return _table("command", "purpose", rows)


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    parts = [f"### inferload {name}\n"]
    about, _, examples = (parser.description or "").partition(EXAMPLES)
    if about:
        parts.append(_text(about) + "\n")
    if examples:
        parts.append("\n".join(["```sh", *(line.strip() for line in examples.splitlines()), "```\n"]))
    plain = [group for group in parser._action_groups if group.title in _PLAIN_GROUPS]
    rows = [row for group in plain for row in _rows(parser, group._group_actions)]
    if rows:
        parts.append(_table("argument", "meaning", rows))
    for group in parser._action_groups:
        if group not in plain and (rows := list(_rows(parser, group._group_actions))):
            about = f" {_text(group.description)}" if group.description else ""
            parts += [f"**{group.title}:**{about}\n", _table("argument", "meaning", rows)]
    if rest := parser.epilog:
        parts.append(f"```text\n{rest.strip()}\n```\n" if "\n  " in rest else _text(rest) + "\n")
    return "\n".join(parts)


def _rows(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> Iterator[tuple[str, str]]:
    formatter = parser._get_formatter()
    for action in actions:
        hidden = action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction)
        if not hidden and not isinstance(action, argparse._SubParsersAction):
            text = formatter._expand_help(action) if action.help else ""
            yield _name(formatter, action), _text(_with_default(action, text)).replace("|", "\\|")


def _with_default(action: argparse.Action, text: str) -> str:
    """State the default of a switch; argparse itself appends it in some versions of Python only."""
    if not isinstance(action, argparse.BooleanOptionalAction) or action.default is None:
        return text
    return f"{text.removesuffix(f' (default: {action.default})')} (default: {'on' if action.default else 'off'})"


def _name(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    """Return the option strings with their values, or the name of a positional argument."""
    if not action.option_strings:
        return _code(formatter._format_args(action, formatter._get_default_metavar_for_positional(action).upper()))
    value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    return ", ".join(_code(f"{option} {value}".rstrip()) for option in action.option_strings)


def _text(text: str) -> str:
    return " ".join(text.split()).replace("<", "\\<")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _table(first: str, second: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {first} | {second} |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
