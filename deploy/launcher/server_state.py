"""Servers that were started on this machine: their state files and their process groups. Standard library only.

A process id alone does not identify a server: the system may have given it to another program since. A server's process
group is identified by its log, a file of its own that at least one process of the group holds open.
"""

import calendar
import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferload.errors import UsageError

from . import paths, procfs

POLL_S = 0.05
_TIME = "%Y-%m-%dT%H:%M:%SZ"
FACTS = ("version", "startup_s", "memory_mb", "gpu_memory_mb", "config", "prices")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A started server. `pid`: leader of its process group; `started_at`: UTC; `cores`: None if it is not pinned;
    `start_id`: names one start from another machine."""

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
        """The URL for clients on this machine."""
        return f"http://{reachable(self.host)}:{self.port}"


def reachable(host: str) -> str:
    """The address to connect to for the address that a server listens on."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def state_file(port: int) -> Path:
    return paths.state_dir() / f"{port}.json"


def to_document(server: LocalServer) -> dict[str, Any]:
    """The content of a state file."""
    document = dataclasses.asdict(server)
    facts = document.pop("facts")
    return {**facts, **document, "log": str(server.log), "url": server.url}


def remember(server: LocalServer) -> None:
    """Write the state file, so that other processes find the server."""
    write_state(state_file(server.port), to_document(server))


def write_state(path: Path, document: dict[str, Any]) -> None:
    """Write a server's state file; UsageError if its folder is not writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f"{path.name}.part")
        whole.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        whole.replace(path)
    except OSError as error:
        raise not_written(path.parent, error) from error


def not_written(folder: Path, error: OSError) -> UsageError:
    """The error for a folder of states and logs that is not writable."""
    return UsageError(f"{folder}: cannot be written to ({error.strerror}); make room there, and see to its rights")


def from_document(document: Mapping[str, Any]) -> LocalServer:
    """The server of a state file's content; KeyError, TypeError or ValueError if it is none."""
    cores = document.get("cores")
    return LocalServer(
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
        start_id=str(document.get("start_id", "")),
        facts={key: document[key] for key in FACTS if key in document},
    )


def recall(path: Path) -> LocalServer:
    """The server of a state file; UsageError if the file is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise TypeError("not a JSON object")
        return from_document(document)
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a server's state; end what it started by hand, and remove the file") from error


def remembered() -> list[LocalServer]:
    """Every server with a state file, by port."""
    return sorted((recall(path) for path in paths.state_dir().glob("*.json")), key=lambda server: server.port)


def forget(server: LocalServer) -> None:
    """Remove the state file; the log stays for a while."""
    state_file(server.port).unlink(missing_ok=True)


def group(server: LocalServer) -> list[int]:
    """The ids of the server's processes; empty if it has ended, even if the system has reused its process id.

    A zombie holds no file open, so it keeps no group alive.
    """
    with contextlib.suppress(ChildProcessError):  # started by another process, or reaped before
        os.waitpid(server.pid, os.WNOHANG)
    log = os.path.realpath(server.log)
    members = [pid for pid in procfs.processes() if procfs.group_of(pid) == server.pid]
    return members if any(log in procfs.open_files(pid) for pid in members) else []


def end(server: LocalServer, grace_s: float) -> bool:
    """TERM the whole group, KILL the rest after the grace; whether any process was alive."""
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


def _gone_within(server: LocalServer, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while group(server):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def utc_now() -> str:
    """The wall clock as text, in whole seconds."""
    return time.strftime(_TIME, time.gmtime())


def age_s(server: LocalServer) -> float:
    """Seconds of wall time since the server was started."""
    return time.time() - calendar.timegm(time.strptime(server.started_at, _TIME))
