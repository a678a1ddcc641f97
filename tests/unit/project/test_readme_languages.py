"""The Chinese README has the commands, tables, links and sections of the English one."""

import re

from paths import ROOT

ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))


def parts(pattern: str, text: str) -> list[str]:
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)


def test_both_have_the_same_commands_and_output() -> None:
    assert parts(r"^```.*?^```", CHINESE) == parts(r"^```.*?^```", ENGLISH)


def test_both_have_the_same_sections_and_table_rows() -> None:
    assert len(parts(r"^#+ ", CHINESE)) == len(parts(r"^#+ ", ENGLISH))
    assert len(parts(r"^\|", CHINESE)) == len(parts(r"^\|", ENGLISH))
    assert parts(r"^\| inferload .*?$", CHINESE) == parts(r"^\| inferload .*?$", ENGLISH)


def test_both_link_to_the_same_pages_and_to_each_other() -> None:
    links = [set(parts(r"\]\(([^)]*)\)", text)) for text in (CHINESE, ENGLISH)]
    assert links[0] - {"README.md"} == links[1] - {"README.zh.md"}
