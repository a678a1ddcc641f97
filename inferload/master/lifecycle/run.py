"""One run as the master conducts it: workers ready, clocks compared, phases announced, everything drained.

What stops a run (its own end, the web UI, Ctrl-C, SIGTERM, all workers gone) only sets `stop`; from there on all of them take
the same road.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import gevent
from gevent.event import Event

from inferload import rundir
from inferload.content.data import Notes
from inferload.locust.adapters import adaptations, compat
from inferload.locust.adapters.adaptations import Adaptation
from inferload.locust.adapters.fault_logs import first_of_each
from inferload.master.lifecycle import adaptive_warmup, delivery, load_steps, worker_setup, worker_watchdog
from inferload.master.lifecycle import other_requests as others
from inferload.master.lifecycle.cache_passes import Previous
from inferload.master.lifecycle.marks import Marks
from inferload.master.lifecycle.phases import RunPhases
from inferload.master.lifecycle.preflight import Preflight
from inferload.master.lifecycle.run_state import ReportTotals, RunDirectory
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
from inferload.process import messages
from inferload.process.greenlets import sleep_until
from inferload.process.messages import Report, windows_to_wire
from inferload.process.run_spec import RunSpec
from inferload.process.settings import ProcessSettings
from inferload.results.abort_conditions import AbortReached, AbortWatch
from inferload.results.rolling_stats import Recent
from inferload.statistics.steady_state import Steadiness
from inferload.summarise.counts import Arm, Others
from inferload.verdict.failures import add_message
from inferload.workload.schedules import step_bounds_s

logger = logging.getLogger(__name__)

_LEAD_NS = 200_000_000  # phases are announced so long before they begin, so that every worker knows in time
_SAME_SIGNAL_S = 1.0  # a signal to the whole group reaches a worker a little before or after the master
_ABORT_S = 10.0  # what workers may take to write their files once they have given up


class MasterRun:
    """Made when everything has been checked; `conduct` blocks until the last worker has drained."""

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
        self.salt = spec.scenario.cache.salt or self.run_id  # what keeps its prompts apart from other runs'
        self.marks = Marks(directory.path / rundir.MARKS, self.anchor, own.redaction)
        self.totals = ReportTotals()
        self._names = BoundedNames(preflight.sessions.classes)
        self.recent = Recent()
        self.abort_watch = AbortWatch(spec.scenario.abort_on)
        self.aborted: AbortReached | None = None
        self.steadiness = Steadiness()
        self._listeners_raised: Counter[str] = Counter()  # by message
        self._users: dict[str, int] = {}  # by class, when the load ended
        self.notes = Notes()  # what the workers' sessions came to, beside their turns
        self.phases = RunPhases(step_bounds_s(spec.scenario))
        self.stop = Event()
        self.stop_reason = "the scenario's end"
        self.drained = Event()
        self.complete = False  # every worker that is not lost drained in time
        self.roster = Roster(compat.client_ids(runner))
        self.scraping: Scraping | None = None
        self.records = TurnReceiver(directory.path / rundir.TURNS, self.run_id, own.max_turns_mb, self._acknowledge)
        self._runner = runner
        self.steering = Steering(spec)
        self._spent_ns: int | None = None  # when the last of a counted load was over
        self._ignored_before = compat.ignored_messages.counts.copy()
        self._aborting = False
        self._over = False  # the load has ended as planned
        self.early_by: str | None = None  # the signal or event that ended the load before its planned end
        self._marking: list[gevent.Greenlet] = []

    def follow(self, arm: Arm, earlier: Previous | None) -> None:
        """Say before `prepare` which arm of its order this is, and which run it follows, whose prefixes it then meets."""
        self.arm, self.earlier = arm, earlier
        if earlier is not None:
            self.salt = earlier.salt

    # -- what the workers say

    def on_pong(self, member: Member, data: dict[str, Any]) -> None:
        """An answer to a ping."""
        member.heard()
        same_clock = self._clock is not None and data.get("clock") == self._clock
        member.pong(data["sent_ns"], data["mono_ns"], data["wall_ns"], wall_ns(), same_clock=same_clock)
        member.facts |= {name: data.get(name) for name in ("version", "host", "scenario")}

    def on_ready(self, data: dict[str, Any]) -> None:
        """A worker has taken its assignment, or says why not."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id:
            member.heard()
            member.facts, member.ready = data, True

    def on_report(self, report: Report) -> None:
        """A worker's books since its last report."""
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
            self.recent.add(self.elapsed_s(), tallies)
            self._look_whether_to_abort(tallies)
            self._look_whether_steady(tallies)
            health = HealthSet.from_wire(report.health)
            self._look_at_clock(member, health)
            self.totals.health.absorb(health)

    def _bounded(self, tallies: TallySet) -> TallySet:
        """Return a worker's tallies with the number of classes bounded: the tasks of each worker may use other names."""
        before = self._names.overflows
        bounded = tallies.renamed(self._names.of)
        if self._names.overflows and not before:
            logger.warning("%s", overflow_text("turns"))
        return bounded

    def _look_whether_to_abort(self, delta: TallySet) -> None:
        """Stop the run once a condition of the scenario's `abort_on` is true."""
        reached = self.abort_watch.add(self.elapsed_s(), delta)
        if reached is None or self.stop.is_set() or self._over:
            return
        self.aborted = reached
        text = f"abort_on: {reached.condition} (value {short(reached.value)})"
        self.marks.add("abort_on", text, condition=reached.condition, value=reached.value)
        logger.error("%s: the run is stopped", text)
        self.request_stop(text, early=True)

    def _look_at_overrun(self, member: Member, overrun_ms: float) -> None:
        if overrun_ms:
            late = f"worker {member.name} heard of the end of the measure phase late"
            text = f"{late}: turns that it planned up to {overrun_ms:.0f} ms after it count as measured"
            self.marks.add("overrun", text, worker=member.name, overrun_ms=round(overrun_ms, 3))
            logger.warning("%s", text)

    def _look_at_clock(self, member: Member, delta: HealthSet) -> None:
        total = delta.total()
        if total.clock_steps:
            by_s = total.clock_stepped_ns / NS_PER_S
            text = f"the wall clock of worker {member.name} was set by {by_s:+.3f} s"
            self.marks.add("clock_step", text, worker=member.name, by_s=by_s)
            logger.warning("%s", text)

    def on_drained(self, data: dict[str, Any]) -> None:
        """A worker's last word."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id:
            member.drained = True
            member.written, member.write_error = data.get("written"), data.get("write_error")
            self.notes.update(data.get("notes", {}))
            self._count_listeners(data.get("listeners_raised", {}))
            self._look_at_overrun(member, data.get("overrun_ns", 0) / NS_PER_MS)
            self._look_whether_drained()
            gevent.spawn_later(_SAME_SIGNAL_S, self._look_whether_left, member)

    def on_turns(self, data: dict[str, Any]) -> None:
        """Take a piece of the records of a worker that writes elsewhere."""
        if data["run_id"] == self.run_id:
            self.records.on_piece(data["name"], data)

    def on_delivered(self, data: dict[str, Any]) -> None:
        """Note that a worker sends no more records."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id:
            member.delivered, member.held_back = True, data.get("error")

    def on_spent(self, data: dict[str, Any]) -> None:
        """Nothing of a worker's load is left: a trace is over, or what was to be counted is."""
        member = self.roster.named(data["name"])
        if member is not None and data["run_id"] == self.run_id and member.spent_ns is None:
            member.spent_ns = data["at_ns"]
            self._look_whether_spent()

    @property
    def stopped(self) -> bool:
        """Whether the load was ended by request; a load that is spent has come to its own end."""
        return self.stop.is_set() and self._spent_ns is None

    def _look_whether_spent(self) -> None:
        """The load is over once that of all workers is: it was when the last session ended, not when we heard of it."""
        spent_ns = [member.spent_ns for member in self.roster.present]
        known_ns = [at_ns for at_ns in spent_ns if at_ns is not None]
        if spent_ns and len(known_ns) == len(spent_ns) and not self.stop.is_set():
            self._spent_ns = max(known_ns)
            self.stop.set()

    def _look_whether_steady(self, delta: TallySet) -> None:
        """The first time that the load has settled is marked."""
        if self._over or not self.windows:
            return
        known = self.steadiness.since_s is not None
        self.steadiness.add(self.elapsed_s(), delta, sum(member.in_flight for member in self.roster.present))
        if self.steadiness.since_s is not None and not known:
            self.marks.add("steady", f"steady: TTFT did not move from {self.steadiness.since_s:g} s of load on")

    def _look_whether_left(self, member: Member) -> None:
        """A worker that drained though nobody asked the run to has been stopped on its own."""
        if self.stop.is_set() or self._over:
            return
        member.left = True
        text = f"worker {member.name} was stopped on its own: its turns are recorded, its part of the load is missing"
        self.marks.add("worker_left", text, worker=member.name)
        logger.error("%s from here on", text)
        if all(one.drained for one in self.roster.present):
            self.request_stop("the end of every worker", early=True)

    def others(self) -> Others:
        """Requests that are no turns, and exceptions of tasks, as Locust has counted them."""
        self._count_listeners(first_of_each.take_listeners())
        return others.counted(self._runner, self._users, self._listeners_raised)

    def _count_listeners(self, messages: Mapping[str, int]) -> None:
        """Count exceptions of event listeners, by message."""
        for text, count in messages.items():
            add_message(self._listeners_raised, text, count)

    @property
    def left_out(self) -> tuple[Adaptation, ...]:
        """Adaptations of Locust that this process or a worker left out."""
        said = [member.facts.get("adaptations_left_out") for member in self.roster.members]
        names = {str(name) for names in said if isinstance(names, list) for name in names}
        return adaptations.left_out_of(names | compat.left_out, workers=self.roster.remote)

    def takes_users(self, member: Member) -> bool:
        """Whether Locust would give it users: not while it counts it as missing."""
        if member.client_id is None:
            return True
        client = self._runner.clients.get(member.client_id)
        return client is not None and client.state != "missing"

    # -- what people say

    def request_stop(self, reason: str, *, early: bool = False) -> None:
        """Go to the drain; the first reason counts. `early`: it is no planned end, unless the load has ended already."""
        if not self.stop.is_set():
            if not self._over:
                self.stop_reason = reason
                self.early_by = reason if early else None
            self.marks.add("stop", f"stopped by {reason}")
            self.stop.set()

    def abort(self) -> None:
        """Give up what is in flight, now."""
        self.request_stop("abort")
        if not self._aborting:
            self._aborting = True
            self.marks.add("abort", "turns in flight given up")
        self.tell(messages.ABORT, {"run_id": self.run_id})

    def change_users(self, users: int, by: ChangedBy = "hand") -> None:
        """Change the number of users during the run."""
        self.steering.change_users(self, users, by)

    # -- the run

    def prepare(self) -> None:
        """Compare clocks, hand out assignments, begin to scrape; UsageError where a worker cannot take its part."""
        load_steps.check(self)
        worker_setup.compare_clocks(self)
        worker_setup.check_alike(self.roster.members, self.spec.file_digest)
        worker_setup.hand_out(self)
        load_steps.check_times(self)
        if self.preflight.metrics_urls:
            interval_s = self.spec.scenario.server.interval_s
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
        starter = gevent.spawn_later(lead_s, start_users, self.spec.users, self.spec.spawn_per_s)
        watcher = gevent.spawn(worker_watchdog.watch, self, getattr(self._runner, "clients", None))
        stepper = gevent.Greenlet(load_steps.follow, self, start_users)
        try:
            if measure_ns is None:
                measure_ns = adaptive_warmup.end_of(self, start_ns, _LEAD_NS)
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
            starter.kill(block=False)
            stepper.kill(block=False)
            watcher.kill(block=False)
        self._mark_ignored_messages()
        if self.scraping is not None:
            self.scraping.stop()

    @property
    def windows(self) -> tuple[PhaseWindow, ...]:
        """The phases as far as they are known; empty before the load."""
        return self.phases.windows

    @property
    def stepped(self) -> tuple[PhaseWindow, ...]:
        """The phases, the measure phase by the steps of the load."""
        return self.phases.stepped

    def earliest_ns(self) -> int:
        """The first instant of which every worker can be told before it comes."""
        return now_ns() + (_LEAD_NS if self.roster.remote else 0)

    def elapsed_s(self) -> float:
        """Since the load began."""
        return self.phases.elapsed_s()

    def phase(self) -> Phase | None:
        """The phase that holds now; None before the load."""
        return self.phases.now()

    def close(self) -> None:
        """Take down what a run that could not be conducted left behind."""
        self.records.close()
        if self.scraping is not None:
            self.scraping.stop()

    # -- steps

    def _planned_end_ns(self, measure_ns: int | None) -> int | None:
        measure_s = self.spec.scenario.phases.measure_s
        return None if measure_ns is None or measure_s is None else measure_ns + round(measure_s * NS_PER_S)

    def _load_end_ns(self, planned_ns: int | None) -> int:
        """When the load ends, now that it is to: one that is stopped goes on until every worker knows of its end."""
        if self._spent_ns is not None:
            return self._spent_ns
        if planned_ns is None:
            return self.earliest_ns()
        # Workers end the load at the planned end by themselves.
        return min(planned_ns, self.earliest_ns()) if self.stop.is_set() else planned_ns

    def _announce(self, start_ns: int, measure_ns: int | None, end_ns: int | None) -> None:
        """Tell the workers which phases there are, as far as that is known: None where it is not yet."""
        self.phases.set(start_ns, measure_ns, end_ns)
        gevent.killall(self._marking, block=False)
        self._marking = [gevent.spawn(self._mark_phases_from, one.start_ns) for one in self.windows]
        self.tell(messages.WINDOWS, {"run_id": self.run_id, "windows": windows_to_wire(self.stepped)})

    def _mark_ignored_messages(self) -> None:
        ignored = compat.ignored_messages.counts - self._ignored_before
        if ignored:
            text = ", ".join(f"{reason}: {count}" for reason, count in sorted(ignored.items()))
            self.marks.add("messages_ignored", f"messages to the master ignored ({text})", counts=dict(ignored))

    def _mark_phases_from(self, at_ns: int) -> None:
        """Mark the phases that have begun at an instant, once it has come."""
        sleep_until(at_ns)
        self._mark_phases()

    def _mark_phases(self) -> None:
        self.phases.mark(self.marks, self.anchor)

    def _drain(self, begin_ns: int) -> None:
        gevent.sleep(max(0.0, (begin_ns - now_ns()) / NS_PER_S))
        self._mark_phases()
        self._over = True
        self._users = dict(self._runner.target_user_classes_count)
        drain_s = self.spec.scenario.phases.drain_s
        self.tell(messages.DRAIN, {"run_id": self.run_id})
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

    def look_who_is_left(self) -> None:
        """Somebody has gone: perhaps all that are left have drained, or have nothing left to do."""
        self._look_whether_drained()
        self._look_whether_spent()

    def _look_whether_drained(self) -> None:
        if all(member.drained for member in self.roster.awaited):
            self.drained.set()

    def _acknowledge(self, name: str, data: dict[str, Any]) -> None:
        self.tell(messages.TAKEN, data, self.roster.named(name))

    def tell(self, kind: str, data: dict[str, Any], member: Member | None = None) -> None:
        """Send to one worker or to all; those that seem lost too, since a worker that only stood still has to drain."""
        for one in [member] if member is not None else self.roster.members:
            if one.client_id is None or one.client_id in self._runner.clients:
                self._runner.send_message(kind, data, one.client_id)
