"""The JSON Schema of a scenario file, for editors that complete and check while one types."""

from typing import Any

from inferload.scenario.scenario import Scenario

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema; a distribution may be written as a plain number, which the models take before they look."""
    schema: dict[str, Any] = _with_plain_numbers(Scenario.model_json_schema(by_alias=True))
    return {"$schema": DIALECT} | schema | {"title": "inferload scenario"}


def _with_plain_numbers(part: Any) -> Any:
    if isinstance(part, list):
        return [_with_plain_numbers(item) for item in part]
    if not isinstance(part, dict):
        return part
    inner = {key: _with_plain_numbers(item) for key, item in part.items()}
    choices = inner.get("anyOf", [])
    if any(set(one) == {"anyOf"} for one in choices):  # a distribution or null
        return inner | {"anyOf": [each for one in choices for each in one.get("anyOf", [one])]}
    if inner.get("discriminator", {}).get("propertyName") != "dist":
        return inner
    union = {key: inner.pop(key) for key in ("oneOf", "discriminator")}
    return inner | {"anyOf": [{"type": "number", "minimum": 0}, union]}
