"""Turns of workers on other machines, brought into a run directory: which files, whose, how many, and whether they are all."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload import rundir, turnfile
from inferload.errors import UsageError


@dataclass(frozen=True, slots=True)
class Expected:
    """What the master knows of one worker: where its turns were written, and how many ended."""

    name: str
    host: str
    folder: str  # on that host
    turns: int | None  # None: a manifest of an older version
    lost: bool = False
    missing_reports: int = 0  # the master did not count the turns that were in them


@dataclass(frozen=True, slots=True)
class Manifest:
    """The part of run.json that says who has the turns."""

    path: Path
    run_id: str
    digest: str
    workers: tuple[Expected, ...]

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """From a run directory; UsageError where it is none, or its run is not over."""
        document = rundir.read_json(path / rundir.MANIFEST)
        if document.get("counts") is None:
            raise UsageError(f"{path}: the run is not over, or was killed; collect when its master has ended")
        try:
            workers = tuple(_expected(one) for one in document["workers"])
            return cls(path, str(document["id"]), str(document["scenario"]["digest"]), workers)
        except (LookupError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path / rundir.MANIFEST}: not the manifest of a run ({error!r}); name a run directory"
            ) from error

    def folder_names(self) -> list[str]:
        """Names of the directories that workers wrote into, the run's own first."""
        return list(dict.fromkeys([self.path.name, *(Path(worker.folder).name for worker in self.workers)]))


def _expected(worker: Mapping[str, Any]) -> Expected:
    return Expected(
        name=worker["name"],
        host=str(worker.get("host")),
        folder=str(worker.get("folder")),
        turns=worker.get("turns"),
        lost=bool(worker.get("lost")),
        missing_reports=worker.get("missing_reports") or 0,
    )


@dataclass(frozen=True, slots=True)
class Held:
    """One worker's turns as a folder holds them."""

    worker: str
    folder: Path
    files: tuple[Path, ...]
    turns: int


def candidates(place: Path, manifest: Manifest) -> list[Path]:
    """Folders with turns in a place that was named: a run directory, its `turns`, or the directory that holds it."""
    folders = [place / rundir.TURNS, *(place / name / rundir.TURNS for name in manifest.folder_names()), place]
    return [folder for folder in folders if rundir.plain_files(folder, "*.parquet")]


def held(folders: Iterable[Path], *run_ids: str) -> dict[str, Held]:
    """Each worker's turns of this run; where several folders hold a worker's, the one with most. Other runs' are left out."""
    found: dict[str, Held] = {}
    for folder in folders:
        files: dict[str, list[Path]] = {}
        for path in turnfile.live(folder):
            stamp = turnfile.stamp(path)
            if stamp is not None and stamp.run_id in run_ids:
                files.setdefault(stamp.worker, []).append(path)
        for worker, paths in files.items():
            one = Held(worker, folder, tuple(paths), sum(turnfile.rows(path) for path in paths))
            if worker not in found or one.turns > found[worker].turns:
                found[worker] = one
    return found


def others(folders: Iterable[Path], run_id: str) -> list[str]:
    """Ids of the other runs whose turns lie there."""
    stamps = [turnfile.stamp(path) for folder in folders for path in turnfile.live(folder)]
    return sorted({stamp.run_id or "unknown" for stamp in stamps if stamp is not None and stamp.run_id != run_id})


def at_hand(manifest: Manifest) -> dict[str, Held]:
    """Each worker's turns in the run directory; files of before they named their run are its own there."""
    return held([manifest.path / rundir.TURNS], manifest.run_id, "")


def take(source: Held, run_dir: Path) -> None:
    """Bring one worker's turns into the run directory as one file: whole or not at all, over what was there of it."""
    turns = rundir.own_folder(run_dir / rundir.TURNS)
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=run_dir) as name:
        there = Path(name)
        for path in source.files:
            shutil.copyfile(path, there / path.name)
        turnfile.join_parts(there, source.worker)
        joined = turnfile.joined_path(there, source.worker)
        if turnfile.rows(joined) != source.turns:
            raise UsageError(f"{source.folder}: changed while it was copied; collect again")
        joined.replace(turnfile.joined_path(turns, source.worker))
    for part in turnfile.parts_of(turns, source.worker):
        part.unlink()  # of a worker that wrote here and was cut off: the joined file holds them


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A worker whose turns are not all in the run directory."""

    worker: Expected
    here: int

    def in_words(self) -> str:
        """A line for people."""
        counted = "an unknown number of" if self.worker.turns is None else self.worker.turns
        if not self.here:
            return f"{self.worker.name}: {counted} turns are on {self.worker.host} in {self.worker.folder}"
        return f"{self.worker.name}: {self.here} turns are here, {counted} were counted"

    @property
    def uncounted(self) -> bool:
        """Whether nothing is missing: more is here than was counted, since reports never reached the master."""
        return self.worker.missing_reports > 0 and self.worker.turns is not None and self.here > self.worker.turns


def shortfalls(manifest: Manifest) -> list[Shortfall]:
    """Workers of whom turns are missing, or more are here than were counted with no report missing."""
    return [one for one in _differences(manifest) if not one.uncounted]


def uncounted(manifest: Manifest) -> list[str]:
    """A line for each worker all of whose turns are here, some of which the master never heard of."""
    return [
        f"{one.in_words()}: {one.worker.missing_reports} of its reports never reached the master"
        for one in _differences(manifest)
        if one.uncounted
    ]


def _differences(manifest: Manifest) -> list[Shortfall]:
    here = at_hand(manifest)
    found = []
    for worker in manifest.workers:
        count = here[worker.name].turns if worker.name in here else 0
        if count != worker.turns and not (worker.turns is None and count):
            found.append(Shortfall(worker, count))
    return found


def note(manifest: Manifest, taken: Mapping[str, str]) -> None:
    """Have run.json say which turns were collected, and from where. `taken`: places by worker."""
    document: dict[str, Any] = rundir.read_json(manifest.path / rundir.MANIFEST)
    for worker in document["workers"]:
        if worker["name"] in taken:
            worker["collected_from"] = taken[worker["name"]]
    rundir.write_json(manifest.path / rundir.MANIFEST, document)
