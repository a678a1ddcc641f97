"""Master-side run lifecycle: setup, phases, drain.

Every cause of a stop (the planned end, the web UI, Ctrl-C, SIGTERM, loss of all workers) only sets `stop`; the drain is the same
for all.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from inferload import rundir
from inferload.content.data import Notes
from inferload.live.recorder import Recorder
from inferload.locust.adapters import adaptations, compat
from inferload.locust.adapters.adaptations import Adaptation
from inferload.locust.adapters.logs import first_of_each
from inferload.master.lifecycle import (
    delivery,
    load_steps,
    other_requests,
    worker_setup,
    worker_watchdog,
)
from inferload.master.lifecycle.adaptive_warmup import AdaptiveWarmup
from inferload.master.lifecycle.cache_passes import Previous
from inferload.master.lifecycle.marks import Marks
from inferload.master.lifecycle.phases import RunPhases
from inferload.master.lifecycle.preflight import Preflight
from inferload.master.lifecycle.scraper_process import Scraping
from inferload.master.lifecycle.steering import ChangedBy, Steering
from inferload.master.lifecycle.turn_receiver import TurnReceiver
from inferload.master.lifecycle.workers import GAP_S, Member, Roster
from inferload.measure.bounded_names import BoundedNames, overflow_text
from inferload.measure.client_health import HealthSet
from inferload.measure.clock import NS_PER_MS, NS_PER_S, Anchor, clock_id, now_ns, wall_ns
from inferload.measure.record import Phase, PhaseWindow
from inferload.measure.tally import TallySet
from inferload.numbers import short
from inferload.process import protocol
from inferload.process.greenlets import sleep_until
from inferload.process.protocol import Assignment, WorkerReport, windows_to_wire
from inferload.process.run_spec import RunSpec
from inferload.process.settings import ProcessSettings
from inferload.results.abort_conditions import AbortReached, AbortWatch
from inferload.statistics.steady_state import Steadiness
from inferload.summarise.counts import Arm, Others
from inferload.verdict.failures import FirstErrors, add_message
from inferload.verdict.outcome import INVALID_CALL
from inferload.workload.schedules import step_bounds_s

logger = logging.getLogger(__name__)

_LEAD_NS = 200_000_000  # time from the announcement of a phase to its start, for messages to reach all workers
_SAME_SIGNAL_S = 1.0  # a signal to the process group can reach a worker earlier or later than the master
_ABORT_S = 10.0  # time for workers to write their files after an abort
_SHORT_DRAIN_S = 1.0  # after an invalid call


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The run directory, and the token by which workers recognize it."""

    path: Path
    token: str = ""


@dataclass(slots=True)
class ReportTotals:
    """Sums of the workers' reports so far."""

    tallies: TallySet = field(default_factory=TallySet)
    health: HealthSet = field(default_factory=HealthSet)
    errors: FirstErrors = field(default_factory=FirstErrors)


class MasterRun:
    """One run, after the preflight. `conduct` blocks until the last worker has drained."""

    def __init__(
        self, spec: RunSpec, preflight: Preflight, directory: RunDirectory, own: ProcessSettings, runner: Any
    ) -> None:
        self.spec = spec
        self.preflight = preflight
        self.directory = directory
        self.own = own
        self.anchor = Anchor.take()
        self._clock = clock_id()
        self.run_id = f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(4)}"
        self.arm: Arm = "cold"
        self.earlier: Previous | None = None
        # Separates the prompts from those of other runs in prefix caches.
        self.salt = spec.scenario.cache.salt or self.run_id
        self.summary: Mapping[str, Any] | None = None  # document of summary.json, at the end
        self.marks = Marks(directory.path / rundir.MARKS, self.anchor, own.redaction)
        self.totals = ReportTotals()
        self._names = BoundedNames(preflight.sessions.classes)
        self.recorder = Recorder(spec.scenario.slo.model_dump(exclude_none=True))
        self.abort_watch = AbortWatch(spec.scenario.abort_on)
        self.aborted: AbortReached | None = None
        self.steadiness = Steadiness()
        self._listeners_raised: Counter[str] = Counter()  # by message
        self._users: dict[str, int] = {}  # by class, when the load ended
        self.notes = Notes()  # counted problems of the workers' sessions
        self.phases = RunPhases(step_bounds_s(spec.scenario))
        self.stop = Event()
        self.stop_reason = "the scenario's end"
        self.drained = Event()
        self.complete = False  # every worker that is not lost drained in time
        self.roster = Roster(compat.client_ids(runner))
        self.scraping: Scraping | None = None
        self.records = TurnReceiver(directory.path / rundir.TURNS, self.run_id, own.max_turns_mb, self._acknowledge)
        self._runner = runner
        self.steering = Steering(spec, self.marks, self._announce_rate)
        self._spent_ns: int | None = None  # end of the last session of a load that ends by itself
        self._ignored_before = compat.ignored_messages.counts.copy()
        self._aborting = False
        self._over = False  # the load has ended as planned
        self._drain_s = spec.scenario.phases.drain_s
        self.early_by: str | None = None  # the signal or event that ended the load before its planned end
        self._marking: list[gevent.Greenlet] = []
        self._starter: gevent.Greenlet | None = None  # starts the first users

    def set_pass(self, arm: Arm, earlier: Previous | None) -> None:
        """Set the arm, and the preceding run, whose salt this run uses; before `prepare`."""
        self.arm, self.earlier = arm, earlier
        if earlier is not None:
            self.salt = earlier.salt

    # -- messages of workers

    def on_pong(self, member: Member, data: dict[str, Any]) -> None:
        """Handle the reply to a ping."""
        member.heard()
        same_clock = self._clock is not None and data.get("clock") == self._clock
        member.pong(data["sent_ns"], data["mono_ns"], data["wall_ns"], wall_ns(), same_clock=same_clock)
        member.facts |= {name: data.get(name) for name in ("version", "host", "scenario")}

    def on_ready(self, data: dict[str, Any]) -> None:
        """Handle a worker's reply to its assignment."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id:
            member.heard()
            member.facts, member.ready = data, True

    def on_report(self, report: WorkerReport) -> None:
        """Add a worker's report to the totals."""
        member = self.roster.named(report.name)
        if member is None or report.run_id != self.run_id:
            return
        silent_s = member.silent_s()
        if silent_s > GAP_S and self.windows:
            self.marks.add("worker_silent", f"worker {member.name} was silent for {silent_s:.1f} s", worker=member.name)
        member.heard()
        member.began = member.began or self.phase() is not None
        if member.reported(report.seq, report.in_flight, report.booked_ns):
            tallies = self._bounded(TallySet.from_wire(report.tallies))
            member.turns += sum(tally.ended for _, tally in tallies.items())
            self.totals.tallies.absorb(tallies)
            self.totals.errors.absorb(report.first_errors, member.offset_ns)
            health = HealthSet.from_wire(report.health)
            self.recorder.add(self.elapsed_s(), tallies, health)
            self._check_abort_conditions(tallies)
            self._check_steadiness(tallies)
            self._check_clock(member, health)
            self.totals.health.absorb(health)

    def _bounded(self, tallies: TallySet) -> TallySet:
        """Return a worker's tallies with a bounded number of classes: tasks may use many names."""
        before = self._names.overflows
        bounded = tallies.renamed(self._names.of)
        if self._names.overflows and not before:
            logger.warning("%s", overflow_text("turns"))
        return bounded

    def _check_abort_conditions(self, delta: TallySet) -> None:
        """Stop the run once a condition of the scenario's `abort_on` is true."""
        reached = self.abort_watch.add(self.elapsed_s(), delta)
        if reached is None or self.stop.is_set() or self._over:
            return
        self.aborted = reached
        text = f"abort_on: {reached.condition} (value {short(reached.value)})"
        self.marks.add("abort_on", text, condition=reached.condition, value=reached.value)
        logger.error("%s: the run is stopped", text)
        self.request_stop(text, early=True)

    def _check_overrun(self, member: Member, overrun_ms: float) -> None:
        if overrun_ms:
            late = f"worker {member.name} received the end of the measure phase late"
            text = f"{late}: turns planned up to {overrun_ms:.0f} ms after it count as measured"
            self.marks.add("overrun", text, worker=member.name, overrun_ms=round(overrun_ms, 3))
            logger.warning("%s", text)

    def _check_clock(self, member: Member, delta: HealthSet) -> None:
        total = delta.total()
        if total.clock_steps:
            by_s = total.clock_stepped_ns / NS_PER_S
            text = f"the wall clock of worker {member.name} stepped by {by_s:+.3f} s"
            self.marks.add("clock_step", text, worker=member.name, by_s=by_s)
            logger.warning("%s", text)

    def on_drained(self, data: dict[str, Any]) -> None:
        """Handle the end of a worker's drain."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id:
            member.drained = True
            member.written, member.write_error = data.get("written"), data.get("write_error")
            self.notes.update(data.get("notes", {}))
            self._count_listeners(data.get("listeners_raised", {}))
            self._check_overrun(member, data.get("overrun_ns", 0) / NS_PER_MS)
            self._check_drained()
            gevent.spawn_later(_SAME_SIGNAL_S, self._check_left, member)

    def on_turns(self, data: dict[str, Any]) -> None:
        """Handle a piece of the records of a worker on another file system."""
        if data["run_id"] == self.run_id:
            self.records.on_piece(data["name"], data)

    def on_delivered(self, data: dict[str, Any]) -> None:
        """Handle the end of a worker's delivery."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id:
            member.delivered, member.held_back = True, data.get("error")

    def on_spent(self, data: dict[str, Any]) -> None:
        """Handle the end of a worker's part of a load that ends by count or with a trace."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id and member.spent_ns is None:
            member.spent_ns = data["at_ns"]
            self._check_spent()

    def on_invalid_call(self, data: dict[str, Any]) -> None:
        """Stop the run at an invalid call of a task: a fault of the program, not of the server."""
        if data["run_id"] != self.run_id or self.stop.is_set() or self._over:
            return
        self._drain_s = min(self._drain_s, _SHORT_DRAIN_S)
        logger.error("%s: %s: the run is stopped", data["at"], data["text"])
        self.request_stop(f"{INVALID_CALL}{data['at']}", early=True)

    @property
    def stopped(self) -> bool:
        """True if the load was stopped before its end."""
        return self.stop.is_set() and self._spent_ns is None

    def _check_spent(self) -> None:
        """End the load once it is over on all workers, as of the end of the last session."""
        spent_ns = [member.spent_ns for member in self.roster.present]
        known_ns = [at_ns for at_ns in spent_ns if at_ns is not None]
        if spent_ns and len(known_ns) == len(spent_ns) and not self.stop.is_set():
            self._spent_ns = max(known_ns)
            self.stop.set()

    def _check_steadiness(self, delta: TallySet) -> None:
        """Mark the first time at which TTFT is steady."""
        if self._over or not self.windows:
            return
        known = self.steadiness.since_s is not None
        self.steadiness.add(self.elapsed_s(), delta, sum(member.in_flight for member in self.roster.present))
        if self.steadiness.since_s is not None and not known:
            self.marks.add("steady", f"steady: TTFT is steady from {self.steadiness.since_s:g} s of load on")

    def _check_left(self, member: Member) -> None:
        """Mark a worker that drained although the run goes on: it was stopped separately."""
        if self.stop.is_set() or self._over:
            return
        member.left = True
        text = f"worker {member.name} was stopped on its own: its turns are recorded, its part of the load is missing"
        self.marks.add("worker_left", text, worker=member.name)
        logger.error("%s from here on", text)
        if all(present.drained for present in self.roster.present):
            self.request_stop("the end of every worker", early=True)

    def others(self) -> Others:
        """Return requests other than turns and exceptions of tasks, as counted by Locust."""
        self._count_listeners(first_of_each.take_listeners())
        return other_requests.counted(self._runner, self._users, self._listeners_raised)

    def _count_listeners(self, messages: Mapping[str, int]) -> None:
        """Count exceptions of event listeners, by message."""
        for text, count in messages.items():
            add_message(self._listeners_raised, text, count)

    @property
    def left_out(self) -> tuple[Adaptation, ...]:
        """Adaptations of Locust that this process or a worker left out."""
        lists = [member.facts.get("adaptations_left_out") for member in self.roster.members]
        names = {str(name) for names in lists if isinstance(names, list) for name in names}
        return adaptations.left_out_of(names | compat.left_out, workers=self.roster.remote)

    # -- requests of users

    def request_stop(self, reason: str, *, early: bool = False) -> None:
        """Begin the drain; the first reason counts. `early`: not a planned end, unless the load has ended already."""
        if not self.stop.is_set():
            if not self._over:
                self.stop_reason = reason
                self.early_by = reason if early else None
            self.marks.add("stop", f"stopped by {reason}")
            self.stop.set()

    def abort(self) -> None:
        """End turns in flight now."""
        self.request_stop("abort")
        if not self._aborting:
            self._aborting = True
            self.marks.add("abort", "turns in flight ended")
        self.send(protocol.ABORT, {"run_id": self.run_id})

    def end_first_start(self) -> None:
        """End the ramp of the first users, for another one."""
        if self._starter is not None:
            self._starter.kill(block=False)

    def change_users(self, users: int, by: ChangedBy = "hand") -> None:
        """Change the number of users during the run."""
        self.steering.change_users(users, by)

    # -- the run

    def prepare(self) -> None:
        """Compare clocks, send assignments, begin to scrape; UsageError if a worker cannot take part."""
        scenario, members = self.spec.scenario, self.roster.members
        load_steps.check(scenario, self.preflight.sessions, len(members))
        worker_setup.compare_clocks(members, self.send)
        worker_setup.check_alike(members, self.spec.file_digest)
        worker_setup.send_assignments(
            members, self._assignment, self.send, self._clients, reads_files=self.preflight.data.has_files
        )
        load_steps.check_times(scenario, self.spec.origin, members)
        if self.preflight.metrics_urls:
            interval_s = scenario.server.interval_s
            folder = self.directory.path / rundir.SERVER_METRICS
            self.scraping = Scraping(folder, self.preflight.metrics_urls, interval_s, self.own, self.anchor)
            self.scraping.wait_for_first(len(self.preflight.metrics_urls))

    def conduct(self, start_users: Callable[[int, float], None]) -> None:
        """Run the phases to the end of the drain. `start_users` starts Locust's users and may block while they ramp."""
        phases = self.spec.scenario.phases
        start_ns = now_ns() + _LEAD_NS
        measure_ns: int | None = None if phases.adaptive else start_ns + round(phases.warmup_s * NS_PER_S)
        self._announce(start_ns, measure_ns, self._planned_end_ns(measure_ns))
        lead_s = max(0.0, (start_ns - now_ns()) / NS_PER_S)
        self._starter = gevent.spawn_later(lead_s, start_users, self.spec.users, self.spec.spawn_per_s)
        watcher = gevent.spawn(worker_watchdog.watch, self.roster, self._clients, self.marks, self._on_lost)
        stepper = gevent.Greenlet(self._follow_steps, start_users)
        try:
            if measure_ns is None:
                warmup = AdaptiveWarmup(phases, self.totals.tallies, self.steadiness, self.marks, self.stop)
                measure_ns = warmup.wait(start_ns, _LEAD_NS)
                if not self.stop.is_set():
                    self._announce(start_ns, measure_ns, self._planned_end_ns(measure_ns))
            stepper.start()
            end_ns = self._planned_end_ns(measure_ns)
            self.stop.wait(None if end_ns is None else max(0.0, (end_ns - now_ns()) / NS_PER_S))
            stepper.kill()
            end_ns = self._load_end_ns(end_ns)
            self._announce(start_ns, min(measure_ns, end_ns), end_ns)
            self._drain(end_ns)
            delivery.finish(
                self.roster, self.records, self.directory.path / rundir.TURNS, self.marks, lambda: self._aborting
            )
        finally:
            gevent.killall(self._marking, block=False)
            self.end_first_start()
            stepper.kill(block=False)
            watcher.kill(block=False)
        self._mark_ignored_messages()
        if self.scraping is not None:
            self.scraping.stop()

    @property
    def windows(self) -> tuple[PhaseWindow, ...]:
        """Phases as far as they are known; empty before the load."""
        return self.phases.windows

    @property
    def stepped(self) -> tuple[PhaseWindow, ...]:
        """Phases, with the measure phase divided into the steps of the load."""
        return self.phases.stepped

    def _earliest_ns(self) -> int:
        """Return the earliest instant that can be announced to every worker in time."""
        return now_ns() + (_LEAD_NS if self.roster.remote else 0)

    def users_now(self) -> int:
        """Return the number of Locust's users that run."""
        return int(self._runner.user_count)

    def elapsed_s(self) -> float:
        """Return the seconds since the load began."""
        return self.phases.elapsed_s()

    def phase(self) -> Phase | None:
        """Return the current phase; None before the load."""
        return self.phases.now()

    def close(self) -> None:
        """Release the resources of a run that was not conducted."""
        self.records.close()
        if self.scraping is not None:
            self.scraping.stop()

    # -- steps

    @property
    def _clients(self) -> Mapping[str, Any]:
        """Locust's list of workers; empty in a local run."""
        clients: Mapping[str, Any] = getattr(self._runner, "clients", {})
        return clients

    def _assignment(self, member: Member) -> Assignment:
        spec, preflight = self.spec, self.preflight
        return Assignment(
            run_id=self.run_id,
            salt=self.salt,
            scenario_text=spec.scenario.resolved_text(),
            origin=spec.origin,
            stripe=member.stripe,
            stripes=len(self.roster),
            name=member.name,
            target_urls=[target.url for target in spec.targets],
            model=preflight.facts.model,
            takes_salt=preflight.salts,
            vocabulary=preflight.vocabulary.to_wire(),
            run_dir=str(self.directory.path),
            token=self.directory.token,
            offset_ns=member.offset_ns,
            rate=spec.rate,
            origins=None if self.own.origins is None else sorted(self.own.origins),
            data=preflight.data.to_wire(),
        )

    def _follow_steps(self, start_users: Callable[[int, float], None]) -> None:
        """Apply the planned changes of the load. The measure phase has been announced."""

        def set_users(users: int) -> None:
            self.steering.planned_users(users)
            start_users(users, self.spec.spawn_per_s)

        measure_ns = next(window.start_ns for window in self.windows if window.phase == "measure")
        load_steps.follow(self.spec.scenario, measure_ns, self.marks, set_users)

    def _announce_rate(self, rate: float) -> int:
        """Send a rate to the workers. Return the instant from which it applies."""
        at_ns = self._earliest_ns()
        self.send(protocol.RATE, {"run_id": self.run_id, "at_ns": at_ns, "rate": rate})
        return at_ns

    def _planned_end_ns(self, measure_ns: int | None) -> int | None:
        measure_s = self.spec.scenario.phases.measure_s
        return None if measure_ns is None or measure_s is None else measure_ns + round(measure_s * NS_PER_S)

    def _load_end_ns(self, planned_ns: int | None) -> int:
        """Return the end of the load; after a stop, the earliest instant that every worker can know in time."""
        if self._spent_ns is not None:
            return self._spent_ns
        if planned_ns is None:
            return self._earliest_ns()
        # Workers end the load at the planned end by themselves.
        return min(planned_ns, self._earliest_ns()) if self.stop.is_set() else planned_ns

    def _announce(self, start_ns: int, measure_ns: int | None, end_ns: int | None) -> None:
        """Announce the phases to the workers; None: not known yet."""
        self.phases.set(start_ns, measure_ns, end_ns)
        gevent.killall(self._marking, block=False)
        self._marking = [gevent.spawn(self._mark_phases_from, window.start_ns) for window in self.windows]
        self.send(protocol.WINDOWS, {"run_id": self.run_id, "windows": windows_to_wire(self.stepped)})

    def _mark_ignored_messages(self) -> None:
        ignored = compat.ignored_messages.counts - self._ignored_before
        if ignored:
            text = ", ".join(f"{reason}: {count}" for reason, count in sorted(ignored.items()))
            self.marks.add("messages_ignored", f"messages to the master ignored ({text})", counts=dict(ignored))

    def _mark_phases_from(self, at_ns: int) -> None:
        """Wait for an instant, and mark the phases that have begun."""
        sleep_until(at_ns)
        self._mark_phases()

    def _mark_phases(self) -> None:
        self.phases.mark(self.marks)

    def _drain(self, begin_ns: int) -> None:
        gevent.sleep(max(0.0, (begin_ns - now_ns()) / NS_PER_S))
        self._mark_phases()
        self._over = True
        self.steering.end_load()
        self._users = dict(self._runner.target_user_classes_count)
        drain_s = self._drain_s
        self.send(protocol.DRAIN, {"run_id": self.run_id})
        if not self.drained.wait(drain_s):
            in_flight = sum(member.in_flight for member in self.roster.awaited)
            self.marks.add(
                "unfinished_drain", f"{in_flight} turns were still in flight {drain_s:g} s after the last was sent"
            )
            self.abort()
            self.drained.wait(_ABORT_S)
        self.complete = all(member.drained for member in self.roster.awaited)
        late = [member.name for member in self.roster.awaited if not member.drained]
        if late:
            self.marks.add("not_drained", f"workers {', '.join(late)} did not report the end of their drain")

    def _on_lost(self) -> None:
        """Check, after the loss of a worker, if all others have drained or have no load left, and if there are others."""
        self._check_drained()
        self._check_spent()
        if not self.roster.present:
            self.request_stop("the loss of every worker", early=True)

    def _check_drained(self) -> None:
        if all(member.drained for member in self.roster.awaited):
            self.drained.set()

    def _acknowledge(self, name: str, data: dict[str, Any]) -> None:
        self.send(protocol.TAKEN, data, self.roster.named(name))

    def send(self, kind: str, data: dict[str, Any], member: Member | None = None) -> None:
        """Send a message to one worker or to all. Lost workers are included: one that was only stopped must drain."""
        for receiver in [member] if member is not None else self.roster.members:
            if receiver.client_id is None or receiver.client_id in self._runner.clients:
                self._runner.send_message(kind, data, receiver.client_id)
