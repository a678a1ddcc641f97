"""Properties of the machine for the head of a page."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def machine() -> dict[str, str]:
    """Return the date, hardware and versions."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "")
    memory_kb = int(Path("/proc/meminfo").read_text().partition("MemTotal:")[2].split()[0])
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{model or platform.machine()}, {os.cpu_count()} cores",
        "memory": f"{memory_kb / 1024**2:.0f} GiB",
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]
