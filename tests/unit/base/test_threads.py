"""Files that grow while a run lasts: written in order, outside the event loop."""

import threading
from pathlib import Path

import gevent
import pytest

from inferload.base import threads
from inferload.base.threads import AppendedFile


def test_texts_are_appended_in_order_and_gathered_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, may_write, writes = threads._append, threading.Event(), []

    def slow(path: Path, data: bytes) -> None:
        assert may_write.wait(20)
        writes.append(data)
        append(path, data)

    monkeypatch.setattr(threads, "_append", slow)
    errors: list[OSError] = []
    file = AppendedFile(tmp_path / "file", errors.append)
    rounds = 0
    for number in range(50):
        file.add(f"{number}\n")
        gevent.sleep(0)  # the event loop goes on
        rounds += 1
    assert (rounds, writes) == (50, [])
    may_write.set()
    with gevent.Timeout(20):
        file.flush()
    assert (tmp_path / "file").read_text() == "".join(f"{number}\n" for number in range(50))
    assert len(writes) <= 2
    assert errors == []


def test_a_failed_write_loses_its_texts_only(tmp_path: Path) -> None:
    errors: list[OSError] = []
    file = AppendedFile(tmp_path / "folder" / "file", errors.append)
    for text in ("a", "b"):
        file.add(text)
        file.flush()
        (tmp_path / "folder").mkdir(exist_ok=True)
    assert [error.strerror for error in errors] == ["No such file or directory"]
    assert (tmp_path / "folder" / "file").read_text() == "b"
