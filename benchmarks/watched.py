"""Execution of a client on its own cores, with samples of CPU time, memory and the counts of the server."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.reported import Spent, UsageSample, peak_while_streaming, streaming

_SAMPLE_S = 0.5
_TICK_HZ = os.sysconf("SC_CLK_TCK")
_READER = "inferload-read"  # name of inferload's thread that reads sockets


@contextmanager
def on_cores(*cores: int) -> Iterator[None]:
    """Pin child processes started in the block to cores; restore the affinity of this process afterwards."""
    before = os.sched_getaffinity(0)
    with suppress(OSError):  # no such core: the lateness of the server shows it
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_watched(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    cores: Sequence[int],
    log: Path,
    server_stats: Callable[[], Mapping[str, Any]],
    timeout_s: float,
) -> Spent:
    """Run a command, and kill it after `timeout_s`, with a negative exit code. The output goes to `log`."""
    with log.open("wb") as output, on_cores(*cores):
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
            usage_now, stats = process_tree(process.pid), server_stats()
            samples.append(UsageSample(time.monotonic(), stats["tokens_sent"], stats["cpu_s"], *usage_now))
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


def process_tree(root: int) -> tuple[float, float, float]:
    """Return the usage of a process and its descendants: `cpu_s`, `reading_s` and `memory_mb` of UsageSample."""
    cpu_s = reading_s = own_kb = 0.0
    files_kb = 0  # of the process with the most: programs and libraries, which all share
    todo = [root]
    while todo:
        pid = todo.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            resident = _kilobytes(Path(f"/proc/{pid}/status").read_text())
            for task in Path(f"/proc/{pid}/task").iterdir():
                if (task / "comm").read_text().strip() == _READER:
                    reading_s += int((task / "schedstat").read_text().split()[0]) / 1e9
                todo += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile; its time is counted for its parent
        cpu_s += sum(int(ticks) for ticks in fields[11:15]) / _TICK_HZ
        own_kb += resident.get("RssAnon", 0) + resident.get("RssShmem", 0)
        files_kb = max(files_kb, resident.get("RssFile", 0))
    return cpu_s, reading_s, (own_kb + files_kb) / 1024


def _kilobytes(status: str) -> dict[str, int]:
    """Return the sizes of a process from its /proc/PID/status, by name."""
    fields = (line.partition(":") for line in status.splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in fields}
