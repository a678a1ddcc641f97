"""State files of the servers that were started from this machine.

One file per local port, and a subfolder for servers on other machines. A run reads from them the configuration of its server.
"""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inferload.user_cache import user_cache

_LOCAL = {"127.0.0.1", "localhost", "::1", "0.0.0.0"}
REMOTE = "remote"  # folder of the state files of servers on other machines
_ABOVE = Path(__file__).resolve().parent.parent


def repository() -> Path | None:
    """Return the root of the clone that this code runs from; None for an installed package."""
    return _ABOVE if (_ABOVE / "pyproject.toml").is_file() and (_ABOVE / "locustfiles").is_dir() else None


def cache() -> Path:
    """Return the cache folder: `.cache` of the clone, else that of the user."""
    root = repository()
    return user_cache() if root is None else root / ".cache"


def state_dir() -> Path:
    """Return the folder of state files and logs of started servers: `$INFERLOAD_STATE`, else `deploy` in the cache."""
    named = os.environ.get("INFERLOAD_STATE")
    return Path(named).absolute() if named else cache() / "deploy"


def of_target(url: str) -> dict[str, Any] | None:
    """Return the deployment at a URL (variant, command, version, configuration); None if unknown.

    The document of a server on another machine has the key `machine`. Without a tunnel it is not checked whether that server
    still runs.
    """
    address = _address(url)
    if address is None:
        return None
    if address[0] in _LOCAL:
        document = _read(state_dir() / f"{address[1]}.json")
        if document is not None and _alive(document.get("pid")):
            return document
    for path in sorted((state_dir() / REMOTE).glob("*.json")):
        document = _read(path)
        if document is None or not _same(_address(str(document.get("url"))), address):
            continue
        tunnel = document.get("tunnel")
        if tunnel is None or _alive(tunnel[0]):
            return document
    return None


def running() -> list[str]:
    """Return the URLs of the servers of this machine that run, and of all on other machines that were not stopped."""
    here = [
        document for path in state_dir().glob("*.json") if (document := _read(path)) and _alive(document.get("pid"))
    ]
    elsewhere = [document for path in (state_dir() / REMOTE).glob("*.json") if (document := _read(path))]
    return sorted(str(document.get("url")) for document in (*here, *elsewhere))


def _address(url: str) -> tuple[str, int] | None:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return None if parts.hostname is None or port is None else (parts.hostname, port)


def _same(left: tuple[str, int] | None, right: tuple[str, int]) -> bool:
    return left is not None and left[1] == right[1] and (left[0] == right[0] or {left[0], right[0]} <= _LOCAL)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _alive(pid: object) -> bool:
    """Return True if the process exists. A crash leaves state files of processes that are gone."""
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
