"""What is known of servers that were started on this machine: one file for each, by port, so that a run against one can say
which configuration it measured."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_LOCAL = {"127.0.0.1", "localhost", "::1", "0.0.0.0"}
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
    """Folder of the state files and logs of started servers."""
    return cache() / "deploy"


def of_target(url: str) -> dict[str, Any] | None:
    """What was deployed at a URL of this machine: variant, command, version, configuration; None where nothing is known."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    if parts.hostname not in _LOCAL or port is None:
        return None
    try:
        document = json.loads((state_dir() / f"{port}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or not _alive(document.get("pid")):
        return None
    return document


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
