"""Commands of the analysis package that the master executes."""

import os
import re
import signal
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import many_scrapes
import pyarrow.parquet as pq
import pytest
import synthetic_run as synthetic
from inferload.analysis.commands import report

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.run.master import analysis_process
from inferload.run.master.analysis_process import analyse, timeout_s


def test_a_command_may_take_longer_for_large_run_directories(tmp_path: Path) -> None:
    usual_s = timeout_s(["--force", str(tmp_path)])
    for name in ("a", "b"):
        turns = tmp_path / name / rundir.TURNS
        turns.mkdir(parents=True)
        with (turns / "w0-all.parquet").open("wb") as file:
            os.truncate(file.fileno(), 700_000_000)
    one_s = timeout_s([str(tmp_path / "a")])
    assert one_s - usual_s > 600
    assert timeout_s([str(tmp_path / "a"), str(tmp_path / "b")]) - one_s == one_s - usual_s


def test_a_command_may_take_longer_for_many_samples(tmp_path: Path) -> None:
    usual_s = timeout_s([str(tmp_path)])
    many_scrapes.write(tmp_path, 1, 200, 0)
    one_s = timeout_s([str(tmp_path)]) - usual_s
    many_scrapes.write(tmp_path, 1, 400, 0)
    assert 0 < one_s == pytest.approx((timeout_s([str(tmp_path)]) - usual_s) / 2)
    (tmp_path / rundir.SERVER_METRICS / "part-00001.parquet").write_bytes(b"PAR1")  # of a run that was killed
    assert timeout_s([str(tmp_path)]) - usual_s == pytest.approx(2 * one_s)


def test_a_command_that_takes_too_long_names_the_one_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis_process, "timeout_s", lambda _arguments: 0.01)
    monkeypatch.setattr(analysis_process, "_execute", lambda *_words: signal.pause())
    with pytest.raises(UsageError) as refusal:
        analyse("report", str(tmp_path / "a run"))
    assert str(refusal.value) == f"stopped after 0 s; without a limit: inferload report '{tmp_path / 'a run'}'"


def test_a_command_is_executed_with_what_this_process_has_imported(tmp_path: Path) -> None:
    run = synthetic.write(tmp_path / "run")
    (run / rundir.SUMMARY).unlink(missing_ok=True)
    opened = pq.read_table(next((run / rundir.TURNS).iterdir()))  # threads of pyarrow, which a fork does not have
    analyse("report", str(run))
    assert opened.num_rows > 0
    assert (run / rundir.REPORT_HTML).stat().st_size > 400_000  # with its chart library


def test_a_command_that_fails_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^run directory .*: not found; name one that a run wrote$"):
        analyse("report", str(tmp_path / "none"))


def raise_error(_arguments: Namespace) -> None:
    raise KeyError("defect")


@pytest.mark.parametrize(
    ("work", "message"), [(lambda _arguments: os.abort(), "ended by signal 6"), (raise_error, "KeyError: 'defect'")]
)
def test_a_command_that_crashes_is_an_error(
    work: Callable[..., None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "run", work)
    with pytest.raises(UsageError, match=re.escape(message)):
        analyse("report", "any")


def test_a_command_does_not_print(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end="")
    analyse("report", str(synthetic.write(tmp_path / "run")))
    assert capfd.readouterr() == ("before", "")
