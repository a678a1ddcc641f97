"""Running a client on a core of its own, with an eye on its processes and on what the server has sent it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.reported import Spent, UsageSample, peak_while_streaming, streaming

_SAMPLE_S = 0.5
_TICK_HZ = os.sysconf("SC_CLK_TCK")


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Children started meanwhile inherit this core; the harness itself, wherever it is pinned, goes back to there."""
    before = os.sched_getaffinity(0)
    with suppress(OSError):  # a machine that lacks the core: the row's server lateness will show it
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_watched(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    core: int,
    log: Path,
    tokens_sent: Callable[[], int],
    timeout_s: float,
) -> Spent:
    """Run to the end, or kill it after `timeout_s`; its output goes to `log`. Of a killed one the exit code is negative."""
    with log.open("wb") as output, on_core(core):
        began_s = time.monotonic()
        process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    samples: list[UsageSample] = []
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - began_s > timeout_s:
                _kill(process.pid)
            cpu_s, peak_mb = _tree(process.pid)
            samples.append(UsageSample(time.monotonic(), tokens_sent(), cpu_s, peak_mb))
            time.sleep(_SAMPLE_S)
    except BaseException:  # Ctrl-C here, or a server that is gone: the client must not outlive the harness
        _kill(process.pid)
        process.wait()
        raise
    wall_s = time.monotonic() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    return Spent(
        exit_code=process.returncode,
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        streaming=streaming(samples),
        peak_mb=peak_while_streaming(samples),
    )


def _kill(leader: int) -> None:
    """End a client with all of its processes: they are a session of their own, so nothing else is hit."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _tree(root: int) -> tuple[float, float]:
    """(CPU seconds of a process and all below it, dead and waited-for children included; MB of the largest)."""
    cpu_s, peak_mb, todo = 0.0, 0.0, [root]
    while todo:
        pid = todo.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between two looks; its parent has its time then
        cpu_s += sum(int(ticks) for ticks in fields[11:15]) / _TICK_HZ
        high = status.partition("VmHWM:")[2].split()
        peak_mb = max(peak_mb, int(high[0]) / 1024 if high else 0.0)
    return cpu_s, peak_mb
