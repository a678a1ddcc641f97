"""Completion at Tab: the table is made from the parsers, and a shell gets commands, options and values."""

import io
import os
import subprocess
import sys
from pathlib import Path

import argcomplete.io
import pytest
from argcomplete import CompletionFinder
from paths import ROOT

from inferload import cli
from inferload.cli import completion, completion_table

TABLE = ROOT / "inferload" / "cli" / "completion.json"


def test_the_table_is_made_from_the_parsers() -> None:
    command = "python -m inferload.cli.completion_table > inferload/cli/completion.json"
    assert TABLE.read_text(encoding="utf-8") == completion_table.document(), command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with runs, a folder of runs, and scenario files."""
    for run in ("runs/a-chat", "runs/b-sweep/one", "other/c"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").touch()
    (tmp_path / "scenarios").mkdir()
    for file in ("mine.yaml", "scenarios/smog.yaml", "notes.md", "base.json"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tab(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a shell gets at the end of a line."""
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    monkeypatch.setattr(CompletionFinder, "_init_debug_stream", lambda _finder: None)  # it takes descriptor 9
    monkeypatch.setattr(
        argcomplete.io, "debug_stream", io.StringIO()
    )  # stderr at the import, which may be closed by now
    stream, answered = io.StringIO(), []

    def end(_code: int) -> None:
        answered.append(stream.getvalue())
        raise SystemExit

    with pytest.raises(SystemExit):
        completion.complete(exit_method=end, output_stream=stream)
    return sorted(filter(None, answered[0].split("\v")))


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("re", ["render", "report"]),
        ("deploy sh", ["show "]),
        ("run smoke --inp", ["--input-len "]),
        ("run --clock ", ["real", "virtual"]),
        ("run chat-o", ["chat-open "]),
        ("run min", ["mine.yaml "]),
        ("plan scenarios/", ["scenarios/smog.yaml "]),
        ("run smoke --variant tiny-k", ["tiny-kv-fp8 "]),
        ("deploy show tiny-k", ["tiny-kv-fp8 "]),
        ("search --variants tiny-all,tiny-k", ["tiny-all,tiny-kv-fp8 "]),
        ("report ", ["runs/a-chat", "runs/b-sweep/"]),
        ("report runs/a-chat runs/b-sweep/", ["runs/b-sweep/one "]),
        ("compare old=runs/a", ["old=runs/a-chat "]),
        ("compare ba", ["base.json "]),
        ("compare runs/a --primary p95(tt", ["p95(ttft_ms) "]),
        ("sweep --resume runs/b", ["runs/b-sweep/"]),
        ("init --from smo", ["smoke "]),
        ("study agen", ["agents "]),
        ("completion f", ["fish "]),
        ("doctor --ca-file no", ["notes.md "]),
        ("run --host ", []),
    ],
)
def test_a_tab_completes_commands_options_and_values(
    line: str, values: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [value.replace("\\", "") for value in tab(f"inferload {line}", monkeypatch)] == values


def test_without_a_begin_the_files_of_the_folder_are_offered_beside_the_bundled_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"chat", "smoke", "mine.yaml", "scenarios/"} <= {*tab("inferload validate ", monkeypatch)}


def test_bash_completes_with_the_printed_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("zsh", "fish", "bash"):
        assert cli.main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert ("complete --command inferload" if shell == "fish" else "compdef") in script
    program = folder / "bin" / "inferload"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m inferload\n")
    program.chmod(0o755)
    line = "inferload report runs/a"
    ask = f'{script}\nCOMP_LINE="{line}" COMP_POINT={len(line)}\n_python_argcomplete inferload\nprintf "%s|" "${{COMPREPLY[@]}}"'
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, env={**os.environ, **path}, check=False
    )
    assert answer.stdout.rstrip(" |") == "runs/a-chat", answer
