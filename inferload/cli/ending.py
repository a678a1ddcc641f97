"""The end of runs that a command has started as processes in sessions of their own."""

import contextlib
import os
import signal
import subprocess


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a run and what it started, gently and after `patience_s` not; harmless where it is over."""
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10.0)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
