"""Weights of a model on disk: their size, and a check that they are present or can be downloaded.

Sizes are estimates from the model name, parameters times bytes per parameter, used only to detect a disk too small for a
download.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from inferload.base.errors import UsageError

from . import machine_checks

# Marks of a quantisation in a model's name: bytes per parameter, and vLLM's method for such weights. 4-bit weights need more than
# 0.5, since embeddings have 16 bits.
_QUANTISED = (
    *((mark, 0.7, "awq") for mark in ("awq", "w4a16", "fp4")),
    *((mark, 0.7, "gptq") for mark in ("gptq", "int4", "4bit", "4-bit")),
    *((mark, 1.05, "fp8") for mark in ("fp8", "w8a8", "int8", "8bit", "8-bit")),
)
_PLAIN_BYTES = 2.0


def size_gib(model: str) -> float | None:
    """Estimate the size of the weights in GiB from the model name: 7.5 for `Qwen/Qwen3-4B`. None if the name has no size."""
    sizes = re.findall(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])", model)
    if not sizes:
        return None
    bytes_per_parameter = next((size for mark, size, _ in _QUANTISED if mark in model.lower()), _PLAIN_BYTES)
    return float(sizes[0]) * 1e9 * bytes_per_parameter / 2**30


def method_of(model: str) -> str | None:
    """Return the method of quantisation that a model's name stands for, whose configuration has it; None for plain weights."""
    return next((method for mark, _, method in _QUANTISED if mark in model.lower()), None)


def hub_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of downloaded models, as in the Hugging Face libraries."""
    if folder := environment.get("HF_HUB_CACHE"):
        return Path(folder)
    if home := environment.get("HF_HOME"):
        return Path(home) / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "huggingface" / "hub"


def fetched(model: str, hub: Path) -> bool:
    snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    return any(path.exists() for suffix in ("safetensors", "bin") for path in snapshots.glob(f"*/*.{suffix}"))


def check(model: str, environment: Mapping[str, str]) -> None:
    """Raise UsageError if a model is missing and cannot be downloaded, or if its download does not fit on the disk."""
    if model.startswith((".", "/", "~")):
        if not Path(os.path.expanduser(model), "config.json").is_file():
            raise UsageError(f"model {model}: no config.json there; give a model folder with --model-path")
        return
    hub = hub_folder(environment)
    if fetched(model, hub):
        return
    if environment.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise UsageError(
            f"model {model}: not in {hub}, and HF_HUB_OFFLINE forbids a download; give its folder with --model-path"
        )
    size = size_gib(model)
    if size is not None:
        machine_checks.check_disk(
            hub, size, f"{model} (size from its name)", "set HF_HUB_CACHE to another folder, or use --model-path"
        )
