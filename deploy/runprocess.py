"""A program that is waited for, such as one run of a sweep: in a session of its own, so that only whoever waits ends it, and
known again after a kill."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from .procfs import group_of

# What is left of a run that is given up has no use: it gets this long to end by itself.
GRACE_S = 5.0
# A start time is told relative to the boot, whose wall time may be corrected by so much while the machine is up.
_SAME_START_S = 2.0


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A run's first process. `started_s`: its start as the system tells it, for a process id may be given anew."""

    pid: int
    started_s: float

    def alive(self) -> bool:
        """Whether that very process is there still and leads its group."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_s) < _SAME_START_S
            return same and os.getpgid(self.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def end(self, grace_s: float = GRACE_S) -> bool:
        """TERM its whole group, KILL what is left after the grace; whether it was there."""
        if not self.alive():
            return False
        group = [process for process in psutil.process_iter() if group_of(process.pid) == self.pid]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        _, left = psutil.wait_procs(group, timeout=grace_s)
        if left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            psutil.wait_procs(left, timeout=grace_s)
        return True


def begin(
    argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], RunProcess]:
    """Start it; its output goes to `log`. `environment` None: this process's own."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv,
            env=environment,
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
