"""Argument parser of the commands: help with examples first, words after `--`, and similar options and choices for unknown ones."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterable
from itertools import takewhile
from typing import Any, NoReturn

from inferload.base.errors import instead
from inferload.base.run_options import KEY_ON_COMMAND_LINE
from inferload.base.status_lines import has_colour, painting, styled, wrapped

# Options of vllm bench, GuideLLM, AIPerf, k6 and others, by the option of inferload run with the same meaning.
_OTHER_NAMES = {
    "--users": "concurrency max-concurrency num-users num-concurrency vus clients threads",
    "--rate": "request-rate qps rps arrival-rate requests-per-second",
    "--sessions": "num-prompts num-requests max-requests request-count requests conversation-num",
    "--duration": "max-seconds time benchmark-duration max-time measure-s",
    "--input-len": "random-input-len input-tokens prompt-tokens isl synthetic-input-tokens-mean",
    "--output-len": "random-output-len output-tokens max-tokens osl output-tokens-mean",
    "--host": "base-url url target endpoint-url",
    "--run-dir": "result-dir output-dir output-path",
}
ELSEWHERE = {f"--{name}": option for option, names in _OTHER_NAMES.items() for name in names.split()}

_USAGE_ARGUMENTS = 8  # a usage of more arguments is left out of an error, and names no options in the help
_LEAST_COLUMNS, _MOST_COLUMNS = 60, 120  # of the help
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
EXAMPLES = "\n\nExamples:\n"  # before the commands in a description; they are indented
_HEADING = re.compile(r"^(?:usage:|[A-Za-z][\w' ]*:$)", re.MULTILINE)


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
        if usage is not None or len(actions) <= _USAGE_ARGUMENTS:
            return super()._format_usage(usage, actions, groups, prefix)
        needed = [action for action in actions if action.required or not action.option_strings]
        return super()._format_usage(usage, needed, (), prefix).replace(self._prog, f"{self._prog} [options]", 1)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(" ".join(text.split()), width)  # names with hyphens stay whole

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = re.sub(r"(?m)^(\S.*)\n(?=\S)", r"\1 ", text.strip()).splitlines()
        return "\n".join(part for line in lines for part in _filled(line, width))


def _filled(line: str, width: int) -> list[str]:
    """Wrap a line. A command is continued as in a shell, below its comment."""
    rest = "    " if line.startswith(" ") else ""
    if not line.startswith("  inferload ") or len(line) <= width:
        return wrapped(line, width, rest=rest) or [""]
    command, _, comment = line.partition("  # ")
    words = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", "\0"), command)
    continued = " \\\n".join(wrapped(words, width - 2, rest=rest)).replace("\0", " ")
    return [*([f"  # {comment}"] if comment else []), continued]


class HelpfulParser(argparse.ArgumentParser):
    """Parser whose help has the examples, with which an epilog begins, before the arguments, and styles on a terminal."""

    def __init__(self, *arguments: Any, epilog: str | None = None, **options: Any) -> None:
        if examples := re.match(rf"{EXAMPLES.lstrip()}(?:  .*\n?)+", epilog or ""):
            options["description"] = f"{options.get('description', '')}\n\n{examples[0]}"
            epilog = examples.string[examples.end() :] or None
        defaults = {"allow_abbrev": False, "formatter_class": _Formatter}
        super().__init__(*arguments, **{**defaults, **options, "epilog": epilog})

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
        words = sys.argv[1:] if args is None else args
        if "--api-key" not in self._option_string_actions and any(map(is_key, words)):
            self.error(KEY_ON_COMMAND_LINE)
        if self._subparsers is None:  # whose arguments would be missing because of a misspelled option
            self._refuse_unknown(word for word in takewhile("--".__ne__, words) if word.startswith("--"))
        parsed, unknown = super().parse_known_args(args, namespace)
        self._refuse_unknown(word for word in unknown if word.startswith("-"))
        if unknown:
            self.error(f"{unknown[0]}: unexpected; --help lists the arguments")
        return parsed, unknown

    def _refuse_unknown(self, words: Iterable[str]) -> None:
        for word in words:
            name = word.partition("=")[0]
            if name not in self._option_string_actions and name != "--" and " " not in name:
                known = [option for option in self._option_string_actions if option.startswith("--")]
                meant = ELSEWHERE[name] if ELSEWHERE.get(name) in known else name  # an option of other tools
                self.error(f"{name}: unknown; {instead(meant, known, '--help lists the options')}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        check_choice(action, value)
