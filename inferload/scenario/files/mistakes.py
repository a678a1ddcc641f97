"""Validation errors of pydantic as faults of the file: key, line, problem and remedy."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from inferload.base.errors import instead
from inferload.scenario.files.yaml_text import Fault, Parsed, PathTo

Schema = Mapping[str, Any]


def faults_of(error: ValidationError, parsed: Parsed, schema: Schema) -> list[Fault]:
    """Return one fault per validation error, with its line."""
    details = error.errors(include_url=False)
    other_schema = [detail for detail in details if detail["loc"] == ("schema",) and detail["type"] != "missing"]
    faults = [_fault(detail, parsed, schema) for detail in other_schema or details]
    # A misspelled key is one fault, not an unknown key and a missing one.
    meant = {(*fault.path[:-1], _suggestion(fault)) for fault in faults}
    return [fault for fault in faults if not (fault.text.startswith("missing") and fault.path in meant)]


def _suggestion(fault: Fault) -> str | None:
    _, separator, near = fault.text.partition("unknown key; did you mean ")
    return near.removesuffix("?") if separator else None


def _fault(detail: ErrorDetails, parsed: Parsed, schema: Schema) -> Fault:
    path = _written_path(detail, parsed.data)
    text = _TEXTS.get(detail["type"], _pydantic_text)(detail, path, schema)
    if detail["type"] in ("union_tag_not_found", "union_tag_invalid") and isinstance(detail["input"], Mapping):
        path = (*path, str(detail["ctx"]["discriminator"]).strip("'"))
    if source := parsed.source_of(path):
        return Fault(0, path, text, source)
    within = parsed.sources_within(path) if detail["type"] == "value_error" else []
    return Fault(parsed.line_of(path), path, text + (f" (with {', '.join(within)})" if within else ""))


def _written_path(detail: ErrorDetails, data: Any) -> PathTo:
    """Return the error's path without the tags of unions, which pydantic adds to it."""
    path: list[str | int] = []
    parts = detail["loc"]
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if _holds(data, part):
            data = data[part]
            path.append(part)
        elif is_last and detail["type"] == "missing":
            path.append(part)
    return tuple(path)


def _holds(data: Any, part: str | int) -> bool:
    if isinstance(data, Mapping):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and part < len(data)


def _shown(value: Any) -> str:
    """Return a value as written, cut to 60 characters."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _part_of(schema: Schema, loc: Sequence[str | int]) -> Schema:
    """Return the JSON Schema of the mapping at `loc`, which includes the tags of unions."""
    part = _deref(schema, schema)
    for step in loc:
        if step in part.get("properties", {}):
            part = _deref(part["properties"][step], schema)
        elif "discriminator" in part and step in part["discriminator"]["mapping"]:
            part = _deref({"$ref": part["discriminator"]["mapping"][step]}, schema)
        elif isinstance(step, int) and "items" in part:
            part = _deref(part["items"], schema)
    return part


def _deref(part: Schema, schema: Schema) -> Schema:
    while True:
        choices = [choice for choice in part.get("anyOf", ()) if choice.get("type") != "null"]
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        elif len(choices) == 1:  # a mapping or null: its keys are those of the mapping
            part = choices[0]
        else:
            return part


def _unknown_key(detail: ErrorDetails, path: PathTo, schema: Schema) -> str:
    key, loc = str(path[-1]), detail["loc"][:-1]
    valid = list(_part_of(schema, loc).get("properties", {}))
    others = _kinds_with(key, loc, schema)
    if others:
        return f"unknown key; it belongs to {', '.join(others)}; valid here: {', '.join(valid)}"
    listed = f"valid here: {', '.join(valid)}"
    return f"unknown key; {instead(key, valid, listed)}"


def _kinds_with(key: str, loc: Sequence[str | int], schema: Schema) -> list[str]:
    """Return the other kinds of the same union with that key, such as `kind agent`; none outside of a union."""
    union = _part_of(schema, loc[:-1]).get("discriminator", {"mapping": {}}) if loc else {"mapping": {}}
    if not loc or loc[-1] not in union["mapping"]:
        return []
    tags = [tag for tag in union["mapping"] if key in _part_of(schema, (*loc[:-1], tag)).get("properties", {})]
    return [f"{union['propertyName']} {tag}" for tag in tags]


def _missing(detail: ErrorDetails, path: PathTo, schema: Schema) -> str:
    fields = _part_of(schema, detail["loc"][:-1]).get("properties", {})
    description = fields.get(str(detail["loc"][-1]), {}).get("description")
    return f"missing; {description}" if description else "missing"


def _no_kind(detail: ErrorDetails, path: PathTo, schema: Schema) -> str:
    union = _part_of(schema, detail["loc"]).get("discriminator", {})
    choices, key = list(union.get("mapping", {})), union.get("propertyName", "kind")
    if not isinstance(detail["input"], Mapping):
        alternative = "a number or " if key == "dist" else ""
        return f"must be {alternative}{{{key}: {' | '.join(choices)}, ...}}, is {_shown(detail['input'])}"
    return f"missing; one of {', '.join(choices)}"


def _wrong_kind(detail: ErrorDetails, path: PathTo, schema: Schema) -> str:
    word = str(detail["ctx"]["tag"])
    choices = [choice.strip("'") for choice in detail["ctx"]["expected_tags"].split(", ")]
    return f"is {word!r}; {instead(word, choices)}"


def _wrong_word(detail: ErrorDetails, path: PathTo, schema: Schema) -> str:
    choices = [choice.strip("'") for choice in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    return f"is {_shown(detail['input'])}; {instead(str(detail['input']), choices)}"


def _must_be(expected: str) -> Callable[[ErrorDetails, PathTo, Schema], str]:
    return lambda detail, path, schema: f"must be {expected}, is {_shown(detail['input'])}"


def _bound(words: str, key: str) -> Callable[[ErrorDetails, PathTo, Schema], str]:
    def text(detail: ErrorDetails, path: PathTo, schema: Schema) -> str:
        bound = f"{detail['ctx'][key]:,}".removesuffix(".0")
        return f"must be {words} {bound}, is {_shown(detail['input'])}"

    return text


def _pydantic_text(detail: ErrorDetails, path: PathTo, schema: Schema) -> str:
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, is {_shown(detail['input'])}"


_TEXTS: Mapping[str, Callable[[ErrorDetails, PathTo, Schema], str]] = {
    "extra_forbidden": _unknown_key,
    "missing": _missing,
    "union_tag_not_found": _no_kind,
    "union_tag_invalid": _wrong_kind,
    "model_attributes_type": _no_kind,
    "literal_error": _wrong_word,
    "value_error": lambda detail, path, schema: str(detail["ctx"]["error"]),
    "greater_than": _bound("greater than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "finite_number": _must_be("finite"),
    "float_type": _must_be("a number"),
    "int_type": _must_be("a whole number"),
    "int_from_float": _must_be("a whole number"),
    "bool_type": _must_be("true or false"),
    "string_type": _must_be("text"),
    "model_type": _must_be("a mapping of keys"),
    "dict_type": _must_be("a mapping of keys"),
    "tuple_type": _must_be("a list"),
}
