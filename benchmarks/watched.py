"""Execution of a client on its own core, with samples of CPU time, memory and sent tokens."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reported import Spent, UsageSample, peak_while_streaming, streaming

_SAMPLE_S = 0.5
_TICK_HZ = os.sysconf("SC_CLK_TCK")
_READER = "inferload-read"  # name of inferload's thread that reads sockets


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Usage of a process. `cpu_s`: CPU time, with reaped children; `reading_s`: of its reading threads; `peak_mb`: peak memory."""

    cpu_s: float
    reading_s: float
    peak_mb: float


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin child processes started in the block to a core; restore the affinity of this process afterwards."""
    before = os.sched_getaffinity(0)
    with suppress(OSError):  # no such core: the lateness of the server shows it
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
    """Run a command, and kill it after `timeout_s`, with a negative exit code. The output goes to `log`."""
    with log.open("wb") as output, on_core(core):
        start_s = time.monotonic()
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
            if time.monotonic() - start_s > timeout_s:
                _kill(process.pid)
            processes = process_tree(process.pid)
            cpu_s, peak_mb = sum(p.cpu_s for p in processes), max((p.peak_mb for p in processes), default=0.0)
            reading_s = sum(p.reading_s for p in processes)
            samples.append(UsageSample(time.monotonic(), tokens_sent(), cpu_s, reading_s, peak_mb))
            time.sleep(_SAMPLE_S)
    except BaseException:  # including Ctrl-C and a lost server: the client must not outlive this process
        _kill(process.pid)
        process.wait()
        raise
    wall_s = time.monotonic() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    return Spent(
        exit_code=process.returncode,
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        streaming=streaming(samples),
        peak_mb=peak_while_streaming(samples),
    )


def _kill(leader: int) -> None:
    """Kill all processes of a client, which form a separate session."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def process_tree(root: int) -> list[ProcessUsage]:
    """Return the usage of a process and its descendants."""
    usages, todo = [], [root]
    while todo:
        pid = todo.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
            reading_s = 0.0
            for task in Path(f"/proc/{pid}/task").iterdir():
                if (task / "comm").read_text().strip() == _READER:
                    reading_s += int((task / "schedstat").read_text().split()[0]) / 1e9
                todo += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile; its time is counted for its parent
        peak = status.partition("VmHWM:")[2].split()
        cpu_s = sum(int(ticks) for ticks in fields[11:15]) / _TICK_HZ
        usages.append(ProcessUsage(cpu_s, reading_s, int(peak[0]) / 1024 if peak else 0.0))
    return usages
