"""Cold and warm arms: the runs that one order comes to, one after the other, and where their files go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferload.scenario.scenario import Cache
from inferload.summarise.counts import Arm


@dataclass(frozen=True, slots=True)
class CachePass:
    """One run of an order. `suffix`: of its directory's name; `counted`: it has a say in the exit code."""

    arm: Arm
    suffix: str = ""
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Previous:
    """The run just before of the same order, on the same server, with the same sessions."""

    arm: Arm
    run_dir: Path
    salt: str


COLD = CachePass("cold")


def passes(cache: Cache) -> Sequence[CachePass]:
    """The runs of a scenario, in their order."""
    if cache.arm == "both":
        return CachePass("cold"), CachePass("warm", "-warm")
    if cache.arm == "warm":
        return (
            (CachePass("warming", "-warming", counted=False), CachePass("warm"))
            if cache.twice
            else (CachePass("warm"),)
        )
    return (COLD,)


def folder(path: Path, one: CachePass) -> Path:
    """The directory of one of the runs, where the order's is `path`."""
    return path.with_name(path.name + one.suffix)
