"""Data that sessions are made of and that lies outside the scenario: opened once, and the same on every machine.

A kind of workload that reads files registers an opener (`sessions.OPENERS`). The master opens first; what it found goes
with each worker's assignment, and a worker that finds something else says so before any load.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from inferload.content.script import Script
from inferload.errors import UsageError


@dataclass(frozen=True, slots=True)
class Found:
    """What the master found of one class's data. `digest` None: no file. `chars_per_token`: measured on the server."""

    digest: str | None = None
    chars_per_token: float | None = None
    error: float | None = None  # of the counts, relative, on the texts that were measured


@dataclass(frozen=True, slots=True)
class Data:
    """What to know before data is opened: whose scenario it is, and what the master found of each class."""

    origin: str = ""  # the scenario file, from which paths may count
    by_class: Mapping[str, Found] = field(default_factory=dict)
    seed: int = 0  # the run's

    def of(self, class_name: str) -> Found:
        """The master's findings of a class; of nothing where it has not looked."""
        return self.by_class.get(class_name, Found())

    @property
    def has_files(self) -> bool:
        """Whether the master found some: they are opened before a run, which may take its time."""
        return any(found.digest is not None for found in self.by_class.values())

    def to_wire(self) -> dict[str, Any]:
        """Plain data for a message; the origin travels by itself."""
        return {name: [one.digest, one.chars_per_token, one.error] for name, one in self.by_class.items()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], origin: str) -> "Data":
        """What `to_wire` wrote."""
        return cls(origin, {name: Found(*found) for name, found in wire.items()})


# What happened to sessions that a plan must not keep to itself, by a word of the kind's own: counted as they run.
Notes = Counter[str]


class Opened(Protocol):
    """The data of one class, open: scripts of its sessions, and what there is to be said of it."""

    @property
    def digest(self) -> str | None:
        """What tells that two machines have the same data; None where there is no file."""
        ...

    @property
    def draws(self) -> bool:
        """Whether its sessions draw anything by random numbers of their own; to seed some takes longer than a plan without."""
        ...

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Session `index`, drawn by its own random numbers."""
        ...

    def sample(self) -> Sequence[str]:
        """Some of its texts, to measure how many characters make a token; none where counts need no measuring."""
        ...

    def warnings(self) -> list[str]:
        """What of its data is not sent, unexpectedly: a line each, with file and line number."""
        ...

    def facts(self) -> dict[str, Any]:
        """What it is, what was left out and what was assumed, for the manifest."""
        ...

    def in_words(self) -> list[str]:
        """The same for people, a line each."""
        ...


def same_as_master(name: str, mine: str | None, found: Found) -> None:
    """UsageError where this machine's data is not the master's. `name`: what a person calls the data."""
    if found.digest is not None and mine != found.digest:
        raise UsageError(
            f"{name}: differs from the master's (digest {(mine or 'none')[:12]}, the master's {found.digest[:12]}); "
            "copy the same file to every machine"
        )
