"""Recognition of vLLM's commands among the words of a command. No I/O."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .shell import Command

SERVE, BENCH, THROUGHPUT = "serve", "bench serve", "bench throughput"

_MODULES: Mapping[str, str] = {
    "vllm.entrypoints.openai.api_server": SERVE,
    "vllm.benchmark.benchmark_serving": BENCH,
    "vllm.benchmarks.benchmark_serving": BENCH,
    "vllm.benchmarks.serve": BENCH,
    "vllm.benchmark.benchmark_throughput": THROUGHPUT,
    "vllm.benchmarks.benchmark_throughput": THROUGHPUT,
    "vllm.benchmarks.throughput": THROUGHPUT,
}
_SCRIPTS = {"benchmark_serving.py": BENCH, "benchmark_throughput.py": THROUGHPUT, "api_server.py": SERVE}
_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?:[:@]\S+)?")
_CONTAINERS = ("docker", "podman", "nerdctl")


@dataclass(frozen=True, slots=True)
class VllmCommand:
    """A command of vLLM. `origin`: the words that select it; `words`: its arguments."""

    kind: str
    origin: tuple[str, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str]


def recognised(command: Command) -> VllmCommand | None:
    """Return the command of vLLM that a command runs; None for other commands."""
    words = command.words
    if words and _base(words[0]) in _CONTAINERS:
        return _of_container(command)
    for index, word in enumerate(words):
        for reader in _READERS:
            if (found := reader(word, words[index + 1 :])) is not None:
                kind, used = found
                end = index + 1 + used
                return VllmCommand(kind, words[index:end], words[end:], command.environment)
    return None


def _of_program(word: str, rest: Sequence[str]) -> tuple[str, int] | None:
    """Read `vllm serve` and `vllm bench NAME`, also of vLLM's main module."""
    if _base(word) != "vllm" and word != "vllm.entrypoints.cli.main":
        return None
    if rest[:1] == (SERVE,):
        return SERVE, 1
    kind = " ".join(rest[:2])
    return (kind, 2) if kind in (BENCH, THROUGHPUT) else None


def _of_module(word: str, _rest: Sequence[str]) -> tuple[str, int] | None:
    kind = _MODULES.get(word) or _SCRIPTS.get(_base(word)) or _SCRIPTS.get(f"{word}.py")
    return None if kind is None else (kind, 0)


_READERS: tuple[Callable[[str, Sequence[str]], tuple[str, int] | None], ...] = (_of_program, _of_module)


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
    if arguments[:1] == (SERVE,):
        arguments = arguments[1:]
    return VllmCommand(SERVE, ("vllm", SERVE), arguments, {**command.environment, **environment})


def _base(word: str) -> str:
    return word.rpartition("/")[2]
