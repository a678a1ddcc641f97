"""The values of a `vllm bench serve` line as numbers and mappings; UsageError names the option and what it must be. Pure."""

import json
import math
from typing import Any

from inferload.cli.benchline import BenchLine
from inferload.errors import UsageError


def whole(line: BenchLine, name: str, default: int | None = None, least: int = 0) -> int | None:
    """A whole number; `default` where the option is not given."""
    word = line.word(name)
    if word is None:
        return default
    try:
        value = int(word)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"--{name} {word}: must be a whole number, {least} or more")
    return value


def number(line: BenchLine, name: str, default: float | None = None) -> float | None:
    """A number, inf included; `default` where the option is not given."""
    word = line.word(name)
    if word is None:
        return default
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise UsageError(f"--{name} {word}: must be a number")
    return value


def mapping(line: BenchLine, name: str) -> dict[str, Any]:
    """A JSON object; empty where the option is not given."""
    word = line.word(name)
    if word is None:
        return {}
    try:
        value = json.loads(word)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"--{name} {word}: must be a JSON object in single quotes, as '{{\"key\": 1}}'")
    return value


def pairs(line: BenchLine, name: str, sign: str) -> list[tuple[str, str]]:
    """KEY=VALUE words, or KEY:VALUE."""
    found = []
    for word in line.given.get(name, ()):
        key, separator, value = word.partition(sign)
        if not separator:
            raise UsageError(f"--{name} {word}: must be KEY{sign}VALUE")
        found.append((key.strip(), value.strip()))
    return found


def ratios(line: BenchLine) -> tuple[float, float]:
    """--random-range-ratio for prompts and for answers."""
    word = line.word("random-range-ratio") or "0"
    try:
        value = json.loads(word)
        both = (value["input"], value["output"]) if isinstance(value, dict) else (value, value)
        of_prompt, of_answer = float(both[0]), float(both[1])
    except (ValueError, KeyError, TypeError):
        of_prompt = of_answer = math.nan
    if not (0 <= of_prompt < 1 and 0 <= of_answer < 1):
        raise UsageError(
            f'--random-range-ratio {word}: must be a number from 0 to below 1, or {{"input": 0.3, "output": 0.5}}'
        )
    return of_prompt, of_answer
