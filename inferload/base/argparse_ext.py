"""Argument parser of the commands: collects the words after `--`, and suggests the nearest option for an unknown one."""

import argparse
import difflib
from typing import Any, NoReturn

from inferload.base.run_options import KEY_ON_COMMAND_LINE

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

_USAGE_LINES = 3  # a longer usage is left out of an error


def is_key(word: str) -> bool:
    """Return True if a word of a command line is the refused option --api-key."""
    return word.partition("=")[0] == "--api-key"


class PassingParser(argparse.ArgumentParser):
    """Parser that collects the words after `--` in `extra`, if it has a default (a tuple) for that name.

    argparse takes these words as positional arguments. An epilog of several lines is printed as it is, with the description.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        is_laid_out = "\n" in (options.get("epilog") or "")
        formatter = argparse.RawDescriptionHelpFormatter if is_laid_out else argparse.HelpFormatter
        super().__init__(*arguments, **{"allow_abbrev": False, "formatter_class": formatter, **options})

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
        usage = self.format_usage()
        if usage.count("\n") > _USAGE_LINES:
            usage = ""
        self.exit(2, f"{usage}{self.prog}: error: {message}\n")

    def _known(self, args: Any, namespace: Any) -> Any:
        if "--api-key" not in self._option_string_actions and any(map(is_key, args or ())):
            self.error(KEY_ON_COMMAND_LINE)
        parsed, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            name = word.partition("=")[0]
            if name.startswith("-") and name != "--":
                near = self._nearest(name)
                self.error(f"{name}: unknown" + (f"; did you mean {near}?" if near else "; --help lists the options"))
        if unknown:
            self.error(f"{unknown[0]}: unexpected; --help lists the arguments")
        return parsed, unknown

    def _nearest(self, name: str) -> str | None:
        """Return the option with the meaning that other tools give the unknown one, else the one of the most similar name."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        if (equivalent := ELSEWHERE.get(name)) in known:
            return equivalent
        near = difflib.get_close_matches(name[2:], [option[2:] for option in known], n=1, cutoff=0.7)
        return f"--{near[0]}" if near else None
