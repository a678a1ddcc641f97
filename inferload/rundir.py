"""The run directory: its file names, its format version, its manifest, and how one is made."""

import contextlib
import errno
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from inferload.errors import UsageError

FORMAT = 1

MANIFEST = "run.json"
SUMMARY = "summary.json"
COUNTS = "counts.json"  # the master's own counts, of which and of the turns and scrapes the summary is made
MARKS = "marks.jsonl"
TIMELINE = "timeline.csv"
REPORT_MD = "report.md"
REPORT_HTML = "report.html"
LATEST = "latest"  # beside run directories with names of their own: a link to the newest
SEARCH = "search.json"  # of a folder of points, which is no run itself
DIAGNOSIS = "diagnosis.json"
RECONCILE = "reconcile.json"
TURNS = "turns"
SERVER_METRICS = "server_metrics"
LOCUST_STATS = "locust_stats.csv"
LOCUST_HISTORY = "locust_stats_history.csv"
LOCUST_FAILURES = "locust_failures.csv"
LOCUST_EXCEPTIONS = "locust_exceptions.csv"

# A random word in the run directory while the run lasts: a worker that finds it under the path shares the disk.
TOKEN = ".run-token"
# Disk space that is held while the run lasts, so that its documents can be written when the disk is full at its end.
RESERVE = ".run-reserve"
_RESERVE_BYTES = 1 << 20


def default_name(scenario: str, at: datetime | None = None) -> str:
    """The directory's own name: `<UTC time>-<scenario>`."""
    return f"{(at or datetime.now(UTC)).strftime('%Y%m%dT%H%M%SZ')}-{scenario}"


def link_latest(path: Path) -> None:
    """Make the link `latest` beside a run directory point to it; what stands there and is no link is left alone."""
    link = path.with_name(LATEST)
    if link.exists() and not link.is_symlink():
        return
    temporary = path.with_name(f".{LATEST}-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):  # a file system without links
        temporary.symlink_to(path.name)
        temporary.replace(link)


def check(path: Path) -> None:
    """Raise UsageError unless a run may be written to the path: absent or empty, and writable."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"run directory {path}: is a file; name a directory with --run-dir")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"run directory {path}: not empty; name another with --run-dir, or remove it")
    nearest = path
    while not nearest.exists():
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass  # permission bits do not tell: root has them all, a read-only disk ignores them
    except OSError as error:
        raise UsageError(
            f"run directory {path}: {nearest} cannot be written ({error.strerror}); name another with --run-dir"
        ) from error


def create(path: Path) -> str:
    """Make the directory with its sub-folders and its token, which is returned; UsageError where it cannot."""
    check(path)
    token = secrets.token_hex(16)
    try:
        for folder in (path, path / TURNS, path / SERVER_METRICS):
            folder.mkdir(parents=True, exist_ok=True)
        (path / TOKEN).write_text(token)
        with contextlib.suppress(OSError):  # a file size limit below that: the documents may still be smaller
            (path / RESERVE).write_bytes(bytes(_RESERVE_BYTES))
    except OSError as error:
        raise UsageError(f"run directory {path}: {error.strerror}; name another with --run-dir") from error
    return token


def free_reserve(path: Path) -> None:
    """Give the reserved disk space back: the run's documents are written next."""
    with contextlib.suppress(OSError):
        (path / RESERVE).unlink(missing_ok=True)


def withdraw(path: Path) -> None:
    """Take back what `create` made, where a run came to nothing; what holds anything stays."""
    free_reserve(path)
    (path / TOKEN).unlink(missing_ok=True)
    for folder in (path / SERVER_METRICS, path / TURNS, path):
        with contextlib.suppress(OSError):
            folder.rmdir()


def set_aside(path: Path) -> None:
    """A half-made run keeps its files, under another name, so that it can be made again."""
    if path.exists():
        path.rename(path.with_name(f".broken-{path.name}-{secrets.token_hex(3)}"))


def next_free(path: Path) -> Path:
    """The path itself, or `path-2`, `path-3`, ... : the first that is absent or empty."""
    candidate, number = path, 1
    while candidate.exists() and (not candidate.is_dir() or any(candidate.iterdir())):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def shared(path: str, token: str) -> bool:
    """Whether the directory that a master named is the same one when looked at from here."""
    try:
        return read_text(Path(path) / TOKEN) == token
    except (OSError, UnicodeDecodeError):
        return False


def reason(error: Exception) -> str:
    """What an error says, in one line: the system's own words where it is the system's, as Arrow wraps them in its own."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0]


def is_plain(path: Path) -> bool:
    """Whether the path itself is a regular file. A run directory may come from elsewhere: its links are not followed."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def plain_files(folder: Path, pattern: str) -> list[Path]:
    """The folder's regular files whose names match, sorted; links, pipes and devices are left out."""
    return sorted(path for path in folder.glob(pattern) if is_plain(path))


def own_folder(path: Path) -> Path:
    """Make a sub-folder of a run directory if it is missing; UsageError where a link or a file has its name."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be made a directory ({error.strerror}); remove it or make it writable"
        ) from error
    if path.is_symlink():
        raise UsageError(f"{path}: a link to another directory, which is not written to; replace it with a directory")
    return path


def read_text(path: Path) -> str:
    """The UTF-8 text of a regular file; OSError for anything else. A pipe without a writer does not block."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside the given one to write to; it is renamed when the block ends well, and removed when it does not."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the path's place when the block ends well, and is removed when it does not.

    Neither the path nor its temporary name is written through if a link stands there.
    """
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)
    file = open(temporary, "xb")  # noqa: SIM115 - closed below, before the file is renamed
    try:
        with file:
            yield file
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all, never through a link."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document whole or not at all."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a document of a run; UsageError where there is none."""
    try:
        document = json.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; is {path.parent} a run directory?") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # among them text that is not UTF-8, and numbers of thousands of digits
        raise UsageError(f"{path}: not JSON ({error}); the run was cut short while writing it") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: not a JSON object; is {path.parent} a run directory?")
    return document
