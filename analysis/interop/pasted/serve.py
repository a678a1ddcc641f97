"""A `vllm serve` command line as a family file with one variant. No I/O."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload.deploy.variants.variant import family_of
from inferload.deploy.vllm.arguments import ELSEWHERE, OF_V0, REFUSED, REFUSED_VALUES, to_argv, v0_defaults

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.scenario.files.yaml_text import as_yaml, parse
from inferload.scenario.schema.fields import secret_header

from .kinds import options_of

_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
}


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
    (_, positional), *given = options_of(words)
    options = {_SHORT.get(flag) or flag.lstrip("-"): _value(values) for flag, values in given}
    model = str(options.pop("model", None) or (positional[0] if positional else ""))
    if not model:
        raise UsageError("vllm serve: no model; name it after serve, or by --model")
    lines = [f"{word}: belongs to no option" for word in positional[1:]]
    args = _current(options, lines)
    variables = _environment(environment, lines)
    if environment.get("VLLM_USE_V1") == "0" or any(f"--{name}" in OF_V0 for name in options):
        args |= _v0_defaults(args, lines)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-._")[:64].lower() or "pasted"
    variant = {"purpose": "translated from a command line", "args": args, "environment": variables}
    document: dict[str, Any] = {
        "source": "a vllm serve command line",
        "model": model,
        "hardware": {"gpu": "unknown", "gpus": 1, "memory_gib": 80},
        "simulated_as": "tiny",
        "variants": {name: {key: value for key, value in variant.items() if value}},
    }
    document["hardware"]["gpus"] = family_of(document, Path(f"{name}.yaml"))[name].hardware.gpus
    return ServeVariant(name, document, tuple(lines))


def _value(words: Sequence[str]) -> Any:
    """Return the value of an option: True without a word, a list for several; numbers, JSON objects and booleans as such."""
    if len(words) != 1:
        return list(words) or True
    (word,) = words
    if word.startswith(("{", "[")):
        try:
            return json.loads(word)
        except (ValueError, RecursionError):
            return word
    if word.lower() in ("true", "false"):  # as older versions took them
        return word.lower() == "true"
    parsed = parse(word)
    is_number = not parsed.faults and isinstance(parsed.data, int | float) and str(parsed.data) == word
    return parsed.data if is_number else word


def _current(options: Mapping[str, Any], lines: list[str]) -> dict[str, Any]:
    """Return the options that vLLM still has, under their current names; add a line for each other one."""
    args: dict[str, Any] = {}
    for name, value in options.items():
        flag = f"--{name}"
        if flag in ELSEWHERE:
            lines.append(f"{flag}: not in a variant; {ELSEWHERE[flag]}")
        elif flag in REFUSED:
            lines.append(f"{flag}: {REFUSED[flag].reason}")
            args |= REFUSED[flag].args
        elif isinstance(value, str) and (reason := REFUSED_VALUES.get((name, value.lower()))):
            lines.append(f"{flag} {value}: {reason}")
        elif name.startswith("no-") and isinstance(value, bool):
            args[name.removeprefix("no-")] = not value
        elif name:
            args[name] = value
    model, tokens = options.get("speculative-model"), options.get("num-speculative-tokens", 5)
    if model is not None and "speculative-config" not in args:
        args["speculative-config"] = {"method": "draft_model", "model": model, "num_speculative_tokens": tokens}
        if "num-speculative-tokens" not in options:
            assumed = "5 is assumed; set num_speculative_tokens"
            lines.append(f"--speculative-model without --num-speculative-tokens: {assumed}")
        lines.append(f"written as --speculative-config '{json.dumps(args['speculative-config'])}'")
    return args


def _v0_defaults(args: Mapping[str, Any], lines: list[str]) -> dict[str, Any]:
    """Return the arguments that keep the defaults of the V0 engine; add a line on them, and on those that are not known."""
    defaults = v0_defaults(args)
    if kept := to_argv(defaults):
        lines.append(f"written as the defaults of the V0 engine: {' '.join(kept)}")
    if unknown := [name for name, value in defaults.items() if value is None]:
        lines.append(f"not written, as its default in the V0 engine depends on --max-model-len: {', '.join(unknown)}")
    return {name: value for name, value in defaults.items() if value is not None}


def _environment(environment: Mapping[str, str], lines: list[str]) -> dict[str, str]:
    """Return the variables of a variant; add a line for each other one."""
    kept: dict[str, str] = {}
    for name, value in environment.items():
        if name in REFUSED:
            lines.append(f"{name}={value}: {REFUSED[name].reason}")
        elif secret_header(name) or re.search(r"KEY|TOKEN|SECRET|PASSWORD", name.upper()):
            lines.append(f"{name}: not written, a file would expose it; set it in the environment")
        else:
            kept[name] = without_userinfo(value)
    return kept
