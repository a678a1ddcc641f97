"""docs/reference/scenario.md is generated from the schema, complete, and with a valid example."""

import re

from paths import ROOT

from inferload.scenario import reference
from inferload.scenario.reference import json_schema
from inferload.scenario.scenario import from_text

PAGE = ROOT / "docs" / "reference" / "scenario.md"


def test_the_page_is_generated_from_the_schema() -> None:
    command = "python -m inferload.scenario.reference > docs/reference/scenario.md"
    assert PAGE.read_text(encoding="utf-8") == reference.document(), command


def test_every_key_has_a_row_and_every_link_a_section() -> None:
    page = reference.document()
    schema = json_schema()
    for definition in (schema, *schema["$defs"].values()):
        for key, part in definition.get("properties", {}).items():
            assert f"| `{key}` |" in page or f"`{key}: {part.get('const')}`" in page, key
    anchors = set()
    for title in re.findall(r"^## (.*)$", page, re.MULTILINE):
        anchors.add("".join(char for char in title.lower() if char.isalnum() or char in " -_").replace(" ", "-"))
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors


def test_the_example_is_a_valid_scenario() -> None:
    assert from_text(reference.EXAMPLE, "example").name == "support"
