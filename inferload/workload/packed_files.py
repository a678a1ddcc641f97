"""Files of data sets and traces, plain or compressed with gzip."""

import contextlib
import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from inferload.base.errors import UsageError

_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it",
    b"BZh": "compressed with bzip2; unpack it",
    b"\xfd7zXZ": "compressed with xz; unpack it",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"PAR1": "a Parquet file; convert it to JSON lines, or use source kind huggingface with its folder as dataset",
}
_COPIED_BYTES = 4 << 20


@contextlib.contextmanager
def opened(path: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file for reading from its start: the content of one that is compressed with gzip, which is a GzipFile.

    UsageError for another packed file, and for damaged data that is read in the block.
    """
    with path.open("rb") as file:
        start = file.read(8)
        for magic, what in _OTHERS.items():
            if start.startswith(magic):
                raise UsageError(f"{name}: is {what}")
        file.seek(0)
        if not start.startswith(_GZIP):
            yield file
            return
        try:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{name}: gzip data is damaged: {error}; fetch the file again") from None


def unpack(file: BinaryIO, target: BinaryIO, name: str) -> None:
    """Write the content of an opened file to a temporary one. UsageError if that is full."""
    try:
        shutil.copyfileobj(file, target, _COPIED_BYTES)
        target.flush()
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        folder = tempfile.gettempdir()
        raise UsageError(f"{name}: cannot be unpacked into {folder}: {error.strerror}; set TMPDIR") from None
