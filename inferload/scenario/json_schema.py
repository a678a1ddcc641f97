"""JSON Schema of a scenario file, for completion and validation in editors."""

from typing import Any

from inferload.scenario.scenario import Scenario

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the schema. It allows a plain number for each distribution, which the models convert before validation."""
    schema: dict[str, Any] = _with_plain_numbers(Scenario.model_json_schema(by_alias=True))
    return {"$schema": DIALECT} | schema | {"title": "inferload scenario"}


def _with_plain_numbers(part: Any) -> Any:
    if isinstance(part, list):
        return [_with_plain_numbers(item) for item in part]
    if not isinstance(part, dict):
        return part
    inner = {key: _with_plain_numbers(item) for key, item in part.items()}
    choices = inner.get("anyOf", [])
    if any(set(choice) == {"anyOf"} for choice in choices):  # a distribution or null
        return inner | {"anyOf": [option for choice in choices for option in choice.get("anyOf", [choice])]}
    if inner.get("discriminator", {}).get("propertyName") != "dist":
        return inner
    union = {key: inner.pop(key) for key in ("oneOf", "discriminator")}
    return inner | {"anyOf": [{"type": "number", "minimum": 0}, union]}
