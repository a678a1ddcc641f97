"""Readers of recorded conversations: one file on this machine, or a data set by the package `datasets`."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

from inferload.errors import UsageError
from inferload.scenario.files import data_files
from inferload.scenario.schema.sources import Columns, Csv, HuggingFace, JsonLines, ShareGpt
from inferload.workload.sources import file_records
from inferload.workload.sources import index as indexes
from inferload.workload.sources.file_records import Raw
from inferload.workload.sources.index import Index

_LARGE_BYTES = 64 << 20  # of a file that is larger a person is told that it is being read


class FileReader:
    """Conversations of one file, each read from its place when it is asked for."""

    def __init__(self, source: ShareGpt | JsonLines | Csv, origin: str) -> None:
        self._source = source
        self.path = data_files.find(source.path, origin)
        self.name = source.path
        self.digest = ""  # SHA-256 of the content, known with the index
        self.columns = source.columns if isinstance(source, JsonLines | Csv) else Columns()
        self._decode: file_records.Decode = file_records.decode_json
        if isinstance(source, Csv):
            names = file_records.table_columns(self.path)
            if self.columns.prompt not in names and self.columns.messages not in names:
                raise UsageError(
                    f"{self.path}:1: no column {self.columns.prompt}; it has {', '.join(names)}; "
                    "name the right one with source.columns"
                )
            self._decode = file_records.decode_row(names)
        elif not self.path.stat().st_size:
            raise UsageError(f"{self.path}: empty; it should hold conversations")

    def records(self) -> Iterator[Raw]:
        """All records, in order; UsageError at the first that cannot be read."""
        size = self.path.stat().st_size
        if size > _LARGE_BYTES:
            print(
                f"inferload: reading {self.name} ({size / 1e6:,.0f} MB) once, to find its conversations",
                file=sys.stderr,
            )
        if isinstance(self._source, Csv):
            return file_records.table(self.path)
        return (
            file_records.json_lines(self.path)
            if isinstance(self._source, JsonLines)
            else file_records.json_array(self.path)
        )

    def read(self, start: int, size: int) -> Any:
        """The document of a record."""
        return self._decode(os.pread(self._file, size, start))

    @cached_property
    def _file(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def where(self, start: int) -> str:
        """File and line."""
        return f"{self.path}:{file_records.line_of(self.path, start)}"

    def index(self, what: Any, build: Callable[[], Index]) -> Index:
        """The index as this process or an earlier one has built it, else built now, and kept."""
        key = indexes.key_of(self.path, self._source.kind, what)
        if key not in _known:
            found = indexes.kept(key)
            if found is None:
                found = build(), data_files.sha256_of(self.path)
                indexes.keep(key, *found)
            _known[key] = found
        index, self.digest = _known[key]
        return index

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {"path": self._source.path, "bytes": self.path.stat().st_size}


# Indexes of this process and their files' digests, by what shapes them: workers that are forked find their master's.
_known: dict[str, tuple[Index, str]] = {}


class HubReader:
    """Conversations of a data set that the package `datasets` reads: from the hub, its cache, or a folder."""

    def __init__(self, source: HuggingFace) -> None:
        self._source = source
        self.name = f"data set {source.dataset}"
        self.columns = source.columns
        self._rows = _rows(source)
        self.digest = ""  # of the index: the package's own differs with the time at which a folder was copied

    def records(self) -> Iterator[Raw]:
        """All rows."""
        return (Raw(place, 1, row) for place, row in enumerate(self._rows))

    def read(self, start: int, size: int) -> Any:
        """One row."""
        return self._rows[start]

    def where(self, start: int) -> str:
        """Data set and row."""
        return f"{self.name}, row {start}"

    def index(self, what: Any, build: Callable[[], Index]) -> Index:
        """Built anew in each process: the package keeps the rows at hand."""
        index = build()
        self.digest = index.digest
        return index

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        source = self._source
        return {"dataset": source.dataset, "subset": source.subset, "split": source.split, "revision": source.revision}


def _rows(source: HuggingFace) -> Any:
    try:
        library = import_module("datasets")
    except ModuleNotFoundError as error:
        raise UsageError(f"data set {source.dataset}: needs the package datasets; pip install datasets") from error
    try:
        return library.load_dataset(source.dataset, source.subset, split=source.split, revision=source.revision)
    except Exception as error:  # whatever the hub, the network or a file says: for a person it is one line
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(
            f"data set {source.dataset}, split {source.split}: {why}; is the hub reachable from here? A folder will do"
        ) from error
