"""A model's weights on disk: their size, and a check that they are there or can be downloaded. Standard library only.

Sizes are estimates by a model's name: so many parameters, of so many bytes. They are for saying that a disk is too small
before a download has filled it, and for nothing else.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from inferload.errors import UsageError

from . import machine_checks

# Bytes a parameter by what a name says of the weights; embeddings stay in 16 bits, so 4 bits are more than half a byte.
_BYTES = (("awq", 0.7), ("gptq", 0.7), ("int4", 0.7), ("4bit", 0.7), ("fp8", 1.05), ("w8a8", 1.05))
_PLAIN_BYTES = 2.0


def size_gib(model: str) -> float | None:
    """Weights of a model by its name, in GiB: `Qwen/Qwen3-4B` is 7.5; None if the name has no size."""
    said = re.findall(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])", model)
    if not said:
        return None
    each = next((size for mark, size in _BYTES if mark in model.lower()), _PLAIN_BYTES)
    return float(said[0]) * 1e9 * each / 2**30


def hub_folder(environment: Mapping[str, str]) -> Path:
    """The folder of downloaded models, by the rules of the Hugging Face libraries."""
    if named := environment.get("HF_HUB_CACHE"):
        return Path(named)
    if home := environment.get("HF_HOME"):
        return Path(home) / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def fetched(model: str, hub: Path) -> bool:
    """True if a download of the model holds weights."""
    snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    return any(path.exists() for suffix in ("safetensors", "bin") for path in snapshots.glob(f"*/*.{suffix}"))


def check(model: str, environment: Mapping[str, str]) -> None:
    """UsageError if a model is not here and cannot be downloaded, or if its download does not fit."""
    if model.startswith((".", "/", "~")):
        if not (Path(model).expanduser() / "config.json").is_file():
            raise UsageError(f"model {model}: no config.json there; name a model's folder with --model-path")
        return
    hub = hub_folder(environment)
    if fetched(model, hub):
        return
    if environment.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise UsageError(
            f"model {model}: not in {hub}, and HF_HUB_OFFLINE forbids to fetch it; name its folder with --model-path"
        )
    size = size_gib(model)
    if size is not None:
        machine_checks.check_disk(
            hub, size, f"{model}, by its name", "name another folder with HF_HUB_CACHE, or --model-path"
        )
