"""Weights of a model on disk: their size, and a check that they are present or can be downloaded. Standard library only.

Sizes are estimates from the model's name: number of parameters times bytes per parameter. Their only use is to detect a disk
that is too small for a download.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from inferload.errors import UsageError

from . import machine_checks

# Bytes per parameter by a quantization in the model's name; embeddings stay in 16 bits, so 4-bit weights take more than 0.5.
_BYTES = (("awq", 0.7), ("gptq", 0.7), ("int4", 0.7), ("4bit", 0.7), ("fp8", 1.05), ("w8a8", 1.05))
_PLAIN_BYTES = 2.0


def size_gib(model: str) -> float | None:
    """Size of a model's weights in GiB, from its name: `Qwen/Qwen3-4B` is 7.5. None if the name has no size."""
    sizes = re.findall(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])", model)
    if not sizes:
        return None
    bytes_per_parameter = next((size for mark, size in _BYTES if mark in model.lower()), _PLAIN_BYTES)
    return float(sizes[0]) * 1e9 * bytes_per_parameter / 2**30


def hub_folder(environment: Mapping[str, str]) -> Path:
    """The folder of downloaded models, as the Hugging Face libraries choose it."""
    if folder := environment.get("HF_HUB_CACHE"):
        return Path(folder)
    if home := environment.get("HF_HOME"):
        return Path(home) / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def fetched(model: str, hub: Path) -> bool:
    """Return True if a download of the model has weights."""
    snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    return any(path.exists() for suffix in ("safetensors", "bin") for path in snapshots.glob(f"*/*.{suffix}"))


def check(model: str, environment: Mapping[str, str]) -> None:
    """Raise UsageError if a model is missing and cannot be downloaded, or if its download does not fit on the disk."""
    if model.startswith((".", "/", "~")):
        if not (Path(model).expanduser() / "config.json").is_file():
            raise UsageError(f"model {model}: no config.json there; name a model's folder with --model-path")
        return
    hub = hub_folder(environment)
    if fetched(model, hub):
        return
    if environment.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise UsageError(
            f"model {model}: not in {hub}, and HF_HUB_OFFLINE forbids its download; name its folder with --model-path"
        )
    size = size_gib(model)
    if size is not None:
        machine_checks.check_disk(
            hub, size, f"{model}, by its name", "name another folder with HF_HUB_CACHE, or --model-path"
        )
