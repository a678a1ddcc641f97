"""What is known of servers that were started from this machine: one file for each, by port, and those on other machines in a
folder beside, so that a run against one can say which configuration it measured."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_LOCAL = {"127.0.0.1", "localhost", "::1", "0.0.0.0"}
REMOTE = "remote"  # folder of the state files of servers on other machines
_ABOVE = Path(__file__).resolve().parent.parent


def repository() -> Path | None:
    """The root of the clone that this code runs from; None where it is an installed package."""
    return _ABOVE if (_ABOVE / "pyproject.toml").is_file() and (_ABOVE / "locustfiles").is_dir() else None


def cache() -> Path:
    """Folder for what can be made again: `.cache` of the clone, else `$XDG_CACHE_HOME/inferload`."""
    root = repository()
    if root is not None:
        return root / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferload"


def state_dir() -> Path:
    """Folder of the state files and logs of started servers: `$INFERLOAD_STATE`, else `deploy` of the cache."""
    named = os.environ.get("INFERLOAD_STATE")
    return Path(named).absolute() if named else cache() / "deploy"


def of_target(url: str) -> dict[str, Any] | None:
    """What was deployed at a URL: variant, command, version, configuration; None where nothing is known.

    Of a server on another machine without a tunnel nobody has looked since its start whether it is still the same one:
    `machine` is in its document.
    """
    place = _place(url)
    if place is None:
        return None
    if place[0] in _LOCAL:
        document = _read(state_dir() / f"{place[1]}.json")
        if document is not None and _alive(document.get("pid")):
            return document
    for path in sorted((state_dir() / REMOTE).glob("*.json")):
        document = _read(path)
        if document is None or not _same(_place(str(document.get("url"))), place):
            continue
        tunnel = document.get("tunnel")
        if tunnel is None or _alive(tunnel[0]):
            return document
    return None


def _place(url: str) -> tuple[str, int] | None:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return None if parts.hostname is None or port is None else (parts.hostname, port)


def _same(one: tuple[str, int] | None, other: tuple[str, int]) -> bool:
    return one is not None and one[1] == other[1] and (one[0] == other[0] or {one[0], other[0]} <= _LOCAL)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _alive(pid: object) -> bool:
    """Whether the process that the file names is there still: a file that a crash left behind says nothing of who answers."""
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
