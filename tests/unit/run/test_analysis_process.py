"""Commands of the analysis package that the master executes."""

import os
import subprocess
from pathlib import Path

import many_scrapes
import pytest

from inferload.base import rundir
from inferload.base.errors import UsageError
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
    def run(arguments: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(arguments, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UsageError) as refusal:
        analyse("report", str(tmp_path / "a run"))
    assert str(refusal.value) == f"stopped after 120 s; without a limit: inferload report '{tmp_path / 'a run'}'"
