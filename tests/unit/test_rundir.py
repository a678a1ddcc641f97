"""Creation of the run directory, and removal if the run did not start."""

from pathlib import Path

from inferload import rundir


def test_an_empty_run_directory_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rundir.create(path)
    rundir.withdraw(path)
    assert not path.exists()


def test_a_run_directory_with_files_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rundir.create(path)
    (path / rundir.TURNS / "w0-00001.parquet").write_text("turns")
    rundir.withdraw(path)
    assert [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()] == ["turns/w0-00001.parquet"]
