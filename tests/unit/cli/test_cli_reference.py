"""docs/reference/cli.md is generated from the parsers, with all commands and options."""

import re
from importlib.metadata import entry_points

from paths import ROOT

from inferload.cli import BUILT_IN, GROUPS, reference

PAGE = ROOT / "docs" / "reference" / "cli.md"


def test_the_page_is_generated_from_the_parsers() -> None:
    command = "python -m inferload.cli.reference > docs/reference/cli.md"
    assert PAGE.read_text(encoding="utf-8") == reference.document(), command


def test_every_command_and_option_is_on_the_page() -> None:
    page = reference.document()
    commands = {name for group in GROUPS.values() for name in group}
    assert commands >= {*BUILT_IN, *(entry.name for entry in entry_points(group="inferload.commands"))}
    for command in commands:
        for name, parser in reference.parsers(command).items():
            section = page.partition(f"### inferload {name}\n")[2].partition("\n### ")[0]
            assert section, name
            options = {
                option
                for action in parser._actions
                if action.help != "==SUPPRESS=="
                for option in action.option_strings
            }
            missing = {
                option
                for option in options - {"-h", "--help"}
                if f"`{option}`" not in section and f"`{option} " not in section
            }
            assert not missing, (name, missing)


def test_every_link_of_the_table_has_a_section() -> None:
    page = reference.document()
    sections = {title.replace(" ", "-") for title in re.findall(r"^### (.*)$", page, re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]*)\)", page)
    assert links
    assert set(links) <= sections
