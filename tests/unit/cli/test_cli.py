"""The command line as a whole: unknown commands and options, help, broken pipes, and plugins."""

import argparse
import ast
import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import synthetic_run

from inferload import cli
from inferload.base.argparse_ext import PassingParser
from inferload.cli import run as run_command


def test_a_closed_pipe_is_no_error() -> None:
    # The schema is longer than a pipe buffer, so the write fails.
    command = [sys.executable, "-m", "inferload", "schema"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (0, b"")


def test_a_plugin_that_fails_to_load_breaks_only_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = EntryPoint("broken", "inferload.no_such_module:register", "inferload.commands")
    monkeypatch.setattr(cli, "_satellites", lambda: [broken])
    assert cli.main(["validate", "smoke"]) == 0
    capsys.readouterr()
    assert cli.main(["broken"]) == 2
    assert "inferload: broken: cannot be loaded: No module named 'inferload.no_such_module'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "deploy up tiny-all --modle-path x",
            "inferload deploy up: error: --modle-path: unknown; did you mean --model-path?",
        ),
        ("deploy --prot=1 status", "inferload deploy: error: --prot: unknown; --help lists the options"),
        ("deploy up -x", "inferload deploy up: error: -x: unknown; --help lists the options"),
        ("deploy up tiny-all -x 5", "inferload deploy up: error: -x: unknown; --help lists the options"),
        (
            "deploy up tiny-all tiny-ngram",
            "inferload deploy up: error: tiny-ngram: unexpected; --help lists the arguments",
        ),
        ("run smoke chat", "inferload run: error: chat: unexpected; --help lists the arguments"),
        ("plan smoke --sead=3", "inferload plan: error: --sead: unknown; did you mean --seed?"),
        ("doctor --users 8", "inferload doctor: error: --users: unknown; --help lists the options"),
        ("run smoke --concurrency=8", "inferload run: error: --concurrency: unknown; did you mean --users?"),
        ("simulator --max-num-sequences 8", "inferload: --max-num-sequences: unknown; did you mean --max-num-seqs?"),
    ],
)
def test_an_unknown_option_is_an_error_of_its_command(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == message


def test_an_error_of_a_long_command_omits_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "chat", "--rat", "2"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "inferload run: error: --rat: unknown; did you mean --rate?\n"


def test_the_help_lists_every_command_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: inferload [-h] [--version] COMMAND ..."
    assert [line for line in lines if re.fullmatch("[a-z]+:", line)] == [
        "options:",
        *(f"{name}:" for name in cli.GROUPS),
    ]
    listed = [line.split()[0] for line in lines[lines.index("run:") :] if re.match("  [a-z]", line)]
    satellites = [entry.name for entry in entry_points(group="inferload.commands")]
    assert sorted(listed) == sorted([*cli.BUILT_IN, *satellites])
    assert max(map(len, lines)) <= 80
    assert all(len(line.split()) > 1 for line in lines if line.startswith("  "))


def test_a_command_without_a_group_is_listed_as_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = EntryPoint("mine", "no_such_module:register", "inferload.commands")
    monkeypatch.setattr(cli, "_satellites", lambda: [entry])
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "\nother:\n  mine\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"),
    [("reprot", "did you mean report?"), ("x", "inferload --help lists the commands")],
)
def test_an_unknown_command_is_one_line(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([word])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"inferload: error: {word}: unknown command; {hint}"


def test_no_parser_accepts_abbreviations() -> None:
    root, parsers = Path(cli.__file__).parents[2], 0
    for folder in ("inferload", "analysis", "deploy", "benchmarks"):
        for file in (root / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            for call in ast.walk(ast.parse(text)) if "ArgumentParser" in text else ():
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("ArgumentParser"):
                    parsers += 1
                    assert "allow_abbrev=False" in ast.unparse(call), f"{file}:{call.lineno}"
    assert parsers > 5


def test_control_characters_of_files_are_escaped_in_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic_run.write(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    summary["outcome"] = {"state": "passed", "headline": "passed\x1b[2J\nforged", "exit_code": 0}
    (run / "summary.json").write_text(json.dumps(summary))
    cli.main(["report", str(run)])
    assert "passed\\x1b[2J" in (printed := capsys.readouterr().out)
    assert "\x1b" not in printed
    assert cli.main(["validate", str(tmp_path / "no\x1b[2Jsuch.yaml")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_run_builds_the_locust_command() -> None:
    parser = argparse.ArgumentParser()
    run_command.register(parser.add_subparsers(parser_class=PassingParser))
    arguments = parser.parse_args(
        [
            "run",
            "smoke",
            "--host",
            "http://127.0.0.1:8000",
            "--header",
            "A: b",
            "--header",
            "C: d",
            "--insecure",
            "--seed",
            "3",
            "--",
            "--processes",
            "2",
        ]
    )
    command = run_command.locust_words(arguments, Path("chat.py"))
    assert command == [
        *("-f", "chat.py", "--headless", "--host", "http://127.0.0.1:8000", "--scenario", "smoke", "--seed", "3"),
        *("--header", "A: b", "--header", "C: d", "--insecure", "--processes", "2"),
    ]
