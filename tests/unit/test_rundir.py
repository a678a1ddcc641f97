"""The run directory: made, and taken back where a run came to nothing."""

from pathlib import Path

from inferload import rundir


def test_a_run_that_came_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rundir.create(path)
    rundir.withdraw(path)
    assert not path.exists()


def test_what_holds_anything_stays(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rundir.create(path)
    (path / rundir.TURNS / "w0-00001.parquet").write_text("turns")
    rundir.withdraw(path)
    assert [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()] == ["turns/w0-00001.parquet"]
