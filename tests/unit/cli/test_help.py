"""The help of every command: examples first, which the parsers accept, in the width of the terminal."""

import re
import shlex

import pytest

from inferload import cli
from inferload.base.argparse_ext import EXAMPLES, HelpfulParser, help_columns
from inferload.cli import reference
from inferload.scenario.files import catalog

COMMANDS = [name for group in cli.GROUPS.values() for name in group]
WORD = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_stand_before_the_arguments_and_are_valid(command: str) -> None:
    for name, parser in reference.parsers(command).items():
        text, examples = parser.format_help(), (parser.description or "").partition(EXAMPLES)[2].splitlines()
        assert examples, name
        assert text.index("\nExamples:\n") < re.search(r"\n(positional arguments|options|ACTION):?\n", text).start(), (
            name
        )  # type: ignore[union-attr]
        for example in examples:
            words = shlex.split(example, comments=True)
            words = words[1 : next((number for number, word in enumerate(words) if word in "|>"), None)]
            cli.build_parser(words[0]).parse_args(words)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_of_a_help_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parsers = [parser for name in COMMANDS for parser in reference.parsers(name).values()]
    for parser in [cli.build_parser(), *parsers]:
        for line in parser.format_help().splitlines():
            assert len(line) <= columns or re.fullmatch(rf"(--\S+ )?{WORD}", line.strip()), line


def test_names_with_hyphens_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for parser in reference.parsers("init").values():
        assert set(re.split(r"[\s,;:]+", parser.format_help())) >= set(catalog.names())


@pytest.mark.parametrize(("told", "columns"), [("20", 60), ("0", 80), ("99", 99), ("500", 120)])
def test_the_width_has_limits(told: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", told)
    assert help_columns() == columns


def test_a_command_that_is_too_long_is_continued_as_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    example = """inferload run a-long-name --gate 'p95(ttft_ms) < 800 and more' --host http://server:8000 -- -u 8"""
    monkeypatch.setenv("COLUMNS", "60")
    parser = HelpfulParser(prog="x", epilog=f"Examples:\n  {example}  # a comment\nText\nof two lines.\n\nAnother one.")
    text = parser.format_help()
    assert "  # a comment\n  inferload run a-long-name --gate \\\n    'p95(ttft_ms) < 800 and more' --host \\\n" in text
    shown = text.partition("# a comment\n")[2].partition("\n\n")[0]
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(example)
    assert text.endswith("\n\nText of two lines.\n\nAnother one.\n")
