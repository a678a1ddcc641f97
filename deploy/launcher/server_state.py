"""State files and process groups of the servers that were started on this machine.

A process id alone does not identify a server, because the system may reuse it. A server's process group is identified by its log
file, which at least one process of the group holds open.
"""

import calendar
import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from inferload.base import clock, deployments, rundir
from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError

from . import processes

POLL_S = 0.05
_REAP_S = 2.0
_TIME = "%Y-%m-%dT%H:%M:%SZ"
FACTS = ("version", "startup_s", "memory_mb", "gpu_memory_mb", "config", "prices")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Started server.

    `pid`: leader of its process group. `started_at`: UTC. `cores`: None if not pinned. `start_id`: identifies a
    start by a sweep.
    """

    engine: str
    model: str
    host: str
    port: int
    pid: int
    started_at: str
    argv: tuple[str, ...]
    log: Path
    cores: tuple[int, ...] | None = None
    variant: dict[str, Any] | None = None  # the variant's document
    start_id: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # version, configuration, memory, start-up time, prices

    @property
    def url(self) -> str:
        return f"http://{reachable(self.host)}:{self.port}"


def reachable(host: str) -> str:
    """Return the address to connect to, for the address a server listens on."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def state_file(port: int) -> Path:
    return deployments.state_dir() / f"{port}.json"


def to_document(server: LocalServer) -> dict[str, Any]:
    document = dataclasses.asdict(server)
    facts = document.pop("facts")
    return {**facts, **document, "log": str(server.log), "url": server.url}


def remember(server: LocalServer) -> None:
    """Write the state file of a server atomically. Raise UsageError if its folder is not writable."""
    path = state_file(server.port)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rundir.write_json(path, to_document(server))
    except OSError as error:
        raise not_written(path.parent, error) from error


def not_written(folder: Path, error: OSError) -> UsageError:
    """Return the error for a state folder that is not writable."""
    return UsageError(f"{folder}: not writable ({error.strerror}); free disk space, or change its permissions")


def recall(path: Path) -> LocalServer:
    """Read a state file. Raise UsageError if it is invalid."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        facts = {key: document[key] for key in FACTS if key in document}
        return msgspec.convert({**document, "facts": facts}, LocalServer, dec_hook=lambda kind, value: kind(value))
    except (OSError, TypeError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise UsageError(
            f"{path}: not a state file of a server; stop its processes manually and remove the file"
        ) from error


def remembered() -> list[LocalServer]:
    """Return the servers with a state file, sorted by port."""
    return sorted((recall(path) for path in deployments.state_dir().glob("*.json")), key=lambda server: server.port)


def forget(server: LocalServer) -> None:
    """Remove the state file. Later starts remove the log."""
    state_file(server.port).unlink(missing_ok=True)


def group(server: LocalServer) -> list[int]:
    """Return the ids of the server's processes; empty if it has ended, even if its process id is reused.

    A zombie has no open files, so a group of zombies counts as ended.
    """
    with contextlib.suppress(ChildProcessError):  # started by another process, or reaped before
        os.waitpid(server.pid, os.WNOHANG)
    log = os.path.realpath(server.log)
    members = processes.members(server.pid)
    return [each.pid for each in members] if any(processes.holds_open(each, log) for each in members) else []


def end(server: LocalServer, grace_s: float) -> bool:
    """Send TERM to the process group, and KILL after `grace_s`. Return True if any process was alive."""
    if not group(server):
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # the last process ended meanwhile
            os.killpg(server.pid, number)
        if within(grace_s, lambda: not group(server)):
            break
    # A child of this process closes its files shortly before it is a zombie.
    with contextlib.suppress(ChildProcessError):
        within(_REAP_S, lambda: os.waitpid(server.pid, os.WNOHANG)[0] != 0)
    return True


def within(limit_s: float, met: Callable[[], bool]) -> bool:
    """Wait until a condition is met. Return False after the limit."""
    deadline_ns = now_ns() + round(limit_s * NS_PER_S)
    while not met():
        if now_ns() > deadline_ns:
            return False
        time.sleep(POLL_S)
    return True


def utc_now() -> str:
    """Return the wall clock in UTC as text, in whole seconds."""
    return clock.calendar_now().strftime(_TIME)


def age_s(server: LocalServer) -> float:
    """Return the wall time since the start of the server."""
    return clock.calendar_now().timestamp() - calendar.timegm(time.strptime(server.started_at, _TIME))
