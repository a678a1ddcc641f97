"""A full disk, a file size limit, removed folders: the run ends with its summary and is invalid."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_runs import (
    FinishedRun,
    Fleet,
    RunCase,
    RunPool,
    Sandbox,
    marks_of,
    run_cases,
    scenario,
    wait_for_measure_phase,
)

from inferload import rundir

LIMIT_BYTES = 512  # smaller than any table of the run


def execute(
    sandbox: Sandbox, mode: str, harm: Callable[[Fleet], None], env: dict[str, str] | None = None
) -> FinishedRun:
    """Run, and call `harm` in the measure phase."""
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "measure_s": 3, "drain_s": 20})
    fleet = sandbox.fleet(mode, "--host", sandbox.simulator().url, "--scenario", str(file), env=env)
    wait_for_measure_phase(sandbox.run_dir)
    harm(fleet)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def size_limit(sandbox: Sandbox, mode: str) -> FinishedRun:
    def limit(fleet: Fleet) -> None:
        for pid in fleet.pids():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))

    return execute(sandbox, mode, limit, {"INFERLOAD_FRESH": "1"})  # else the scraper is a child of the fork server


def folders_removed(sandbox: Sandbox, mode: str) -> FinishedRun:
    def remove(_fleet: Fleet) -> None:
        for name in (rundir.TURNS, rundir.SERVER_METRICS):
            shutil.rmtree(sandbox.run_dir / name)

    return execute(sandbox, mode, remove)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk(sandbox: Sandbox, mode: str) -> FinishedRun | None:
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(sandbox.folder / "disk"))
        except (OSError, subprocess.CalledProcessError):
            return None

        def fill(_fleet: Fleet) -> None:
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

        sandbox.run_dir = disk / "run"
        ended = execute(sandbox, mode, fill)
        copy = shutil.copytree(ended.run_dir, sandbox.folder / "copy")
        return FinishedRun(copy, ended.code, ended.text)


def check(ended: FinishedRun, error: str) -> None:
    """Check the exit code, the summary, and the reason with path and error."""
    assert ended.code == 3, ended.text
    assert "Traceback" not in ended.text, ended.text
    (reason,) = [reason for reason in ended.summary["verdict"]["reasons"] if reason["code"] == "lost_records"]
    assert reason["level"] == "invalid"
    assert rundir.TURNS in reason["text"]
    assert error in reason["text"]
    turns = ended.summary["turns"]["by_phase"]["all"]
    assert 0 < reason["value"] <= turns["sent"]
    assert ended.summary["percentiles_from"] != "records"
    assert not (ended.run_dir / rundir.RESERVE).exists()


@run_cases(size_limit, ("processes",))
def test_a_run_whose_summary_cannot_be_written_prints_it(run_case: RunCase, run_pool: RunPool) -> None:
    ended = run_pool.result(run_case)
    too_large = os.strerror(errno.EFBIG)
    assert ended.code == 3, ended.text
    assert "Traceback" not in ended.text, ended.text
    assert "measurement INVALID" in ended.text
    assert f"{ended.run_dir / rundir.TURNS}: {too_large}" in ended.text
    assert f"{rundir.LOCUST_HISTORY}: {too_large}" in ended.text
    assert f"{rundir.SERVER_METRICS}: {too_large}" in ended.text
    assert f"{ended.run_dir}: {too_large}; the summary is printed and not saved" in ended.text
    assert not (ended.run_dir / rundir.SUMMARY).exists()


@run_cases(folders_removed, ("processes",))
def test_removal_of_folders_during_a_run_makes_it_invalid(run_case: RunCase, run_pool: RunPool) -> None:
    ended = run_pool.result(run_case)
    check(ended, os.strerror(errno.ENOENT))
    (reason,) = [reason for reason in ended.summary["verdict"]["reasons"] if reason["code"] == "write_error"]
    assert rundir.SERVER_METRICS in reason["text"]
    assert {entry["kind"] for entry in marks_of(ended.run_dir)} >= {"lost_records"}


@run_cases(full_disk, ("local",), ("processes",))
def test_a_full_disk_makes_the_run_invalid(run_case: RunCase, run_pool: RunPool) -> None:
    ended = run_pool.result(run_case)
    if ended is None:
        pytest.skip("no right to mount a small disk")
    check(ended, os.strerror(errno.ENOSPC))
