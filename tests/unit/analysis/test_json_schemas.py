"""Published schemas: those of the types, with the version of the format, and valid for recorded files of each version.

`check_counts` of the end-to-end and virtual runs compares the documents of each new run with them, without unknown or missing keys.
"""

import json
from pathlib import Path
from typing import Any

import documents
import jsonschema
import pytest
import run_kinds
import yaml
from inferload.analysis.commands import schema
from paths import DATA, ROOT

from inferload import cli
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary

RECORDED = sorted((DATA / "documents").glob("*.json"))
TYPES = {"summary": Summary, "run": Manifest}


@pytest.mark.parametrize("kind", schema.KINDS)
def test_the_published_schema_is_that_of_the_types(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", kind]) == 0
    printed = capsys.readouterr().out
    version = json.loads(printed)["$id"].rpartition(":")[2]
    published = documents.PUBLISHED / f"{kind}-{version}.schema.json"
    assert published.exists(), "another version of the format has a file of its own; the earlier ones stay"
    assert published.read_text() == printed, f"inferload schema {kind} > {published.relative_to(ROOT)}"
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))


def test_each_published_schema_has_its_version_and_a_recorded_document() -> None:
    for path in documents.PUBLISHED.glob("*.json"):
        kind, version = path.name.removesuffix(".schema.json").rsplit("-", 1)
        schema = json.loads(path.read_text())
        assert schema["$id"] == f"urn:inferload:schema:{kind}:{version}"
        assert schema["properties"]["schema" if kind == "scenario" else "format"]["const"] == int(version)
        assert kind == "scenario" or DATA / "documents" / f"{kind}-{version}.json" in RECORDED


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_documents_are_valid_and_can_be_read(path: Path) -> None:
    document = json.loads(path.read_text())
    documents.validator(path.stem).validate(document)
    assert typed_documents.typed(document, TYPES[path.stem.rpartition("-")[0]])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("summary", {"window_s": "10"}),
        ("summary", {"format": 2}),
        ("summary", {"turns": None}),
        ("summary", {"run": {"clock": "unreal"}}),
        ("run", {"seed": -1}),
        ("run", {"phases": [{"start_wall_ns": 1.5}]}),
    ],
)
def test_a_document_with_a_value_of_another_type_is_not_valid(kind: str, changes: dict[str, Any]) -> None:
    document = json.loads((DATA / "documents" / f"{kind}-1.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        documents.validator(f"{kind}-1").validate(document | changes)


def test_unknown_keys_of_a_later_version_are_valid() -> None:
    for path in RECORDED:
        documents.validator(path.stem).validate(json.loads(path.read_text()) | {"later": 1})


def test_summaries_of_every_kind_of_run_are_valid() -> None:
    for make in (run_kinds.summary, run_kinds._overloaded, run_kinds._own_tasks, run_kinds._long_texts):
        documents.validator("summary-1").validate(make())


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_bundled_scenarios_are_valid(path: Path) -> None:
    documents.validator("scenario-1").validate(yaml.safe_load(path.read_text()))
