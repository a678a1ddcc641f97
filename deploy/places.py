"""Where the launcher keeps things: the cache folder, the environment of vLLM, state and logs of started servers."""

import os
from pathlib import Path

# In a clone this is its root; of an installed package it is the folder of `inferload` itself.
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


def vllm_venv() -> Path:
    """The environment that vLLM for the CPU is installed in: `$VENV_VLLM`, else `.venv-vllm` of the clone."""
    named = os.environ.get("VENV_VLLM")
    if named:
        return Path(named).absolute()
    root = repository()
    return root / ".venv-vllm" if root is not None else cache() / "venv-vllm"


def state_dir() -> Path:
    """Folder of the state files and logs of started servers."""
    return cache() / "deploy"
