"""Readers of recorded conversations: a local file, or a data set by the package `datasets`."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.base.status_lines import progress
from inferload.scenario.files import data_files
from inferload.scenario.schema.sources import Columns, FileSource, HuggingFace
from inferload.workload.content.data import DataContext
from inferload.workload.json_values import decode_json
from inferload.workload.sources import file_records
from inferload.workload.sources import index as indexes
from inferload.workload.sources.api import AnswerLengths
from inferload.workload.sources.file_records import Decode, Raw
from inferload.workload.sources.index import Index
from inferload.workload.sources.recorded import RecordedSource
from inferload.workload.tables import row_of

_LARGE_BYTES = 64 << 20  # reading a larger file prints a message


class FileForm(Struct, frozen=True):
    """Form of the files of a source.

    `records`: yields all records in order; UsageError at the first invalid one. `decoder`: returns the function that decodes the
    bytes of one record; UsageError for a file that cannot have one.
    """

    records: Callable[[Path], Iterator[Raw]]
    decoder: Callable[[Path, Columns], Decode]


def _of_json(path: Path, columns: Columns) -> Decode:
    if not path.stat().st_size:
        raise UsageError(f"{path}: empty; give a file with conversations")
    return decode_json


def _of_table(path: Path, columns: Columns) -> Decode:
    names = file_records.table_columns(path)
    if columns.prompt not in names and columns.messages not in names:
        raise UsageError(
            f"{path}:1: no column {columns.prompt} among {', '.join(names)}; name the column with source.columns"
        )
    return partial(row_of, names)


JSON_ARRAY = FileForm(file_records.json_array, _of_json)
JSON_VALUES = FileForm(file_records.json_values, _of_json)
TABLE = FileForm(file_records.table, _of_table)


class FileReader:
    """Reader of the conversations of one file, with random access."""

    def __init__(self, source: FileSource, origin: str, form: FileForm) -> None:
        self._source, self._form = source, form
        self.path = data_files.find(source.path, origin)
        self.name = source.path
        self.digest = ""  # SHA-256 of the content, known with the index
        self.columns: Columns = getattr(source, "columns", Columns())
        self._decode = form.decoder(self.path, self.columns)

    def records(self) -> Iterator[Raw]:
        """Yield all records in order. UsageError at the first invalid one."""
        size = self.path.stat().st_size
        if size > _LARGE_BYTES:
            print(f"inferload: reading {self.name} ({size / 1e6:,.0f} MB) once, to build its index", file=sys.stderr)
        records = self._form.records(self.path)
        return progress.of(records, f"reading {self.name}", size, lambda raw: raw.start + raw.size)

    def read(self, start: int, size: int) -> Any:
        """Return the document of a record."""
        return self._decode(os.pread(self._file, size, start))

    @cached_property
    def _file(self) -> int:
        return file_records.descriptor(self.path)

    def where(self, start: int) -> str:
        """Return file and line of a record."""
        return f"{self.path}:{file_records.line_of(self.path, start)}"

    def index(self, options: Any, build: Callable[[], Index]) -> Index:
        """Return the index of the file from memory or from disk, else build and cache it."""
        key = indexes.key_of(self.path, self._source.kind, options)
        if key not in _cached:
            entry = indexes.cached(key)
            if entry is None:
                entry = build(), data_files.sha256_of(self.path)
                indexes.cache(key, *entry)
            _cached[key] = entry
        index, self.digest = _cached[key]
        return index

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        return {"path": self._source.path, "bytes": self.path.stat().st_size}


# Indexes of this process with the digests of their files, by key. Forked workers inherit those of the master.
_cached: dict[str, tuple[Index, str]] = {}


class HubReader:
    """Reader of the conversations of a data set with the package `datasets`: from the hub, its cache, or a folder."""

    def __init__(self, source: HuggingFace) -> None:
        self._source = source
        self.name = f"data set {source.dataset}"
        self.columns = source.columns
        self._rows = _rows(source)
        self.digest = ""  # of the index: that of the package depends on modification times of a folder

    def records(self) -> Iterator[Raw]:
        """Yield all rows."""
        return (Raw(number, 1, row) for number, row in enumerate(self._rows))

    def read(self, start: int, size: int) -> Any:
        """Return one row."""
        return self._rows[start]

    def where(self, start: int) -> str:
        """Return data set and row of a record."""
        return f"{self.name}, row {start}"

    def index(self, options: Any, build: Callable[[], Index]) -> Index:
        """Build the index, in each process anew: the package caches the rows."""
        index = build()
        self.digest = index.digest
        return index

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        source = self._source
        return {"dataset": source.dataset, "subset": source.subset, "split": source.split, "revision": source.revision}


def _rows(source: HuggingFace) -> Any:
    try:
        library = import_module("datasets")
    except ModuleNotFoundError as error:
        raise UsageError(f"data set {source.dataset}: needs the package datasets; pip install datasets") from error
    try:
        return library.load_dataset(source.dataset, source.subset, split=source.split, revision=source.revision)
    except Exception as error:  # the package raises many types for errors of the hub, the network and files
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(
            f"data set {source.dataset}, split {source.split}: {problem}; check access to the hub, or give a folder"
        ) from error


def files(form: FileForm) -> Callable[[FileSource, str, DataContext, AnswerLengths], RecordedSource]:
    """Return the function that opens a source that is one file of this form."""
    return lambda source, class_name, data, answers: RecordedSource(
        source, FileReader(source, data.origin, form), class_name, data, answers
    )


open_sharegpt, open_jsonl, open_csv = files(JSON_ARRAY), files(JSON_VALUES), files(TABLE)


def open_hub(source: HuggingFace, class_name: str, data: DataContext, answers: AnswerLengths) -> RecordedSource:
    """Open a data set of the hub."""
    return RecordedSource(source, HubReader(source), class_name, data, answers)
