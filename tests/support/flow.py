"""YAML files in short form for golden texts: comments in their places, and each key on one line."""

import json
import re

import yaml

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


def leaves(text: str) -> str:
    """Return the comments of YAML documents, and the documents with each mapping and list of plain values on one line."""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    documents = yaml.safe_load_all(text)
    shown = yaml.safe_dump_all(documents, default_flow_style=None, width=1000, sort_keys=False)
    return "\n".join([*comments, shown])
