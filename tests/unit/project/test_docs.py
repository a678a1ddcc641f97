"""Links and tables of the documentation."""

import re
import tomllib
from pathlib import Path

import pytest
from paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings in GitHub's format."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_link_has_a_target(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    for path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {path}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {path}#{anchor}"


def test_the_architecture_page_has_the_import_layers() -> None:
    layers = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["inferload"]["layers"]
    table = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("|---|---|\n")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([^`]*)`", line.split("|")[1]) for line in table.splitlines()]
    assert rows == layers


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_client_table_of_the_readme_equals_the_accuracy_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    head, _, *rows = (cells(line) for line in readme.partition("## Accuracy")[2].splitlines() if line.startswith("|"))
    table = (DOCS / "accuracy.md").read_text(encoding="utf-8").partition("## base:")[2].partition("## ")[0]
    names, _, *measured = (cells(line) for line in table.splitlines() if line.startswith("| ") and line.count("|") > 10)
    at_300 = [dict(zip(names, row, strict=True)) for row in measured if row[1] == "300" and "C reader" not in row[0]]
    assert rows == [[row[name] for name in head[:6]] for row in at_300]


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_of_top_level_pages_have_targets(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)\s#]*)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []
