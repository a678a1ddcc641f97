"""Files that commands of inferload render, and their schemas."""

import contextlib
import functools
import importlib.util
import io
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import referencing
import yaml
from paths import ROOT

from inferload import cli

KUBERNETES = "1.32"
DEFINITIONS = "https://kubernetes.io/api/_definitions.json"


@functools.cache
def rendered(*words: str) -> dict[str, str]:
    """Return the files that a command writes into a folder, by name in the order of its output."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as errors:
        with contextlib.redirect_stdout(io.StringIO()) as names:
            code = cli.main([*with_output(words, folder)])
        assert code == 0, errors.getvalue()
        written = {str(path) for path in Path(folder).rglob("*") if path.is_file()}
        assert sorted(written) == sorted(names.getvalue().splitlines())
        return {
            line.removeprefix(f"{folder}/"): Path(line).read_text("utf-8") for line in names.getvalue().splitlines()
        }


def with_output(words: Iterable[str], folder: str) -> list[str]:
    """Return the words of a command with its output folder, before the words for the run."""
    words = [*words]
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], "-o", folder, *words[end:]]


def objects(files: dict[str, str], *names: str) -> list[dict[str, Any]]:
    """Return the documents of the named files, or of all YAML files."""
    found = [name for name in names or files if name.endswith((".yaml", ".yml"))]
    return [entry for name in found for entry in yaml.load_all(files[name], yaml.CSafeLoader)]


@functools.cache
def compose_schema() -> jsonschema.Draft202012Validator:
    """Return the schema of the Compose Specification, from check-jsonschema."""
    folder = _package("check_jsonschema") / "builtin_schemas" / "vendor"
    return jsonschema.Draft202012Validator(json.loads((folder / "compose-spec.json").read_text()))


def check_kubernetes(entry: dict[str, Any]) -> None:
    """Validate an object. Unknown fields are errors. Raise jsonschema.ValidationError."""
    group, _, version = entry["apiVersion"].rpartition("/")
    _schema(entry["kind"], f"{group}-{version}" if group else version).validate(entry)


@functools.cache
def _schema(kind: str, version: str) -> jsonschema.Draft202012Validator:
    """Return the schema of a kind: that of Kubernetes from kubernetes-validate, or that of a custom resource in tests/data."""
    custom = ROOT / "tests" / "data" / "crds" / f"{kind}-{version}.yaml".lower()
    if custom.is_file():
        return jsonschema.Draft202012Validator(_closed(yaml.safe_load(custom.read_text())), registry=_definitions())
    group, _, number = version.rpartition("-")
    name = "-".join(filter(None, (kind, group.partition(".")[0], f"{number}.json"))).lower()
    return jsonschema.Draft202012Validator(json.loads((_folder() / name).read_text()), registry=_definitions())


def _package(name: str) -> Path:
    """Return the folder of a package, which is not imported: only its files are needed."""
    found = importlib.util.find_spec(name)
    assert found
    assert found.origin
    return Path(found.origin).parent


def _folder() -> Path:
    return _package("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"


@functools.cache
def _definitions() -> referencing.Registry[Any]:
    resource = referencing.Resource.from_contents(json.loads((_folder() / "_definitions.json").read_text()))
    return referencing.Registry().with_resource(DEFINITIONS, resource)


def _closed(part: Any) -> Any:
    """Return a schema that refuses unknown fields, with the types of Kubernetes that it names, to which it may add properties."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    closed = {key: _closed(value) for key, value in part.items() if key != "x-kubernetes-type"}
    if core := part.get("x-kubernetes-type"):
        reference = {"$ref": f"{DEFINITIONS}#/$defs/{core}"}
        if not closed:
            return reference
        found = _definitions().resolver().lookup(reference["$ref"]).contents
        return {**found, "properties": {**found["properties"], **closed["properties"]}}
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
