"""A run directory, opened once: what reads a run takes this, or a part of it, and not the path."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.arrow import pa
from inferload.base.errors import UsageError
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary
from inferload.results.documents.typed_documents import read_typed
from inferload.results.summarise.counts import Counts
from inferload.servers import scrapes_file
from inferload.turns.open_files import TurnFiles


class OpenRun:
    """A run directory. Each file is read when it is first needed, and once; UsageError if it is missing or damaged.

    `counts`: those of a run that has just ended; None: from counts.json.
    """

    def __init__(self, path: Path, counts: Counts | None = None) -> None:
        self.path = path
        self._objects: dict[str, dict[str, Any]] = {}
        if counts is not None:
            self.counts = counts

    def has(self, name: str) -> bool:
        """Return True if the directory has a regular file of this name."""
        return rundir.is_plain(self.path / name)

    def object(self, name: str) -> dict[str, Any]:
        """Return a JSON document with values of any type."""
        if name not in self._objects:
            self._objects[name] = rundir.read_object(self.path / name)
        return self._objects[name]

    @cached_property
    def manifest(self) -> Manifest:
        return read_typed(self.path / rundir.MANIFEST, self.object(rundir.MANIFEST), Manifest)

    @cached_property
    def summary(self) -> Summary:
        return read_typed(self.path / rundir.SUMMARY, self.object(rundir.SUMMARY), Summary)

    @cached_property
    def counts(self) -> Counts:
        try:
            return Counts.from_wire(rundir.read_object(self.path / rundir.COUNTS))
        except ValueError as error:
            raise UsageError(f"{self.path / rundir.COUNTS}: not the counts of a run ({error})") from error

    @cached_property
    def marks(self) -> list[rundir.Mark]:
        """Events of the run; empty without the file."""
        if not self.has(rundir.MARKS):
            return []
        return [*rundir.marks_of((self.path / rundir.MARKS).read_text(encoding="utf-8", errors="replace"))]

    @cached_property
    def earlier(self) -> "OpenRun | None":
        """The run before, which left its cache to this one; None without one."""
        earlier = self.counts.of_pass.earlier
        return None if earlier is None else OpenRun(self.path.parent / earlier.folder)

    @cached_property
    def turns(self) -> TurnFiles:
        run_id = None
        if self.has(rundir.MANIFEST):
            with suppress(UsageError):  # it was killed while it wrote its manifest
                run_id = self.object(rundir.MANIFEST).get("id")
        return TurnFiles(self.path / rundir.TURNS, run_id if isinstance(run_id, str) else None)

    def scrapes(self, unreadable: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield all scrapes in batches, as `scrapes_file.read_scrapes` does. They are not kept: each call reads them."""
        return scrapes_file.read_scrapes(self.path, unreadable)

    def close(self) -> None:
        """Close the files of turns. What was read of other files is kept."""
        self.__dict__.pop("turns", None)
