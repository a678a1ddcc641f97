"""Cold and warm passes: the successive runs of one specification, and their directories."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from inferload.base import rundir
from inferload.results.summarise.counts import Arm
from inferload.run.process.run_spec import RunSpec
from inferload.scenario.scenario import Cache


class CachePass(Struct, frozen=True):
    """One run of a specification. `suffix`: of its directory's name. `counted`: it affects the exit code."""

    arm: Arm
    suffix: str = ""
    counted: bool = True


class Previous(Struct, frozen=True):
    """The preceding run of the same specification, with the same server and sessions."""

    arm: Arm
    run_dir: Path
    salt: str


class Passes(Struct):
    """The runs of a specification, in order. `path`: the run directory, without suffix. `earlier`: the pass that has ended last."""

    spec: RunSpec
    todo: Sequence[CachePass]
    path: Path
    earlier: Previous | None = None

    def ended(self, current: CachePass, run_dir: Path, salt: str) -> None:
        """Take the directory's number and the salt of a pass over to the next one."""
        self.path = run_dir.with_name(run_dir.name.removesuffix(current.suffix))
        self.earlier = Previous(current.arm, run_dir, salt)


def passes(cache: Cache) -> Sequence[CachePass]:
    """Return the runs of a scenario in order."""
    if cache.arm == "both":
        return CachePass("cold"), CachePass("warm", rundir.WARM)
    if cache.twice:
        return CachePass("warming", rundir.WARMING, counted=False), CachePass("warm")
    return (CachePass(cache.arm),)


def folder(path: Path, current: CachePass) -> Path:
    return path.with_name(path.name + current.suffix)


def create_folder(path: Path, current: CachePass, numbered: bool) -> tuple[Path, str]:
    """Create the directory of a pass, and return it with its token.

    `numbered`: with another number if it is not free; otherwise UsageError.
    """
    paths = rundir.numbered(path)
    while True:
        created = folder(next(paths), current)
        try:
            return created, rundir.create(created)
        except rundir.Taken:
            if not numbered:
                raise
