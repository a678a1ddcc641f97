"""Processes of this machine: those of a group, and those that hold a file open or listen on a port."""

import contextlib
import os

import psutil


def members(group: int) -> list[psutil.Process]:
    """Return the processes of a group, zombies included."""
    found = []
    for pid in psutil.pids():
        # psutil.process_iter() would read a file of each process of the machine.
        with contextlib.suppress(OSError, psutil.Error):  # has ended
            if os.getpgid(pid) == group:
                found.append(psutil.Process(pid))
    return found


def holds_open(process: psutil.Process, path: str) -> bool:
    """Return True if a process holds a file open; False for a zombie or another user's process."""
    try:
        return any(file.path == path for file in process.open_files())
    except psutil.Error:
        return False


def listeners(port: int) -> set[int]:
    """Return the ids of processes listening on a TCP port at any address, except those of other users."""
    sockets = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    return {each.pid for each in sockets if each.pid and each.laddr and each.laddr.port == port}
