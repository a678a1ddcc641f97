"""A source of text is a class and a row: one from outside is in the schema, errors, the reference page and plans, and is read."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from paths import ROOT

from inferload.scenario.schema.base import kinds
from inferload.scenario.schema.sources import Source
from inferload.workload.sources.registry import READERS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Where a source that the program adds is found."""
    folder = tmp_path_factory.mktemp("added")
    program = [sys.executable, str(ROOT / "tests/support/added_source.py"), str(folder)]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_every_source_has_a_reader_and_a_row_in_the_docs() -> None:
    page = (ROOT / "docs/how-to/data.md").read_text(encoding="utf-8")
    assert list(READERS) == kinds(Source) == re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)


def test_an_added_source_is_in_the_schema_and_on_the_reference_page(found: dict[str, Any]) -> None:
    assert sorted(found["schema"]) == sorted([*kinds(Source), "lines"])
    assert "## Lines (`kind: lines`)\n\nText file with a prompt per line.\n" in found["reference"]
    assert "or [`kind: lines`](#lines-kind-lines) |" in found["reference"]
    assert "huggingface \\| lines, ...} |" in found["reference"]


def test_errors_name_an_added_source(found: dict[str, Any]) -> None:
    one_of = " | ".join(sorted([*kinds(Source), "lines"]))
    assert found["no kind"] == f"x.yaml:3: workload.source: must be {{kind: {one_of}, ...}}, is 'prompts.txt'"
    assert found["other kind"] == "x.yaml:3: workload.source.kind: is 'line'; did you mean lines?"
    assert "prompt_tokens is set, but source lines has its own message lengths; remove it" in found["own lengths"]


def test_an_added_source_is_planned_and_read(found: dict[str, Any]) -> None:
    assert "data      2 conversations from prompts.txt\n" in found["plan"]
    assert found["asks"] == ["Why is the sky blue?", "Name a river."]
    assert (found["facts"]["kind"], found["facts"]["sessions"]) == ("lines", 2)
