"""A run that is over, as its documents are made of it: from the master's memory, or from its directory later on.

Where turns lie on several machines, `books.json` keeps what the master alone knew, so that the summary can be made once
more when all turns have been brought together (`inferload collect`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inferload import rundir, turnfile
from inferload.errors import UsageError
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
from inferload.swarm.roster import Member, Roster
from inferload.wire.probe import ServerFacts
from inferload.wire.redaction import Redaction
from inferload.wire.target import Target
from inferload.workload import scenario as scenarios
from inferload.workload.chattemplate import ChatTemplate
from inferload.workload.data import Data
from inferload.workload.prompts import Vocabulary
from inferload.workload.sessions import Sessions


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
        """Whether every worker wrote all of its records into the run directory, and none of them was lost."""
        here = str(self.place.path)
        written = all(member.facts.get("folder") == here for member in self.roster.members)
        return written and self.complete and not self.roster.lost and not self.lost_records

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


# -- books.json


def keep(run: EndedRun, redaction: Redaction) -> None:
    """Write what the run's other files do not tell, without secrets."""
    preflight, scenario = run.preflight, run.order.scenario
    document = {
        "format": rundir.FORMAT,
        "run": dict(run.about),
        "scenario": {"text": scenario.resolved_text(), "origin": run.order.origin},
        "targets": [target.url for target in run.order.targets],
        "servers": [asdict(facts) for facts in preflight.targets],
        "vocabulary": preflight.vocabulary.to_wire(),
        "data": preflight.data.to_wire(),
        "template": asdict(preflight.template),
        "metrics_urls": list(preflight.metrics_urls),
        "anchor": asdict(run.anchor),
        "windows": [[window.phase, window.start_ns, window.end_ns] for window in run.windows],
        "members": [_member_to_wire(member) for member in run.roster.members],
        "complete": run.complete,
        "arm": run.arm,
        "salt": run.salt,
        "earlier": None if run.earlier is None else [run.earlier.arm, str(run.earlier.run_dir), run.earlier.salt],
        "inconclusive": run.inconclusive,
        "policy": asdict(run.policy),
        "early_by": run.early_by,
        "others": asdict(run.others),
        "adaptations_left_out": run.adaptations_left_out,
        "rate_changed": run.rate_changed,
        "aborted": None if run.aborted is None else asdict(run.aborted),
        "tallies": run.seen.tallies.to_wire(),
        "health": run.seen.health.to_wire(),
        "first_errors": run.seen.errors.to_wire(),
    }
    rundir.write_json(run.place.path / rundir.BOOKS, redaction.document(document))


def recall(path: Path) -> EndedRun:
    """The run of a directory that holds its books; UsageError where it does not."""
    books = path / rundir.BOOKS
    try:
        return _recalled(path, rundir.read_json(books))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{books}: not the books of a run ({error!r}); collect needs the file as the run wrote it"
        ) from error


def _recalled(path: Path, document: Mapping[str, Any]) -> EndedRun:
    origin = document["scenario"]["origin"]
    scenario = scenarios.from_text(document["scenario"]["text"], origin)
    targets = tuple(Target.parse(url) for url in document["targets"])
    earlier = document["earlier"]
    seen = Seen(TallySet.from_wire(document["tallies"]), HealthSet.from_wire(document["health"]))
    seen.errors.absorb(document.get("first_errors") or {})
    return EndedRun(
        about=document["run"],
        order=Order(scenario, origin, targets, None, None, 0, 0.0, overrides={}),
        preflight=_preflight(document, Sessions(scenario, Data.from_wire(document["data"], origin))),
        place=Place(path),
        anchor=Anchor(**document["anchor"]),
        windows=tuple(PhaseWindow(*window) for window in document["windows"]),
        roster=Roster.of([_member(path, wire) for wire in document["members"]]),
        seen=seen,
        complete=document["complete"],
        arm=document["arm"],
        salt=document["salt"],
        earlier=None if earlier is None else Earlier(earlier[0], Path(earlier[1]), earlier[2], None),
        inconclusive=document["inconclusive"],
        policy=outcome.Policy(**document.get("policy", {})),
        early_by=document.get("early_by"),
        others=Others(**document.get("others", {})),
        adaptations_left_out=tuple(document.get("adaptations_left_out", ())),
        rate_changed=document.get("rate_changed", False),
        aborted=AbortReached(**document["aborted"]) if document.get("aborted") else None,
    )


def _preflight(document: Mapping[str, Any], sessions: Sessions) -> Preflight:
    template = document["template"]
    ids = {part: {role: tuple(one) for role, one in template[part].items()} for part in ("first", "opens", "closes")}
    return Preflight(
        targets=tuple(ServerFacts(**{**facts, "models": tuple(facts["models"])}) for facts in document["servers"]),
        vocabulary=Vocabulary.from_wire(document["vocabulary"]),
        metrics_urls=tuple(document["metrics_urls"]),
        sessions=sessions,
        template=ChatTemplate(**ids, tail=tuple(template["tail"]), exactness=template["exactness"]),
    )


_KEPT = ("name", "client_id", "stripe", "rtt_ns", "one_clock", "lost", "left", "missing_reports")


def _member_to_wire(member: Member) -> dict[str, Any]:
    return {name: getattr(member, name) for name in _KEPT} | {"reader": member.facts.get("reader")}


def _member(path: Path, wire: Mapping[str, Any]) -> Member:
    """A worker whose turns have been brought here."""
    member = Member(**{name: wire[name] for name in _KEPT if name in wire})
    member.facts = {"reader": wire["reader"], "folder": str(path)}
    return member
