"""`--set FLAG=VALUE`: a variant with changed arguments. No I/O."""

from collections.abc import Sequence
from typing import Any

from inferload.errors import UsageError
from inferload.scenario.files.yaml_text import parse

from ..vllm.arguments import refuse_elsewhere
from .variant import Variant


def _value(setting: str, value: str) -> Any:
    if not value:
        return None
    parsed = parse(value)
    if parsed.faults:
        problem = parsed.faults[0].text.removeprefix("not YAML: ")
        raise UsageError(f"--set {setting}: its value is no YAML ({problem}); see to its brackets and quotes")
    return parsed.data


def changed(variant: Variant, settings: Sequence[str]) -> Variant:
    """The variant with `flag=value` settings applied; a value is YAML's, an empty one drops the flag.

    UsageError for a flag that is no variant's: an address, or a key, which would stand in files and process lists.
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
