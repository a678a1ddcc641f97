"""Servers that were started here: what is remembered of each, and which processes are still its own.

A process id alone proves nothing, it may have been given to another program since. The mark of a server's process group
is its log: a file with a name of its own that the group's processes hold open.
"""

import contextlib
import dataclasses
import os
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from inferload import rundir
from inferload.campaign.process import group_of
from inferload.errors import UsageError
from inferload.measure import clock

from . import places

POLL_S = 0.05
FACTS = ("version", "startup_s", "memory_mb", "gpu_memory_mb", "config", "prices")


@dataclass(frozen=True, slots=True)
class Server:
    """A started server; `pid` leads its process group, `started_at` is UTC, `cores` is None where it is not pinned."""

    engine: str
    model: str
    host: str
    port: int
    pid: int
    started_at: str
    argv: tuple[str, ...]
    log: Path
    cores: tuple[int, ...] | None = None
    variant: dict[str, Any] | None = None  # the variant's document, where it was started as one
    facts: dict[str, Any] = field(default_factory=dict)  # what the server said of itself once it was up

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        return f"http://{reachable(self.host)}:{self.port}"


def reachable(host: str) -> str:
    """The address to connect to for one that a server listens on."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def state_file(port: int) -> Path:
    return places.state_dir() / f"{port}.json"


def remember(server: Server) -> None:
    """Write the state file, so that another shell finds the server."""
    document = dataclasses.asdict(server)
    facts = document.pop("facts")
    write_state(state_file(server.port), {**facts, **document, "log": str(server.log), "url": server.url})


def write_state(path: Path, document: dict[str, Any]) -> None:
    """Write a server's state file; UsageError where its folder cannot be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rundir.write_json(path, document)
    except OSError as error:
        raise not_written(path.parent, error) from error


def not_written(folder: Path, error: OSError) -> UsageError:
    """What to say where the folder of states and logs cannot be written to."""
    return UsageError(f"{folder}: cannot be written to ({error.strerror}); make room there, and see to its rights")


def recall(path: Path) -> Server:
    """The server of a state file; UsageError where the file is not one."""
    try:
        document = rundir.read_json(path)
        cores = document.get("cores")
        return Server(
            engine=str(document["engine"]),
            model=str(document["model"]),
            host=str(document["host"]),
            port=int(document["port"]),
            pid=int(document["pid"]),
            started_at=str(document["started_at"]),
            argv=tuple(str(part) for part in document["argv"]),
            log=Path(document["log"]),
            cores=None if cores is None else tuple(int(core) for core in cores),
            variant=document.get("variant"),
            facts={key: document[key] for key in FACTS if key in document},
        )
    except (UsageError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: not a server's state; end what it started by hand, and remove the file") from error


def remembered() -> list[Server]:
    """Every server with a state file, by port."""
    return sorted((recall(path) for path in places.state_dir().glob("*.json")), key=lambda server: server.port)


def forget(server: Server) -> None:
    """Remove the state file; the log stays for a while."""
    state_file(server.port).unlink(missing_ok=True)


def group(server: Server) -> list[psutil.Process]:
    """The processes of the server; empty where it has ended, whoever has its process id now.

    One that has ended and waits to be collected holds no file open, so it keeps no group alive.
    """
    _reap(server.pid)
    members = [process for process in psutil.process_iter() if group_of(process) == server.pid]
    return members if any(_holds(process, server.log) for process in members) else []


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # started by another process, or reaped before
        os.waitpid(pid, os.WNOHANG)


def _holds(process: psutil.Process, log: Path) -> bool:
    try:
        return any(Path(opened.path) == log for opened in process.open_files())
    except psutil.Error:
        return False


def end(server: Server, grace_s: float) -> bool:
    """TERM the whole group, KILL what is left after the grace; whether there was anything to end."""
    if not group(server):
        return False
    _signal(server.pid, signal.SIGTERM)
    if not _gone_within(server, grace_s):
        _signal(server.pid, signal.SIGKILL)
        _gone_within(server, grace_s)
    return True


def _signal(group_id: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # the last one ended just now
        os.killpg(group_id, number)


def _gone_within(server: Server, limit_s: float) -> bool:
    deadline_ns = clock.now_ns() + round(limit_s * clock.NS_PER_S)
    while group(server):
        if clock.now_ns() > deadline_ns:
            return False
        time.sleep(POLL_S)
    return True


def utc_now() -> str:
    """The wall clock as text, for people."""
    return datetime.fromtimestamp(clock.wall_ns() / clock.NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_s(server: Server) -> float:
    """Seconds of wall time since the server was started."""
    started = datetime.strptime(server.started_at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return clock.wall_ns() / clock.NS_PER_S - started.timestamp()
