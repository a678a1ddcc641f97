"""Runs of a campaign on a virtual clock: a process makes those of one start of a simulated server after another."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from inferload.base.run_options import API_KEY_VARIABLE
from inferload.base.virtual_orders import Made, Order

_PROGRAM = "inferload.locust.virtual_runs"
_END_S = 5.0


class Performer:
    """Process that makes runs, from its first order to the end of the context."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Performer":
        return self

    def __exit__(self, *_: object) -> None:
        """End the process. At the end of its input it ends the run that is at work, which may not write any more."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with suppress(ProcessLookupError):  # and what its runs have started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def perform(self, order: Order) -> Iterator[Made | None]:
        """Make the runs of a start, and yield the end of each; None for those that a broken process did not make."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no line either
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
        for _ in order.runs:
            line = process.stdout.readline()
            yield msgspec.json.decode(line, type=Made) if line.strip() else None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
            # -P: a folder "inferload" in the working directory is not the package.
            command = [sys.executable, "-Pm", _PROGRAM]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0
            )
        return self._process
