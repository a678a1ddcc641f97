"""Files of a trace: one file or a folder of them, plain or compressed with gzip, with random access to their bytes."""

import codecs
import io
import os
import re
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.scenario.files.data_files import sha256_of, sha256_of_all
from inferload.workload.json_values import JsonValues, Record
from inferload.workload.packed_files import opened, unpack
from inferload.workload.tables import lines

TABLES = (".csv",)
JSON = (".json", ".jsonl", ".ndjson")
_CHUNK = 1 << 20
_HEAD = 1 << 16  # bytes that tell JSON lines from other JSON


class TraceFile(Struct, frozen=True):
    """File of a trace. `base`: position of its first byte in the sequence of all files, unpacked."""

    name: str
    path: Path
    base: int
    size: int
    in_temporary: int | None  # position in the temporary file of unpacked ones; None: not compressed


class TraceFiles:
    """Files of a trace in the order of their names. Positions count over all of them, as if they were one file.

    Compressed files are unpacked into a temporary file, which ends with this object.
    """

    def __init__(self, path: Path, name: str, suffixes: tuple[str, ...]) -> None:
        self.files: list[TraceFile] = []
        self._temporary: BinaryIO | None = None
        paths = sorted(_in_folder(path, suffixes)) if path.is_dir() else [path]
        if not paths:
            endings = ", ".join(f"*{suffix}" for suffix in suffixes)
            raise UsageError(
                f"{name}: the folder contains none of {endings}, also with .gz; give a file or another folder"
            )
        base = 0
        for each in paths:
            file = self._opened(each, f"{name}/{each.name}" if path.is_dir() else name, base)
            self.files.append(file)
            base += file.size
        self._bases = [file.base for file in self.files]
        self.digest = sha256_of_all(paths) if path.is_dir() else sha256_of(path)

    def open(self, file: TraceFile) -> BinaryIO:
        """Return an unpacked file for reading from its start."""
        if file.in_temporary is None:
            return file.path.open("rb")
        return io.BufferedReader(_Part(self._unpacked, file.in_temporary, file.size), _CHUNK)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes at a position. Safe in any thread."""
        file = self.files[bisect_right(self._bases, offset) - 1]
        if file.in_temporary is not None:
            return os.pread(self._unpacked, length, file.in_temporary + offset - file.base)
        if len(self.files) == 1:
            return os.pread(self._single.fileno(), length, offset)
        with file.path.open("rb", buffering=0) as opened:
            return os.pread(opened.fileno(), length, offset - file.base)

    @cached_property
    def _single(self) -> BinaryIO:
        return self.files[0].path.open("rb", buffering=0)

    @property
    def _unpacked(self) -> int:
        assert self._temporary is not None
        return self._temporary.fileno()

    def _opened(self, path: Path, name: str, base: int) -> TraceFile:
        with opened(path, name) as file:
            if isinstance(file, io.BufferedReader):
                return TraceFile(name, path, base, os.fstat(file.fileno()).st_size, None)
            if self._temporary is None:
                self._temporary = tempfile.TemporaryFile(prefix="inferload-trace-")  # noqa: SIM115  ends with this object
            begins = self._temporary.seek(0, os.SEEK_END)
            unpack(file, self._temporary, name)
        return TraceFile(name, path, base, self._temporary.tell() - begins, begins)


def _in_folder(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.removesuffix(".gz").endswith(suffixes) and not path.name.startswith(".") and path.is_file():
            yield path


class _Part(io.RawIOBase):
    """Part of an opened file, read at positions of its own."""

    def __init__(self, descriptor: int, begins: int, size: int) -> None:
        self._descriptor, self._begins, self._ends = descriptor, begins, begins + size
        self._at = begins

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: self._begins, os.SEEK_CUR: self._at, os.SEEK_END: self._ends}[whence]
        return self._at - self._begins

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = os.pread(self._descriptor, min(len(buffer), self._ends - self._at), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def json_records(file: BinaryIO) -> Iterator[Record]:
    """Yield the lines of a file of JSON lines; of any other file the values, and the elements of a list, one after the other."""
    head = file.read(_HEAD)
    file.seek(0)
    if _is_lines(head.removeprefix(codecs.BOM_UTF8).lstrip()):
        return lines(file)
    return iter(JsonValues(file, "record"))


_LINE_END = re.compile(rb'\\.|["{}\[\]\n]', re.DOTALL)


def _is_lines(text: bytes) -> bool:
    """Return whether the start of a file has no list at its top level and no value of several lines."""
    if text.startswith(b"["):
        return False
    depth, quoted = 0, False
    for match in _LINE_END.finditer(text):
        token = match[0]
        if token == b'"':
            quoted = not quoted
        elif quoted or len(token) > 1:
            continue
        elif token != b"\n":
            depth += 1 if token in b"{[" else -1
        elif depth:
            return False
    return True
