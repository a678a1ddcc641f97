"""Paths of the launcher: the cache folder, the environment of vLLM, the folder of states and logs."""

import os
from pathlib import Path

from inferload.base.deployments import cache, repository, state_dir

__all__ = ["cache", "repository", "state_dir", "vllm_venv"]


def vllm_venv() -> Path:
    """Return vLLM's environment for the CPU: `$VENV_VLLM`, else `.venv-vllm` of the clone, else in the cache folder."""
    override = os.environ.get("VENV_VLLM")
    if override:
        return Path(override).absolute()
    root = repository()
    return root / ".venv-vllm" if root is not None else cache() / "venv-vllm"
