"""Statistics of the server process from the kernel."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from inferload.measure import clock


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """Process statistics, as reported by Prometheus clients."""

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    start_wall_s: float
    open_fds: int
    max_fds: int


def process_now(started_wall_s: float) -> ProcessStats:
    """Read the current statistics. `started_wall_s` is reported as the start time."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    page = os.sysconf("SC_PAGE_SIZE")
    return ProcessStats(
        cpu_s=clock.cpu_ns() / 1e9,
        resident_bytes=int(fields[21]) * page,
        virtual_bytes=int(fields[20]),
        start_wall_s=started_wall_s,
        open_fds=len(os.listdir("/proc/self/fd")),
        max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def cpu_wait_s() -> float | None:
    """CPU wait: time in which this process was ready to run without a core; None if unknown.

    Lateness during CPU wait is caused by the machine, not by the simulator.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
