"""Files that other programs read: citation, forms of issues, changelog, notes for coding agents, index of the pages."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml
from packaging.version import Version
from paths import ROOT

FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
FORMATS = {
    ROOT / "CITATION.cff": "citation-file-format",
    FORMS / "config.yml": "github-issue-config",
    **dict.fromkeys(FORMS.glob("[!c]*.yml"), "github-issue-forms"),
}


@pytest.mark.parametrize(("path", "name"), [pytest.param(*row, id=row[0].name) for row in FORMATS.items()])
def test_a_file_is_valid_by_the_schema_of_its_format(path: Path, name: str) -> None:
    schema = files("check_jsonschema").joinpath(f"builtin_schemas/vendor/{name}.json").read_text()
    jsonschema.validate(
        yaml.load(path.read_text(), yaml.BaseLoader if path.suffix == ".cff" else yaml.SafeLoader), json.loads(schema)
    )


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def test_the_citation_has_the_version_of_the_package() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version()


def test_the_changelog_has_a_section_for_each_version() -> None:
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = [re.fullmatch(r"(\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)", title) for title in titles]
    assert all(found), titles
    versions = [Version(title[1]) for title in found if title]
    assert versions == sorted(set(versions), reverse=True)
    assert str(versions[0]) == version(), "the newest section is that of the package"
    assert [title[2] for title in found[1:] if title and title[2] == "unreleased"] == [], (
        "only the newest may be unreleased"
    )


def test_the_index_of_the_pages_is_generated() -> None:
    command = [sys.executable, "docs/site/build.py", "llms"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "llms.txt").read_text() == shown, "python docs/site/build.py llms > llms.txt"


def test_every_page_of_the_docs_is_in_the_index_or_below_a_folder_of_it() -> None:
    readme, index = (ROOT / "README.md").read_text(), (ROOT / "llms.txt").read_text()
    folders = [name for name in re.findall(r"\]\((docs/[^)#]*)\)", readme) if (ROOT / name).is_dir()]
    whole = {name for name in folders if name not in {"docs/start", "docs/how-to", "docs/reference", "docs/background"}}
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "zh"}
    below = {
        page for page in pages if any(page.startswith(f"{name}/") for name in (*whole, "docs/background/upstream"))
    }
    assert pages - below <= set(re.findall(r"\]\(([^)]*)\)", index))


def test_the_notes_for_agents_name_targets_and_files_that_exist() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    assert len(text.splitlines()) <= 40
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets
    named = re.findall(r"`?((?:inferload|tests)/[\w./]+)", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
