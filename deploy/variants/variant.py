"""Variants: named server configurations, each with the factor in which it differs from its base.

Each YAML file beside this module is a family: a model, its hardware, and variants by name.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError, instead
from inferload.results import prices
from inferload.results.prices import UNPRICED, Prices
from inferload.scenario.files import catalog
from inferload.scenario.files.yaml_text import parse

from ..launcher.machine_checks import DEFAULT_UTILIZATION, Hardware
from ..simulator.core.hardware import find
from ..vllm.arguments import refuse_elsewhere, to_argv

FOLDER = Path(__file__).parent

# Arguments of every variant, required for the diagnosis of a run: timings and cached tokens per request, and histogram buckets
# (seconds) fine enough for a median.
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
MAX_NAME = 64  # characters
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TEXTS = {"family", "purpose", "base", "factor", "source", "old", "card"}  # without effect on a run
_FAMILY_KEYS = {"source", "model", "hardware", "simulated_as", "prices", "variants"}


@dataclass(frozen=True, slots=True)
class Variant:
    """Variant with the arguments of its base. `args`: of vLLM, by long name. `old`: flags in its source."""

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
        """Set the number of GPUs to the product of the parallel sizes. Raise UsageError for invalid values."""
        check_name(self.name)
        _check_words(self)
        if self.hardware.gpus:
            gpus = math.prod(self._size(name) for name in _PARALLEL)
            object.__setattr__(self, "hardware", replace(self.hardware, gpus=gpus))

    def _size(self, name: str) -> int:
        value = self.args.get(name)
        if value is None:
            return 1
        if not str(value).isdecimal() or int(value) < 1:
            raise UsageError(f"{self.name}: {name} {value}: needs an integer of 1 or more")
        return int(value)

    @property
    def argv(self) -> tuple[str, ...]:
        """Arguments after `vllm serve MODEL`, including ALWAYS."""
        return tuple(to_argv({**self.args, **{name: value for name, value in ALWAYS.items() if name not in self.args}}))

    @property
    def utilization(self) -> float:
        """Share of each GPU's memory used by the server. Raise UsageError if it is not a number."""
        value = self.args.get("gpu-memory-utilization") or DEFAULT_UTILIZATION
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{self.name}: gpu-memory-utilization {value}: not a number") from None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the properties that have an effect on a run, as canonical JSON."""
        data = {key: value for key, value in document(self).items() if key not in _TEXTS}
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def with_args(self, changes: Mapping[str, Any]) -> "Variant":
        """Return a copy with changed arguments; None removes an argument."""
        return replace(self, args={**self.args, **changes})

    def difference(self, base: "Variant") -> list[str]:
        def of(name: str) -> list[str]:
            return _changes({name: getattr(base, name)}, {name: getattr(self, name)})

        arguments, variables = _changes(base.args, self.args), _changes(base.environment, self.environment)
        return [*of("model"), *arguments, *of("hardware"), *variables, *of("simulated_as")]


def check_name(name: str) -> str:
    """Return a valid name, which is also a folder name. Raise UsageError for an invalid one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"variant {name!r}: invalid name; use up to {MAX_NAME} letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    return name


def _check_words(variant: Variant) -> None:
    """Raise UsageError for values of another type and for invalid names of flags or environment variables."""
    for key in ("purpose", "model", "source", "simulated_as", "factor", "old"):
        value = getattr(variant, key)
        if not isinstance(value, str) and (key, value) != ("old", None):
            raise UsageError(f"{variant.name}: {key} {value!r}: not a string; quote it")
    for name in variant.args:
        if not isinstance(name, str) or not _FLAG_NAME.fullmatch(name):
            raise UsageError(f"{variant.name}: args: {name!r} is not a flag name such as max-num-seqs")
    for name, value in variant.environment.items():
        if not isinstance(name, str) or not _ENVIRONMENT_NAME.fullmatch(name):
            raise UsageError(f"{variant.name}: environment: {name!r}: invalid name; use letters, digits and '_' only")
        if not isinstance(value, str | int | float) or isinstance(value, bool) or "\0" in str(value):
            raise UsageError(f"{variant.name}: environment: {name} {value!r}: not a string or a number; quote it")


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {formatted(before.get(name))} -> {formatted(after.get(name))}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def formatted(value: Any) -> str:
    """Format the value of an argument as in the file of a variant; `not set` for None."""
    if value is None:
        return "not set"
    return json.dumps(value, separators=(",", ":")) if isinstance(value, bool | Mapping | list | tuple) else str(value)


@cache
def bundled() -> Mapping[str, Variant]:
    """Return all bundled variants by name, in the order of the files."""
    variants_by_name: dict[str, Variant] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        family = _read(path)
        if repeated := sorted(variants_by_name.keys() & family.keys()):
            raise UsageError(f"{path}: variant {repeated[0]} is also defined in another file")
        variants_by_name |= family
    return variants_by_name


def named(name: str) -> Variant:
    """Return a bundled variant, or a variant of a file: `file.yaml:name`. UsageError suggests the closest name."""
    path, sign, inside = name.rpartition(":")
    if sign and path.endswith((".yaml", ".yml")):
        return _pick(_read(Path(path)), inside)
    if name.endswith((".yaml", ".yml")):
        inside = ", ".join(_read(Path(name)))
        raise UsageError(f"{name}: a file, not a variant; use {name}:NAME with one of {inside}")
    return _pick(bundled(), name, "inferload deploy list lists them")


def label(name: str) -> str:
    """Return the name of a variant in folders and tables: the part after the colon of `FILE.yaml:NAME`."""
    return name.rpartition(":")[2]


def stand_in(variant: Variant) -> str:
    """Return the model and device of the simulator preset of a variant."""
    preset = find(variant.simulated_as)
    return f"{preset.stands_for()} ({preset.name})"


def base_of(variant: Variant, name: str) -> Variant | None:
    """Return the base of a variant, from the same file; None if it is a base itself."""
    path, sign, _ = name.rpartition(":")
    return None if variant.base is None else named(f"{path}{sign}{variant.base}")


def _read(path: Path) -> Mapping[str, Variant]:
    return family_of(catalog.data(path, "", "FILE.yaml:NAME names a variant of a file"), path)


def _pick(variants: Mapping[str, Variant], name: str, where: str | None = None) -> Variant:
    if name in variants:
        return variants[name]
    raise UsageError(f"variant {name}: unknown; {instead(name, variants, where)}")


def family_of(document: Any, path: Path) -> dict[str, Variant]:
    """Parse the variants of a family file. Raise UsageError for an invalid key."""
    if not isinstance(document, Mapping):
        raise UsageError(f"{path}: not a family of variants; it needs source, model, hardware and variants")
    _check_keys(document, _FAMILY_KEYS, f"{path}")
    variants: Any = document.get("variants") or {}
    variants_by_name: dict[str, Variant] = {}
    if not isinstance(variants, Mapping):
        raise UsageError(f"{path}: variants: needs a mapping of names")
    for name, entry in variants.items():
        if not isinstance(entry, Mapping):
            raise UsageError(f"{path}: variant {name}: not a mapping")
        _check_keys(entry, _KEYS, f"{path}: variant {name}")
        for key in ("args", "environment"):
            if not isinstance(entry.get(key) or {}, Mapping):
                raise UsageError(f"{path}: variant {name}: {key}: not a mapping such as {{max-num-seqs: 8}}")
        variants_by_name[name] = _variant(name, entry, document, variants_by_name, path)
    if not variants_by_name:
        raise UsageError(f"{path}: no variants")
    return variants_by_name


def _variant(
    name: str, entry: Mapping[str, Any], family: Mapping[str, Any], previous: Mapping[str, Variant], path: Path
) -> Variant:
    base = entry.get("base")
    if base is not None and not (isinstance(base, str) and base in previous):
        raise UsageError(f"{path}: variant {name}: its base {base!s} is not defined before it")
    if (base is None) != ("factor" not in entry):
        raise UsageError(f"{path}: variant {name}: define both base and factor, or neither")
    parent = previous[base] if base is not None else None
    try:
        hardware = Hardware(**entry["hardware"]) if "hardware" in entry else None
        return Variant(
            name=name,
            family=path.stem,
            purpose=entry["purpose"],
            model=entry.get("model") or (parent.model if parent else family["model"]),
            hardware=hardware or (parent.hardware if parent else Hardware(**family["hardware"])),
            source=family["source"],
            simulated_as=entry.get("simulated_as") or (parent.simulated_as if parent else family["simulated_as"]),
            base=base,
            factor=entry.get("factor", ""),
            args={**(parent.args if parent else {}), **(entry.get("args") or {})},
            environment={**(parent.environment if parent else {}), **(entry.get("environment") or {})},
            old=entry.get("old"),
            prices=prices.from_document(entry.get("prices"), f"{path}: variant {name}: prices").over(
                parent.prices if parent else prices.from_document(family.get("prices"), f"{path}: prices")
            ),
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: variant {name}: {error} is missing or invalid") from error


def _check_keys(document: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in document:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key}; {instead(str(key), sorted(known))}")


def document(variant: Variant) -> dict[str, Any]:
    found = asdict(variant)
    card = found["hardware"].pop("note")
    return {**found, "card": card, "argv": list(variant.argv), "prices": prices.to_document(variant.prices)}


def _value(setting: str, value: str) -> Any:
    if not value:
        return None
    parsed = parse(value)
    if parsed.faults:
        problem = parsed.faults[0].text.removeprefix("not YAML: ")
        raise UsageError(f"--set {setting}: the value is not YAML ({problem}); check brackets and quotes")
    return parsed.data


def changed(variant: Variant, settings: Sequence[str]) -> Variant:
    """Apply `flag=value` settings to a variant. Values are YAML; an empty value removes the flag.

    Raise UsageError for flags not allowed in a variant: an address, or a key, which files and process lists would expose.
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name.strip("-"):
            raise UsageError(f"--set {setting}: write it as flag=value, such as max-num-seqs=8")
        changes[name] = _value(setting, value)
    return with_arguments(variant, changes, "by --set")


def with_arguments(variant: Variant, changes: Mapping[str, Any], where: str) -> Variant:
    """Return the variant with changed arguments by their flags; None removes one. `where`: they stand, for the UsageError."""
    refuse_elsewhere([f"--{flag_name(flag)}" for flag in changes], where)
    refuse_elsewhere(variant.argv, f"of {variant.name}")
    return variant.with_args({flag_name(flag): value for flag, value in changes.items()}) if changes else variant


def flag_name(flag: str) -> str:
    """Return the name of a flag in `args`: without dashes before it, and with dashes in it."""
    return flag.lstrip("-").replace("_", "-")
