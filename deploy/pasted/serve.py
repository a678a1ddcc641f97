"""Translation of a `vllm serve` command line into a family file with one variant. No I/O."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.scenario.files.yaml_text import as_yaml, parse
from inferload.scenario.schema.fields import secret_header

from ..variants.variant import family_of
from ..vllm.arguments import ELSEWHERE, REFUSED, REFUSED_VALUES

_GPU = {"gpu": "unknown", "gpus": 1, "memory_gib": 80}
_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
}
_BOOLEANS = {"true": True, "false": False}
_NEGATIVE_NUMBER = re.compile(r"-\d")
_SPECULATIVE = ("speculative-model", "num-speculative-tokens")


@dataclass(frozen=True, slots=True)
class ServeVariant:
    """Family file of a server. `lines`: options that are outdated or do not belong in a variant, with the current form."""

    name: str
    document: Mapping[str, Any]
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The family file; comments state the lines and what to complete."""
        head = [
            "Translated from a vllm serve command line.",
            "hardware and simulated_as are placeholders: a command line does not say on which GPU it ran. Set them.",
            *self.lines,
        ]
        return "".join(f"# {line}\n" for line in head) + as_yaml(dict(self.document))


def translated(words: Sequence[str], environment: Mapping[str, str]) -> ServeVariant:
    """Return the variant of the arguments of `vllm serve`. UsageError if no model is named."""
    positional, options = _options(words)
    model = str(options.pop("model", None) or (positional[0] if positional else ""))
    if not model:
        raise UsageError("vllm serve: no model; name it after serve, or by --model")
    lines = [f"{word}: belongs to no option" for word in positional[1:]]
    args, outdated = _current(options)
    kept, variables = _environment(environment)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-._")[:64].lower() or "pasted"
    variant: dict[str, Any] = {"purpose": "translated from a command line"}
    variant |= {key: value for key, value in (("args", args), ("environment", kept)) if value}
    document: dict[str, Any] = {
        "source": "a vllm serve command line",
        "model": model,
        "hardware": dict(_GPU),
        "simulated_as": "tiny",
        "variants": {name: variant},
    }
    family = family_of(document, Path(f"{name}.yaml"))
    document["hardware"]["gpus"] = family[name].hardware.gpus
    return ServeVariant(name, document, (*lines, *outdated, *variables))


def _options(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into those before the options, and the options by long name."""
    positional: list[str] = []
    values: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not _NEGATIVE_NUMBER.match(word):
            flag, equals, value = word.partition("=")
            name = _SHORT.get(flag) or flag.lstrip("-").replace("_", "-")
            values[name] = [value] if equals else []
        elif name:
            values[name].append(word)
        else:
            positional.append(word)
    return positional, {key: _value(key, found) for key, found in values.items() if key}


def _value(name: str, words: Sequence[str]) -> Any:
    """Return the value of an option: True without a word, a list for several; numbers, JSON objects and booleans as such."""
    if len(words) != 1:
        return True if not words else list(words)
    if (word := words[0].lower()) in _BOOLEANS:  # as older versions took them
        return _BOOLEANS[word]
    if words[0].startswith(("{", "[")):
        try:
            return json.loads(words[0])
        except (ValueError, RecursionError):
            return words[0]
    parsed = parse(words[0])
    number = not parsed.faults and isinstance(parsed.data, int | float) and not isinstance(parsed.data, bool)
    return parsed.data if number and str(parsed.data) == words[0] else words[0]


def _current(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options that vLLM still has, under their current names, and a line for each other one."""
    args: dict[str, Any] = {}
    lines: list[str] = []
    for name, value in options.items():
        flag = f"--{name}"
        if flag in ELSEWHERE:
            lines.append(f"{flag}: not in a variant; {ELSEWHERE[flag]}")
        elif flag in REFUSED:
            lines.append(f"{flag}: {REFUSED[flag]}")
        elif isinstance(value, str) and (reason := REFUSED_VALUES.get((name, value.lower()))):
            lines.append(f"{flag} {value}: {reason}")
        elif name.startswith("no-") and isinstance(value, bool):
            args[name.removeprefix("no-")] = not value
        else:
            args[name] = value
    model, tokens = (options.get(name) for name in _SPECULATIVE)
    if model is not None and "speculative-config" not in args:
        config = {"method": "draft_model", "model": model, "num_speculative_tokens": 5 if tokens is None else tokens}
        args["speculative-config"] = config
        if tokens is None:
            lines.append(
                "--speculative-model without --num-speculative-tokens: 5 is assumed; set num_speculative_tokens"
            )
        lines.append(f"written as --speculative-config '{json.dumps(config)}'")
    return args, lines


def _environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    kept: dict[str, str] = {}
    lines: list[str] = []
    for name, value in environment.items():
        if name in REFUSED:
            lines.append(f"{name}={value}: {REFUSED[name]}")
        elif secret_header(name) or re.search(r"KEY|TOKEN|SECRET|PASSWORD", name.upper()):
            lines.append(f"{name}: not written, a file would expose it; set it in the environment")
        else:
            kept[name] = without_userinfo(value)
    return kept, lines
