"""Command lines of servers: the arguments of vLLM 0.32 that start the same server. No I/O."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from inferload.deploy.simulator.core import hardware
from inferload.deploy.simulator.options import human_int
from inferload.deploy.vllm.arguments import ELSEWHERE, OF_V0, REFUSED, REFUSED_VALUES, V0_END, V1_DEFAULT, old_defaults

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.scenario.files.yaml_text import parse
from inferload.scenario.schema.fields import secret_header

from .kinds import NEWEST, Version, options_of

_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
    "-ep": "enable-expert-parallel",
    "-dcp": "decode-context-parallel-size",
}
_SWITCH = re.compile(r"--(?:no|enable|disable|trust|enforce)-")
_MODEL = re.compile(r"[\w.~-]*/[\w./-]+")
_LENGTHS = ("max-model-len", "max-num-batched-tokens")  # 32k is 32,000
_CARDS = re.compile(r"\w+_VISIBLE_DEVICES")
_UNKNOWN = re.compile(r"\$[({\w]|<[\w ./-]+>$")  # a variable or a placeholder
_TODAY = f"{NEWEST[0]}.{NEWEST[1]}"


@dataclass(frozen=True, slots=True)
class PastedServer:
    """Server of a line, with the arguments and variables of the current version. `lines`: "NAME: remark" on what changed.

    `defaults`: whose defaults it has. `offline`: options of `inferload throughput`, None for a server. `port`: of the line.
    """

    model: str
    args: Mapping[str, Any]
    environment: Mapping[str, str]
    lines: tuple[str, ...] = ()
    defaults: str = ""
    offline: tuple[str, ...] | None = None
    port: Any = 8000


def translated(words: Sequence[str], environment: Mapping[str, str], version: Version | None = None) -> PastedServer:
    """Return the server of the arguments of `vllm serve`; UsageError without a model. `version`: of the text, if it names one."""
    (_, positional), *given = options_of(words)
    if not positional and "--model" not in dict(given):  # --max-model-len=8192 MODEL, or --enable-prefix-caching MODEL
        after = [values for flag, values in given if len(values) > (0 if _SWITCH.match(flag) else 1)]
        positional = [values.pop() for values in after if _MODEL.fullmatch(values[-1])][:1]
    options: dict[str, Any] = {}
    for flag, values in given:
        *parents, name = (_SHORT.get(flag) or flag.lstrip("-")).split(".")  # --speculative-config.method
        inner = options
        for parent in parents:
            if not isinstance(inner.get(parent), dict):
                inner[parent] = {}
            inner = inner[parent]
        inner[name] = _value(values)
    model = str(options.pop("model", None) or (positional[0] if positional else ""))
    if not re.match(r"[./~-]*\w", model):
        raise UsageError(f"vllm serve: no model{f' ({model})' if model else ''}; name it after serve, or by --model")
    lines = [f"{word}: belongs to no option" for word in positional[1:]]
    for name in [name for flag, _ in given if flag[:2] != "--" and (name := flag[1:]) in options]:
        lines.append(f"-{name}: a short option that is not read; use the long one")
        del options[name]
    args = _current(options, lines)
    variables = _environment(environment, lines)
    engine = environment.get("VLLM_USE_V1", "1" if (version or NEWEST) >= V1_DEFAULT else "0")
    v0 = engine == "0" or any(f"--{name}" in OF_V0 for name in options)
    at = version or (0, V0_END[1] - 1) if v0 else version
    if at is None:
        today = f"{_TODAY}; name the text's version by --vllm-version"
        return PastedServer(model, args, variables, tuple(lines), today, port=options.get("port", 8000))
    shape = hardware.shape_of(model)
    length = args.get("max-model-len", shape.max_model_len if shape else None)
    v0 = v0 and at < V0_END
    old = old_defaults(args, at, v0, length if isinstance(length, int) else None)
    if length and old.get("max-num-batched-tokens") == length and "max-model-len" not in args:
        old["max-model-len"] = length  # from which the budget follows
    named = ".".join(map(str, version)) if version else "0.8 to 0.10"
    of = f"vLLM {named}{' (V0 engine)' * v0}"
    lines += [f"{name}: written out as in {of}" for name, value in old.items() if value is not None]
    unknown = f"not written, as its default in {of} depends on --max-model-len"
    lines += [f"{name}: {unknown}" for name, value in old.items() if value is None]
    args |= {name: value for name, value in old.items() if value is not None}
    defaults = f"{of[5:]} where they are known to differ from {_TODAY}"
    return PastedServer(model, args, variables, tuple(lines), defaults, port=options.get("port", 8000))


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
    for name, given in options.items():
        flag, value = f"--{name}", given
        if isinstance(value, str) and name in _LENGTHS:
            with suppress(argparse.ArgumentTypeError):
                value = human_int(value)
        if flag in ELSEWHERE:
            lines.append(f"{flag}: not in a variant; {ELSEWHERE[flag]}")
        elif isinstance(value, str) and _UNKNOWN.match(value):
            lines.append(f"{flag} {value}: has no value in the text; left out")
        elif flag in REFUSED:
            lines.append(f"{flag}: {REFUSED[flag].reason}")
            args |= REFUSED[flag].args
            args |= {now: value} if (now := REFUSED[flag].now) else {}
        elif isinstance(value, str) and (reason := REFUSED_VALUES.get((name, value.lower()))):
            lines.append(f"{flag} {value}: {reason}")
        elif name.startswith("no-") and isinstance(value, bool):
            args[name.removeprefix("no-")] = not value
        elif name:
            args[name] = value
    model, tokens = options.get("speculative-model"), options.get("num-speculative-tokens", 5)
    if model is not None and "speculative-config" not in args:
        ngram = model in (["[ngram]"], "[ngram]")
        drafts = {"method": "ngram"} if ngram else {"method": "draft_model", "model": model}
        args["speculative-config"] = {**drafts, "num_speculative_tokens": tokens}
        if "num-speculative-tokens" not in options:
            assumed = "5 is assumed; set num_speculative_tokens"
            lines.append(f"--speculative-model without --num-speculative-tokens: {assumed}")
    return args


def _environment(environment: Mapping[str, str], lines: list[str]) -> dict[str, str]:
    """Return the variables of a variant; add a line for each other one."""
    kept: dict[str, str] = {}
    for name, value in environment.items():
        if name in REFUSED:
            lines.append(f"{name}={value}: {REFUSED[name].reason}")
        elif secret_header(name) or re.search(r"KEY|TOKEN|SECRET|PASSWORD", name.upper()):
            lines.append(f"{name}: not written, a file would expose it; set it in the environment")
        elif _CARDS.fullmatch(name) or "$" in value:
            lines.append(f"{name}: not written, it is of the machine; set it in the environment")
        else:
            kept[name] = without_userinfo(value)
    return kept
