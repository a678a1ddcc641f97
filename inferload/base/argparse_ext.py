"""Argument parser of the commands: help with examples first, words after `--`, and similar options and choices for unknown ones."""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from inferload.base.errors import instead
from inferload.base.run_options import KEY_ON_COMMAND_LINE
from inferload.base.status_lines import has_colour, painting, styled

# Options of vllm bench, GuideLLM, AIPerf, k6 and others, by the option of inferload run with the same meaning.
ELSEWHERE = {
    **dict.fromkeys(
        ("--concurrency", "--max-concurrency", "--num-users", "--num-concurrency", "--vus", "--clients", "--threads"),
        "--users",
    ),
    **dict.fromkeys(("--request-rate", "--qps", "--rps", "--arrival-rate", "--requests-per-second"), "--rate"),
    **dict.fromkeys(
        ("--num-prompts", "--num-requests", "--max-requests", "--request-count", "--requests", "--conversation-num"),
        "--sessions",
    ),
    **dict.fromkeys(("--max-seconds", "--time", "--benchmark-duration", "--max-time", "--measure-s"), "--duration"),
    **dict.fromkeys(
        ("--random-input-len", "--input-tokens", "--prompt-tokens", "--isl", "--synthetic-input-tokens-mean"),
        "--input-len",
    ),
    **dict.fromkeys(
        ("--random-output-len", "--output-tokens", "--max-tokens", "--osl", "--output-tokens-mean"), "--output-len"
    ),
    **dict.fromkeys(("--base-url", "--url", "--target", "--endpoint-url"), "--host"),
    **dict.fromkeys(("--result-dir", "--output-dir", "--output-path"), "--run-dir"),
}

_USAGE_ARGUMENTS = 8  # a usage of more arguments is left out of an error, and names no options in the help
_LEAST_COLUMNS, _MOST_COLUMNS = 60, 120  # of the help
_EXAMPLES = "Examples:\n"  # begin of an epilog; lines that are indented follow
_ROW = re.compile(r"  +\S+ {2,}")  # begin of an indented line with a text in a second column
_QUOTED = r"""(?:"[^"]*"|'[^']*'|\S)+"""
_HEADING = re.compile(r"^(?:usage:|[A-Za-z][\w' ]*:$)", re.MULTILINE)
_LIST_PART = re.compile(r"[^,\s]+(?:, ?| )?")
_SHELL_PART = re.compile(rf"--?[a-z][\w-]* (?![-|>\\]){_QUOTED}|{_QUOTED}")  # a word, or an option with its value


def is_key(word: str) -> bool:
    """Return True if a word of a command line is the refused option --api-key."""
    return word.partition("=")[0] == "--api-key"


def check_choice(action: argparse.Action, value: object) -> None:
    """Raise ArgumentError for a value that is no choice of an argument."""
    if action.choices is not None and value not in action.choices:
        raise argparse.ArgumentError(action, f"{value}: unknown; {instead(str(value), map(str, action.choices))}")


def help_columns() -> int:
    """Return the width of help texts: that of the terminal, or of COLUMNS, within limits; 80 without both."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, _LEAST_COLUMNS), _MOST_COLUMNS)


class _Formatter(argparse.HelpFormatter):
    """Help in the width of the terminal: paragraphs are filled, indented lines stay, and examples can be copied."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"width": help_columns(), **options})

    def _format_usage(self, usage: Any, actions: Iterable[argparse.Action], groups: Any, prefix: Any) -> str:
        actions = list(actions)
        whole = super()._format_usage(usage, actions, groups, prefix)
        if usage is not None or (len(actions) <= _USAGE_ARGUMENTS and max(map(len, whole.splitlines())) <= self._width):
            return whole
        needed = [action for action in actions if action.required or not action.option_strings]
        return super()._format_usage(usage, needed, (), prefix).replace(self._prog, f"{self._prog} [options]", 1)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return self._broken(super()._format_action_invocation(action))
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return self._broken(f"{', '.join(action.option_strings)} {value}")

    def _broken(self, text: str) -> str:
        """Break a text that is too long for a line after commas and spaces."""
        lines, most = [""], self._width - self._current_indent
        for part in _LIST_PART.findall(text):
            if len(lines[-1]) + len(part.rstrip()) > most and lines[-1]:
                lines.append("  ")
            lines[-1] += part
        return ("\n" + " " * self._current_indent).join(line.rstrip() for line in lines)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(line for block in _blocks(text) for line in _filled(block, width))


def _blocks(text: str) -> list[str]:
    """Split a text into paragraphs, each in one line, and indented or empty lines."""
    blocks: list[str] = []
    for line in text.strip().splitlines():
        follows = blocks and blocks[-1] and not blocks[-1].startswith(" ") and f"{blocks[-1]}\n" != _EXAMPLES
        if follows and line and not line.startswith(" "):
            blocks[-1] += f" {line}"
        else:
            blocks.append(line)
    return blocks


def _filled(block: str, width: int) -> list[str]:
    """Return the lines of a block. A command that is too long with its comment is continued as in a shell, below the comment."""
    indent = block[: len(block) - len(block.lstrip())]
    if not block.startswith("  inferload ") or len(block) <= width:
        rest = " " * len((_ROW.match(block) or [f"{indent}  " if indent else ""])[0])
        return textwrap.wrap(block, width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False) or [
            ""
        ]
    command, _, comment = block.partition("  # ")
    lines, line = [f"{indent}# {comment}"] * bool(comment), indent
    for word in _SHELL_PART.findall(command):
        if len(line) + len(word) + 3 > width and line.strip():
            lines, line = [*lines, f"{line.rstrip()} \\"], f"{indent}    "
        line += f"{word} "
    return [*lines, line.rstrip()]


class HelpfulParser(argparse.ArgumentParser):
    """Parser whose help has the examples before the arguments, in the width of the terminal, with styles on one.

    `examples`: commands, one a line; by default the indented lines of an epilog that begins with `Examples:`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        epilog = options.pop("epilog", None) or ""
        cut = re.match(rf"{_EXAMPLES}((?:  .*\n?)+)", epilog)
        self.examples: Sequence[str] = textwrap.dedent(cut[1]).strip().splitlines() if cut else ()
        epilog = epilog[cut.end() :] if cut else epilog
        super().__init__(
            *arguments, **{"allow_abbrev": False, "formatter_class": _Formatter, **options, "epilog": epilog or None}
        )

    def format_help(self) -> str:
        """Return usage, description, examples, arguments and epilog."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.add_text(_EXAMPLES + textwrap.indent("\n".join(self.examples), "  ") if self.examples else None)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _print_message(self, message: str, file: Any = None) -> None:
        stream = file or sys.stderr
        if has_colour(stream):
            message = _HEADING.sub(lambda heading: styled(heading[0], "heading"), message)
        super()._print_message(message, painting(stream))


class PassingParser(HelpfulParser):
    """Parser that collects the words after `--` in `extra`, if it has a default (a tuple) for that name.

    argparse takes these words as positional arguments.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, without the words after `--`. An unknown option is an error."""
        if self.get_default("extra") is None or args is None or "--" not in args:
            return self._known(args, namespace)
        words = list(args)
        cut = words.index("--")
        parsed, unknown = self._known(words[:cut], namespace)
        parsed.extra = (*parsed.extra, *words[cut + 1 :])
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error in one line, after the usage if that is short, and exit with code 2."""
        usage = self.format_usage() if len(self._actions) <= _USAGE_ARGUMENTS else ""
        self.exit(2, f"{usage}{self.prog}: error: {message}\n")

    def _known(self, args: Any, namespace: Any) -> Any:
        if "--api-key" not in self._option_string_actions and any(map(is_key, args or ())):
            self.error(KEY_ON_COMMAND_LINE)
        parsed, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            name = word.partition("=")[0]
            if name.startswith("-") and name != "--":
                known = [option for option in self._option_string_actions if option.startswith("--")]
                meant = ELSEWHERE[name] if ELSEWHERE.get(name) in known else name  # an option of other tools
                self.error(f"{name}: unknown; {instead(meant, known, '--help lists the options')}")
        if unknown:
            self.error(f"{unknown[0]}: unexpected; --help lists the arguments")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        check_choice(action, value)
