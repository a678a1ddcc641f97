"""Commands of the analysis package that the master executes."""

import os
from pathlib import Path

from inferload.base import rundir
from inferload.run.master.analysis_process import timeout_s


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
