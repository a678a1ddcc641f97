"""Links and tables of the documentation."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_commands import is_accepted
from paths import ROOT

from inferload.campaign.sweep.definition import Sweep
from inferload.scenario import scenario
from inferload.scenario.files import typed_yaml

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WITH_COMMANDS = [ROOT / "README.md", *PAGES]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings in GitHub's format."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_has_a_target() -> None:
    missing = []
    for page in [*ROOT.glob("*.md"), ROOT / "llms.txt", *PAGES]:
        links = re.findall(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
        for path, anchor in links:
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                missing.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert missing == []


def test_every_page_is_in_one_of_five_folders() -> None:
    folders = {"start", "how-to", "reference", "background", "studies"}
    assert {page.relative_to(DOCS).parts[0] for page in PAGES} == folders


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_client_table_of_the_readme_equals_the_accuracy_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    head, _, *rows = (cells(line) for line in readme.partition("## Accuracy")[2].splitlines() if line.startswith("|"))
    table = (
        (DOCS / "background" / "accuracy.md").read_text(encoding="utf-8").partition("## base:")[2].partition("## ")[0]
    )
    names, _, *measured = (cells(line) for line in table.splitlines() if line.startswith("| ") and line.count("|") > 10)
    found = {(row[0], row[1]): dict(zip(names, row, strict=True)) for row in measured}
    assert rows == [[found[client, streams][name] for name in head] for client, streams, *_ in rows]
    shown = {(client, streams) for client, streams, *_ in rows}
    assert shown >= {key for key in found if key[1] == "300" and "C reader" not in key[0]}
    assert shown >= {
        key for key, row in found.items() if key[0].startswith("inferload") and "keep up" in row["remarks"]
    }


def fenced_lines(text: str) -> Iterator[str]:
    """Yield the lines of the code blocks of a page, with continued lines joined."""
    inside = False
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside:
            yield line.strip().removeprefix("$ ")


def words_of(line: str) -> list[str]:
    """Split a line as a shell does, up to an explanation after several blanks; operators are words. `<run>` is a name."""
    text = re.sub(r"<[^<>]*>", "NAME", re.split(r" {2,}", line, maxsplit=1)[0])
    splitter = shlex.shlex(text, posix=True, punctuation_chars=True)
    splitter.whitespace_split = True
    return list(splitter)


def commands(page: Path, program: str) -> list[list[str]]:
    """Return the words of each command of the program in the code blocks of a page."""
    found = []
    for line in fenced_lines(page.read_text(encoding="utf-8")):
        command: list[str] = []
        for word in (*(words_of(line) if line.startswith(program + " ") else ()), ";"):
            if not set(word) <= set(";&|<>()"):
                command.append(word)
                continue
            found += [command] if command[:1] == [program] else []
            command = []
    return found


def test_every_command_is_one_that_the_parser_accepts() -> None:
    found = [(page.stem, words) for page in WITH_COMMANDS for _, *words in commands(page, "inferload")]
    assert found
    assert [command for command in found if not is_accepted(command[1])] == []


def test_no_command_needs_a_file_of_the_clone() -> None:
    assert [
        (page.stem, word)
        for page in WITH_COMMANDS
        for program in ("inferload", "locust")
        for command in commands(page, program)
        for word in command
        if re.match(r"(locustfiles|scenarios|deploy)/", word)
    ] == []


SCENARIOS = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in WITH_COMMANDS
    for number, text in enumerate(
        re.findall(r"```yaml\n(schema: 1\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("text", SCENARIOS)
def test_every_whole_scenario_and_sweep_is_valid(text: str) -> None:
    is_sweep = "\nvariants:" in text
    found = typed_yaml.from_text(text, "page", Sweep) if is_sweep else scenario.from_text(text, "page")
    assert found.name in text
