"""Small JSON values that match a JSON Schema, deterministic by seed: tool call arguments and structured outputs.

Supported: $ref inside the document, const, enum, anyOf, oneOf, allOf, type, properties, required, items, prefixItems, lengths
and bounds up to 1e300. Patterns, formats and conditions are ignored. Below a depth of 8, values are the smallest of their
type. A schema whose smallest values are large, such as one that requires itself, is refused.

Schemas come from clients, so size and depth are bounded here: jsf, a library for this, follows a schema that requires itself
until the stack ends, ignores `required` names without properties, and takes seconds to import.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from .errors import ApiError
from .text import VOCABULARY

_DEPTH = 8
_MAX_TEXT = 2048
_MAX_ITEMS = 64
_MAX_VALUES = 5000  # per example; a constant counts one more for each 2,048 characters
_MAX_NESTED = 100  # levels of nested calls of `_value`
_LARGEST = 1e300  # larger bounds are ignored


@dataclass(slots=True)
class _Draw:
    """State of a generation: root schema, random generator, and remaining values."""

    root: Any
    random: Random
    left: int = _MAX_VALUES

    def count(self, values: int, depth: int) -> None:
        """Count values. Raise ApiError for too many values or too deep nesting."""
        self.left -= values
        if self.left < 0:
            raise ApiError(f"schema: matching values have more than {_MAX_VALUES} parts; require fewer")
        if depth > _MAX_NESTED:
            raise ApiError(f"schema: nested deeper than {_MAX_NESTED} levels; flatten it")


def example(schema: Any, random: Random) -> Any:
    """Generate a matching value. Raise ApiError for a schema whose values are too large."""
    return _value(schema, _Draw(schema, random), 0)


def _value(schema: Any, draw: _Draw, depth: int) -> Any:
    draw.count(1, depth)
    if not isinstance(schema, Mapping):
        return {}
    if "$ref" in schema and depth < _DEPTH:
        return _value(_resolve(draw.root, schema["$ref"]), draw, depth + 1)
    if "const" in schema:
        return _constant(schema["const"], draw, depth)
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return _constant(draw.random.choice(schema["enum"]), draw, depth)
    if isinstance(schema.get("allOf"), list):
        return _value(_merged(schema, draw.root), draw, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            branches = schema[key]
            return _value(branches[0] if depth >= _DEPTH else draw.random.choice(branches), draw, depth + 1)
    make = _MAKERS.get(_type_of(schema))
    return make(schema, draw, depth) if make else None


def _constant(value: Any, draw: _Draw, depth: int) -> Any:
    draw.count(len(json.dumps(value)) // _MAX_TEXT, depth)
    return value


def _type_of(schema: Mapping[str, Any]) -> str:
    named = schema.get("type")
    if isinstance(named, list):
        named = next((name for name in named if name != "null"), "null")
    if isinstance(named, str):
        return named
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "object"


def _resolve(root: Any, reference: Any) -> Any:
    target = root
    for part in str(reference).removeprefix("#").split("/")[1:]:
        if not isinstance(target, Mapping):
            return {}
        target = target.get(part.replace("~1", "/").replace("~0", "~"), {})
    return target


def _merged(schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
    """Merge `allOf`: all properties and required names; for other keywords the last schema wins."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for named in schema["allOf"]:
        part = _resolve(root, named["$ref"]) if isinstance(named, Mapping) and "$ref" in named else named
        if not isinstance(part, Mapping):
            continue
        properties = {**_properties(merged), **_properties(part)}
        required = [*_required(merged), *_required(part)]
        merged.update(part)
        merged.update({"properties": properties, "required": required} if properties else {})
    return merged


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _required(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _object(schema: Mapping[str, Any], draw: _Draw, depth: int) -> dict[str, Any]:
    required = set(_required(schema))
    chosen = {}
    for name, inner in _properties(schema).items():
        if name in required or (depth < _DEPTH and draw.random.random() < 0.5):
            chosen[name] = _value(inner, draw, depth + 1)
    for name in sorted(required - set(chosen)):
        chosen[name] = _value({"type": "string"}, draw, depth + 1)
    return chosen


def _array(schema: Mapping[str, Any], draw: _Draw, depth: int) -> list[Any]:
    first = schema.get("prefixItems")
    values = [_value(inner, draw, depth + 1) for inner in first] if isinstance(first, list) else []
    min_items = min(_count(schema, "minItems", 0), _MAX_ITEMS)
    max_items = _count(schema, "maxItems", min_items + 2)
    length = (
        min_items if depth >= _DEPTH else min(max_items, max(min_items, draw.random.randint(min_items, min_items + 2)))
    )
    items = schema.get("items", {"type": "string"})
    while len(values) < length:
        values.append(_value(items, draw, depth + 1))
    return values


def _text(schema: Mapping[str, Any], draw: _Draw, _depth: int) -> str:
    random = draw.random
    min_length = min(_count(schema, "minLength", 0), _MAX_TEXT)
    max_length = _count(schema, "maxLength", max(min_length, _MAX_TEXT))
    words = " ".join(random.choice(VOCABULARY) for _ in range(random.randint(1, 6)))
    while len(words) < min_length:
        words += " " + random.choice(VOCABULARY)
    return words[: max(min_length, min(max_length, len(words)))]


def _integer(schema: Mapping[str, Any], draw: _Draw, _depth: int) -> int:
    low, high = _bounds(schema, 1)
    step = _number_at(schema, "multipleOf")
    step = step if isinstance(step, int) and step > 0 else 1
    return int(draw.random.randint(-(-int(low) // step), max(-(-int(low) // step), int(high) // step)) * step)


def _number(schema: Mapping[str, Any], draw: _Draw, _depth: int) -> float:
    low, high = _bounds(schema, 0.001)
    value = round(low + (high - low) * draw.random.random(), 3)
    return min(max(value, low), high)


def _bounds(schema: Mapping[str, Any], open_end: float) -> tuple[float, float]:
    """Return the lowest and highest value. `open_end`: distance of the range from an exclusive bound."""
    low = _number_at(schema, "minimum")
    above, below = _number_at(schema, "exclusiveMinimum"), _number_at(schema, "exclusiveMaximum")
    low = above + open_end if above is not None else low
    high = _number_at(schema, "maximum")
    high = below - open_end if below is not None else high
    if low is None:
        low = 0 if high is None or high >= 0 else high - 100
    return low, high if high is not None else low + 100


def _number_at(schema: Mapping[str, Any], key: str) -> float | None:
    value = schema.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if -_LARGEST <= value <= _LARGEST else None


def _count(schema: Mapping[str, Any], key: str, default: int) -> int:
    value = schema.get(key)
    return value if isinstance(value, int) and value >= 0 else default


def _boolean(_schema: Mapping[str, Any], draw: _Draw, _depth: int) -> bool:
    return draw.random.random() < 0.5


_MAKERS: Mapping[str, Callable[[Mapping[str, Any], _Draw, int], Any]] = {
    "object": _object,
    "array": _array,
    "string": _text,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
}
