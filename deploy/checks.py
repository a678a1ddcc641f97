"""What a machine has to have before a server is started on it: GPUs, memory and disk, each fault one line with its remedy."""

import csv
import io
import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from inferload.errors import UsageError

from .variant import Hardware, Variant

_KEPT_FREE = 0.1  # of a GPU's memory: what is taken already by others beyond this is said


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; memory in GiB, None where the driver does not say: one that shares the machine's memory has `[N/A]`."""

    name: str
    total_gib: float | None
    free_gib: float | None


def gpus() -> list[Gpu]:
    """The machine's GPUs as nvidia-smi tells them; none where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = csv.reader(io.StringIO(done.stdout if done.returncode == 0 else ""), skipinitialspace=True)
    return [Gpu(row[0], _gib(row[1]), _gib(row[2])) for row in rows if len(row) == 3]


def _gib(mib: str) -> float | None:
    return float(mib) / 1024 if mib.strip().isdecimal() else None


def check_gpus(variant: Variant, found: list[Gpu]) -> None:
    """UsageError where a variant's GPUs are not to be had."""
    wanted = variant.hardware
    if not wanted.gpus:
        return
    if len(found) < wanted.gpus:
        have = f"this machine has {len(found)}" if found else "this machine has none that nvidia-smi tells of"
        raise UsageError(f"{variant.name}: needs {wanted}, {have}; --engine simulator runs it without")
    fitting = [gpu for gpu in found if gpu.total_gib is None or gpu.total_gib >= 0.9 * wanted.memory_gib]
    if len(fitting) < wanted.gpus:
        sizes = ["memory not told" if gpu.total_gib is None else f"{gpu.total_gib:.0f} GiB" for gpu in found]
        said = ", ".join(f"{gpu.name} {size}" for gpu, size in zip(found, sizes, strict=True))
        raise UsageError(
            f"{variant.name}: needs {wanted.memory_gib} GiB on each of {wanted.gpus} GPU(s), here are {said}"
        )
    utilization = float(variant.args.get("gpu-memory-utilization") or 0.92)
    free = sorted(fitting, key=lambda gpu: math.inf if gpu.free_gib is None else gpu.free_gib, reverse=True)
    for gpu in free[: wanted.gpus]:
        if gpu.free_gib is None or gpu.total_gib is None:
            continue
        if gpu.free_gib < utilization * gpu.total_gib * (1 - _KEPT_FREE):
            raise UsageError(
                f"{variant.name}: {gpu.name} has {gpu.free_gib:.1f} of {gpu.total_gib:.1f} GiB free, and the server takes "
                f"{utilization:.0%}; stop what runs there, or --set gpu-memory-utilization=..."
            )


def check_memory(hardware: Hardware, name: str) -> None:
    """UsageError where the machine's own memory is short, for a server on the CPU."""
    free_gib = psutil.virtual_memory().available / 2**30
    if not hardware.gpus and free_gib < hardware.memory_gib:
        raise UsageError(
            f"{name}: needs {hardware.memory_gib} GiB of memory, {free_gib:.1f} GiB are free; stop something"
        )


def check_disk(folder: Path, needed_gib: float, what: str, remedy: str = "make room, or set XDG_CACHE_HOME") -> None:
    """UsageError where the disk of a folder, which need not exist yet, has no room for something or cannot be written to."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK):
        raise UsageError(f"{folder}: cannot be written to, and {what} has to go there; {remedy}")
    free_gib = shutil.disk_usage(there).free / 2**30
    if free_gib < needed_gib:
        raise UsageError(f"{folder}: {free_gib:.1f} GiB free, {what} takes about {needed_gib:.1f} GiB; {remedy}")
