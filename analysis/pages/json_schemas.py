"""JSON Schemas of summary.json, run.json and scenario files: `inferload schema` prints them."""

import re
from typing import Any

import msgspec

from inferload.base import rundir
from inferload.results.documents import summary_document
from inferload.results.documents.manifest_document import Manifest
from inferload.scenario import reference

KINDS = ("scenario", "summary", "run")
_DOCUMENTS: dict[str, tuple[type[msgspec.Struct], int]] = {
    "summary": (summary_document.Summary, summary_document.FORMAT),
    "run": (Manifest, rundir.FORMAT),
}


def schema(kind: str) -> dict[str, Any]:
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


def file_name(kind: str) -> str:
    """Return the name of the published file, with the version of the format."""
    return f"{kind}-{schema(kind)['$id'].rpartition(':')[2]}.schema.json"


def _plain(part: Any) -> Any:
    """Return a part without what says nothing to a reader: links, indents, an integer beside a number, and empty defaults."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    plain = {key: _plain(item) for key, item in part.items()}
    if isinstance(plain.get("description"), str):
        plain["description"] = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain["description"]).split())
    types = [choice.get("type") for choice in plain.get("anyOf", ()) if isinstance(choice, dict)]
    if "number" in types:
        plain["anyOf"] = [choice for choice in plain["anyOf"] if choice.get("type") != "integer"]
    if isinstance(plain.get("default", ""), dict | list | None):
        del plain["default"]
    return plain
