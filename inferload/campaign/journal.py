"""Journal of a campaign: one line per event, written through to the disk, so that a killed campaign can be resumed."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferload.base import clock
from inferload.base.errors import UsageError
from inferload.campaign.process import RunProcess

JOURNAL = "journal.jsonl"
_LOCK = ".lock"


class Journal:
    """Journal in a campaign's folder, read when it is opened.

    Kinds of a line: `run_begun`, `run` (ended; with `cause` if it failed), `run_stopped` and `retry`, each with the `folder`
    of the run. Other kinds are left to subclasses.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self._ended: dict[str, dict[str, Any]] = {}
        self.under_way: dict[str, RunProcess] = {}  # by folder: runs that began and did not end
        for entry in self._read():
            self.take(entry)

    def write(self, **entry: Any) -> None:
        """Add a line."""
        line = {"wall_ns": clock.wall_ns(), **entry}
        self.take(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Runs that ended, in order, without those to be retried."""
        return list(self._ended.values())

    def outcome(self, folder: str) -> dict[str, Any] | None:
        """Entry of a run that ended; None if it did not, or is to be retried."""
        return self._ended.get(folder)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Runs that failed, with their causes."""
        return [entry for entry in self.runs if entry.get("cause")]

    def retry(self) -> int:
        """Mark failed runs to be made again; return their number."""
        failed = [entry["folder"] for entry in self.failures]
        for folder in failed:
            self.write(kind="retry", folder=folder)
        return len(failed)

    def end_orphans(self) -> None:
        """End the runs that a killed campaign left behind."""
        for folder, process in list(self.under_way.items()):
            process.end()
            self.write(kind="run_stopped", folder=folder)

    def remove(self) -> None:
        """Remove the file of a campaign without a run."""
        self._path.unlink(missing_ok=True)

    def take(self, entry: dict[str, Any]) -> None:
        """Update the state by a line."""
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

    def _read(self) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue  # a kill cut the line off
        return entries


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a campaign's folder for this process; UsageError if another process holds it."""
    with (folder / _LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"{folder}: under way in another process; wait, or stop that one") from error
        yield
