"""Command lines that messages name: each is accepted, and each next step that can run here runs."""

import ast
import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from code_texts import nodes, text_of
from own_commands import is_accepted, parser_of

from inferload import cli
from inferload.campaign.runner import Runner
from inferload.campaign.search import PointRunner
from inferload.campaign.sweep import study as studies
from inferload.campaign.sweep.runner import SweepRunner
from inferload.cli import GROUPS
from inferload.scenario.files import data_files

COMMANDS = [name for group in GROUPS.values() for name in group]
NAMED = re.compile(rf"\binferload ({'|'.join(COMMANDS)})\b(.*)")


@cache
def written() -> list[ast.AST]:
    """Return the texts with commands and the calls of `own_command`. The lines of `import` name files that it writes; its own
    tests run them."""
    code = nodes("inferload", "analysis", "deploy", "locustfiles", having=("inferload ", "own_command("))
    own = (node for path, node in code if "pasted" not in path.parts and path.name != "import_lines.py")
    return [node for node in own if is_call(node) or "inferload " in (text_of(node) or "")]


def is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "own_command"


def test_each_command_with_values_is_made_for_a_shell_and_accepted() -> None:
    calls = [node.args for node in written() if isinstance(node, ast.Call)]
    assert len(calls) > 10
    for command, *arguments in calls:
        name, words = text_of(command) or "", [text_of(word) for word in arguments if not isinstance(word, ast.Starred)]
        lines = [[name, *(word or value for word in words)] for value in ("1", "simulator", *data_files.DATA_SETS)]
        assert any(map(is_accepted, lines)), lines


def test_each_named_command_has_the_options_beside_it() -> None:
    found = [match.groups() for node in written() for match in NAMED.finditer(text_of(node) or "")]
    assert len(found) > 50
    by_hand = re.compile(r"(?: (?:--[a-z-]+|add|down|show|up))* (\{\}|%s)")  # a value that needs `own_command`
    assert [rest for _, rest in found if by_hand.match(rest)] == []
    options = [
        (command, word)
        for command, rest in found
        for word in re.findall(r" (--[a-z][a-z-]*)", re.split(r"[`;,.]", rest)[0])
    ]
    assert [option for option in options if option[1] not in options_of(option[0])] == []


@cache
def options_of(command: str) -> frozenset[str]:
    parsers = [parser_of(command)]
    for parser in parsers:
        for action in parser._actions:
            parsers += action.choices.values() if isinstance(action.choices, dict) else ()
    return frozenset(option for parser in parsers for option in parser._option_string_actions)


def steps(output: str) -> list[list[str]]:
    """Return the words of each command that a line of an output ends with."""
    return [shlex.split(line.partition("inferload ")[2]) for line in output.splitlines() if ": inferload " in line]


CHAT = """\
schema: 1
name: chat
workload: {kind: chat, prompt_tokens: 40, output_tokens: 4, turns: 2, think_time_s: 2}
arrivals: {kind: closed, users: 2, spawn_per_s: 2}
phases: {warmup_s: 0, measure_s: 1, drain_s: 5}
"""
AGENT = CHAT.replace(
    "kind: chat, prompt_tokens: 40, output_tokens: 4, turns: 2, think_time_s: 2",
    "kind: live_agent, agent: 'own.py:Own'",
)
OWN = """\
from inferload.locustfiles.toolagent import ToolAgent


class Own(ToolAgent):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder whose name and files need quotes."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("my chat.yaml").write_text(CHAT)
    Path("my agent.yaml").write_text(AGENT)
    Path("own.py").write_text(OWN)
    return folder


@pytest.mark.usefixtures("folder", "forked_programs")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("measure_s: 1", "measure_s: null"),
        ("turns: 2", "turns: 2, images: {width_px: 8, height_px: 8}"),
        ("chat, prompt_tokens: 40, output_tokens: 4, turns: 2, think_time_s: 2", "live_agent, agent: 'own.py:Own'"),
        ("phases:", "request: {endpoint: completions}\nphases:"),
    ],
)
def test_the_rehearsal_that_a_plan_names_passes(before: str, after: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my chat.yaml").write_text(CHAT.replace(before, after))
    assert cli.main(["plan", "my chat.yaml", "--seed", "3"]) == 0
    (words,) = steps(capsys.readouterr().out)
    command = [sys.executable, "-m", "inferload", *words, "--no-report", "--run-dir", "my run"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert json.loads(Path("my run/run.json").read_text())["seed"] == 3


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "change", ["workload: {kind: tasks}", "request: {endpoint: responses}", "request: {endpoint: messages}"]
)
def test_a_plan_names_no_rehearsal_that_the_simulator_cannot_serve(
    change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = change.partition(":")[0]
    Path("s.yaml").write_text("\n".join([*(line for line in CHAT.splitlines() if not line.startswith(key)), change]))
    assert cli.main(["plan", "s.yaml"]) == 0
    assert steps(capsys.readouterr().out) == []


@pytest.mark.usefixtures("folder")
def test_a_new_scenario_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "my new.yaml"]) == 0
    (words,) = steps(capsys.readouterr().out)
    assert cli.main(words) == 0


SWEEP = """\
schema: 1
name: mine
engine: simulator
baseline: tiny-baseline
scenarios: [my chat.yaml]
"""
STUDY = """\
schema: 1
name: mine
title: t
question: q
source: {title: t, date: "2026", setting: s}
parts: {only: {title: t, baseline: tiny-baseline, scenarios: [my chat.yaml], pairs: 1}}
tables: [{key: t, title: t, part: only, figures: [mean(ttft_ms)]}]
"""
SECRET = "--header 'Authorization: Bearer abcdefghij'"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "line",
    [
        "sweep sweep.yaml",
        "study 'my study.yaml' --part only --quick",
        "ab A=http://a:1 B=http://b:1 --scenario 'my chat.yaml' --strict --require 'p95(ttft_ms)<900'",
        f"ab A=http://a:1 B=http://b:1 --scenario 'my agent.yaml' {SECRET}",
        "search --scenario 'my chat.yaml' --slo 'p95(ttft_ms)<800' --host http://a:1 -- -f own.py",
        f"search --scenario 'my agent.yaml' --slo 'p95(ttft_ms)<800' --host http://a:1 {SECRET}",
        "search --scenario 'my agent.yaml' --slo 'p95(ttft_ms)<800' --variants tiny-all,tiny-seqs-1 -- -f own.py",
    ],
)
def test_an_interrupted_campaign_is_continued_by_the_command_that_it_names(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)

    def interrupt(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    for kind, name in ((SweepRunner, "perform"), (PointRunner, "look"), (Runner, "run")):
        monkeypatch.setattr(kind, name, interrupt)
    Path("sweep.yaml").write_text(SWEEP)
    Path("my study.yaml").write_text(STUDY)
    where = words.index("--") if "--" in words else len(words)
    assert cli.main([*words[:where], "--into", "my campaign", *words[where:]]) == 130
    (again,) = steps(capsys.readouterr().err)
    assert ("--strict" in again) == ("--strict" in words)
    assert cli.main([again[0], "--dry-run", *again[1:]]) == 0
    if words[0] == "study":
        plan = studies.read(Path("my campaign/study.yaml"))
        assert cli.main([*shlex.split(plan.command)[1:], "--dry-run"]) == 0
    if words[0] in ("sweep", "study"):
        part = "my campaign/only" if words[0] == "study" else "my campaign"
        for folder in ("my campaign", part):
            assert cli.main(["report", folder]) == 2
            (again,) = steps(capsys.readouterr().err)
            assert cli.main([*again, "--dry-run"]) == 0


@pytest.mark.usefixtures("folder")
def test_a_missing_file_is_made_by_the_command_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["baseline", "show", "my base.json"]) == 2
    (words,) = steps(capsys.readouterr().err)
    assert is_accepted(words)
    (data_set,) = data_files.DATA_SETS.values()
    words = shlex.split(data_files.remedy(Path("my data") / data_set.file).removesuffix(" downloads it"))[1:]
    assert is_accepted(words)
    assert words[-1] == "my data"
