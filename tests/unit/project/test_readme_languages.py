"""The Chinese README and the Chinese pages of docs/start have the commands, tables, links and sections of the English ones."""

import re
from pathlib import Path

import pytest
from paths import ROOT

START = sorted((ROOT / "docs" / "start").glob("*.md"))
PAIRS = [(ROOT / "README.md", ROOT / "README.zh.md"), *((page, page.parent / "zh" / page.name) for page in START)]
TEXTS = [pytest.param(*(page.read_text(encoding="utf-8") for page in pair), id=pair[0].name) for pair in PAIRS]
TRANSLATED = ("start", "studies")


def parts(pattern: str, text: str) -> list[str]:
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)


def test_the_translated_folders_have_the_same_pages() -> None:
    for folder in TRANSLATED:
        names = [
            {page.name for page in path.glob("*.md")} for path in (ROOT / f"docs/{folder}", ROOT / f"docs/{folder}/zh")
        ]
        assert names[0] == names[1]


@pytest.mark.parametrize(("english", "chinese"), TEXTS)
def test_both_have_the_same_commands_and_output(english: str, chinese: str) -> None:
    assert parts(r"^```.*?^```", chinese) == parts(r"^```.*?^```", english)


@pytest.mark.parametrize(("english", "chinese"), TEXTS)
def test_both_have_the_same_sections_lists_and_table_rows(english: str, chinese: str) -> None:
    for pattern in (r"^#+ ", r"^\|", r"^ *(?:\*|\d+\.) "):
        assert len(parts(pattern, chinese)) == len(parts(pattern, english))
    assert parts(r"^\| inferload .*?$", chinese) == parts(r"^\| inferload .*?$", english)
    # Keys, options and commands of the tables.
    cells = [[parts(r"`([^`]+)`", row) for row in parts(r"^\|.*?$", text)] for text in (english, chinese)]
    assert [sorted(row) for row in cells[1]] == [sorted(row) for row in cells[0]]


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda page: page.name)
def test_both_link_to_the_same_pages_and_the_readmes_to_each_other(english: Path, chinese: Path) -> None:
    found = [
        {english_of(link, page) for link in parts(r"\]\(([^)]*)\)", page.read_text())} for page in (english, chinese)
    ]
    assert found[0] - {"README.zh.md"} == found[1] - {"README.md"}


def english_of(link: str, page: Path) -> str:
    """Return a link from the folder of the repository; that to a translated page or folder as to its English one."""
    if link.startswith(("http", "#")):
        return "#" if link.startswith("#") else link
    path, _, anchor = link.partition("#")
    name = (page.parent / path).resolve().relative_to(ROOT).as_posix()
    return f"{re.sub(r'^(docs/(?:start|studies))/zh', chr(92) + '1', name)}#{anchor}".removesuffix("#")
