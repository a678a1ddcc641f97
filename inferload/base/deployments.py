"""State files of the servers that were started on this machine, one per port: a run reads its server's configuration there."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from inferload.base.errors import UsageError
from inferload.base.json_text import Count, Number
from inferload.base.user_cache import user_cache

_OF_VARIANT = ("name", "hardware", "command_line", "weights_gb")
_LOCAL = {"127.0.0.1", "localhost", "::1", "0.0.0.0"}
_ABOVE = Path(__file__).resolve().parents[2]


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware that a variant requires."""

    gpu: str | None = None
    gpus: Count | None = None
    memory_gib: Number | None = None


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A server that `inferload deploy` started. `config`: as the server reports it.

    `name`, `hardware`, `command_line` (for a shell), `weights_gb` (computed, over all GPUs): of its variant.
    """

    name: str | None = None
    hardware: Hardware | None = None
    command_line: str | None = None
    weights_gb: Number | None = None
    engine: str | None = None
    argv: list[str] | None = None
    started_at: str | None = None
    startup_s: Number | None = None
    version: str | None = None
    memory_mb: Number | None = None
    gpu_memory_mb: dict[str, Number] | None = None
    prices: dict[str, Any] | None = None
    config: Any = None
    cores: list[int] | None = None

    @property
    def command(self) -> tuple[str, ...] | None:
        """The server's command line; None if unknown."""
        return tuple(self.argv) if self.argv else None

    @property
    def gpus(self) -> int | None:
        """Number of GPUs that the variant requires; None if unknown."""
        return None if self.hardware is None else self.hardware.gpus


def repository() -> Path | None:
    """Return the root of the clone that this code runs from; None for an installed package."""
    return _ABOVE if (_ABOVE / "pyproject.toml").is_file() and (_ABOVE / "locustfiles").is_dir() else None


def locustfile() -> Path:
    """Return the bundled chat locustfile: beside the package in a clone, inside it when installed."""
    in_clone = Path(__file__).parents[2] / "locustfiles" / "chat.py"
    if in_clone.is_file():
        return in_clone
    spec = find_spec("inferload.locustfiles.chat")
    if spec is None or spec.origin is None:
        raise UsageError(
            "locustfiles/chat.py: not installed; reinstall inferload: pip install --force-reinstall inferload"
        )
    return Path(spec.origin)


def cache() -> Path:
    """Return the cache folder: `.cache` of the clone, else that of the user."""
    root = repository()
    return user_cache() if root is None else root / ".cache"


def state_dir() -> Path:
    """Return the folder of state files and logs of started servers: `$INFERLOAD_STATE`, else `deploy` in the cache."""
    named = os.environ.get("INFERLOAD_STATE")
    return Path(named).absolute() if named else cache() / "deploy"


def of_target(url: str) -> Deployment | None:
    """Return the deployment at a URL; None if unknown."""
    address = _address(url)
    if address is None or address[0] not in _LOCAL:
        return None
    document = _running(state_dir() / f"{address[1]}.json")
    if document is None:
        return None
    try:
        variant = msgspec.convert(document.get("variant"), Deployment | None) or Deployment()
        server = msgspec.convert(document, Deployment)
    except msgspec.ValidationError:  # of another version
        return None
    return msgspec.structs.replace(server, **{name: getattr(variant, name) for name in _OF_VARIANT})


def running() -> list[str]:
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
