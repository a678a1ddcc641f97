"""Where the launcher keeps things: the cache folder, the environment of vLLM, state and logs of started servers."""

import os
from pathlib import Path

from inferload.deployments import cache, repository, state_dir

__all__ = ["cache", "repository", "state_dir", "vllm_venv"]


def vllm_venv() -> Path:
    """The environment that vLLM for the CPU is installed in: `$VENV_VLLM`, else `.venv-vllm` of the clone."""
    named = os.environ.get("VENV_VLLM")
    if named:
        return Path(named).absolute()
    root = repository()
    return root / ".venv-vllm" if root is not None else cache() / "venv-vllm"
