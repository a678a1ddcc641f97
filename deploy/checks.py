"""Checks of a machine before a server is started on it: GPUs, memory and disk. Standard library only."""

import csv
import io
import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferload.errors import UsageError

from . import procfs

DEFAULT_UTILIZATION = 0.92  # vLLM's --gpu-memory-utilization
_KEPT_FREE = 0.1  # tolerated share of a GPU's memory that other programs hold


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware that a variant needs. `gpus` 0: runs on the CPU; `memory_gib`: of each GPU, else of the machine."""

    gpu: str
    gpus: int
    memory_gib: int

    def __post_init__(self) -> None:
        """UsageError for values of another type."""
        if not isinstance(self.gpu, str):
            raise UsageError(f"hardware: gpu {self.gpu!r}: not a text; quote it")
        for name, value in (("gpus", self.gpus), ("memory_gib", self.memory_gib)):
            if type(value) is not int or value < 0:
                raise UsageError(f"hardware: {name} {value!r}: not a whole number of 0 or more")

    def __str__(self) -> str:
        if not self.gpus:
            return f"CPU, {self.memory_gib} GiB"
        return self.gpu if self.gpus == 1 else f"{self.gpus} x {self.gpu}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; memory in GiB, None if the driver reports `[N/A]`, as for a GPU that shares the machine's memory."""

    name: str
    total_gib: float | None
    free_gib: float | None


def gpus(visible: str | None = None) -> list[Gpu]:
    """The GPUs that nvidia-smi lists; none without a driver. `visible`: CUDA_VISIBLE_DEVICES, which selects some; None: unset."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,memory.free,uuid", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = csv.reader(io.StringIO(done.stdout if done.returncode == 0 else ""), skipinitialspace=True)
    found = {row[3]: Gpu(row[0], _gib(row[1]), _gib(row[2])) for row in rows if len(row) == 4}
    return list(found.values()) if visible is None else visible_gpus(visible, found)


def visible_gpus(visible: str, found: Mapping[str, Gpu]) -> list[Gpu]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES selects among those by UUID: indices, UUIDs or their unique beginnings.

    As in CUDA, the first entry that selects no GPU ends the list. Parts of a GPU (MIG) have a memory that is not known here.
    """
    chosen: dict[str, Gpu] = {}
    for entry in (part.strip() for part in visible.split(",")):
        uuid = _selected(entry, list(found))
        if uuid is None:
            break
        if uuid in chosen:  # CUDA then shows none at all
            return []
        chosen[uuid] = found.get(uuid) or Gpu(uuid, None, None)
    return list(chosen.values())


def _selected(entry: str, uuids: Sequence[str]) -> str | None:
    if entry.isascii() and entry.isdigit():
        return uuids[int(entry)] if len(entry) < 6 and int(entry) < len(uuids) else None
    if entry.startswith("MIG-"):
        return entry
    fitting = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


def _gib(mib: str) -> float | None:
    return float(mib) / 1024 if mib.strip().isdecimal() else None


def check_gpus(
    name: str,
    wanted: Hardware,
    found: list[Gpu],
    visible: str | None = None,
    utilization: float = DEFAULT_UTILIZATION,
) -> None:
    """UsageError if the GPUs that a variant needs are missing. `visible`: CUDA_VISIBLE_DEVICES, for the message;
    `utilization`: the share of each GPU's memory that the server takes."""
    if not wanted.gpus:
        return
    if len(found) < wanted.gpus:
        have = f"this machine has {len(found)}" if found else "this machine has none that nvidia-smi tells of"
        if visible is not None:
            have = f"CUDA_VISIBLE_DEVICES={visible!r} leaves {len(found)}"
        raise UsageError(f"{name}: needs {wanted}, {have}; --engine simulator runs it without")
    fitting = [gpu for gpu in found if gpu.total_gib is None or gpu.total_gib >= 0.9 * wanted.memory_gib]
    if len(fitting) < wanted.gpus:
        sizes = ["memory not told" if gpu.total_gib is None else f"{gpu.total_gib:.0f} GiB" for gpu in found]
        said = ", ".join(f"{gpu.name} {size}" for gpu, size in zip(found, sizes, strict=True))
        raise UsageError(f"{name}: needs {wanted.memory_gib} GiB on each of {wanted.gpus} GPU(s), here are {said}")
    free = sorted(fitting, key=lambda gpu: math.inf if gpu.free_gib is None else gpu.free_gib, reverse=True)
    for gpu in free[: wanted.gpus]:
        if gpu.free_gib is None or gpu.total_gib is None:
            continue
        if gpu.free_gib < utilization * gpu.total_gib * (1 - _KEPT_FREE):
            raise UsageError(
                f"{name}: {gpu.name} has {gpu.free_gib:.1f} of {gpu.total_gib:.1f} GiB free, and the server takes "
                f"{utilization * 100:.0f} %; stop what runs there, or --set gpu-memory-utilization=..."
            )


def check_memory(hardware: Hardware, name: str) -> None:
    """UsageError if the machine's memory is too small for a server on the CPU."""
    free_gib = procfs.available_bytes() / 2**30
    if not hardware.gpus and free_gib < hardware.memory_gib:
        raise UsageError(
            f"{name}: needs {hardware.memory_gib} GiB of memory, {free_gib:.1f} GiB are free; stop something"
        )


def check_disk(folder: Path, needed_gib: float, what: str, remedy: str = "make room, or set XDG_CACHE_HOME") -> None:
    """UsageError if the disk of a folder, which need not exist yet, is too small or not writable."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK):
        raise UsageError(f"{folder}: cannot be written to, and {what} has to go there; {remedy}")
    free_gib = shutil.disk_usage(there).free / 2**30
    if free_gib < needed_gib:
        raise UsageError(f"{folder}: {free_gib:.1f} GiB free, {what} takes about {needed_gib:.1f} GiB; {remedy}")
