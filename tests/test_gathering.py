"""Turns against the master's counts: what is missing, what was never counted, and files that are not ours."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic_run

from inferload import cli, rundir
from inferload.cli import gathering
from inferload.cli.gathering import Manifest


def run_with(folder: Path, more: int, missing_reports: int) -> Path:
    """A run whose files hold so many turns of each worker more than were counted; they name no run, as older ones."""
    run_dir = synthetic_run.write(folder)
    here = gathering.at_hand(Manifest.read(run_dir))
    manifest = json.loads((run_dir / rundir.MANIFEST).read_text())
    for worker in manifest["workers"]:
        worker |= {"turns": here[worker["name"]].turns - more, "missing_reports": missing_reports}
    (run_dir / rundir.MANIFEST).write_text(json.dumps(manifest))
    return run_dir


@pytest.mark.parametrize(
    ("more", "missing_reports", "short", "uncounted"),
    [(0, 0, 0, 0), (0, 2, 0, 0), (3, 0, 2, 0), (3, 2, 0, 2), (-3, 2, 2, 0)],
)
def test_more_turns_than_counted_are_all_where_reports_are_missing(
    more: int, missing_reports: int, short: int, uncounted: int, tmp_path: Path
) -> None:
    manifest = Manifest.read(run_with(tmp_path / "run", more, missing_reports))
    assert len(gathering.shortfalls(manifest)) == short
    lines = gathering.uncounted(manifest)
    assert len(lines) == uncounted
    assert all("turns are here" in line and "2 of its reports never reached the master" in line for line in lines)


def test_a_run_with_a_report_gap_can_be_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = run_with(tmp_path / "run", 3, 1)
    assert cli.main(["collect", str(run_dir), "--no-report"]) == 0
    assert "1 of its reports never reached the master" in capsys.readouterr().out


def test_a_parquet_file_of_something_else_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = run_with(tmp_path / "run", 0, 0)
    strange = tmp_path / "strange"
    strange.mkdir()
    pq.write_table(pa.table({"price": [1.0]}), strange / "prices.parquet")
    assert cli.main(["collect", str(run_dir), "--no-report", "--from", str(strange)]) == 2
    assert "no turns there" in capsys.readouterr().err
