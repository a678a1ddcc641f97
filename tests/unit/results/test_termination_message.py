"""Termination message of a pod: what it has in 4,096 bytes, and that a run which does not begin writes it too."""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import summaries
from hypothesis import example, given
from hypothesis import strategies as st

from inferload import cli
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.client.connection import credentials
from inferload.results import ci, ci_texts
from inferload.results.verdict import outcome
from inferload.results.verdict.gate_text import gate_line, gate_mark

TEXTS = st.text(max_size=40) | st.builds(lambda sign, count: sign * count, st.characters(), st.integers(0, 5000))
MORE = re.compile(r"and (\d+) more in the report")


def document(headline: str, gates: list[str], reasons: list[str]) -> dict[str, Any]:
    """Return the document of a run with this headline, gates that failed, and reasons."""
    found = [{"phase": "measure", "code": "late", "level": "invalid", "text": text} for text in reasons]
    verdict = {
        "measurement": "invalid" if reasons else "valid",
        "passed": not gates,
        "gates": [{"gate": gate, "value": 2.0, "passed": False, "answer": "fail"} for gate in gates],
        "reasons": found,
    }
    ended = {"state": "invalid", "headline": headline, "exit_code": 3}
    return {"verdict": verdict, "run": {"scenario": "smoke"}, "outcome": ended}


@given(TEXTS, st.lists(TEXTS, max_size=60), st.lists(TEXTS, max_size=60))
@example("\U0001f600" * 5000, ["\ud83d" * 5000], [])
@example("short", ["g" * 900] * 3, ["r" * 900] * 3)
def test_a_message_has_at_most_4096_bytes_headline_gates_and_reasons_in_this_order(
    headline: str, gates: list[str], reasons: list[str]
) -> None:
    summary = summaries.summary(document(headline, gates, reasons))
    message = ci_texts.termination_message({"run": summary})
    assert len(message.encode(errors="backslashreplace")) <= 4096
    assert message.endswith("\n")
    *shown, last = message[:-1].split("\n")
    gate_lines = [f"{gate_mark(gate)}: {gate_line(gate)}" for gate in summary.verdict.gates]
    whole = [escaped(line) for line in (headline, *gate_lines, *outcome.reason_lines(summary.verdict))]
    cut = [line if len(line) <= 1000 else f"{line[:1000]}..." for line in whole]
    left_out = MORE.fullmatch(last)
    if left_out is None:
        assert [*shown, last] == cut
        return
    count = int(left_out[1])
    assert shown == cut[: len(cut) - count]
    assert shown
    one_more = [*cut[: len(shown) + 1], *([f"and {count - 1} more in the report"] if count > 1 else [])]
    assert len("".join(f"{line}\n" for line in one_more).encode()) > 4096


def test_a_message_of_several_runs_names_them_and_one_that_did_not_begin_its_program() -> None:
    good = summaries.summary(document("passed: 1 of 1 gate passed", [], []))
    assert ci_texts.termination_message({"run": good}) == "passed: 1 of 1 gate passed\n"
    refused = ci.without_load("failed", "not started: no server", outcome.USAGE)
    assert ci_texts.termination_message({"run": refused}) == "inferload: not started: no server\n"
    assert ci_texts.termination_message({"a": good, "b": refused}) == (
        "a: passed: 1 of 1 gate passed\nb: not started: no server\n"
    )


MOUNTED = """
import os
from pathlib import Path
from inferload.results import ci

before = os.stat("log").st_ino
outputs = ci.Outputs({"--junit": Path("j.xml"), "--termination-message": Path("log")})
outputs.prepare()
assert Path("log").read_text() == "" and not Path("j.xml").exists()
outputs.write({"run": ci.without_load("failed", "not started: no server", 2)})
assert os.stat("log").st_ino == before and "no server" in Path("j.xml").read_text()
"""


def test_a_file_that_is_a_mount_is_emptied_and_written_in_place(tmp_path: Path) -> None:
    """As /dev/termination-log of a pod."""
    (tmp_path / "of the node").write_text("of an earlier run")
    (tmp_path / "log").touch()
    ended = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            'mount --bind "of the node" log || exit 77; exec "$0" -c "$1"',
            sys.executable,
            MOUNTED,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == 77 or "unshare" in ended.stderr:
        pytest.skip("no right to mount")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "of the node").read_text() == "inferload: not started: no server\n"


def test_a_link_is_not_removed(tmp_path: Path) -> None:
    """As /dev/stderr."""
    (tmp_path / "target").write_text("x")
    (tmp_path / "link").symlink_to("target")
    ci.Outputs({"--termination-message": tmp_path / "link"}).prepare()
    assert (tmp_path / "link").is_symlink()


def test_an_output_that_cannot_be_written_hides_no_other(tmp_path: Path) -> None:
    outputs = ci.Outputs({"--junit": tmp_path, "--markdown": tmp_path / "m", "--termination-message": tmp_path / "t"})
    with pytest.raises(UsageError, match=r"^--junit .*: Is a directory; name another"):
        outputs.write({"run": ci.without_load("failed", "not started: no server", outcome.USAGE)})
    assert (tmp_path / "t").read_text() == "inferload: not started: no server\n"
    assert "no server" in (tmp_path / "m").read_text()


# -- command lines that are refused

REFUSED = {
    "run --usres 3": "--usres: unknown; did you mean --users?",
    "run --users -3": "--users -3: arrivals.users: must be at least 1, is -3",
    "run --users": "argument -u/--users: expected one argument",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_command_line_that_is_refused_is_in_the_outputs(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("inferload.cli.run.gc.disable", lambda: None)
    outputs = [f"--termination-message={tmp_path / 'log'}", "--junit", str(tmp_path / "j.xml")]
    monkeypatch.setattr(sys, "argv", ["inferload", "run", *outputs, *words.split()[1:]])
    try:
        code = cli.main()
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert capsys.readouterr().err.rstrip().endswith(REFUSED[words])
    assert (tmp_path / "log").read_text() == f"inferload: not started: {REFUSED[words]}\n"
    assert f'message="not started: {REFUSED[words]}"' in (tmp_path / "j.xml").read_text()


@pytest.mark.parametrize(("words", "written"), [("", True), ("--worker", False), ("--junit", False)])
def test_a_worker_and_a_command_line_without_a_file_write_nothing(
    words: str, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["locust", "--termination-message", str(tmp_path / "log"), *words.split()])
    ci.refuse("http://me:secret@server: no")
    assert (tmp_path / "log").exists() == written
    assert not written or "secret" not in (tmp_path / "log").read_text()


def test_parsed_options_name_the_outputs_wherever_they_come_from(tmp_path: Path) -> None:
    names = {"junit": "", "markdown": "", "termination_message": str(tmp_path / "log"), "github": False}
    ci.refuse("no", argparse.Namespace(worker=False, **names))
    assert (tmp_path / "log").read_text() == "inferload: not started: no\n"


@pytest.mark.parametrize("noun", ["token", "key"])
def test_a_secret_that_is_not_mounted_has_its_file_and_a_remedy(noun: str) -> None:
    path, flag = f"/secrets/mine/{noun}", {"token": "--token-file", "key": "--api-key-file"}[noun]
    with pytest.raises(UsageError) as refused:
        credentials.run_token(path) if noun == "token" else credentials.api_key(path, "")
    assert str(refused.value) == (
        f"{flag} {path}: No such file or directory; name a file with the {noun} alone (pod: create its Secret)"
    )
