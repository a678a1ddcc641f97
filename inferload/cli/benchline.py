"""A pasted `vllm bench serve ...` taken apart. Pure."""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferload.cli.benchoptions import NEVER, OPTIONS
from inferload.errors import UsageError

_CONTINUED = re.compile(r"\\\s*(#.*)?$")
_SHELL = re.compile(r"\||\|\||&|&&|;|[0-9&]*>.*")  # what follows is not the command's own
_OTHERS = {
    "throughput": "it measures the engine without a server: inferload throughput",
    "latency": "it measures the engine without a server: inferload throughput",
    "sweep": "it runs several benchmarks: inferload sweep",
}


@dataclass(frozen=True, slots=True)
class BenchLine:
    """Options by name, without dashes, with their words as written: one, several, or none of a switch."""

    given: Mapping[str, tuple[str, ...]]
    script: bool  # the old script, not the command

    def word(self, name: str) -> str | None:
        """The value of an option; None where it is not given."""
        return self.given[name][-1] if self.given.get(name) else None


def parse(text: str) -> BenchLine:
    """Take the command apart as a shell and vLLM would; UsageError has a line for each option that is none."""
    words = _words(text)
    start, script = _start(words)
    given: dict[str, tuple[str, ...]] = {}
    faults: list[str] = []
    rest = words[start:]
    while rest:
        word, *rest = rest
        if not word.startswith("--"):
            faults.append(f"{word}: stands where an option is expected; quote values with blanks in them")
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        fault = _fault(name)
        if fault is not None:
            faults.append(fault)
            while rest and not rest[0].startswith("--"):
                rest = rest[1:]
            continue
        values, rest = ((value,), rest) if equals else _values(name, rest)
        if OPTIONS[name].takes != "switch" and not values:
            faults.append(f"--{name}: has no value")
        given[name] = values
    if faults:
        raise UsageError("\n".join(faults))
    return BenchLine(given, script)


def _words(text: str) -> list[str]:
    """The words of a command that may run over several lines, each with a comment behind its backslash."""
    lines = [_CONTINUED.sub("", line) for line in text.strip().splitlines()]
    try:
        words = shlex.split(" ".join(lines), comments=True)
    except ValueError as error:
        raise UsageError(f"the command line cannot be read: {error}; paste it whole, quotes included") from None
    end = next((place for place, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
    return words[:end]


def _start(words: Sequence[str]) -> tuple[int, bool]:
    """(place of the first option, whether it is the old script)."""
    for place, word in enumerate(words):
        if word.endswith("benchmark_serving.py") or re.fullmatch(r"vllm\.benchmarks?\.(benchmark_serving|serve)", word):
            return place + 1, True
        if word == "bench" and place + 1 < len(words):
            kind = words[place + 1]
            if kind == "serve":
                return place + 2, False
            if kind in _OTHERS:
                raise UsageError(f"vllm bench {kind}: no load on a server; {_OTHERS[kind]}")
        if "benchmark_throughput" in word or "benchmark_latency" in word:
            raise UsageError(f"{word}: no load on a server; {_OTHERS['throughput']}")
    raise UsageError(
        "no `vllm bench serve` in it, and no benchmark_serving.py; paste the whole command, in quotes: "
        "inferload from-vllm-bench 'vllm bench serve --model ...'"
    )


def _fault(name: str) -> str | None:
    if name in OPTIONS:
        return None
    if name in NEVER:
        return f"--{name}: vLLM's benchmark never had it; {NEVER[name]}"
    near = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.6)
    return f"--{name}: vLLM's benchmark has no such option" + (f"; did you mean --{near[0]}?" if near else "")


def _values(name: str, rest: list[str]) -> tuple[tuple[str, ...], list[str]]:
    takes = OPTIONS[name].takes
    if takes == "switch" or not rest or (takes == "one" and _is_option(rest[0])):
        return (), rest
    if takes == "one":
        return (rest[0],), rest[1:]
    count = next((place for place, word in enumerate(rest) if _is_option(word)), len(rest))
    return tuple(rest[:count]), rest[count:]


def _is_option(word: str) -> bool:
    return word.startswith("--")
