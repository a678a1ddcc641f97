"""Parser of a `vllm bench serve` command line."""

import argparse
import difflib
import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import NoReturn

from inferload.errors import UsageError
from inferload.vllm_bench.options import OPTIONS
from inferload.vllm_bench.translation import Translation


class _BenchParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


@cache
def _parser() -> _BenchParser:
    parser = _BenchParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, option in OPTIONS.items():
        if option.read is None:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=option.read, nargs="+" if option.many else None)
    return parser


def parse(text: str) -> Translation:
    """Split the command line as a shell and vLLM do; UsageError has one line for each unknown option."""
    script, words = _after_command(_shell_words(text))
    parsed, unknown = _parser().parse_known_args(words)
    faults = []
    for index, word in enumerate(unknown):
        if word.startswith("--"):
            near = difflib.get_close_matches(word[2:], OPTIONS, n=1)
            hint = f"; did you mean --{near[0]}?" if near else ""
            faults.append(f"{word}: no option of vllm bench serve{hint}")
        elif not index or not unknown[index - 1].startswith("--"):  # else the value of an unknown option
            faults.append(f"{word}: belongs to no option; quote values that contain blanks")
    if faults:
        raise UsageError("\n".join(faults))
    return Translation(words, script, {name.replace("_", "-"): value for name, value in vars(parsed).items()})


def _shell_words(text: str) -> list[str]:
    """Return the words of one command, which may span several lines with a comment after each backslash."""
    lines = [re.sub(r"\\\s*(#.*)?$", "", line) for line in text.strip().splitlines()]
    try:
        words = shlex.split(" ".join(lines), comments=True)
    except ValueError as error:
        raise UsageError(f"the command line cannot be read: {error}; paste it whole, quotes included") from None
    ends = (index for index, word in enumerate(words) if re.fullmatch(r"\||\|\||&|&&|;|[0-9&]*>.*", word))
    return words[: next(ends, len(words))]


def _after_command(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Return (benchmark_serving.py is called, its options as `--name value` with dashes)."""
    for index, word in enumerate(words):
        script = bool(re.search(r"benchmark_serving(\.py)?$|^vllm\.benchmarks?\.serve$", word))
        if script or words[index : index + 2] == ["bench", "serve"]:
            return script, [part for word in words[index + 2 - script :] for part in _dashed(word)]
        other = re.search(r"benchmark_(?!serving)\w+(\.py)?$", word)
        if other or (word == "bench" and words[index + 1 : index + 2]):
            name = other[0] if other else f"vllm bench {words[index + 1]}"
            raise UsageError(f"{name}: only serve is translated; see inferload throughput, inferload sweep")
    raise UsageError(
        "no `vllm bench serve` and no benchmark_serving.py in it; paste the whole command, in quotes: "
        "inferload from-vllm-bench 'vllm bench serve --model ...'"
    )


def _dashed(word: str) -> tuple[str, ...]:
    if not word.startswith("--"):
        return (word,)
    name, equals, value = word.partition("=")
    return (name.replace("_", "-"), value) if equals else (name.replace("_", "-"),)
