"""Servers of a text as one family file: a variant for each, with its base, its factor, and a stand-in of the simulator. No I/O."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from inferload.deploy.launcher.machine_checks import Hardware
from inferload.deploy.launcher.weights import size_gib
from inferload.deploy.simulator import flags, server_config
from inferload.deploy.simulator.core.hardware import PRESETS, shape_of
from inferload.deploy.variants.variant import Variant
from inferload.deploy.vllm.arguments import to_argv

from inferload.base.errors import UsageError
from inferload.scenario.files.yaml_text import as_yaml

from .serve import PastedServer

Changes = Mapping[str, Any]

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
_CARDS_GIB = (16, 24, 48, 80, 141)
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size")
_LINE = re.compile(r"(no equivalent: |)(.*?)((?:: .*)?)", re.S)
_FLAG = re.compile(r"--([A-Za-z][\w-]*)")


@dataclass(frozen=True, slots=True)
class Family:
    """Family file of the servers. `names`: of their variants, the baseline first; `lines`: "NAME: remark".

    `left_out`: arguments that the simulator refuses, which a sweep on it has to leave out.
    """

    text: str
    names: tuple[str, ...]
    lines: tuple[str, ...]
    left_out: tuple[str, ...]


def checked(server: PastedServer) -> PastedServer:
    """Return the server. UsageError for values that no variant has, such as a parallel size that is no number."""
    name = _clean(server.model.rstrip("/").rpartition("/")[2].lower()) or "pasted"
    Variant(name, "", "", server.model, Hardware("any", 1, 0), "", "", args=server.args, environment=server.environment)
    return server


def family(servers: Sequence[PastedServer]) -> Family:
    """Return the family of servers, of which equal ones have one variant."""
    distinct = list({repr((server.model, server.args, server.environment)): server for server in servers}.values())
    groups = _groups(distinct)
    variants: dict[str, dict[str, Any]] = {}
    lines = [line for server in distinct for line in server.lines]
    left_out: list[str] = []
    document: dict[str, Any] = {"source": "pasted command lines"}
    for group in groups:
        root = group[0]
        stem = _clean(root.model.rstrip("/").rpartition("/")[2].lower()) or "pasted"
        preset, refused = _stand_in(group)
        left_out += refused
        lines.append(f"{stem}: no GPU in the text; simulated as {PRESETS[preset].stands_for()} ({preset})")
        placed: dict[str, PastedServer] = {}
        for server in group:
            name = stem if server is root else _name(_changes(root, server), "" if group is groups[0] else f"{stem}-")
            name = next(
                word for number in count(1) if (word := name if number == 1 else f"{name}-{number}") not in variants
            )
            of_model = {"model": root.model, "hardware": _hardware(server), "simulated_as": preset}
            document = {**document, **of_model} if not variants else document
            variants[name] = _variant(
                server, placed, {key: value for key, value in of_model.items() if document[key] != value}
            )
            placed[name] = server
    head = [
        "Command lines do not say on which GPU they ran: hardware has the smallest card that holds the weights, and simulated_as",
        "the preset nearest to the model. Set both to yours.",
        f"Defaults: of vLLM {'; '.join(dict.fromkeys(server.defaults for server in distinct))}.",
        *merged(lines),
    ]
    text = "".join(f"# {line}\n" for line in head) + as_yaml({**document, "variants": variants})
    return Family(text, tuple(variants), tuple(lines), tuple(dict.fromkeys(left_out)))


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


def _variant(server: PastedServer, placed: Mapping[str, PastedServer], of_model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a server. `placed`: servers of its model, its possible bases. `of_model`: keys unlike the family's."""
    bases = [name for name, base in placed.items() if base.environment.keys() <= server.environment.keys()]
    base = min(bases, key=lambda name: len(_changes(placed[name], server)), default=None)
    origin = PastedServer(server.model, {}, {}) if base is None else placed[base]
    changes = _changes(origin, server)
    args = {name: value for name, value in changes.items() if name in server.args or name in origin.args}
    dropped = [f"--{name}" for name, value in args.items() if value is None]
    factor = " ".join(filter(None, (*to_argv(args), "without " * bool(dropped) + " ".join(dropped))))
    parts = {
        "base": base,
        "factor": "" if base is None else factor or ", ".join(changes),
        "purpose": "translated from a command line"
        if server.offline is None
        else f"offline: inferload throughput {' '.join(server.offline)}",
        **(of_model if base is None or _hardware(server) != _hardware(origin) else {}),
        "args": args,
        "environment": {name: value for name, value in changes.items() if name not in args},
    }
    return {key: part for key, part in parts.items() if part}


def _name(changes: Changes, prefix: str) -> str:
    words = []
    for name in sorted(changes, key=lambda name: list(_WORDS).index(name) if name in _WORDS else len(_WORDS)):
        value, word = changes[name], _WORDS.get(name, name.removeprefix("enable-"))
        if name == "max-num-batched-tokens" and changes.get("enable-chunked-prefill"):
            word = ""
        if isinstance(value, bool):
            words.append(word if value else f"no-{word}")
        elif value is None:
            words.append(f"default-{word or name}")
        elif isinstance(value, Mapping):
            words.append(
                "-".join(str(value[key]) for key in ("method", "num_speculative_tokens") if key in value) or word
            )
        else:
            words.append(f"{word}{'' if word in ('', 'tp') else '-'}{value}")
    return _clean(prefix + "-".join(words))


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60]


def _hardware(server: PastedServer) -> dict[str, Any]:
    """Return the number of GPUs, and the smallest usual card on which four fifths hold the weights; the largest if none does."""
    sizes = [server.args.get(name, 1) for name in (*_PARALLEL, "data-parallel-size")]
    gpus = [size if isinstance(size, int) and size > 0 else 1 for size in sizes]
    weights_gib = (size_gib(f"{server.model} {server.args.get('quantization', '')}") or 0) / math.prod(gpus[:2])
    card = next((size for size in _CARDS_GIB if weights_gib <= 0.8 * size), _CARDS_GIB[-1])
    return {"gpu": f"any with {card} GB", "gpus": math.prod(gpus), "memory_gib": card}


def _stand_in(group: Sequence[PastedServer]) -> tuple[str, list[str]]:
    """Return the nearest preset that takes all servers of a model, else the nearest and the arguments to leave out."""
    model = group[0].model
    billions = (
        shape.parameters / 1e9
        if (shape := shape_of(model))
        else (size_gib(re.sub(r"(?i)awq|gptq|fp8", "", model)) or 15) * 2**30 / 2e9
    )
    names = sorted(
        (name for name in PRESETS if PRESETS[name].model.parameters > 1e9),
        key=lambda name: abs(math.log(PRESETS[name].model.parameters / 1e9 / billions)),
    )
    for name in names:
        if not any(_refusal(name, server.args) for server in group):
            return name, []
    left_out: dict[str, None] = {}
    for server in group:
        args = dict(server.args)
        while (refusal := _refusal(names[0], args)) and (
            flag := next((flag for flag in _FLAG.findall(refusal) if flag in args), None)
        ):
            del args[flag]
            left_out[flag] = None
    return names[0], list(left_out)


def _refusal(preset: str, args: Mapping[str, Any]) -> str:
    """Return why the simulator does not take the arguments; empty if it does."""
    try:
        server_config.resolve(flags.read(("--hardware", preset, *to_argv(args))))
    except UsageError as error:
        return str(error)
    return ""
