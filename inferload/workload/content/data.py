"""Data of a workload outside the scenario, such as files: opened once, and equal on every machine.

`sessions.OPENERS` has the openers by kind of workload. The master opens the data first and sends its findings to each worker,
which checks its own data against them before the load starts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from inferload.base.errors import UsageError
from inferload.workload.content.script import Script


class DataFindings(Struct, frozen=True):
    """Findings of the master on the data of one class. `digest` None: no file. `chars_per_token`: measured on the server."""

    digest: str | None = None
    chars_per_token: float | None = None
    error: float | None = None  # mean relative error of the token counts of the measured texts


class DataContext(Struct, frozen=True):
    """Context for opening data: scenario file, seed, and findings of the master by class."""

    origin: str = ""  # scenario file, for relative paths
    by_class: Mapping[str, DataFindings] = field(default_factory=dict)
    seed: int = 0  # of the run
    users: int = 0  # most at any time; 0 in an open loop

    def of(self, class_name: str) -> DataFindings:
        """Return the findings on a class; empty before the master has opened the data."""
        return self.by_class.get(class_name, DataFindings())

    @property
    def has_files(self) -> bool:
        """True if the workload reads files, which may take long to open."""
        return any(findings.digest is not None for findings in self.by_class.values())

    def to_wire(self) -> dict[str, Any]:
        """Return the findings as plain data for a message, without the origin."""
        return {name: [each.digest, each.chars_per_token, each.error] for name, each in self.by_class.items()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], origin: str) -> "DataContext":
        """Return the data that `to_wire` wrote."""
        return cls(origin, {name: DataFindings(*findings) for name, findings in wire.items()})


# Counts of events in sessions that the plan and the report show, such as truncated contexts.
Notes = Counter[str]


class DataFacts(Protocol):
    """Facts on the data or the text source of one class, for plan and manifest."""

    alike: bool = False  # all sessions have the same turns of the same lengths

    @property
    def digest(self) -> str | None:
        """Digest of the data, equal on all machines; None without a file."""
        ...

    @property
    def draws(self) -> bool:
        """True if the sessions draw random numbers. Otherwise none are seeded, which is faster."""
        ...

    def sample(self) -> Sequence[str]:
        """Return sample texts to measure characters per token; empty if the counts need no measurement."""
        return ()

    def warnings(self) -> list[str]:
        """Return one line per kind of record that is unexpectedly left out, with file and line number."""
        return []

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest: origin, records left out, assumptions."""
        return {}

    def in_words(self) -> list[str]:
        """Return the facts as lines of the plan."""
        return []


class Primers(NamedTuple):
    """Turns that a session sends in the warm-up; `extra`: those after its start."""

    turns: int = 0
    extra: int = 0


class Opened(DataFacts, Protocol):
    """Opened data of one class: scripts of its sessions. `file`: of the class of a live agent; None: of another kind."""

    file: Path | None = None

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Return the script of session `index`, drawn with its own random numbers."""
        ...

    def arrivals_s(self) -> Iterator[float] | None:
        """Return the start time of each session; None for data without them."""
        return None

    def primers(self, index: int) -> Primers:
        """Return the number of turns that session `index` sends in the warm-up only."""
        return Primers()


def same_as_master(name: str, digest: str | None, findings: DataFindings) -> None:
    """Raise UsageError if the data of this machine differs from the master's. `name`: name of the data in the error."""
    if findings.digest is not None and digest != findings.digest:
        raise UsageError(
            f"{name}: differs from the master's (digest {(digest or 'none')[:12]}, the master's {findings.digest[:12]}); "
            "copy the same file to every machine"
        )
