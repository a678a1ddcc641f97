"""The writer of turn files: the end waits for a part in progress."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.results.open_run import OpenRun
from inferload.run.worker import turn_writer
from inferload.run.worker.turn_writer import TurnWriter, own_folder
from inferload.turns import turns_file
from inferload.turns.record import TurnRecord


def turns_of_master(run_dir: Path) -> Path:
    """Create the folder of turns, as the master does."""
    turns = run_dir / "turns"
    turns.mkdir()
    return turns


def record(number: int) -> TurnRecord:
    return TurnRecord(f"s{number}.0", f"s{number}", 0, "chat", "w0", "measure", 1, 2)


def started(folder: Path) -> TurnWriter:
    writer = TurnWriter(folder, "w0", Anchor(0, 0))
    writer.start()
    return writer


def finished(writer: TurnWriter) -> tuple[int, str | None]:
    """Return the number of records that are written, and the first error."""
    writer.finish()
    return writer.records, writer.error


def test_the_end_waits_for_a_part_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, may_write, writing = turns_file.write_part, threading.Event(), threading.Event()

    def slow(*arguments: object, **options: object) -> Path:
        if not writing.is_set():  # the first part only
            writing.set()
            assert may_write.wait(20)
        return write(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(turns_file, "write_part", slow)
    monkeypatch.setattr(turn_writer, "PART_S", 0.01)
    turns = turns_of_master(tmp_path)
    writer = started(turns)
    writer.extend([record(0)])
    with gevent.Timeout(20):
        while not writing.is_set():
            gevent.sleep(0.01)
        writer.extend([record(1)])
        ending = gevent.spawn(writer.finish)
        ending.join(0.3)
        assert not ending.ready(), "the parts were joined while one was still being written"
        may_write.set()
        ending.get()
    assert [path.name for path in turns.iterdir()] == ["w0-all.parquet"]
    assert OpenRun(tmp_path).turns.table(["turn_id"])["turn_id"].to_pylist() == ["s0.0", "s1.0"]


def test_a_failed_part_is_lost_and_others_are_kept(tmp_path: Path) -> None:
    turns = turns_of_master(tmp_path)
    writer = started(turns)
    turns.rmdir()
    writer.extend([record(0)])
    writer._write_part()
    turns.mkdir()
    writer.extend([record(1), record(2)])
    assert finished(writer) == (2, f"{turns}: No such file or directory")
    assert OpenRun(tmp_path).turns.table(["turn_id"])["turn_id"].to_pylist() == ["s1.0", "s2.0"]


def test_removed_parts_are_not_counted(tmp_path: Path) -> None:
    turns = turns_of_master(tmp_path)
    writer = started(turns)
    writer.extend([record(0)])
    writer._write_part()
    next(turns.iterdir()).unlink()
    writer.extend([record(1)])
    assert finished(writer) == (1, f"{turns}: 1 of 2 files were removed while the run lasted")


def test_parts_that_cannot_be_joined_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(turns_file, "join_parts", full)
    turns = turns_of_master(tmp_path)
    writer = started(turns)
    writer.extend([record(0)])
    assert finished(writer) == (1, f"{turns}: No space left on device")


def test_a_folder_that_cannot_be_listed_ends_the_writer_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_arguments: object) -> list[Path]:
        raise OSError(24, "Too many open files")

    turns = turns_of_master(tmp_path)
    writer = started(turns)
    writer.extend([record(0)])
    monkeypatch.setattr(turns_file, "parts_of", exhausted)
    assert finished(writer) == (0, f"{turns}: Too many open files")


def assignment(run_dir: Path, token: str) -> Any:
    return SimpleNamespace(name="w0", run_id="r", run_dir=str(run_dir), token=token)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("late", ["before", "after"])
def test_a_run_that_does_not_start_leaves_no_folder(
    shared: bool, late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that prepares can be slower than the master, which has withdrawn the run directory meanwhile."""
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "worker")
    run_dir = tmp_path / "runs" / "run"
    token = rundir.create(run_dir)
    of_run = assignment(run_dir, token if shared else "another")
    if late == "after":
        rundir.withdraw(run_dir)
    writer = TurnWriter.of(of_run, Anchor(0, 0), None, lambda kind, data: None)
    rundir.withdraw(run_dir)
    writer.start()
    assert finished(writer) == (0, None)
    assert not list(tmp_path.rglob("turns"))
    assert not run_dir.exists()


def test_workers_without_the_masters_disk_take_folders_of_their_own(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    of_run = assignment(Path("/elsewhere/run"), "token")
    writers = [TurnWriter.of(of_run, Anchor(0, 0), run_dir, lambda kind, data: None) for _ in range(4)]
    for number, writer in enumerate(writers):
        writer.start()
        writer.extend([record(number)])
        assert finished(writer) == (1, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2", "run-3", "run-4"]
    assert sorted(writer.run_dir.name for writer in writers) == ["run", "run-2", "run-3", "run-4"]


def test_the_disk_of_a_worker_is_checked_before_the_load() -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        own_folder(assignment(Path("/elsewhere/run"), "token"), Path("/proc/run"))


def test_a_part_is_one_write_and_a_join_has_few(tmp_path: Path) -> None:
    """A write of a few bytes takes as long as one of a megabyte on a network disk."""
    writer = TurnWriter(turns_of_master(tmp_path), "w0", Anchor(0, 0))
    writer.start()
    for part in range(20):
        writer.extend([record(100 * part + number) for number in range(100)])
        writer._write_part()
        assert writer.writes == 2 * (part + 1)  # and the renaming
    writer.finish()
    assert writer.writes == 2 * 20 + 2 + 20  # the joined file, its renaming, and the removal of the parts
    assert turns_file.rows_of(tmp_path / "turns", "w0") == 2000
