"""The run directory: file names, format version, creation, and safe reads and writes of its documents."""

import contextlib
import errno
import io
import itertools
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from inferload.base import json_text
from inferload.base.clock import calendar_now
from inferload.base.errors import UsageError, instead_of_file
from inferload.base.json_text import Instant, Number

FORMAT = 1

MANIFEST = "run.json"
SUMMARY = "summary.json"
COUNTS = "counts.json"  # the master's counters; the summary is computed from them, the turns and the scrapes
MARKS = "marks.jsonl"
TIMELINE = "timeline.csv"
REPORT_MD = "report.md"
REPORT_HTML = "report.html"
LATEST = "latest"  # symbolic link beside run directories with default names, to the newest
SEARCH = "search.json"  # in the folder of a search, which holds one run directory per point
DIAGNOSIS = "diagnosis.json"
RECONCILE = "reconcile.json"
CANARY = "canary.json"  # prompts and answers without load
TURNS = "turns"
SERVER_METRICS = "server_metrics"
LOCUST_STATS = "locust_stats.csv"
LOCUST_HISTORY = "locust_stats_history.csv"
LOCUST_FAILURES = "locust_failures.csv"
LOCUST_EXCEPTIONS = "locust_exceptions.csv"

# Suffixes of the directories of a scenario's other cache arm and of its warming run, beside the run directory.
WARM, WARMING = "-warm", "-warming"

# File with a random token during the run: a worker that reads the same token at this path shares the file system.
TOKEN = ".run-token"
# Socket of the marks that other processes send: only a run in progress listens.
MARK_SOCKET = ".run-marks"
MARK_CHARACTERS = 200
PART_KINDS = ("mark", "targets", "worker_lost")  # of marks that begin a part of the measure phase
# File that reserves disk space during the run, so that the documents fit on a disk that is full at its end.
RESERVE = ".run-reserve"
_RESERVE_BYTES = 1 << 20
# A network disk takes as long for a few bytes as for so many.
_BUFFER_BYTES = 1 << 20


class Mark(Struct, frozen=True, kw_only=True):
    """Line of marks.jsonl, an event of a run. `t_s`: since its start. `users`, `sessions_per_s`, `by`: new load, its cause.

    `targets`: number of servers from then on.
    """

    t_s: Number = 0.0
    wall_ns: Instant
    kind: str = "mark"
    text: str = ""
    users: Number | None = None
    sessions_per_s: Number | None = None
    targets: Number | None = None
    by: str = "hand"


def marks_of(text: str) -> Iterator[Mark]:
    """Yield the complete marks of marks.jsonl; the last line of a killed run may be cut."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            yield msgspec.convert(json_text.parse(line), Mark)


@contextlib.contextmanager
def mark_address(folder: Path) -> Iterator[str]:
    """Yield the address of a run's MARK_SOCKET. A path of more than 100 bytes is none: a descriptor then names the folder."""
    path = folder / MARK_SOCKET
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{MARK_SOCKET}"
    finally:
        os.close(descriptor)


_DAMAGED = "the file is damaged, or another program wrote it"


class Taken(UsageError):
    """A run directory that has files, or that another process has just taken."""


def default_name(scenario: str, at: datetime | None = None) -> str:
    """Return the default name of a run directory: `<UTC time>-<scenario>`."""
    return f"{(at or calendar_now()).strftime('%Y%m%dT%H%M%SZ')}-{scenario}"


def link_latest(path: Path) -> None:
    """Point the symbolic link `latest` beside a run directory to it; leave a file of that name that is no link."""
    link = path.with_name(LATEST)
    if link.exists() and not link.is_symlink():
        return
    temporary = path.with_name(f".{LATEST}-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):  # a file system without links
        temporary.symlink_to(path.name)
        temporary.replace(link)


def check(path: Path) -> None:
    """Raise UsageError unless the path is absent or an empty directory, and writable."""
    nearest = path
    try:
        if path.exists() and not path.is_dir():
            raise Taken(f"run directory {path}: is a file; name a directory with --run-dir")
        if path.is_dir() and any(path.iterdir()):
            raise Taken(f"run directory {path}: not empty; name another with --run-dir, or remove it")
        while not nearest.exists():
            nearest = nearest.parent
        with tempfile.TemporaryFile(dir=nearest):
            pass  # permission bits are not enough: root has them all, a read-only disk ignores them
    except OSError as error:
        raise UsageError(
            f"run directory {path}: {nearest} cannot be written ({error.strerror}); name another with --run-dir"
        ) from error


def take(path: Path) -> None:
    """Create the directory with its folder of turns, which only one process can; Taken if this one cannot."""
    check(path)
    try:
        (path / TURNS).mkdir(parents=True)
    except FileExistsError as error:
        raise Taken(f"run directory {path}: taken by another run; name another with --run-dir") from error
    except OSError as error:
        raise UsageError(f"run directory {path}: {error.strerror}; name another with --run-dir") from error


def take_free(path: Path) -> Path:
    """Take the first of `path`, `path-2`, `path-3`, ... that is absent or empty, and return it."""
    return _first_that(take, path)


def make_new(path: Path) -> Path:
    """Create the first of `path`, `path-2`, `path-3`, ... that is absent, and return it."""
    return _first_that(lambda each: each.mkdir(parents=True), path)


def _first_that(makes: Callable[[Path], None], path: Path) -> Path:
    candidates = numbered(path)
    while True:
        candidate = next(candidates)
        with contextlib.suppress(Taken, FileExistsError):
            makes(candidate)
            return candidate


def create(path: Path) -> str:
    """Take the directory, and fill it for a run; return its token. Taken if it is not free, UsageError if that fails."""
    take(path)
    token = secrets.token_hex(16)
    try:
        (path / SERVER_METRICS).mkdir()
        (path / TOKEN).write_text(token)
        with contextlib.suppress(OSError):  # a lower file size limit: the documents may still fit
            (path / RESERVE).write_bytes(bytes(_RESERVE_BYTES))
    except OSError as error:
        withdraw(path)
        raise UsageError(f"run directory {path}: {error.strerror}; name another with --run-dir") from error
    return token


def free_reserve(path: Path) -> None:
    """Release the reserved disk space before the run's documents are written."""
    with contextlib.suppress(OSError):
        (path / RESERVE).unlink(missing_ok=True)


def withdraw(path: Path) -> None:
    """Remove the files of `create`, marks and scrapes after a run that did not start, and its folders that are empty."""
    free_reserve(path)
    for file in (path / TOKEN, path / MARKS, *plain_files(path / SERVER_METRICS, "*.parquet")):
        file.unlink(missing_ok=True)
    for folder in (path / SERVER_METRICS, path / TURNS, path):
        with contextlib.suppress(OSError):
            folder.rmdir()


def set_aside(path: Path) -> None:
    """Rename the directories of an incomplete run and its other passes, so that the run can be repeated under its name."""
    for suffix in ("", WARM, WARMING):
        directory = path.with_name(path.name + suffix)
        if directory.exists():
            directory.rename(path.with_name(f".broken-{directory.name}-{secrets.token_hex(3)}"))


def next_free(path: Path) -> Path:
    """Return the first of `path`, `path-2`, `path-3`, ... that is absent or empty. Another process may take it."""
    candidates = (one for one in numbered(path) if not one.exists() or (one.is_dir() and not any(one.iterdir())))
    return next(candidates)


def numbered(path: Path) -> Iterator[Path]:
    """Yield `path`, `path-2`, `path-3`, ... without end."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}-{number}")


def shared(path: str, token: str) -> bool:
    """Return True if this machine sees the master's run directory at this path: it holds the master's token."""
    try:
        return read_text(Path(path) / TOKEN) == token
    except (OSError, UnicodeDecodeError):
        return False


def reason(error: Exception) -> str:
    """Return an error as one line: for an error of the operating system its message, without the text that Arrow adds."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0]


def is_plain(path: Path) -> bool:
    """Return True for a regular file. Links in a run directory are not followed: it may come from another machine."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def plain_files(folder: Path, pattern: str) -> list[Path]:
    """Return the folder's regular files with matching names, sorted; no links, pipes or devices."""
    return sorted(path for path in folder.glob(pattern) if is_plain(path))


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a regular file. Raise OSError for other types, without blocking on a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


@contextlib.contextmanager
def whole_file(path: Path, on_write: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """Yield a new file beside `path`, never a link; rename it to `path` after the block, remove it after an exception.

    It is written in few large pieces. `on_write`: called after each of them, and after the renaming.
    """
    temporary = path.with_name(path.name + ".tmp")
    with contextlib.ExitStack() as undo:
        undo.callback(_removed, temporary)  # after a signal too: no half-written file stays
        temporary.unlink(missing_ok=True)
        with io.BufferedWriter(_ObservedFile(temporary, on_write), _BUFFER_BYTES) as file:
            yield file
        temporary.replace(path)
        on_write()
        undo.pop_all()


def _removed(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


class _ObservedFile(io.FileIO):
    """New file that calls a function after each write."""

    def __init__(self, path: Path, on_write: Callable[[], None]) -> None:
        super().__init__(path, "xb")
        self._on_write = on_write

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._on_write()
        return written


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, never through a link. A lone surrogate, as in JSON texts of servers, is escaped."""
    with whole_file(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def write_output(path: Path, text: str) -> None:
    """Write a file that the user named. A pipe, a device or /dev/stdout is written itself, and no file takes its place.

    The text is appended there: standard output may be a file that holds more.
    """
    is_link_of_the_system = path.is_symlink() and path.absolute().parts[1:2] in (("dev",), ("proc",))
    if is_link_of_the_system or (path.exists() and not path.is_file()):
        with path.open("ab") as stream:
            stream.write(text.encode(errors="backslashreplace"))
    else:
        write_text(path, text)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document atomically."""
    write_text(path, json_text.lines(document))


def write_new(file: Path, text: str) -> bool:
    """Write a new file; False if the file exists, UsageError if it cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; name a file that can be written") from error
    return True


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON document of a run, with values of any type. Raise UsageError if it is missing or no JSON object."""
    try:
        document = json_text.parse(read_text(path))
    except OSError as error:
        remedy = instead_of_file(path, f"is {path.parent} a run directory?")
        raise UsageError(f"{path}: {error.strerror}; {remedy}") from error
    except ValueError as error:  # also text that is not UTF-8, and numbers of thousands of digits
        cause = "the run was cut short while writing it" if json_text.is_cut(error) else _DAMAGED
        raise UsageError(f"{path}: not JSON ({error}); {cause}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: not a JSON object; is {path.parent} a run directory?")
    return document
