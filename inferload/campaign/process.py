"""Processes of runs: each in its own session, so that only the campaign ends it, and identifiable after a restart."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import psutil

from inferload.base import clock
from inferload.deploy.launcher import processes

GRACE_S = 5.0  # for a run whose result is not needed
# A start time is relative to the boot, whose wall time may be corrected by so much while the machine is up.
_SAME_START_S = 2.0
_KILLED_S = 10.0


@dataclass(frozen=True, slots=True)
class RunProcess:
    """First process of a run. `started_s`: its start by the system's clock, because a process id may be reused."""

    pid: int
    started_s: float

    def alive(self) -> bool:
        """Return True if the process exists, is not another one with the same id, and leads its group."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_s) < _SAME_START_S
            return same and os.getpgid(self.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def end(self, grace_s: float = GRACE_S) -> bool:
        """TERM the group, KILL what is left after the grace or a Ctrl-C; return whether the process existed."""
        if not self.alive():
            return False
        group = processes.members(self.pid)
        try:
            self._signal(signal.SIGTERM)
            psutil.wait_procs(group, timeout=grace_s)
        finally:
            if any(process.is_running() for process in group):
                self._signal(signal.SIGKILL)
                psutil.wait_procs(group, timeout=_KILLED_S)
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def begin(
    argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[subprocess.Popen[bytes], RunProcess]:
    """Start a run. `log`: file of its output. `environment`, `folder`: None for those of this process."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        started_s = psutil.Process(process.pid).create_time()
    except psutil.Error:
        started_s = 0.0  # has ended already
    return process, RunProcess(process.pid, started_s)


def awaited(
    child: subprocess.Popen[bytes], poll: Callable[[], None] | None, every_s: float = 0.5, most_s: float = inf
) -> int | None:
    """Wait for the end of a process, and call `poll` meanwhile. Return its exit code; None if it takes longer than `most_s`."""
    began_ns = clock.now_ns()
    while (clock.now_ns() - began_ns) / clock.NS_PER_S < most_s:
        try:
            return child.wait(every_s)
        except subprocess.TimeoutExpired:
            if poll is not None:
                poll()
    return None
