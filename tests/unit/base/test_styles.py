"""Styles of printed texts: shown on a terminal alone, or as the variables say, and never in a file or in a document."""

import io
import re
from pathlib import Path
from typing import get_args

import pytest
import synthetic_run
from hypothesis import given
from hypothesis import strategies as st

from inferload import cli
from inferload.base import status_lines
from inferload.base.status_lines import STYLES, has_colour, painted, painting, print_error
from inferload.campaign.machine.checks import Status
from inferload.results.documents.search_document import State as Found
from inferload.results.documents.verdict_document import State

CODES = re.compile(r"\x1b\[[\d;]*m")
VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM")
STYLE_OF = {code: style for style, code in STYLES.items()}


class Stream(io.StringIO):
    """Text stream that may be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]


def parts(text: str) -> dict[str, str]:
    """Return the styled parts of a text with their styles."""
    return {part: STYLE_OF[code] for code, part in re.findall(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", painted(text))}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("variables", "terminal", "pipe"),
    [
        ("", True, False),
        ("NO_COLOR=", True, False),
        ("NO_COLOR=1", False, False),
        ("NO_COLOR=1 FORCE_COLOR=1", False, False),
        ("FORCE_COLOR=1", True, True),
        ("FORCE_COLOR=3 TERM=dumb", True, True),
        ("FORCE_COLOR=0", True, False),
        ("CLICOLOR_FORCE=1", True, True),
        ("CLICOLOR_FORCE=0", True, False),
        ("CLICOLOR=0", False, False),
        ("CLICOLOR=0 CLICOLOR_FORCE=1", True, True),
        ("CLICOLOR=1", True, False),
        ("TERM=dumb", False, False),
    ],
)
def test_the_variables_and_the_stream_decide(
    variables: str, terminal: bool, pipe: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with (tmp_path / "file").open("w") as file:
        assert not has_colour(file), "a file has no styles, whatever the variables are"
    monkeypatch.setattr(status_lines, "_is_file", lambda _stream: False)
    assert (has_colour(Stream(True)), has_colour(Stream(False))) == (terminal, pipe)


@given(
    st.text(alphabet=st.sampled_from("passedfilgtnvu ~:\n(12;"), max_size=80)
    | st.sampled_from(["failed: x", "49 ~\n", "usage: a"])
)
def test_a_text_without_its_codes_is_the_text(text: str) -> None:
    assert CODES.sub("", painted(text)) == text


def test_every_outcome_answer_and_check_has_a_style() -> None:
    ends = {"passed": "good", "suspect": "doubt"}
    for state in get_args(State):
        headline = "stopped early by Ctrl-C after 2 s" if state == "stopped early" else f"{state}: its reasons"
        assert parts(headline) == {state: ends.get(state, "bad")}
    ends = {"holds": "good", "undecided": "doubt", "breaks": "bad", "overloaded": "bad"}
    for answer in set(get_args(Found)) - {"invalid", "failed"}:  # which are printed in other words
        assert parts(f"  3  12:07  4.5 sessions/s: {answer}; p95(ttft_ms) 40") == {answer: ends[answer]}
    for status, style in zip(get_args(Status), ("good", "doubt", "bad"), strict=True):
        assert parts(f"  {status:<4}  machine  its text") == {f"  {status}": style}


@pytest.mark.parametrize(
    ("line", "style", "part"),
    [
        ("Simulated server: x. suspect: lag. The rest", "doubt", "suspect"),
        ("gate FAILED, simulated  p95(ttft_ms) < 1: 45", "bad", "gate FAILED"),
        ("gate passed  p95(ttft_ms) < 1: 0.5", "good", "gate passed"),
        ("measurement INVALID: lag", "bad", "measurement INVALID"),
        ("measurement SUSPECT: lag", "doubt", "measurement SUSPECT"),
        ("INVALID    mean    p50", "bad", "INVALID"),
        ("TTFT, ms   36.3  36.62  49.12 ~", "doubt", "~"),
        ("  Mean TTFT, ms   36.3   50.1  +38%  worse", "bad", "worse"),
        ("a against b: BETTER, Mean TTFT is better", "good", "BETTER"),
        ("inferload plan: error: --sead: unknown", "bad", "inferload plan: error"),
        ("inferload: a note", "doubt", "inferload"),
        ("[2026-11-30 10:00:00,000] host/ERROR/inferload.x: gates", "bad", "ERROR"),
        ("[2026-11-30 10:00:00,000] host/WARNING/inferload.x: skew", "doubt", "WARNING"),
        ("diagnosis: overload", "heading", "diagnosis"),
    ],
)
def test_a_part_of_a_line_has_a_style(line: str, style: str, part: str) -> None:
    assert parts(f"before\n{line}\nafter") == {part: style}


@pytest.mark.parametrize(
    "line", ["run passed: yes", "sessions ~ 5", '  "answer": "worse",', "| 49.12 ~ | 5 |", "http://server:8000 failed"]
)
def test_other_lines_have_none(line: str) -> None:
    assert painted(line) == line


def test_documents_have_no_styles_even_if_they_are_forced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(status_lines, "_is_file", lambda _stream: False)
    run = str(synthetic_run.write(tmp_path / "run"))
    for words in ("--format json", "--format markdown", "--format junit"):
        cli.main(["compare", f"a={run}", f"b={run}", *words.split()])
        assert "\x1b" not in capsys.readouterr().out
    for command in ("schema", "validate smoke --resolved", "deploy show tiny-all --json", "deploy render tiny-all"):
        cli.main(command.split())
        assert "\x1b" not in capsys.readouterr().out
    cli.main(["validate", "smoke"])
    assert "\x1b[32mvalid\x1b[0m, digest" in capsys.readouterr().out
    cli.main(["plan", "no-such"])
    assert capsys.readouterr().err.startswith("\x1b[1;31minferload:\x1b[0m scenario no-such: ")


def test_headings_of_the_help_have_a_style(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(status_lines, "_is_file", lambda _stream: False)
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    headings = re.findall(r"^\x1b\[1m(.*)\x1b\[0m", capsys.readouterr().out, re.MULTILINE)
    assert headings == ["usage:", "Examples:", "positional arguments:", "options:", "load:", "Locust's options:"]


def test_an_error_is_plain_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("no such file")
    assert capsys.readouterr().err == "inferload: no such file\n"


def test_a_stream_is_painted_once() -> None:
    terminal = Stream(True)
    print("passed: 1 of 1 gate passed", file=painting(painting(terminal)))
    assert terminal.getvalue() == "\x1b[32mpassed\x1b[0m: 1 of 1 gate passed\n"
    assert painting(Stream(False)).write("passed: x") == len("passed: x")
