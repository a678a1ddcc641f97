"""Files that grow while a run lasts are written in order, outside the event loop; memory of threads."""

import platform
import subprocess
import sys
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


HEAP = """
import ctypes, resource, sys, threading
from pathlib import Path
from inferload.base.threads import give_back_memory
from inferload import users
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fopen.argtypes = ctypes.c_char_p, ctypes.c_char_p
libc.malloc_info.argtypes = ctypes.c_int, ctypes.c_void_p
libc.fclose.argtypes = (ctypes.c_void_p,)
kept = []
def work():
    texts = [bytes(20_000) for _ in range(3_000)]
    kept.append(texts[-1])
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
before = resident()
give_back_memory()
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_threads_share_one_heap_whose_free_memory_can_be_given_back(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HEAP, str(tmp_path / "heaps")]
    given_back = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "heaps").read_text().count("<heap nr") == 1
    assert int(given_back) > 30_000_000
