"""The end of runs that a command has started as processes in sessions of their own."""

import contextlib
import os
import signal
import subprocess


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a run and what it started, gently and after `patience_s` not; harmless where it is over.

    A Ctrl-C meanwhile takes the rest of the patience, and nothing of the run is left behind.
    """
    try:
        _signalled(process, signal.SIGTERM, patience_s)
    finally:
        _signalled(process, signal.SIGKILL, 10.0)


def _signalled(process: subprocess.Popen[bytes], number: signal.Signals, wait_s: float) -> None:
    """Wait so long for a process that is told to end, with its group."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
