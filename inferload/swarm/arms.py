"""Cold and warm arms: the runs that one order comes to, one after the other, and where their files go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inferload.workload.idhits import IdHits
from inferload.workload.scenario import Cache
from inferload.workload.senthits import SentHits

Arm = Literal["cold", "warming", "warm"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of an order. `suffix`: of its directory's name; `counted`: it has a say in the exit code."""

    arm: Arm
    suffix: str = ""
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Earlier:
    """The run just before, on the same server, with the same sessions. `left`: what an endless cache would hold of it."""

    arm: Arm
    run_dir: Path
    salt: str
    left: SentHits | IdHits | None


COLD = Pass("cold")


def passes(cache: Cache) -> Sequence[Pass]:
    """The runs of a scenario, in their order."""
    if cache.arm == "both":
        return Pass("cold"), Pass("warm", "-warm")
    if cache.arm == "warm":
        return (Pass("warming", "-warming", counted=False), Pass("warm")) if cache.twice else (Pass("warm"),)
    return (COLD,)


def folder(path: Path, one: Pass) -> Path:
    """The directory of one of the runs, where the order's is `path`."""
    return path.with_name(path.name + one.suffix)
