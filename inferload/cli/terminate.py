"""Termination of runs that a command started as process groups."""

import contextlib
import os
import signal
import subprocess


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Send SIGTERM to the process group of a run, and SIGKILL after `patience_s` or on Ctrl-C. No effect if it has ended."""
    try:
        _signal_and_wait(process, signal.SIGTERM, patience_s)
    finally:
        _signal_and_wait(process, signal.SIGKILL, 10.0)


def _signal_and_wait(process: subprocess.Popen[bytes], number: signal.Signals, wait_s: float) -> None:
    """Send a signal to the group of a running process and wait up to `wait_s` for its end."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
