"""What has happened in a sweep, a line each, so that a killed one is gone on with: runs, servers, processes, the port."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.measure import clock

from . import launch, running
from .runprocess import RunProcess
from .sweepplan import PlannedRun

JOURNAL = "journal.jsonl"
_LOCK = ".lock"


class Journal:
    """The lines of a sweep's folder, read when it is opened, each new one written through to the disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self._ended: dict[str, dict[str, Any]] = {}
        self.under_way: dict[str, RunProcess] = {}  # folder -> process of runs that began and did not end
        self.servers: dict[int, int] = {}  # port -> pid of servers that were started and not stopped
        self.starting_ns: int | None = None  # wall time of a start of which nothing more is known
        self.port: int | None = None
        self.start_durations_s: list[float] = []
        for entry in self._read():
            self._take(entry)

    def write(self, **entry: Any) -> None:
        """Add a line."""
        line = {"wall_ns": clock.wall_ns(), **entry}
        self._take(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def outcome(self, run: PlannedRun) -> dict[str, Any] | None:
        """What became of a run; None: it has not ended, or is to be tried again."""
        return self._ended.get(run.folder)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Runs that could not be made, with their causes."""
        return [entry for entry in self._ended.values() if entry.get("cause")]

    def run_durations_s(self) -> dict[str, list[float]]:
        """Durations of the runs that were made, by scenario."""
        found: dict[str, list[float]] = {}
        for folder, entry in self._ended.items():
            if "took_s" in entry and not entry.get("cause"):
                found.setdefault(folder.partition("/")[0], []).append(entry["took_s"])
        return found

    def retry(self) -> int:
        """Forget what could not be made, so that it is tried again; how many runs that is."""
        failed = [entry["folder"] for entry in self.failures]
        for folder in failed:
            self.write(kind="retry", folder=folder)
        return len(failed)

    def _read(self) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the line that a kill cut off
        return found

    def _take(self, entry: dict[str, Any]) -> None:
        kind, folder = entry.get("kind"), entry.get("folder", "")
        if kind == "run":
            self._ended[folder] = entry
            self.under_way.pop(folder, None)
        elif kind == "run_begun":
            self.under_way[folder] = RunProcess(entry["pid"], entry["started_s"])
        elif kind == "run_stopped":
            self.under_way.pop(folder, None)
        elif kind == "retry":
            self._ended.pop(folder, None)
        elif kind == "port":
            self.port = entry["port"]
        elif kind == "server_starting":
            self.starting_ns = entry["wall_ns"]
        elif kind == "server_up":
            self.servers[entry["port"]] = entry["pid"]
            self.starting_ns = None
        elif kind == "server_ready":
            self.start_durations_s.append(entry["took_s"])
        elif kind == "server_down":
            self.servers.pop(entry["port"], None)
            self.starting_ns = None


def clear_up(journal: Journal) -> None:
    """End the run and the server that a killed sweep left behind."""
    for folder, process in list(journal.under_way.items()):
        process.end()
        journal.write(kind="run_stopped", folder=folder)
    for server in running.remembered():
        if journal.servers.get(server.port) == server.pid or _cut_off(journal, server):
            launch.stop(server)
            journal.write(kind="server_down", port=server.port)


def _cut_off(journal: Journal, server: running.Server) -> bool:
    """Whether it is the start that was cut off before its process id was written: it came to the sweep's port since."""
    if journal.starting_ns is None or server.port != journal.port:
        return False
    started_s = clock.wall_ns() / clock.NS_PER_S - running.age_s(server)
    return started_s + 1 >= journal.starting_ns / clock.NS_PER_S  # a server's start is told in whole seconds


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder for this process; UsageError where another one is at work in it."""
    with (folder / _LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"{folder}: this sweep is under way in another process; wait, or stop that one") from error
        yield
