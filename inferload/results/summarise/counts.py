"""`counts.json`: the master's counts of a run, besides its turn records and scrapes.

The summary is a function of this file, the turn records and the scrapes.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec import Struct, field, structs

from inferload.base import rundir
from inferload.base.clock import NS_PER_S, Anchor
from inferload.results.abort_conditions import AbortReached
from inferload.results.documents.manifest_document import WorkerOutcome
from inferload.results.documents.summary_document import (
    Canary,
    Exceptions,
    OtherRequests,
    RequestName,
    Run,
    TaskException,
)
from inferload.results.documents.verdict_document import GatePolicy
from inferload.results.verdict import outcome
from inferload.results.verdict.first_errors import FirstErrors
from inferload.scenario import scenario as scenarios
from inferload.servers.roles import Role
from inferload.turns.client_health import HealthSet
from inferload.turns.record import Phase, PhaseWindow, stepped
from inferload.turns.tally import TallySet
from inferload.workload.content.chat_template import ChatTemplate
from inferload.workload.content.data import DataContext

Arm = Literal["cold", "warming", "warm"]


class EndedWorker(WorkerOutcome, frozen=True):
    """One worker. Offsets: its clocks minus the master's. `uncertainty_ns`: of `offset_ns`; None in the master's process."""

    offset_ns: int = 0
    wall_offset_ns: int = 0
    uncertainty_ns: int | None = None
    turns: int = 0  # that ended, by its reports

    @property
    def held_back_records(self) -> int:
        """Turns whose records the worker did not send on purpose, or can send no more."""
        return max(0, self.turns - self.at_hand) if self.held_back is not None and self.at_hand is not None else 0

    @property
    def lost_records(self) -> int:
        """Turns that were counted and whose records are neither in the run directory nor held back."""
        known = self.written if self.held_back_records else self.at_hand
        return 0 if known is None else max(0, self.turns - known)

    @property
    def why_lost(self) -> str:
        if self.write_error is not None:
            return self.write_error
        if self.lost:
            return "the worker was lost before it had written its last records"
        if self.written is None:
            return f"{self.folder}: the worker did not report that it had written its last records"
        if self.at_hand is not None and self.at_hand < self.written:
            return (
                f"unknown cause: the worker wrote {self.written} to {self.folder}, and the master read {self.at_hand}"
            )
        return "unknown cause"


class Others(Struct, frozen=True):
    """Requests other than turns, and exceptions of tasks, counted by Locust over the whole run.

    `by_name`: requests by type and name. `first`: text of the first exception. `messages`: exceptions by text.
    `users`: by class, when the load ended.
    """

    sent: int = 0
    failed: int = 0
    raised: int = 0
    first: str | None = None
    by_name: Sequence[RequestName] = ()
    messages: Mapping[str, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)

    def requests(self, errors: FirstErrors, start_ns: int) -> OtherRequests:
        """Return the `other_requests` block of the summary. `start_ns`: start of the run."""
        return OtherRequests(sent=self.sent, failed=self.failed, by_name=errors.with_first(self.by_name, start_ns))

    @property
    def exceptions(self) -> Exceptions:
        by_message = [TaskException(message=text, count=count) for text, count in self.messages.items()]
        return Exceptions(count=self.raised, first=self.first, by_message=by_message)


class Earlier(Struct, frozen=True):
    """The run before, on the same server, with the same sessions. `folder`: in the same directory as this run's."""

    arm: Arm
    folder: str


class Plan(Struct, frozen=True, dict=True):
    """What was to be sent. `origin`: of the scenario, base of the paths of data files; `data_wire`: facts about its data."""

    scenario_text: str
    origin: str
    data_wire: Mapping[str, Any]

    @cached_property
    def scenario(self) -> scenarios.Scenario:
        return scenarios.from_text(self.scenario_text, self.origin)

    @cached_property
    def data(self) -> DataContext:
        return DataContext.from_wire(self.data_wire, self.origin)


class Prompts(Struct, frozen=True):
    """What separates and lengthens prompts. `salts`: every target supports `cache_salt`."""

    salt: str
    salts: bool
    prompt_exactness: str
    template: ChatTemplate


class Servers(Struct, frozen=True):
    """Where turns were sent. `metrics_targets`: whose metrics pages were scraped; `joined`, `left`: those that did during the run;
    `roles`: those that the run knows.
    """

    targets: tuple[str, ...]
    models: tuple[str, ...]
    metrics_targets: tuple[str, ...]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    roles: dict[str, Role] = {}


class Pass(Struct, frozen=True):
    """Place of the run among the passes of its specification."""

    arm: Arm
    earlier: Earlier | None


class Course(Struct, frozen=True):
    """Course of the load. Instants are on the master's monotonic clock."""

    anchor: Anchor
    windows: tuple[PhaseWindow, ...]
    early_by: str | None  # the signal or event that ended the run before its planned end
    aborted: AbortReached | None  # the condition that stopped the run
    rate_changed: bool  # the rate of an open loop was changed during the run

    def window_s(self, phase: Phase) -> float:
        return sum(lasted_s(window) for window in self.windows if window.phase == phase)


class Workers(Struct, frozen=True):
    """Workers at the end. `complete`: all that were not lost drained in time."""

    workers: tuple[EndedWorker, ...]
    complete: bool

    @property
    def lost_records(self) -> int:
        return sum(worker.lost_records for worker in self.workers)

    @property
    def why_lost(self) -> str:
        """First worker that lost records, with the path and the error; empty without one."""
        lost = (f"worker {worker.name}: {worker.why_lost}" for worker in self.workers if worker.lost_records)
        return next(lost, "")

    @property
    def whole(self) -> bool:
        """True if the run directory has the records of all turns, and no worker was lost."""
        missing = any(worker.lost or worker.held_back_records for worker in self.workers)
        return self.complete and not missing and not self.lost_records


class Totals(Struct, frozen=True, dict=True):
    """Sums of all workers' reports, and what Locust counted."""

    tallies_wire: Any
    health_wire: Any
    errors_wire: Any
    others: Others
    canary: Canary | None = None

    @cached_property
    def tallies(self) -> TallySet:
        return TallySet.from_wire(self.tallies_wire)

    @cached_property
    def health(self) -> HealthSet:
        return HealthSet.from_wire(self.health_wire)

    @cached_property
    def errors(self) -> FirstErrors:
        errors = FirstErrors()
        errors.absorb(self.errors_wire)
        return errors


class Policies(Struct, frozen=True):
    """How the results are judged."""

    inconclusive: GatePolicy
    policy: outcome.Policy


class Defects(Struct, frozen=True):
    """What the files and figures of the run lack."""

    write_errors: tuple[str, ...]  # files of the run, beside its turn records, that could not be written
    adaptations_left_out: tuple[str, ...]  # of Locust, without which figures can be wrong: name and consequence


class Counts(Struct, frozen=True):
    """Counts of a run that has ended. `run` is the summary's block; the document has the fields of all other parts side by side."""

    run: Run
    plan: Plan
    prompts: Prompts
    servers: Servers
    of_pass: Pass
    course: Course
    workers: Workers
    totals: Totals
    policies: Policies
    defects: Defects

    @property
    def stepped(self) -> tuple[PhaseWindow, ...]:
        """Phases, with the measure phase split into the steps of the load."""
        return stepped(self.course.windows, self.plan.scenario.arrivals.step_bounds_s)

    @property
    def early(self) -> outcome.Early | None:
        """End before the planned end; None if the run reached it."""
        early_by, window_s = self.course.early_by, self.course.window_s
        if early_by is None:
            return None
        phases: tuple[Phase, ...] = ("measure", "warmup")
        phase = next((phase for phase in phases if window_s(phase) > 0), None)
        after_s = 0.0 if phase is None else window_s(phase)
        return outcome.Early(early_by, phase, after_s, self.plan.scenario.phases.measure_s)

    def to_wire(self) -> dict[str, Any]:
        run, *parts = map(msgspec.to_builtins, structs.astuple(self))
        document: dict[str, Any] = {"run": run}
        for part in parts:
            document |= part
        return document | {"format": rundir.FORMAT}

    @classmethod
    def from_wire(cls, document: Mapping[str, Any]) -> "Counts":
        """Read a JSON document; ValueError if it is not valid."""
        kinds = (Plan, Prompts, Servers, Pass, Course, Workers, Totals, Policies, Defects)
        parts: list[Any] = [msgspec.convert(document, kind) for kind in kinds]
        return cls(msgspec.convert(document, _Head).run, *parts)


class _Head(Struct):
    run: Run
    format: int = rundir.FORMAT


def lasted_s(window: PhaseWindow) -> float:
    """Duration of a window; 0 without an end."""
    return max(0.0, ((window.end_ns or window.start_ns) - window.start_ns) / NS_PER_S)
