"""`--set FLAG=VALUE`: a variant with changed arguments. No I/O."""

from collections.abc import Sequence
from typing import Any

from inferload.base.errors import UsageError
from inferload.scenario.files.yaml_text import parse

from ..vllm.arguments import refuse_elsewhere
from .variant import Variant


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
        refuse_elsewhere([f"--{name.lstrip('-')}"], "by --set")
        changes[name.lstrip("-").replace("_", "-")] = _value(setting, value)
    refuse_elsewhere(variant.argv, f"of {variant.name}")
    return variant.with_args(changes) if changes else variant
