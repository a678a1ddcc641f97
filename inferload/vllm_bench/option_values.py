"""Readers of option values of `vllm bench serve`; the error of each names what is expected."""

import argparse
import ast
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

_GOODPUT = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms"}


def _value(read: Callable[[str], Any], fits: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    """Return a reader of a word; its error names what is expected."""

    def checked(word: str) -> Any:
        try:
            value = read(word)
            if fits(value):
                return value
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, MemoryError, RecursionError):
            pass
        raise argparse.ArgumentTypeError(f"must be {expected}, not {word}")

    return checked


def whole_number(least: int) -> Callable[[str], Any]:
    return _value(int, lambda value: value >= least, f"a whole number, {least} or more")


def one_of(names: Iterable[str]) -> Callable[[str], Any]:
    return _value(str, lambda word: word in names, f"one of {', '.join(names)}")


def header(word: str) -> tuple[str, str]:
    name, separator, value = word.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError("must be KEY=VALUE")  # without the word, which may be a secret
    return name.strip(), value.strip()


def _objective(word: str) -> tuple[str, float]:
    name, _, value = word.partition(":")
    return _GOODPUT[name], float(value)


def _ratios(word: str) -> tuple[float, float]:
    value = json.loads(word)
    return (float(value["input"]), float(value["output"])) if isinstance(value, dict) else (float(value), float(value))


def _buckets(word: str) -> dict[tuple[int, ...], float]:
    sizes = {
        (int(height), int(width), int(frames)): share
        for (height, width, frames), share in ast.literal_eval(word).items()
    }
    return {size: float(share) for size, share in sizes.items() if share > 0}


COUNT, POSITIVE_COUNT = whole_number(0), whole_number(1)
NUMBER = _value(float, lambda value: not math.isnan(value), "a number")
POSITIVE = _value(float, lambda value: value > 0, "greater than 0")
JSON_OBJECT = _value(
    json.loads, lambda value: isinstance(value, dict), "a JSON object in single quotes, as '{\"key\": 1}'"
)
OBJECTIVE = _value(_objective, lambda _: True, f"NAME:MILLISECONDS with a name of {', '.join(_GOODPUT)}")
RATIOS = _value(
    _ratios,
    lambda ratios: all(0 <= ratio < 1 for ratio in ratios),
    'a number from 0 to below 1, or {"input": 0.3, "output": 0.5}',
)
BUCKETS = _value(
    _buckets,
    lambda sizes: bool(sizes) and all(min(size) >= 1 and size[2] == 1 for size in sizes),
    "sizes and shares of images, as '{(256, 256, 1): 1.0}' (no videos)",
)
