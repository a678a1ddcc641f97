"""Checks of a machine before a server is started on it: GPUs, memory and disk."""

import csv
import io
import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from inferload.base.errors import UsageError

DEFAULT_UTILIZATION = 0.92  # vLLM's --gpu-memory-utilization
_TOLERANCE = 0.1  # share of the server's memory that other programs may use


class TooSmall(UsageError):
    """The machine has not the GPUs that a variant needs."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware of a variant. `gpus` 0: CPU only. `memory_gib`: per GPU, or of the machine without GPUs.

    `note`: what to expect of the current vLLM on the card, without effect on a run.
    """

    gpu: str
    gpus: int
    memory_gib: int
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raise UsageError for values of another type."""
        for name in ("gpu", "note"):
            if not isinstance(text := getattr(self, name), str):
                raise UsageError(f"hardware: {name} {text!r}: not a string; quote it")
        for name in ("gpus", "memory_gib"):
            if type(value := getattr(self, name)) is not int or value < 0:
                raise UsageError(f"hardware: {name} {value!r}: needs an integer of 0 or more")

    def __str__(self) -> str:
        if not self.gpus:
            return f"CPU, {self.memory_gib} GiB"
        return self.gpu if self.gpus == 1 else f"{self.gpus} x {self.gpu}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU. Memory is None if the driver reports `[N/A]`, as for a GPU that shares the memory of the machine."""

    name: str
    total_gib: float | None
    free_gib: float | None


def nvidia_smi(query: str) -> list[list[str]]:
    """Return the rows that nvidia-smi lists for a query, `--query-...=FIELD,...`; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = csv.reader(io.StringIO(process.stdout if process.returncode == 0 else ""), skipinitialspace=True)
    return [row for row in rows if len(row) == 1 + query.count(",")]


def gpus(visible: str | None = None) -> list[Gpu]:
    """Return the GPUs listed by nvidia-smi; empty without a driver. `visible`: CUDA_VISIBLE_DEVICES, None if unset."""
    rows = nvidia_smi("--query-gpu=name,memory.total,memory.free,uuid")
    gpus_by_uuid = {uuid: Gpu(name, _gib(total), _gib(free)) for name, total, free, uuid in rows}
    return list(gpus_by_uuid.values()) if visible is None else visible_gpus(visible, gpus_by_uuid)


def visible_gpus(visible: str, gpus_by_uuid: Mapping[str, Gpu]) -> list[Gpu]:
    """Return the GPUs selected by CUDA_VISIBLE_DEVICES: by index, UUID or unique prefix of a UUID.

    As in CUDA, the first entry that selects no GPU ends the list. The memory of a part of a GPU (MIG) is unknown.
    """
    selected: dict[str, Gpu] = {}
    for entry in (part.strip() for part in visible.split(",")):
        uuid = _selected(entry, list(gpus_by_uuid))
        if uuid is None:
            break
        if uuid in selected:  # as in CUDA
            return []
        selected[uuid] = gpus_by_uuid.get(uuid) or Gpu(uuid, None, None)
    return list(selected.values())


def _selected(entry: str, uuids: Sequence[str]) -> str | None:
    if entry.isascii() and entry.isdigit():
        return uuids[int(entry)] if len(entry) < 6 and int(entry) < len(uuids) else None
    if entry.startswith("MIG-"):
        return entry
    matches = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _gib(mib: str) -> float | None:
    return float(mib) / 1024 if mib.strip().isdecimal() else None


def check_gpus(
    name: str,
    hardware: Hardware,
    available: list[Gpu],
    visible: str | None = None,
    utilization: float = DEFAULT_UTILIZATION,
) -> None:
    """Raise UsageError if the GPUs that a variant needs are missing or in use.

    `visible`: CUDA_VISIBLE_DEVICES, for the message. `utilization`: share of each GPU's memory used by the server.
    """
    if not hardware.gpus:
        return
    if len(available) < hardware.gpus:
        available_text = f"this machine has {len(available)}" if available else "nvidia-smi lists none on this machine"
        if visible is not None:
            available_text = f"CUDA_VISIBLE_DEVICES={visible!r} leaves {len(available)}"
        raise TooSmall(f"{name}: needs {hardware}, {available_text}; use --engine simulator")
    matches = [gpu for gpu in available if gpu.total_gib is None or gpu.total_gib >= 0.9 * hardware.memory_gib]
    if len(matches) < hardware.gpus:
        memory = ["memory unknown" if gpu.total_gib is None else f"{gpu.total_gib:.0f} GiB" for gpu in available]
        sizes = ", ".join(f"{gpu.name} {size}" for gpu, size in zip(available, memory, strict=True))
        raise TooSmall(
            f"{name}: needs {hardware.memory_gib} GiB on each of {hardware.gpus} GPU(s), this machine has {sizes}"
        )
    free = sorted(matches, key=lambda gpu: math.inf if gpu.free_gib is None else gpu.free_gib, reverse=True)
    for gpu in free[: hardware.gpus]:
        if gpu.free_gib is None or gpu.total_gib is None:
            continue
        if gpu.free_gib < utilization * gpu.total_gib * (1 - _TOLERANCE):
            raise UsageError(
                f"{name}: {gpu.name} has {gpu.free_gib:.1f} of {gpu.total_gib:.1f} GiB free, and the server uses "
                f"{utilization * 100:.0f} %; stop other programs on it, or --set gpu-memory-utilization=..."
            )


def check_memory(hardware: Hardware, name: str) -> None:
    """Raise UsageError if the machine has too little free memory for a server on the CPU."""
    free_gib = psutil.virtual_memory().available / 2**30
    if not hardware.gpus and free_gib < hardware.memory_gib:
        raise UsageError(
            f"{name}: needs {hardware.memory_gib} GiB of memory, but {free_gib:.1f} GiB are free; stop other programs"
        )


def check_disk(
    folder: Path, needed_gib: float, purpose: str, remedy: str = "free disk space, or set XDG_CACHE_HOME"
) -> None:
    """Raise UsageError if a folder is not writable or its disk too small. The folder need not exist."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        raise UsageError(f"{folder}: not writable, but needed for {purpose}; {remedy}")
    free_gib = shutil.disk_usage(existing).free / 2**30
    if free_gib < needed_gib:
        raise UsageError(f"{folder}: {free_gib:.1f} GiB free, but {purpose} needs about {needed_gib:.1f} GiB; {remedy}")
