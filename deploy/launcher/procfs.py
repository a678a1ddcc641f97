"""Processes, listening ports and memory of this machine, from /proc of Linux."""

import os
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"  # state in /proc/net/tcp


def processes() -> Iterator[int]:
    """Return the ids of all processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def group_of(pid: int) -> int | None:
    """Return the process group of a process; None if it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def open_files(pid: int) -> Iterator[str]:
    """Yield the targets of the file descriptors of a process; empty for a zombie or another user's process."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue  # closed meanwhile


def name_of(pid: int) -> str:
    """Return the program name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def listeners(port: int) -> set[int]:
    """Return the ids of processes listening on a TCP port at any address, except those of other users."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    return {pid for pid in processes() if sockets.intersection(open_files(pid))} if sockets else set()


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            local, state = columns[1], columns[3]
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                yield columns[9]


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, including shared pages; 0 if it has ended."""
    return 1024 * _kib(f"/proc/{pid}/status", "VmRSS:")


def available_bytes() -> int:
    """Return the memory in bytes that a new process can use without swapping."""
    return 1024 * _kib("/proc/meminfo", "MemAvailable:")


def _kib(path: str, key: str) -> int:
    try:
        rows = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith(key)), 0)
