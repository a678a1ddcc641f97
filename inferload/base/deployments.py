"""State files of the servers that were started on this machine, one per port.

A run reads from them the configuration of its server.
"""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inferload.base.user_cache import user_cache

_LOCAL = {"127.0.0.1", "localhost", "::1", "0.0.0.0"}
_ABOVE = Path(__file__).resolve().parents[2]


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
    """Return the deployment at a URL (variant, command, version, configuration); None if unknown."""
    address = _address(url)
    if address is None or address[0] not in _LOCAL:
        return None
    return _running(state_dir() / f"{address[1]}.json")


def running() -> list[str]:
    """Return the URLs of the servers that run."""
    documents = [document for path in state_dir().glob("*.json") if (document := _running(path))]
    return sorted(str(document.get("url")) for document in documents)


def _address(url: str) -> tuple[str, int] | None:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return None if parts.hostname is None or port is None else (parts.hostname, port)


def _running(path: Path) -> dict[str, Any] | None:
    """Return a state file's document; None if it cannot be read, or if its server has ended."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and _alive(document.get("pid")) else None


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
