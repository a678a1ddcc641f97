"""The run directory: its file names, its format version, its manifest, and how one is made."""

import contextlib
import json
import secrets
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inferload.errors import UsageError

FORMAT = 1

MANIFEST = "run.json"
SUMMARY = "summary.json"
MARKS = "marks.jsonl"
BOOKS = "books.json"  # only where workers wrote their turns on other disks
TIMELINE = "timeline.csv"
REPORT_MD = "report.md"
REPORT_HTML = "report.html"
SEARCH = "search.json"  # of a folder of points, which is no run itself
DIAGNOSIS = "diagnosis.json"
RECONCILE = "reconcile.json"
PICTURES = "pictures"
TURNS = "turns"
SERVER_METRICS = "server_metrics"
LOCUST_STATS = "locust_stats.csv"
LOCUST_HISTORY = "locust_stats_history.csv"
LOCUST_FAILURES = "locust_failures.csv"
LOCUST_EXCEPTIONS = "locust_exceptions.csv"

# A random word in the run directory while the run lasts: a worker that finds it under the path shares the disk.
TOKEN = ".run-token"


def default_name(scenario: str, at: datetime | None = None) -> str:
    """The directory's own name: `<UTC time>-<scenario>`."""
    return f"{(at or datetime.now(UTC)).strftime('%Y%m%dT%H%M%SZ')}-{scenario}"


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
    except OSError as error:
        raise UsageError(f"run directory {path}: {error.strerror}; name another with --run-dir") from error
    return token


def withdraw(path: Path) -> None:
    """Take back what `create` made, where a run came to nothing; what holds anything stays."""
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
        return (Path(path) / TOKEN).read_text() == token
    except OSError:
        return False


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a document of a run; UsageError where there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; is {path.parent} a run directory?") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: not JSON ({error}); the run was cut short while writing it") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: not a JSON object; is {path.parent} a run directory?")
    return document
