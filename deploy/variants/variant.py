"""Variants: named configurations of a server as data, each with the one factor in which it differs from its base.

The files lie beside this module, one for each family: a model, a kind of hardware, and the variants by name.
"""

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.results import prices
from inferload.results.cost import UNPRICED, Prices
from inferload.scenario.files import catalog

from ..launcher.machine_checks import DEFAULT_UTILIZATION, Hardware
from ..simulator.core.hardware import find
from ..vllm.arguments import to_argv

FOLDER = Path(__file__).parent

# What every variant switches on, so that runs against it can say why and not only how: each turn's own times and cached
# tokens, and buckets of the latency histograms that are fine enough to read a median from (seconds).
ALWAYS: Mapping[str, Any] = {
    "enable-per-request-metrics": True,
    "enable-prompt-tokens-details": True,
    "custom-histogram-buckets": {
        "request_latency": [
            *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
            *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
        ]
    },
}
_KEYS = {"purpose", "base", "factor", "args", "environment", "model", "hardware", "old", "simulated_as", "prices"}
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FAMILY_KEYS = {"source", "model", "hardware", "simulated_as", "prices", "variants"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant, complete: what its base says is in it. `args`: vLLM's, by long name; `old`: the form of its source."""

    name: str
    family: str
    purpose: str
    model: str
    hardware: Hardware
    source: str
    simulated_as: str
    base: str | None = None
    factor: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    old: str | None = None
    prices: Prices = UNPRICED

    def __post_init__(self) -> None:
        """GPUs are as many as the parallel sizes come to; UsageError for a size, a name or an environment that is none."""
        check_name(self.name)
        _check_words(self)
        if self.hardware.gpus:
            taken = math.prod(self._size(name) for name in _PARALLEL)
            object.__setattr__(self, "hardware", replace(self.hardware, gpus=taken))

    def _size(self, name: str) -> int:
        value = self.args.get(name)
        if value is None:
            return 1
        if not str(value).isdecimal() or int(value) < 1:
            raise UsageError(f"{self.name}: {name} {value}: not a whole number of 1 or more")
        return int(value)

    @property
    def argv(self) -> tuple[str, ...]:
        """vLLM's arguments behind `vllm serve MODEL`, those that every variant has included."""
        return tuple(to_argv({**self.args, **{name: value for name, value in ALWAYS.items() if name not in self.args}}))

    @property
    def utilization(self) -> float:
        """The share of each GPU's memory that the server takes; UsageError if it is no number."""
        value = self.args.get("gpu-memory-utilization") or DEFAULT_UTILIZATION
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{self.name}: gpu-memory-utilization {value}: not a number") from None

    def with_args(self, changes: Mapping[str, Any]) -> "Variant":
        """The same with other arguments; None takes one away."""
        return replace(self, args={**self.args, **changes})

    def difference(self, base: "Variant") -> list[str]:
        """What differs from another variant, a line each."""
        lines = [
            f"{name}: {_shown(base.args.get(name))} -> {_shown(self.args.get(name))}"
            for name in dict.fromkeys((*base.args, *self.args))
            if base.args.get(name) != self.args.get(name)
        ]
        if self.model != base.model:
            lines.insert(0, f"model: {base.model} -> {self.model}")
        if self.hardware != base.hardware:
            lines.append(f"hardware: {base.hardware} -> {self.hardware}")
        return lines


def check_name(name: str) -> str:
    """The name of a variant, which folders and shell scripts have too; UsageError where it is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"variant {name!r}: its name must be letters, digits, '.', '_' or '-', at most 64, and begin with a letter or digit"
        )
    return name


def _check_words(variant: Variant) -> None:
    """UsageError where a text is none, or where a flag or an environment variable cannot be passed on."""
    for key in ("purpose", "model", "source", "simulated_as", "factor"):
        if not isinstance(getattr(variant, key), str):
            raise UsageError(f"{variant.name}: {key} {getattr(variant, key)!r}: not a text; quote it")
    if not (variant.old is None or isinstance(variant.old, str)):
        raise UsageError(f"{variant.name}: old {variant.old!r}: not a text; quote it")
    for name in variant.args:
        if not isinstance(name, str) or not _FLAG_NAME.fullmatch(name):
            raise UsageError(f"{variant.name}: args: {name!r} is not the name of a flag; such as max-num-seqs")
    for name, value in variant.environment.items():
        if not isinstance(name, str) or not _ENVIRONMENT_NAME.fullmatch(name):
            raise UsageError(f"{variant.name}: environment: {name!r} is not a name; letters, digits and '_' only")
        if not isinstance(value, str | int | float) or isinstance(value, bool) or "\0" in str(value):
            raise UsageError(f"{variant.name}: environment: {name} {value!r}: not a text or a number; quote it")


def _shown(value: Any) -> str:
    """As a variant's file or a command line has it."""
    if value is None:
        return "not set"
    return json.dumps(value, separators=(",", ":")) if isinstance(value, bool | Mapping | list | tuple) else str(value)


@cache
def bundled() -> Mapping[str, Variant]:
    """All bundled variants by name, in the order of the files."""
    found: dict[str, Variant] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        family = _read(path)
        if twice := sorted(found.keys() & family.keys()):
            raise UsageError(f"{path}: variant {twice[0]} stands in another file too")
        found |= family
    return found


def named(name: str) -> Variant:
    """A bundled variant, or one of a file: `file.yaml:name`. UsageError names the nearest."""
    path, sign, inside = name.rpartition(":")
    if sign and path.endswith((".yaml", ".yml")):
        return _pick(_read(Path(path)), inside, path)
    if name.endswith((".yaml", ".yml")):
        inside = ", ".join(_read(Path(name)))
        raise UsageError(f"{name}: say which of its variants, as {name}:NAME; it has {inside}")
    return _pick(bundled(), name, "inferload deploy list")


def stand_in(variant: Variant) -> str:
    """The model and device whose step times the simulator takes for a variant: those of a preset, not the variant's own."""
    preset = find(variant.simulated_as)
    return f"{preset.model.name} on {preset.device.name} ({preset.name})"


def base_of(variant: Variant, name: str) -> Variant | None:
    """What a variant differs from, out of the file that its name is of; None for a base."""
    path, sign, _ = name.rpartition(":")
    return None if variant.base is None else named(f"{path}{sign}{variant.base}")


def _read(path: Path) -> Mapping[str, Variant]:
    return family_of(catalog.data(path, "", "FILE.yaml:NAME names a variant of a file of yours"), path)


def _pick(variants: Mapping[str, Variant], name: str, where: str) -> Variant:
    if name in variants:
        return variants[name]
    near = difflib.get_close_matches(name, variants, n=1, cutoff=0.4)
    raise UsageError(f"variant {name}: not known" + (f"; did you mean {near[0]}?" if near else "") + f" (see {where})")


def family_of(document: Any, path: Path) -> dict[str, Variant]:
    """The variants that a family's file says; UsageError names the key that is wrong."""
    if not isinstance(document, Mapping):
        raise UsageError(f"{path}: not a family of variants; it needs source, model, hardware and variants")
    _check_keys(document, _FAMILY_KEYS, f"{path}")
    found: dict[str, Variant] = {}
    variants = document.get("variants") or {}
    if not isinstance(variants, Mapping):
        raise UsageError(f"{path}: variants: not a mapping of names")
    for name, said in variants.items():
        if not isinstance(said, Mapping):
            raise UsageError(f"{path}: variant {name}: not a mapping")
        _check_keys(said, _KEYS, f"{path}: variant {name}")
        for key in ("args", "environment"):
            if not isinstance(said.get(key) or {}, Mapping):
                raise UsageError(f"{path}: variant {name}: {key}: not a mapping such as {{max-num-seqs: 8}}")
        found[name] = _variant(name, said, document, found, path)
    if not found:
        raise UsageError(f"{path}: no variants")
    return found


def _variant(
    name: str, said: Mapping[str, Any], family: Mapping[str, Any], before: Mapping[str, Variant], path: Path
) -> Variant:
    base = said.get("base")
    if base is not None and not (isinstance(base, str) and base in before):
        raise UsageError(f"{path}: variant {name}: its base {base!s} does not stand before it")
    if (base is None) != ("factor" not in said):
        raise UsageError(f"{path}: variant {name}: base and factor go together")
    parent = before[base] if base is not None else None
    try:
        hardware = Hardware(**said["hardware"]) if "hardware" in said else None
        return Variant(
            name=name,
            family=path.stem,
            purpose=said["purpose"],
            model=said.get("model") or (parent.model if parent else family["model"]),
            hardware=hardware or (parent.hardware if parent else Hardware(**family["hardware"])),
            source=family["source"],
            simulated_as=said.get("simulated_as") or (parent.simulated_as if parent else family["simulated_as"]),
            base=base,
            factor=said.get("factor", ""),
            args={**(parent.args if parent else {}), **(said.get("args") or {})},
            environment={**(parent.environment if parent else {}), **(said.get("environment") or {})},
            old=said.get("old"),
            prices=prices.from_document(said.get("prices"), f"{path}: variant {name}: prices").over(
                parent.prices if parent else prices.from_document(family.get("prices"), f"{path}: prices")
            ),
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: variant {name}: {error} is missing or wrong") from error


def _check_keys(document: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in document:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            raise UsageError(f"{where}: unknown key {key}" + (f"; did you mean {near[0]}?" if near else ""))


def document(variant: Variant) -> dict[str, Any]:
    """Everything of a variant, for a manifest or a machine."""
    return {
        "name": variant.name,
        "family": variant.family,
        "purpose": variant.purpose,
        "model": variant.model,
        "hardware": {
            "gpu": variant.hardware.gpu,
            "gpus": variant.hardware.gpus,
            "memory_gib": variant.hardware.memory_gib,
        },
        "base": variant.base,
        "factor": variant.factor,
        "simulated_as": variant.simulated_as,
        "args": dict(variant.args),
        "argv": list(variant.argv),
        "environment": dict(variant.environment),
        "source": variant.source,
        "old": variant.old,
        "prices": prices.to_document(variant.prices),
    }
