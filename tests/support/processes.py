"""State of other processes, which may end at any time."""

from pathlib import Path


def alive(pid: int) -> bool:
    """Return True if the process exists and is no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
