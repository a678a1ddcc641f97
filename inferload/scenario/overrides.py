"""Overrides of scenario values on the command line: `--set PATH=VALUE`, and the quick options of `inferload run`."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.base.numbers import seconds_of
from inferload.scenario.files.yaml_text import Fault, Parsed, PathTo, dotted, parse, scalar
from inferload.scenario.schema.agent import Agent, LiveAgentWorkload
from inferload.scenario.schema.chat import Chat, Texts
from inferload.scenario.schema.load.arrivals import Arrivals
from inferload.scenario.schema.workloads import Mix, Workload

_PATH = re.compile(r"[^.\[\]=]+(\.[^.\[\]=]+|\[\d+\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


# Keys that were added later and change no load: with the default a scenario has the digest that it had without the key, and a
# comparison does not look at them.
ADDED_LATER: Mapping[str, object] = {
    "abort_on": [],
    "canary": None,
    "request.answer_digests": False,
    "request.cookies": True,
    "request.wrong_length": "stop",
    "rules": None,
}  # dotted path: default


def flat(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values below nested mappings by their dotted paths."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


class Override(Struct, frozen=True):
    """Value of one key. `source`: the option as given, for error messages."""

    path: PathTo
    value: Any
    source: str

    @property
    def key(self) -> str:
        """Dotted path: `workload.classes[0].share`."""
        return dotted(self.path)

    @property
    def setting(self) -> str:
        return f"{self.key}={json.dumps(self.value)}"


def parse_settings(texts: Sequence[str] | None) -> tuple[Override, ...]:
    """Parse all --set options. UsageError for a malformed option, or if two of them set the same key."""
    overrides = tuple(map(_parsed_setting, texts or ()))
    refuse_overlaps(overrides)
    return overrides


def _parsed_setting(text: str) -> Override:
    path, equals, value = text.partition("=")
    path, source = path.strip(), f"--set {text}"
    if not equals or not _PATH.fullmatch(path):
        raise UsageError(f"{source}: not PATH=VALUE; write it as --set workload.turns=3")
    steps = tuple(int(index) if index else key for key, index in _STEP.findall(path))
    if not value.strip():
        return Override(steps, None, source)
    parsed = parse(value)
    if parsed.faults:
        raise UsageError(f"{source}: {parsed.faults[0].text}")
    return Override(steps, parsed.data, source)


def refuse_overlaps(overrides: Sequence[Override]) -> None:
    """Raise UsageError if two overrides set the same key, or one sets a key inside the value of another."""
    for number, override in enumerate(overrides):
        for earlier in overrides[:number]:
            shorter = min(len(override.path), len(earlier.path))
            if override.path[:shorter] == earlier.path[:shorter]:
                raise UsageError(f"{override.source}: {earlier.source} also sets {earlier.key}; give one of them")


def apply(parsed: Parsed, overrides: Sequence[Override]) -> None:
    """Set the value of each override in the data of a file. An invalid path is added to the file's faults."""
    for override in overrides:
        parsed.sources[override.path] = override.source
        fault = _set(parsed.data, override)
        if fault is not None:
            parsed.faults.append(Fault(0, override.path, fault, override.source))


def _set(data: Any, override: Override) -> str | None:
    """Set the value and create missing mappings around it. Return the error message, or None."""
    node, last = data, len(override.path) - 1
    for depth, key in enumerate(override.path):
        fits = isinstance(node, list) and key < len(node) if isinstance(key, int) else isinstance(node, dict)
        if not fits:
            outer = dotted(override.path[:depth])
            return f"{outer or 'the file'} is {_kind(node)}; set {outer or 'it'} as a whole"
        if depth == last:
            node[key] = override.value
        elif isinstance(node, dict) and node.get(key) is None:
            node[key] = {}
        node = node[key]
    return None


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "a mapping" if isinstance(value, dict) else json.dumps(value)


# -- quick options of `inferload run`


def users(arrivals: Arrivals, text: str) -> Override:
    """Return the override of `--users N`: users of a closed loop. An open loop at a fixed rate becomes a closed loop."""
    source, count = f"--users {text}", scalar(text)
    # An invalid count gives an error for users alone.
    spawn_per_s = count if isinstance(count, int) and count > 0 else 1
    whole = {"kind": "closed", "users": count, "spawn_per_s": spawn_per_s}
    return _load(arrivals, source, count, whole, replaces=arrivals.open_loop)


def rate(arrivals: Arrivals, text: str) -> Override:
    """Return the override of `--rate R`: session starts per second. A closed loop becomes an open loop of constant rate."""
    source, per_s = f"--rate {text}", scalar(text)
    whole = {"kind": "constant", "sessions_per_s": per_s}
    return _load(arrivals, source, per_s, whole, replaces=not arrivals.open_loop)


def _load(arrivals: Arrivals, source: str, value: Any, whole: dict[str, Any], *, replaces: bool) -> Override:
    """Return the override of a constant load: of its key, or of the arrivals as a whole. UsageError for another load."""
    if arrivals.own_load is not None:
        given = ", ".join(f"{key}: {each}" for key, each in whole.items())
        raise UsageError(f"{source}: {arrivals.own_load}; to replace it, give --set 'arrivals={{{given}}}'")
    if replaces or arrivals.load_key is None:
        return Override(("arrivals",), whole, source)
    return Override(("arrivals", arrivals.load_key), value, source)


def input_len(workload: Workload, text: str) -> Override:
    """Return the override of `--input-len N`: tokens of each new user message."""
    source = f"--input-len {text}"
    if isinstance(workload, Chat):
        kind, keys = workload.source.kind, workload.source.prompt_keys
        if workload.source.open_ended:
            return Override(("workload", "prompt_tokens"), scalar(text), source)
        if len(keys) == 1:
            return Override(("workload", "source", *keys), scalar(text), source)
        if keys:
            remedy = " and ".join(f"--set workload.source.{key}=N" for key in keys)
            raise UsageError(f"{source}: workload.source.kind is {kind}, whose prompts have two lengths; give {remedy}")
        raise UsageError(
            f"{source}: workload.source.kind is {kind}, whose messages have their own lengths; "
            "use a scenario with generated text, such as chat"
        )
    if isinstance(workload, Texts) and workload.source.open_ended:
        return Override(("workload", "text_tokens"), scalar(text), source)
    if isinstance(workload, Agent):
        return Override(("workload", "prompt_tokens"), scalar(text), source)
    raise _no_length(workload, source, "prompt_tokens")


def output_len(workload: Workload, text: str) -> Override:
    """Return the override of `--output-len N`: tokens of each answer."""
    source = f"--output-len {text}"
    if isinstance(workload, Chat) and workload.source.prompt_keys:
        return Override(("workload", "source", "output_tokens"), scalar(text), source)
    if isinstance(workload, Chat | Agent | LiveAgentWorkload):
        return Override(("workload", "output_tokens"), scalar(text), source)
    raise _no_length(workload, source, "output_tokens")


def _no_length(workload: Workload, source: str, key: str) -> UsageError:
    remedy = "use a scenario with generated text, such as chat"
    if isinstance(workload, Mix):
        why = "each class has its own length"
        remedy = f"set it for one class: --set workload.classes[0].workload.{key}=N"
    elif isinstance(workload, LiveAgentWorkload):
        why = f"{workload.agent} writes the messages"
    elif isinstance(workload, Texts):
        why = "answers have no text" if key == "output_tokens" else "the source sets the lengths"
    else:
        why = "the recorded trace sets the lengths"
    return UsageError(f"{source}: workload.kind is {workload.kind}, where {why}; {remedy}")


QUICK: Mapping[str, Callable[[Arrivals, Workload, str], Override]] = {
    "users": lambda arrivals, _workload, text: users(arrivals, text),
    "rate": lambda arrivals, _workload, text: rate(arrivals, text),
    "duration": lambda _arrivals, _workload, text: Override(
        ("phases", "measure_s"), seconds_of("--duration", text), f"--duration {text}"
    ),
    "sessions": lambda _arrivals, _workload, text: Override(("phases", "sessions"), scalar(text), f"--sessions {text}"),
    "input_len": lambda _arrivals, workload, text: input_len(workload, text),
    "output_len": lambda _arrivals, workload, text: output_len(workload, text),
}
