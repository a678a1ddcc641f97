"""Creation of the run directory, also by many at once, and removal if the run did not start."""

import concurrent.futures
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.run.master.lifecycle import cache_passes
from inferload.run.master.lifecycle.marks import Marks
from inferload.scenario.scenario import Cache

HALF = "\ud83d"  # half of a character: UTF-8 cannot represent it


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


def test_documents_and_marks_can_contain_lone_surrogates(tmp_path: Path) -> None:
    rundir.write_json(tmp_path / rundir.SUMMARY, {"name": f"/{HALF}"})
    assert rundir.read_object(tmp_path / rundir.SUMMARY) == {"name": "/\\ud83d"}
    rundir.write_text(tmp_path / rundir.REPORT_MD, HALF)
    assert rundir.read_text(tmp_path / rundir.REPORT_MD) == "\\ud83d"
    marks = Marks(tmp_path / rundir.MARKS, Anchor.take(), Redaction())
    marks.add("note", HALF)
    marks.flush()
    assert marks.error is None
    assert json.loads((tmp_path / rundir.MARKS).read_text("utf-8"))["text"] == HALF


AT_ONCE = 12


def at_once(call: Callable[[], Path]) -> list[Path]:
    """Return the results of calls in many threads that begin together."""
    barrier = threading.Barrier(AT_ONCE)

    def one() -> Path:
        barrier.wait(20)
        return call()

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return [future.result(20) for future in [pool.submit(one) for _ in range(AT_ONCE)]]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("suffix", ["", "-warm"])
def test_runs_that_begin_at_once_have_different_directories(tmp_path: Path, exists: bool, suffix: str) -> None:
    path, current = tmp_path / "run", cache_passes.CachePass("warm", suffix)
    if exists:
        cache_passes.folder(path, current).mkdir()  # a user's empty folder is used
    created = at_once(lambda: cache_passes.create_folder(path, current, True)[0])
    names = {f"run{suffix}"} | {f"run-{number}{suffix}" for number in range(2, AT_ONCE + 1)}
    assert {one.name for one in created} == names == {one.name for one in tmp_path.iterdir()}
    assert len({rundir.read_text(one / rundir.TOKEN) for one in created}) == AT_ONCE
    passes = cache_passes.Passes(Mock(), (current,), path)
    bases = set()
    for one in created:
        passes.ended(current, one, "salt")
        bases.add(passes.path.name)
    assert bases == {name.removesuffix(suffix) for name in names}


def test_only_one_of_many_runs_takes_the_directory_that_they_name(tmp_path: Path) -> None:
    path, refused = tmp_path / "run", tmp_path / "refused"

    def create() -> Path:
        try:
            return cache_passes.create_folder(path, cache_passes.CachePass("cold"), False)[0]
        except rundir.Taken:
            return refused

    assert sorted(at_once(create)) == [refused] * (AT_ONCE - 1) + [path]


def test_campaigns_that_begin_at_once_have_different_folders(tmp_path: Path) -> None:
    created = at_once(lambda: rundir.make_new(tmp_path / "runs" / "search"))
    assert len(set(created)) == AT_ONCE == len(list((tmp_path / "runs").iterdir()))


def test_a_file_is_whole_or_absent_and_its_writes_are_observed(tmp_path: Path) -> None:
    seen: list[bool] = []
    path = tmp_path / "file"
    (tmp_path / "file.tmp").symlink_to(tmp_path / "elsewhere")  # a link is not followed
    with rundir.whole_file(path, lambda: seen.append(path.exists())) as file:
        for _ in range(1000):
            file.write(bytes(1000))
    assert seen == [False, True]
    assert path.read_bytes() == bytes(1_000_000)
    with pytest.raises(TypeError), rundir.whole_file(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == bytes(1_000_000)


def test_an_incomplete_run_is_set_aside_with_its_other_passes(tmp_path: Path) -> None:
    passes = [one for arm in ("cold", "warm", "both") for one in cache_passes.passes(Cache(arm=arm))]  # type: ignore[arg-type]
    for name in {cache_passes.folder(tmp_path / "000", one).name for one in passes} | {"001"}:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    rundir.set_aside(tmp_path / "000")
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["001"]
    assert len(list(tmp_path.glob(".broken-000*"))) == 3


@pytest.mark.parametrize("kind", ["pipe of the system", "file of the system", "named pipe"])
def test_a_named_output_that_is_no_file_is_written_and_stays_what_it_was(kind: str, tmp_path: Path) -> None:
    named, file = tmp_path / "pipe", tmp_path / "redirected"
    file.write_text("earlier\n")
    if kind == "named pipe":
        os.mkfifo(named)
        path, read = named, os.open(named, os.O_RDWR)
        opened = {read}
    else:
        read, write = (
            os.pipe()
            if kind.startswith("pipe")
            else (os.open(file, os.O_RDONLY), os.open(file, os.O_APPEND | os.O_WRONLY))
        )
        path, opened = Path(f"/dev/fd/{write}"), {read, write}
    rundir.write_output(path, "text\n")
    assert os.read(read, 100) == (b"earlier\ntext\n" if kind.startswith("file") else b"text\n")
    assert path.is_symlink() or path.is_fifo()
    assert {entry.name for entry in tmp_path.iterdir()} <= {"pipe", "redirected"}
    for number in opened:
        os.close(number)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_lies_in_the_place_of_a_file_of_a_run_is_replaced(kind: str, tmp_path: Path) -> None:
    """A folder that others can write to, or one from elsewhere, may hold it."""
    other, path = tmp_path / "other", tmp_path / "summary.json"
    other.write_text("kept")
    path.symlink_to(other) if kind == "link" else os.mkfifo(path)
    rundir.write_text(path, "text")
    assert (path.is_symlink(), path.read_text(), other.read_text()) == (False, "text", "kept")


def test_a_folder_that_cannot_be_searched_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a volume of another user: pathlib passes this error of `exists` on."""

    def refuse(_path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", refuse)
        with pytest.raises(UsageError) as refused:
            rundir.check(tmp_path / "run")
    assert str(refused.value) == (
        f"run directory {tmp_path / 'run'}: {tmp_path / 'run'} cannot be written (Permission denied); name another with --run-dir"
    )
