"""CPU time for which the server process waited, from the kernel."""

from pathlib import Path


def cpu_wait_s() -> float | None:
    """CPU wait: time in which this process was ready to run without a core; None if unknown.

    Lateness during CPU wait is caused by the machine, not by the simulator.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
