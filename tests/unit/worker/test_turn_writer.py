"""The writer of turn files: the end waits for a part in progress."""

import threading
from pathlib import Path

import gevent
import pytest

from inferload import turns_file
from inferload.measure.clock import Anchor
from inferload.measure.record import TurnRecord
from inferload.worker import turn_writer
from inferload.worker.turn_writer import TurnWriter


def record(number: int) -> TurnRecord:
    return TurnRecord(f"s{number}.0", f"s{number}", 0, "chat", "w0", "measure", 1, 2)


def test_the_end_waits_for_a_part_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, may_write, writing = turns_file.write_part, threading.Event(), threading.Event()

    def slow(*arguments: object, **options: object) -> Path:
        if not writing.is_set():  # the first part only
            writing.set()
            assert may_write.wait(20)
        return write(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(turns_file, "write_part", slow)
    monkeypatch.setattr(turn_writer, "PART_S", 0.01)
    turns = tmp_path / "turns"
    writer = TurnWriter(turns, "w0", Anchor(0, 0))
    writer.start()
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
    assert turns_file.read_turns(tmp_path, ["turn_id"])["turn_id"].to_pylist() == ["s0.0", "s1.0"]


def test_a_failed_part_is_lost_and_others_are_kept(tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    writer = TurnWriter(turns, "w0", Anchor(0, 0))
    writer.start()
    turns.rmdir()
    writer.extend([record(0)])
    writer._write_part()
    turns.mkdir()
    writer.extend([record(1), record(2)])
    written = writer.finish()
    assert written.records == 2
    assert written.error == f"{turns}: No such file or directory"
    assert turns_file.read_turns(tmp_path, ["turn_id"])["turn_id"].to_pylist() == ["s1.0", "s2.0"]


def test_removed_parts_are_not_counted(tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    writer = TurnWriter(turns, "w0", Anchor(0, 0))
    writer.start()
    writer.extend([record(0)])
    writer._write_part()
    next(turns.iterdir()).unlink()
    writer.extend([record(1)])
    assert writer.finish().records == 1


def test_parts_that_cannot_be_joined_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(turns_file, "join_parts", full)
    turns = tmp_path / "turns"
    writer = TurnWriter(turns, "w0", Anchor(0, 0))
    writer.start()
    writer.extend([record(0)])
    written = writer.finish()
    assert written == turn_writer.WrittenRecords(1, f"{turns}: No space left on device")


def test_a_folder_that_cannot_be_listed_ends_the_writer_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_arguments: object) -> list[Path]:
        raise OSError(24, "Too many open files")

    turns = tmp_path / "turns"
    writer = TurnWriter(turns, "w0", Anchor(0, 0))
    writer.start()
    writer.extend([record(0)])
    monkeypatch.setattr(turns_file, "parts_of", exhausted)
    assert writer.finish() == turn_writer.WrittenRecords(0, f"{turns}: Too many open files")
