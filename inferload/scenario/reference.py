"""JSON Schema and reference of a scenario file: `python -m inferload.scenario.reference > docs/reference/scenario.md`."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.distributions import MAX_COUNT, MOST

DIALECT = "https://json-schema.org/draft/2020-12/schema"

EXAMPLE = """\
schema: 1
name: support
workload:
  kind: chat
  turns: 3
  prompt_tokens: {dist: lognormal, p50: 120, p95: 400}
  output_tokens: 150
arrivals: {kind: poisson, sessions_per_s: 2}
phases: {warmup_s: 10, measure_s: 60}
slo: {ttft_ms: 500, itl_ms: 50}
gates: ["p95(ttft_ms) < 800", "failed_ratio < 0.01"]
"""

_GENERAL = (MOST, MAX_COUNT, 1 << 63)  # bounds of whole groups of keys, which the head of the page states

_HEAD = """# Scenario file

<!-- Generated: python -m inferload.scenario.reference > docs/reference/scenario.md -->

A scenario is a YAML file that defines the content of the sessions (`workload`), their start times (`arrivals`), the length of
the run (`phases`) and its pass criteria (`slo`, `gates`). A complete example:

```yaml
{example}```

`inferload init mine.yaml` writes a commented file, `inferload validate mine.yaml` lists all errors with their lines,
`inferload plan mine.yaml` prints the resulting load, and `inferload run mine.yaml --host http://server:8000` runs it.
`inferload schema` prints the [JSON Schema](schemas/README.md) for editors. A *distribution* is a number (a constant), or one of the
mappings with `dist` below. Keys that end in `_per_s` are rates per second, other keys that end in `_s` are seconds, and keys
that end in `_ms` milliseconds. A default of `-` means that the key is not set. Unknown keys are errors.

A number is at most 1e9, one above 0 at least 1e-9; a whole number is at most 10,000,000, `sessions` and `turns` of `phases` at
most 1e9, and `seed` below 2^63. A distribution of durations that may draw more than 1e9 s is an error.
These limits prevent overflow.
"""

_Schema = Mapping[str, Any]

# Titles that are not the words of the model's name.
_TITLES = {
    "ShareGpt": "ShareGPT",
    "JsonLines": "JSON Lines",
    "Csv": "CSV",
    "HuggingFace": "Hugging Face",
    "Agent": "Agents",
    "LiveAgentWorkload": "Live agent",
    "MixClass": "Class of a mix",
    "Tool": "Tools",
    "Cancel": "Cancelled turns",
    "Subagents": "Sub-agents",
    "SloLimits": "SLO limits",
    "Closed": "Closed loop",
    "Poisson": "Poisson arrivals",
    "Gamma": "Gamma arrivals",
    "TraceTimes": "Arrivals of a trace",
    "UserSteps": "Profile of users: steps",
    "UserRamp": "Profile of users: ramp",
    "RateSteps": "Profile of the rate: steps",
    "RateRamp": "Profile of the rate: ramp",
    "RatePoints": "Profile of the rate: points",
}


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


def document() -> str:
    """Return the text of docs/reference/scenario.md."""
    schema = json_schema()
    parts = [_HEAD.format(example=EXAMPLE), _section("Top level", schema, schema)]
    parts += [_section(_title(name, schema["$defs"][name]), schema["$defs"][name], schema) for name in _order(schema)]
    return "\n".join(parts)


def _order(schema: _Schema) -> list[str]:
    """Return the names of all definitions with keys, depth first in the order of the keys."""
    names: dict[str, None] = {}

    def visit(part: object) -> None:
        for name in _references(part):
            if name not in names:
                names[name] = None
                visit(schema["$defs"][name])

    visit(schema["properties"])
    return [name for name in names if "properties" in schema["$defs"][name]]


def _references(part: object) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].rpartition("/")[2]
        for key, item in part.items():
            if key not in ("$defs", "discriminator"):
                yield from _references(item)
    elif isinstance(part, list):
        for item in part:
            yield from _references(item)


def _tag(definition: _Schema) -> str:
    """Return the key and value that select a definition, such as `kind: chat`; empty for an ordinary mapping."""
    constants = [(key, part["const"]) for key, part in definition.get("properties", {}).items() if "const" in part]
    return ", ".join(f"{key}: {value}" for key, value in constants if key in ("kind", "dist", "source"))


def _title(name: str, definition: _Schema) -> str:
    tag, title = _tag(definition), _words(name)
    return f"{title} (`{tag}`)" if tag else title


def _words(name: str) -> str:
    """Return the title of a model: its name as words, if `_TITLES` has no other."""
    return _TITLES.get(name) or re.sub(r"(?<!^)(?=[A-Z])", " ", name).capitalize()


def _section(title: str, definition: _Schema, schema: _Schema) -> str:
    lines = [f"## {title}", ""]
    text = " ".join(str(definition.get("description", "")).split())
    if text and definition is not schema:
        lines += [text, ""]
    rows = []
    required = set(definition.get("required", ()))
    for key, part in definition["properties"].items():
        if "const" in part and f"{key}: {part['const']}" in _tag(definition):
            continue
        default = "required" if key in required else "-" if "$ref" in part else _default(part)
        cells = (f"`{key}`", _value(part, schema), default, " ".join(str(part.get("description", "")).split()))
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    if rows:
        lines += ["| key | value | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(lines).rstrip() + "\n"


def _default(part: _Schema) -> str:
    value = part.get("default")
    return "-" if value is None or value in ({}, []) else f"`{json.dumps(value, ensure_ascii=False)}`"


def _value(part: _Schema, schema: _Schema) -> str:
    """Return the type of a value in words, with links to the sections of its keys."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        definition = schema["$defs"][name]
        text = f"`{_tag(definition)}`" if _tag(definition) else _words(name).lower()
        return f"[{text}](#{_anchor(name, definition)})" if "properties" in definition else "any"
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    choices = [*part.get("anyOf", ()), *part.get("oneOf", ())]
    if any(_tag(schema["$defs"][name]).startswith("dist") for name in _references(choices)):
        return "distribution"
    if choices:
        return " or ".join(dict.fromkeys(_value(choice, schema) for choice in choices if choice.get("type") != "null"))
    if part.get("type") == "array":
        return f"list of {_value(part.get('items', {}), schema)}"
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = ", ".join(
        f"{sign} {part[key]:g}" for key, sign in limits.items() if key in part and part[key] not in _GENERAL
    )
    kind = str(part.get("type", "any"))
    name = {"object": "mapping", "string": "text", "boolean": "true or false"}.get(kind, kind)
    return f"{name}{' ' + bounds if bounds else ''}"


def _anchor(name: str, definition: _Schema) -> str:
    characters = (char for char in _title(name, definition).lower() if char.isalnum() or char in " -_")
    return "".join(characters).replace(" ", "-")


if __name__ == "__main__":
    print(document(), end="")
