"""Journal of a campaign: one line per event, written through to the disk, so that a killed campaign can be resumed."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import Struct

from inferload.base import clock, json_text, rundir
from inferload.base.errors import UsageError, explained
from inferload.campaign.process import RunProcess

JOURNAL = "journal.jsonl"
_LOCK = ".lock"


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """An event; a line has also its `wall_ns`."""


class RunEntry(Entry, frozen=True, kw_only=True):
    """An event of a run. `folder`: its run directory, below the campaign's folder."""

    folder: str


class RunBegun(RunEntry, frozen=True, kw_only=True, tag="run_begun"):
    """A run began. `pid`, `started_s`: as in RunProcess."""

    pid: int
    started_s: float


class RunEnded(RunEntry, frozen=True, kw_only=True, tag="run"):
    """A run ended. `exit_code`: None if it exceeded its time or did not begin; `cause`: of a failure; `level`: load in a search."""

    exit_code: int | None = None
    took_s: float = 0.0
    level: float = 0.0
    cause: str | None = None


class RunStopped(RunEntry, frozen=True, kw_only=True, tag="run_stopped"):
    """A run was stopped, and has no result."""


class RunRetried(RunEntry, frozen=True, kw_only=True, tag="retry"):
    """A run that ended is to be made again."""


class PortChosen(Entry, frozen=True, kw_only=True, tag="port"):
    """All servers of the campaign have this port."""

    port: int


class SaltChosen(Entry, frozen=True, kw_only=True, tag="salt"):
    """Runs that share the cache of a running server have salts that begin so: no earlier run of another campaign has them."""

    salt: str


class ServerStarting(Entry, frozen=True, kw_only=True, tag="server_starting"):
    """A server is being started."""

    start_id: str
    port: int
    variant: str


class ServerReady(Entry, frozen=True, kw_only=True, tag="server_ready"):
    """A server answers."""

    port: int
    took_s: float


class ServerDown(Entry, frozen=True, kw_only=True, tag="server_down"):
    """A server was stopped."""

    start_id: str


_Line = (
    RunBegun | RunEnded | RunStopped | RunRetried | PortChosen | SaltChosen | ServerStarting | ServerReady | ServerDown
)


class Journal:
    """Journal in a campaign's folder, read when it is opened: runs, and servers that the campaign starts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self.servers: set[str] = set()  # start ids of the servers that were not stopped
        self.port: int | None = None
        self.salt: str | None = None
        self.start_durations_s: list[float] = []
        self._ended: dict[str, RunEnded] = {}
        self.under_way: dict[str, RunProcess] = {}  # by folder: runs that began and did not end
        for entry in self._read():
            self.take(entry)

    def write(self, entry: Entry) -> None:
        line = {"wall_ns": clock.wall_ns(), **msgspec.to_builtins(entry)}
        self.take(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def runs(self) -> list[RunEnded]:
        """Runs that ended, in order, without those to be retried."""
        return list(self._ended.values())

    def outcome(self, folder: str) -> RunEnded | None:
        """Entry of a run that ended; None if it did not, or is to be retried."""
        return self._ended.get(folder)

    def beside(self, folder: str) -> list[RunEnded]:
        """Runs that ended, of the same side: with directories in the same folder as that of a run."""
        side = folder.rpartition("/")[0]
        return [entry for entry in self.runs if entry.folder.rpartition("/")[0] == side]

    @property
    def failures(self) -> list[RunEnded]:
        return [entry for entry in self.runs if entry.cause]

    def retry(self) -> int:
        """Mark failed runs to be made again; return their number."""
        failed = self.failures
        for entry in failed:
            self.write(RunRetried(folder=entry.folder))
        return len(failed)

    def end_orphans(self) -> None:
        """End the runs that a killed campaign left behind."""
        for folder, process in list(self.under_way.items()):
            process.end()
            self.write(RunStopped(folder=folder))

    def remove(self) -> None:
        """Remove the file of a campaign without a run."""
        self._path.unlink(missing_ok=True)

    def take(self, entry: Entry) -> None:
        match entry:
            case RunBegun():
                self.under_way[entry.folder] = RunProcess(entry.pid, entry.started_s)
            case RunEnded():
                self._ended[entry.folder] = entry
                self.under_way.pop(entry.folder, None)
            case RunStopped():
                self.under_way.pop(entry.folder, None)
            case RunRetried():
                self._ended.pop(entry.folder, None)
            case PortChosen():
                self.port = entry.port
            case SaltChosen():
                self.salt = entry.salt
            case ServerStarting():
                self.servers.add(entry.start_id)
            case ServerReady():
                self.start_durations_s.append(entry.took_s)
            case ServerDown():
                self.servers.discard(entry.start_id)

    def _read(self) -> list[Entry]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        entries: list[Entry] = []
        for line in lines:
            with suppress(ValueError):  # a kill cut the line off
                entries.append(msgspec.convert(json_text.parse(line), _Line))
        return entries


def made_folder(folder: Path, *, new: bool, files: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Create the folder of a campaign with these files, if `new` beside one that exists, and return it; UsageError if it fails."""
    with explained(f"--into {folder}", "choose a writable folder"):
        if new:
            folder = rundir.make_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            rundir.write_text(folder / name, text)
    return folder


def unused_folder(into: Path | None, name: str, file: str = JOURNAL) -> Path:
    """Return the folder of a new campaign (--into, or below runs); UsageError if it has this file, or cannot be written to."""
    folder = into or Path("runs") / rundir.default_name(name)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise UsageError(f"--into {folder}: {there} is no folder that can be written to; choose another one")
    if (folder / file).exists():
        raise UsageError(f"{folder}: already contains runs; use --resume {folder}, or another folder with --into")
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a campaign's folder for this process; UsageError if another process holds it."""
    with (folder / _LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"{folder}: under way in another process; wait, or stop that one") from error
        yield
