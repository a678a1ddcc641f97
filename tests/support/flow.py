"""YAML files in short form for golden texts: comments in their places, and each key on one line."""

import json
import re

from inferload.scenario.files.yaml_text import parse


def flow(text: str) -> str:
    """Return a YAML text with the value of each top-level key as JSON; that of `variants` of a family with a line for each."""
    document = parse(text).data
    lines = []
    for line in text.splitlines():
        value = document[key[1]] if (key := re.match(r"(\w+):", line)) else None
        if key and key[1] == "variants" and isinstance(value, dict):
            lines += [line, *(f"  {name}: {json.dumps(entry)}" for name, entry in value.items())]
        elif key:
            lines.append(f"{key[0]} {json.dumps(value)}")
        elif line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"
