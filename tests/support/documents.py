"""Compare the documents of a run with their published schemas."""

import json
from functools import cache
from typing import Any

import jsonschema
from paths import ROOT

PUBLISHED = ROOT / "docs" / "reference" / "schemas"


@cache
def validator(name: str, strict: bool = False) -> jsonschema.Draft202012Validator:
    """Return the validator of a published schema, such as summary-1. `strict`: as written now, no key is unknown or missing."""
    schema = json.loads((PUBLISHED / f"{name}.schema.json").read_text())
    return jsonschema.Draft202012Validator(_strict(schema) if strict else schema)


def _strict(part: Any) -> Any:
    if isinstance(part, list):
        return [_strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    strict = {key: _strict(item) for key, item in part.items()}
    if part.get("type") == "object" and isinstance(part.get("properties"), dict):
        strict |= {"additionalProperties": False, "required": list(part["properties"])}
    return strict


def differences(name: str, document: Any) -> list[str]:
    """Return undocumented and missing keys, and values of another type, a line each."""
    return sorted(f"{fault.json_path}: {fault.message}" for fault in validator(name, True).iter_errors(document))
