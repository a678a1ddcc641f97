"""Slow disks, which lose nothing; a full disk, a file size limit, removed folders, with which the run ends and is invalid."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import locust_process
import psutil
import pytest
from e2e_runs import (
    FinishedRun,
    Fleet,
    RunCase,
    Sandbox,
    check_complete,
    check_counts,
    check_run,
    marks_of,
    run_cases,
    scenario,
    wait_for_measure_phase,
)
from slow_disk import SlowDisk
from summaries import summarised

from inferload.base import rundir

LIMIT_BYTES = 512  # smaller than any table of the run
AT_ONCE = 2
SLOW_S = 0.15  # of each write to a slow disk


def execute(sandbox: Sandbox, mode: str, harm: Callable[[Fleet], None]) -> FinishedRun:
    """Run, and call `harm` in the measure phase."""
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "measure_s": 3, "drain_s": 20})
    fleet = sandbox.fleet(mode, "--host", sandbox.simulator().url, "--scenario", str(file))
    wait_for_measure_phase(sandbox.run_dir)
    harm(fleet)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def slow(sandbox: Sandbox, mode: str) -> FinishedRun:
    """Run with little time for the drain: turn records are written for as long as that takes."""
    sandbox.run_dir = sandbox.folder / "disk" / "run"
    disk = SlowDisk(sandbox.run_dir.parent, sandbox.folder)
    disk.set(SLOW_S)
    phases = {"warmup_s": 0, "measure_s": 5, "drain_s": 1}
    file = scenario(sandbox.folder, phases=phases, workload__output_tokens=2)
    fleet = sandbox.fleet(mode, "--host", sandbox.simulator().url, "--scenario", str(file), env=disk.env)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def full_for_a_while(sandbox: Sandbox, mode: str, number: int) -> FinishedRun:
    """Let writes fail from the measure phase until a part has failed."""
    disk = SlowDisk(sandbox.run_dir, sandbox.folder)
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "measure_s": 9, "drain_s": 20})
    fleet = sandbox.fleet(mode, "--host", sandbox.simulator().url, "--scenario", str(file), env=disk.env)
    wait_for_measure_phase(sandbox.run_dir)
    disk.set(error=number)
    fleet.master.wait_for_line("turn records cannot be written")
    disk.set()
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def size_limit(sandbox: Sandbox, mode: str) -> FinishedRun:
    def limit(_fleet: Fleet) -> None:
        for process in psutil.process_iter():  # by folder: the scraper is a child of the fork server
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(sandbox.folder):
                    process.rlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))

    return execute(sandbox, mode, limit)


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


@run_cases(slow, ("processes",), soak=[("local",)])
def test_a_slow_disk_loses_no_turn(ended: FinishedRun) -> None:
    check_complete(ended)
    records = ended.summary["turn_records"]
    assert records["counted"] == records["at_hand"] == len(ended.turns) > 0
    assert ended.summary["percentiles_from"] == "records"
    assert {entry["kind"] for entry in marks_of(ended.run_dir)} == {"phase"}  # no turn was in flight after the drain
    check_run(ended)


@run_cases(full_for_a_while, ("processes", errno.ENOSPC), soak=[("local", errno.EDQUOT)])
def test_a_disk_that_is_full_for_a_while_loses_the_records_of_that_time(ended: FinishedRun, run_case: RunCase) -> None:
    check(ended, os.strerror(run_case.arguments[1]))
    records = ended.summary["turn_records"]
    assert records["counted"] - records["lost"] == records["at_hand"] == len(ended.turns) > 0
    assert ended.summary == summarised(ended.run_dir)


@run_cases(size_limit, ("processes",))
def test_a_run_whose_summary_cannot_be_written_prints_it(ended: FinishedRun) -> None:
    too_large = os.strerror(errno.EFBIG)
    assert ended.code == 3, ended.text
    assert "measurement INVALID" in ended.text
    assert f"{ended.run_dir / rundir.TURNS}: {too_large}" in ended.text
    assert f"{rundir.LOCUST_HISTORY}: {too_large}" in ended.text
    assert f"{rundir.SERVER_METRICS}: {too_large}" in ended.text
    assert f"{ended.run_dir}: {too_large}; the summary is printed and not saved" in ended.text
    assert not (ended.run_dir / rundir.SUMMARY).exists()


@run_cases(folders_removed, ("processes",))
def test_removal_of_folders_during_a_run_makes_it_invalid(ended: FinishedRun) -> None:
    check(ended, os.strerror(errno.ENOENT))
    (reason,) = [reason for reason in ended.summary["verdict"]["reasons"] if reason["code"] == "write_error"]
    assert rundir.SERVER_METRICS in reason["text"]
    assert {entry["kind"] for entry in marks_of(ended.run_dir)} >= {"lost_records"}


@run_cases(full_disk, ("processes",), soak=[("local",)])
def test_a_full_disk_makes_the_run_invalid(ended: FinishedRun) -> None:
    if ended is None:
        pytest.skip("no right to mount a small disk")
    check(ended, os.strerror(errno.ENOSPC))


def at_once(sandbox: Sandbox) -> FinishedRun:
    """Make several headless runs of one scenario, which begin in the same second, in one folder."""
    file = scenario(sandbox.folder, arrivals__users=1, phases={"warmup_s": 0, "measure_s": 1, "drain_s": 20})
    url = sandbox.simulator().url
    words = f"--headless --host {url} --scenario {file} --no-report --on-invalid warn".split()
    running = [locust_process.start(*words, cwd=sandbox.folder) for _ in range(AT_ONCE)]
    try:
        codes = [process.exit_code() for process in running]
    finally:
        for process in running:
            process.kill()
    text = "\n".join(process.text for process in running)
    return FinishedRun(sandbox.folder / "runs", max(codes), text)


@run_cases(at_once, ())
def test_runs_at_once_have_directories_of_their_own(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    folder = ended.run_dir
    made = [path for path in folder.iterdir() if not path.is_symlink()]
    assert len(made) == AT_ONCE
    assert (folder / rundir.LATEST).resolve() in made
    for path in made:
        check_counts(FinishedRun(path, 0, ""))
