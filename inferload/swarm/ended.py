"""A run that is over, as its documents are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferload import turnfile
from inferload.measure import gates, outcome
from inferload.measure.abort import AbortReached
from inferload.measure.arrow import pa
from inferload.measure.clock import NS_PER_S, Anchor
from inferload.measure.failures import FirstErrors
from inferload.measure.health import HealthSet
from inferload.measure.record import Phase, PhaseWindow, stepped
from inferload.measure.tally import TallySet
from inferload.swarm import stepping
from inferload.swarm.arms import Arm, Earlier
from inferload.swarm.order import Order
from inferload.swarm.preflight import Preflight
from inferload.swarm.roster import Roster


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run's files go."""

    path: Path
    token: str = ""


@dataclass(slots=True)
class Seen:
    """What the workers have reported so far."""

    tallies: TallySet = field(default_factory=TallySet)
    health: HealthSet = field(default_factory=HealthSet)
    errors: FirstErrors = field(default_factory=FirstErrors)


@dataclass(frozen=True, slots=True)
class Others:
    """Requests that are no turns, and exceptions of tasks, as Locust counted them over the whole run.

    `by_name`: requests by type and name. `first`: text of the first exception. `messages`: exceptions by text.
    `users`: by class, as they were last asked for.
    """

    sent: int = 0
    failed: int = 0
    raised: int = 0
    first: str | None = None
    by_name: Sequence[Mapping[str, Any]] = ()
    messages: Mapping[str, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)

    @property
    def requests(self) -> dict[str, Any]:
        """The summary's `other_requests`."""
        return {"sent": self.sent, "failed": self.failed, "by_name": [dict(row) for row in self.by_name]}

    @property
    def exceptions(self) -> dict[str, Any]:
        """The summary's `exceptions`."""
        by_message = [{"message": text, "count": count} for text, count in self.messages.items()]
        return {"count": self.raised, "first": self.first, "by_message": by_message}


@dataclass(frozen=True, slots=True)
class EndedRun:
    """Every phase is over. `about`: the summary's `run` block."""

    about: Mapping[str, Any]
    order: Order
    preflight: Preflight
    place: Place
    anchor: Anchor
    windows: tuple[PhaseWindow, ...]
    roster: Roster
    seen: Seen
    complete: bool
    arm: Arm
    salt: str
    earlier: Earlier | None = None
    inconclusive: gates.Policy = "warn"
    policy: outcome.Policy = field(default_factory=outcome.Policy)
    early_by: str | None = None  # the signal or event that ended the run before its planned end
    others: Others = field(default_factory=Others)
    write_errors: tuple[str, ...] = ()  # files of the run, beside its turn records, that could not be written
    adaptations_left_out: tuple[str, ...] = ()  # of Locust, without which figures can be wrong: name and consequence
    aborted: AbortReached | None = None  # the condition that stopped the run
    rate_changed: bool = False  # the rate of an open loop was changed while the run lasted

    @property
    def stepped(self) -> tuple[PhaseWindow, ...]:
        """The phases, the measure phase by the steps of the load."""
        return stepped(self.windows, stepping.bounds_s(self.order.scenario))

    def window_s(self, phase: Phase) -> float:
        """How long a phase lasted."""
        return sum(lasted_s(window) for window in self.windows if window.phase == phase)

    @property
    def early(self) -> outcome.Early | None:
        """The end before the planned end; None if the run reached that."""
        if self.early_by is None:
            return None
        phases: tuple[Phase, ...] = ("measure", "warmup")
        phase = next((one for one in phases if self.window_s(one) > 0), None)
        after_s = 0.0 if phase is None else self.window_s(phase)
        return outcome.Early(self.early_by, phase, after_s, self.order.scenario.phases.measure_s)

    @property
    def models(self) -> list[str]:
        """The models that were asked."""
        return models_of(self.order, self.preflight)

    @property
    def together(self) -> bool:
        """Whether the records of every worker are all in the run directory, and no worker was lost."""
        held_back = any(member.held_back_records for member in self.roster.members)
        return self.complete and not self.roster.lost and not held_back and not self.lost_records

    @property
    def lost_records(self) -> int:
        """Turns that were counted and are not on disk."""
        return sum(member.lost_records for member in self.roster.members)

    def turns(self) -> pa.Table | None:
        """Every worker's turns; None where some are not at hand."""
        return turnfile.read_turns(self.place.path) if self.together else None


def models_of(order: Order, preflight: Preflight) -> list[str]:
    """The models that are asked: those that the scenario names, or the run's one."""
    return [one.name for one in order.scenario.request.models] or [preflight.facts.model]


def lasted_s(window: PhaseWindow) -> float:
    """How long a window was open; one that nobody closed counts for nothing."""
    return max(0.0, ((window.end_ns or window.start_ns) - window.start_ns) / NS_PER_S)
