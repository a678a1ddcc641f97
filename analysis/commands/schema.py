"""`inferload schema`: the JSON Schemas of scenario files and of the documents of a run directory."""

import argparse
import json
import re
from typing import Any

import msgspec

from inferload.base import rundir
from inferload.results.documents import summary_document
from inferload.results.documents.manifest_document import Manifest
from inferload.scenario import reference

_DOCUMENTS: dict[str, tuple[type[msgspec.Struct], int]] = {
    "summary": (summary_document.Summary, summary_document.FORMAT),
    "run": (Manifest, rundir.FORMAT),
}
KINDS = ("scenario", *_DOCUMENTS)


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "schema",
        description="Print the JSON Schema of scenario files, for editors, or of summary.json or run.json of a run.",
        epilog="Examples:\n  inferload schema > scenario.schema.json\n  inferload schema summary\n"
        "As a scenario's first line: # yaml-language-server: $schema=scenario.schema.json",
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, default="scenario", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    print(json.dumps(_schema(arguments.kind), indent=2))
    return 0


def _schema(kind: str) -> dict[str, Any]:
    """Return the schema of one of the KINDS.

    Of a document it is that of the types with which it is written and read: unknown keys are valid, and a key may be missing if the
    types have a default. Scenario files have no unknown keys.
    """
    if kind == "scenario":
        found = reference.json_schema()
        version = found["properties"]["schema"]["const"]
    else:
        document, version = _DOCUMENTS[kind]
        found = _plain(msgspec.json.schema(document))
        parts = found["$defs"]
        found = parts.pop(document.__name__) | {"$defs": parts}
        found["properties"]["format"] = {"const": version, "description": "version of this format"}
        found = {"$schema": reference.DIALECT} | found | {"title": f"inferload {kind}.json"}
    return {"$id": f"urn:inferload:schema:{kind}:{version}"} | found


def _plain(part: Any) -> Any:
    """Return a part without what says nothing to a reader: links, indents, an integer beside a number, and empty defaults."""
    if isinstance(part, list):
        plain = [_plain(item) for item in part]
        has_numbers = any(isinstance(item, dict) and item.get("type") == "number" for item in plain)
        return [item for item in plain if not has_numbers or item.get("type") != "integer"]
    if isinstance(part, dict):
        return {
            key: _plain(item) for key, item in part.items() if key != "default" or isinstance(item, str | int | float)
        }
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", part).split()) if isinstance(part, str) else part
