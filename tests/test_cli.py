"""The command as a whole: a reader that goes away, a satellite that does not load."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from inferload import cli


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    # The schema is longer than a pipe holds, so that the writer meets the closed end.
    command = [sys.executable, "-m", "inferload", "schema"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (0, b"")


def test_a_satellite_that_does_not_load_spoils_no_other_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = EntryPoint("broken", "inferload.no_such_module:register", "inferload.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [broken])
    assert cli.main(["path", "smoke"]) == 0
    capsys.readouterr()
    assert cli.main(["broken"]) == 2
    assert "inferload: broken: cannot be loaded: No module named 'inferload.no_such_module'" in capsys.readouterr().err
