"""Servers of a text as one family file: a variant for each, with its base, its factor, and a stand-in of the simulator. No I/O."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from inferload.deploy.launcher.machine_checks import Hardware
from inferload.deploy.launcher.weights import size_gib
from inferload.deploy.simulator import flags, server_config
from inferload.deploy.simulator.core.hardware import PRESETS, shape_of
from inferload.deploy.variants.variant import Variant
from inferload.deploy.vllm.arguments import to_argv

from inferload.base.errors import UsageError
from inferload.base.numbers import listed
from inferload.scenario.files.yaml_text import as_yaml

from .serve import PastedServer

# Arguments in the names of variants, in this order: the words before their value. Others have their own name.
_WORDS: Mapping[str, str] = {
    "enable-prefix-caching": "prefix-caching",
    "enable-chunked-prefill": "chunked",
    "max-num-batched-tokens": "tokens",
    "max-num-seqs": "seqs",
    "max-model-len": "len",
    "gpu-memory-utilization": "memory",
    "tensor-parallel-size": "tp",
    "kv-cache-dtype": "kv",
    "quantization": "",
    "dtype": "",
}
_NAMELESS = ("served-model-name", "trust-remote-code")  # no part of a variant's name
_LONGEST = 60  # of a name, in characters
_CARDS_GIB = (16, 24, 48, 80, 141)
_FAR = math.log(4)  # of a preset's size, beyond the nearest one's
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size")
_LINE = re.compile(r"(no equivalent: |)(.*?)((?:: .*)?)", re.S)
_FLAG = re.compile(r"--([A-Za-z][\w-]*)")


@dataclass(frozen=True, slots=True)
class Family:
    """Family file of the servers. `names`: of their variants, the baseline first; `lines`: "NAME: remark".

    `simulated`: variants that a sweep on the simulator has; `left_out`: arguments that it has to leave out.
    """

    text: str
    names: tuple[str, ...]
    lines: tuple[str, ...]
    simulated: tuple[str, ...]
    left_out: tuple[str, ...]


def checked(server: PastedServer) -> PastedServer:
    """Return the server. UsageError for values that no variant has, such as a parallel size that is no number."""
    name = _clean(server.model.rstrip("/").rpartition("/")[2].lower()) or "pasted"
    Variant(name, "", "", server.model, Hardware("any", 1, 0), "", "", args=server.args, environment=server.environment)
    return server


def family(servers: Sequence[PastedServer]) -> Family:
    """Return the family of servers, of which equal ones have one variant."""
    equal: dict[str, list[PastedServer]] = {}
    for server in servers:
        equal.setdefault(json.dumps((server.model, server.args, server.environment), sort_keys=True), []).append(server)
    distinct = [group[0] for group in equal.values()]
    lines = [line for server in distinct for line in server.lines]
    for group in equal.values():
        if len(ports := list(dict.fromkeys(str(server.port) for server in group))) > 1:
            one = "are equal, and one variant; inferload ab compares servers that run"
            lines.append(f"{group[0].model}: the servers on the ports {listed(ports)} {one}")
    variants: dict[str, dict[str, Any]] = {}
    by_name: dict[str, PastedServer] = {}
    refused: dict[str, list[str]] = {}
    document: dict[str, Any] = {"source": "pasted command lines"}
    for group in _groups(distinct):
        root = group[0]
        stem = _clean(root.model.rstrip("/").rpartition("/")[2].lower()) or "pasted"
        preset = _stand_in(group)
        unknown = "" if _weights_gib(root) else ", no size in the model's name"
        lines.append(f"{stem}: no GPU in the commands{unknown}; simulated as {PRESETS[preset].stands_for()} ({preset})")
        of_model = {"model": root.model, "simulated_as": preset}
        document = document if variants else document | of_model | {"hardware": _hardware(root)}
        placed: dict[str, PastedServer] = {}
        prefix = f"{stem}-" if variants else ""
        for server in group:
            wanted = stem if server is root else _clean(prefix + _name(_changes(root, server)))
            names = (wanted if number == 1 else f"{wanted}-{number}" for number in count(1))
            name = next(name for name in names if name not in variants)
            own = of_model | {"hardware": _hardware(server)}
            variants[name] = _variant(server, placed, {key: own[key] for key in own if document[key] != own[key]})
            placed[name] = by_name[name] = server
            refused[name] = _refused(preset, server)
    head = [
        "Command lines do not say on which GPU they ran: hardware has the smallest card that holds the weights, and simulated_as",
        "the preset nearest to the model. Set both to yours.",
        f"Defaults: of vLLM {'; '.join(dict.fromkeys(server.defaults for server in distinct))}.",
        *merged(lines),
    ]
    text = "".join(f"# {line}\n" for line in head) + as_yaml({**document, "variants": variants})
    # An argument for which all variants that have it are refused is left out; else the variants are.
    of_flags = {flag: {name for name in by_name if flag in by_name[name].args} for flag in chain(*refused.values())}
    left_out = [flag for flag, names in of_flags.items() if all(flag in refused[name] for name in names)]
    simulated = [name for name in by_name if set(refused[name]) <= set(left_out)]
    lines += [f"--{flag}: refused by the simulator; left out by a sweep, otherwise --set {flag}=" for flag in left_out]
    for name in [name for name in by_name if name not in simulated]:
        lines.append(f"{name}: refused by the simulator for --{refused[name][0]}; not in a sweep on it")
    return Family(text, tuple(variants), tuple(lines), tuple(simulated or by_name), tuple(left_out))


def merged(lines: Sequence[str]) -> list[str]:
    """Join lines "NAME: remark" that have the same remark: "NAME, NAME: remark"."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for line in lines:
        prefix, name, remark = _LINE.fullmatch(line).groups()  # type: ignore[union-attr] # it matches any line
        names.setdefault((prefix, remark), {})[name] = None
    return [f"{prefix}{', '.join(of)}{remark}" for (prefix, remark), of in names.items()]


def _groups(servers: Sequence[PastedServer]) -> list[list[PastedServer]]:
    """Return the servers by model, the largest group first; in a group first the one to whose options most others add some."""
    by_model: dict[str, list[PastedServer]] = {}
    for server in servers:
        by_model.setdefault(server.model, []).append(server)
    for group in by_model.values():
        root = max(group, key=lambda server: sum(_given(server) <= _given(other) for other in group))
        group.sort(key=lambda server: server is not root)
    return sorted(by_model.values(), key=len, reverse=True)


def _given(server: PastedServer) -> set[str]:
    written_out = {line.partition(":")[0] for line in server.lines if ": written out as in " in line}
    return {f"{name} {value}" for name, value in server.args.items() if name not in written_out}


def _changes(base: PastedServer, server: PastedServer) -> dict[str, Any]:
    """Return the arguments and variables in which a server differs from its base; None for those that it does not have."""
    before, after = ({**of.args, **of.environment} for of in (base, server))
    return {name: after.get(name) for name in dict.fromkeys((*after, *before)) if before.get(name) != after.get(name)}


def _variant(server: PastedServer, placed: Mapping[str, PastedServer], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a server. `placed`: possible bases, of its model. `own`: keys unlike the family's, without a base."""
    bases = [name for name, base in placed.items() if base.environment.keys() <= server.environment.keys()]
    base = min(bases, key=lambda name: len(_changes(placed[name], server)), default=None)
    origin = PastedServer(server.model, {}, {}) if base is None else placed[base]
    changes = _changes(origin, server)
    args = {name: value for name, value in changes.items() if name in server.args or name in origin.args}
    dropped = [f"--{name}" for name, value in args.items() if value is None]
    factor = " ".join(filter(None, (*to_argv(args), "without " * bool(dropped) + " ".join(dropped))))
    offline = None if server.offline is None else f"offline: inferload throughput {' '.join(server.offline)}"
    if base is not None:
        own = {"hardware": _hardware(server)} if _hardware(server) != _hardware(origin) else {}
    parts = {
        "base": base,
        "factor": "" if base is None else factor or ", ".join(changes),
        "purpose": offline or "translated from a command line",
        **own,
        "args": args,
        "environment": {name: value for name, value in changes.items() if name not in args},
    }
    return {key: part for key, part in parts.items() if part}


def _name(changes: Mapping[str, Any]) -> str:
    words = []
    ranks = {name: rank for rank, name in enumerate(_WORDS)}
    shown = [name for name in changes if name not in _NAMELESS] or changes
    for name in sorted(shown, key=lambda name: ranks.get(name, len(ranks))):
        value, word = changes[name], _WORDS.get(name, name.removeprefix("enable-"))
        if name == "max-num-batched-tokens" and changes.get("enable-chunked-prefill"):
            word = ""
        if isinstance(value, bool):
            words.append(word if value else f"no-{word}")
        elif value is None:
            words.append(f"default-{word or name}")
        elif isinstance(value, Mapping):
            parts = [str(value[key]) for key in ("method", "num_speculative_tokens") if key in value]
            words.append("-".join(parts) or word)
        else:
            words.append(f"{word}{'' if word in ('', 'tp') else '-'}{value}")
    return "-".join(words)


def _clean(name: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return (name if len(name) <= _LONGEST else name[:_LONGEST].rpartition("-")[0] or name[:_LONGEST]).rstrip("-._")


def _hardware(server: PastedServer) -> dict[str, Any]:
    """Return the number of GPUs, and the smallest usual card on which four fifths hold the weights; the largest if none does."""
    sizes = [server.args.get(name, 1) for name in (*_PARALLEL, "data-parallel-size")]
    gpus = [size if isinstance(size, int) and size > 0 else 1 for size in sizes]
    weights_gib = (_weights_gib(server) or math.inf) / math.prod(gpus[:2])
    card = next((size for size in _CARDS_GIB if weights_gib <= 0.8 * size), _CARDS_GIB[-1])
    return {"gpu": f"any with {card} GB", "gpus": math.prod(gpus), "memory_gib": card}


def _weights_gib(server: PastedServer) -> float | None:
    return size_gib(f"{server.model} {server.args.get('quantization', '')}")


def _stand_in(group: Sequence[PastedServer]) -> str:
    """Return the preset nearest in size that takes all servers of a model, unless it is far from it; else the nearest."""
    model = re.sub(r"(?i)awq|gptq|fp8", "", group[0].model)
    shape = shape_of(model)
    parameters = shape.parameters if shape else (size_gib(model) or 15) * 2**29
    sizes = {name: preset.model.parameters for name, preset in PRESETS.items() if preset.model.parameters > 1e9}
    far = {name: abs(math.log(sizes[name] / parameters)) for name in sizes}
    names = sorted(sizes, key=far.__getitem__)
    near = [name for name in names if far[name] <= far[names[0]] + _FAR]
    return next((name for name in near if not any(_refused(name, server) for server in group)), names[0])


def _refused(preset: str, server: PastedServer) -> list[str]:
    """Return the arguments for which the simulator refuses a server."""
    args, flags = dict(server.args), list[str]()
    while flag := next((flag for flag in _FLAG.findall(_refusal(preset, args)) if flag in args), None):
        del args[flag]
        flags.append(flag)
    return flags


def _refusal(preset: str, args: Mapping[str, Any]) -> str:
    """Return why the simulator does not take the arguments; empty if it does."""
    try:
        server_config.resolve(flags.read(("--hardware", preset, *to_argv(args))))
    except UsageError as error:
        return str(error)
    return ""
