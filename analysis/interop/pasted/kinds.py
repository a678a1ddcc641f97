"""Recognition of vLLM's commands among the words of a command, and their options. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .shell import Command, ascii_option

SERVE, BENCH, THROUGHPUT = "serve", "bench serve", "bench throughput"

# Scripts and modules; those of `vllm.benchmarks` came with `vllm bench`.
_KINDS = {
    "api_server": SERVE,
    "benchmark_serving": BENCH,
    "benchmark_throughput": THROUGHPUT,
    "vllm.benchmarks.serve": BENCH,
    "vllm.benchmarks.throughput": THROUGHPUT,
}
_MODULE = re.compile(r"(?:.*/|vllm\.(?:entrypoints\.openai|benchmarks?)\.)?(\w+)(?:\.py)?")
_PROGRAM = re.compile(r"(?:.*/)?vllm|vllm\.entrypoints\.cli\.main")
_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?:[:@]\S+)?")
_CONTAINER = re.compile(r"(?:.*/)?(?:docker|podman|nerdctl)")
_OPTION = re.compile(r"-[^\d]")  # and no negative number


@dataclass(frozen=True, slots=True)
class VllmCommand:
    """A command of vLLM. `words`: its arguments; `script`: benchmark_serving.py, which `vllm bench serve` followed."""

    kind: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    script: bool = False


def recognised(command: Command) -> VllmCommand | None:
    """Return the command of vLLM that a command runs; None for other commands."""
    words = command.words
    if words and _CONTAINER.fullmatch(words[0]):
        return _of_container(command)
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        if _PROGRAM.fullmatch(word):
            for kind in (SERVE, BENCH, THROUGHPUT):
                if " ".join(rest[: len(kind.split())]) == kind:
                    return VllmCommand(kind, rest[len(kind.split()) :], command.environment)
        if (match := _MODULE.fullmatch(word)) and (found := _KINDS.get(word) or _KINDS.get(match[1])):
            return VllmCommand(found, rest, command.environment, word != "vllm.benchmarks.serve")
    return None


def _of_container(command: Command) -> VllmCommand | None:
    """Read the arguments after vLLM's image, whose entry point is `vllm serve`, and the variables before it."""
    words = command.words
    at = next((index for index, word in enumerate(words) if _IMAGE.fullmatch(word)), None)
    if at is None:
        return None
    pairs = [
        value if equals else following
        for word, following in pairwise(words[: at + 1])
        for option, equals, value in (word.partition("="),)
        if option in ("-e", "--env")
    ]
    environment = {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}
    arguments = words[at + 1 :]
    return VllmCommand(SERVE, arguments[arguments[:1] == (SERVE,) :], {**command.environment, **environment})


def options_of(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option as it is named, with its values; first the words before any option, with an empty name."""
    flag, values = "", list[str]()
    for word in words:
        if _OPTION.match(word):
            yield flag, values
            flag, equals, value = ascii_option(word).partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    yield flag, values
