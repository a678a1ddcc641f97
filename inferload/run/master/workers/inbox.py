"""Messages from the workers to the current run, and the totals of their reports."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import gevent
from msgspec import Struct, field

from inferload.base.clock import NS_PER_MS, NS_PER_S, clock_id, now_ns, wall_ns
from inferload.base.numbers import short
from inferload.locust_adapters import messages
from inferload.results.abort_conditions import AbortWatch
from inferload.results.statistics.steady_state import Steadiness
from inferload.results.verdict.failures import add_message
from inferload.results.verdict.first_errors import FirstErrors
from inferload.results.verdict.outcome import INVALID_CALL, WORKERS_ENDED
from inferload.results.verdict.phase_evidence import MeasureSoFar
from inferload.run.live.recorder import Recorder
from inferload.run.master.lifecycle.phases import RunState
from inferload.run.master.workers.turn_receiver import TurnReceiver
from inferload.run.master.workers.workers import GAP_S, Member
from inferload.run.process import protocol
from inferload.run.process.greenlets import sleep_until
from inferload.run.process.protocol import WorkerReport
from inferload.scenario.scenario import Scenario
from inferload.turns.bounded_names import BoundedNames
from inferload.turns.client_health import HealthSet
from inferload.turns.tally import TallySet
from inferload.workload.content.data import Notes

if TYPE_CHECKING:
    from inferload.run.master.lifecycle.canaries import Canaries

logger = logging.getLogger(__name__)

_GATHER_S = 0.1  # reports of several workers within this time are added together
_SAME_SIGNAL_NS = NS_PER_S  # a signal to the process group can reach a worker earlier or later than the master


class ReportTotals(Struct):
    """Sums of the workers' reports so far."""

    tallies: TallySet = field(default_factory=TallySet)
    health: HealthSet = field(default_factory=HealthSet)
    errors: FirstErrors = field(default_factory=FirstErrors)


class _Gathered(Struct, frozen=True):
    """Reports of one second that are not in the totals yet. `at_s`: seconds from the begin of the load to the first of them."""

    at_s: float
    tallies: TallySet
    health: HealthSet


class Inbox:
    """Receiver of the workers' messages of one run. `classes`: of the scenario's sessions.

    Reports of many workers are gathered for a moment: all that follows them is computed from their sum. `settle` adds them.
    """

    def __init__(
        self,
        state: RunState,
        scenario: Scenario,
        classes: Collection[str],
        records: TurnReceiver,
        canaries: "Canaries | None" = None,
    ) -> None:
        self.state = state
        self._canaries = canaries
        self._totals = ReportTotals()
        self._gathered: _Gathered | None = None
        self.recorder = Recorder()
        self.steadiness = Steadiness()
        self.measured = MeasureSoFar()
        self.notes = Notes()  # counted problems of the workers' sessions
        self.listeners_raised: Counter[str] = Counter()  # by message
        self._records = records
        self._names = BoundedNames(classes, "turns")  # tasks may use many
        self._abort_watch = AbortWatch(scenario.abort_on)
        self._clock = clock_id()

    def on_pong(self, member: Member, data: dict[str, Any]) -> None:
        """Handle the reply to a ping."""
        member.heard()
        same_clock = self._clock is not None and data.get("clock") == self._clock
        member.clock.update(data["sent_ns"], data["mono_ns"], data["wall_ns"], wall_ns(), same_clock=same_clock)
        member.facts |= {name: data.get(name) for name in ("version", "host", "scenario")}

    def on_ready(self, member: Member, data: dict[str, Any]) -> None:
        """Handle a worker's reply to its assignment."""
        member.heard()
        member.take_ready(data)

    def on_report(self, member: Member, data: dict[str, Any]) -> None:
        """Add a worker's report to the totals."""
        report = WorkerReport(**data)
        silent_s = member.silent_s()
        if silent_s > GAP_S and self.state.phases.windows:
            self.state.marks.add(
                "worker_silent", f"worker {member.name} was silent for {silent_s:.1f} s", worker=member.name
            )
        member.heard()
        member.began = member.began or self.state.phases.now() is not None
        if member.reported(report.seq, report.in_flight, report.booked_ns, report.writes):
            tallies, health = TallySet.from_wire(report.tallies), HealthSet.from_wire(report.health)
            if self._canaries is not None:
                self._canaries.add(report.canaries, tallies)
            tallies = tallies.renamed(self._names.of)
            member.turns += sum(tally.ended for _, tally in tallies.items())
            self._totals.errors.absorb(report.first_errors, member.clock.offset_ns)
            self._check_clock(member, health)
            self._gather(tallies, health)
        self.check_drained()

    @property
    def totals(self) -> ReportTotals:
        """Sums of the workers' reports so far."""
        self.settle()
        return self._totals

    def settle(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            tallies, health, at_s = gathered.tallies, gathered.health, gathered.at_s
            self._totals.tallies.absorb(tallies)
            self.recorder.add(at_s, tallies, health)
            self.measured.add(tallies, health)
            self._check_abort_conditions(at_s, tallies)
            self._check_steadiness(at_s, tallies)
            self._totals.health.absorb(health)

    def _gather(self, tallies: TallySet, health: HealthSet) -> None:
        at_s, gathered = self.state.phases.elapsed_s(), self._gathered
        if gathered is not None and int(gathered.at_s) == int(at_s):
            gathered.tallies.absorb(tallies)
            gathered.health.take_over(health)
            return
        self.settle()
        self._gathered = _Gathered(at_s, tallies, health)
        if len(self.state.roster) == 1:
            self.settle()
        else:
            gevent.spawn_later(_GATHER_S, self.settle)

    def _check_abort_conditions(self, at_s: float, delta: TallySet) -> None:
        reached = self._abort_watch.add(at_s, delta)
        if reached is None or self.state.end.stop.is_set() or self.state.end.over:
            return
        self.state.end.aborted = reached
        text = f"abort_on: {reached.condition} (value {short(reached.value)})"
        self.state.marks.add("abort_on", text, condition=reached.condition, value=reached.value)
        logger.error("%s: the run is stopped", text)
        self.state.end.request_stop(text, early=True)

    def _check_overrun(self, member: Member, overrun_ms: float) -> None:
        if overrun_ms:
            late = f"worker {member.name} received the end of the measure phase late"
            text = f"{late}: turns up to {overrun_ms:.0f} ms after it count as measured"
            self.state.marks.add("overrun", text, worker=member.name, overrun_ms=round(overrun_ms, 3))
            logger.warning("%s", text)

    def _check_clock(self, member: Member, delta: HealthSet) -> None:
        by_s = sum(part.clock_stepped_ns for _, part in delta.items()) / NS_PER_S
        if any(part.clock_steps for _, part in delta.items()):
            text = f"the wall clock of worker {member.name} stepped by {by_s:+.3f} s"
            self.state.marks.add("clock_step", text, worker=member.name, by_s=by_s)
            logger.warning("%s", text)

    def on_drained(self, member: Member, data: dict[str, Any]) -> None:
        """Handle the end of a worker's drain."""
        member.drained, member.advanced_ns = True, now_ns()
        member.facts |= {"folder": data.get("folder") or member.facts.get("folder")}
        member.records.written, member.records.write_error = data.get("written"), data.get("write_error")
        self.notes.update(data.get("notes", {}))
        self.count_listeners(data.get("listeners_raised", {}))
        self._totals.errors.absorb(data.get("first_errors", []), member.clock.offset_ns)
        self._check_overrun(member, data.get("overrun_ns", 0) / NS_PER_MS)
        self._check_left(member, data["closed_ns"])
        gevent.spawn(self._check_left_later, member, data["closed_ns"])
        self.check_drained()

    def on_turns(self, member: Member, data: dict[str, Any]) -> None:
        """Handle a piece of the records of a worker on another file system."""
        self._records.on_piece(member.name, data)

    def on_delivered(self, member: Member, data: dict[str, Any]) -> None:
        """Handle the end of a worker's delivery."""
        member.delivered, member.records.held_back = True, data.get("error")

    def on_spent(self, member: Member, data: dict[str, Any]) -> None:
        """Handle the end of a worker's part of a load that ends by count or with a trace."""
        if member.spent_ns is None:
            member.spent_ns = data["at_ns"]
            self.check_spent()

    def on_invalid_call(self, _member: Member, data: dict[str, Any]) -> None:
        """Stop the run at an invalid call of a task: a fault of the program, not of the server."""
        end = self.state.end
        if not end.stop.is_set() and not end.over:
            end.invalid_call = True
            logger.error("%s: %s: the run is stopped", data["at"], data["text"])
            end.request_stop(f"{INVALID_CALL}{data['at']}", early=True)

    def check_spent(self) -> None:
        """End the load once it is over on all workers, as of the end of the last session."""
        spent_ns = [member.spent_ns for member in self.state.roster.present]
        known_ns = [at_ns for at_ns in spent_ns if at_ns is not None]
        if spent_ns and len(known_ns) == len(spent_ns) and not self.state.end.stop.is_set():
            self.state.end.spent_ns = max(known_ns)
            self.state.end.stop.set()

    def _check_steadiness(self, at_s: float, delta: TallySet) -> None:
        """Mark the first time at which TTFT is steady."""
        if self.state.end.over or not self.state.phases.windows:
            return
        known = self.steadiness.since_s is not None
        self.steadiness.add(at_s, delta, self.state.roster.in_flight)
        if self.steadiness.since_s is not None and not known:
            self.state.marks.add("steady", f"steady: TTFT is steady from {self.steadiness.since_s:g} s of load on")

    def _check_left_later(self, member: Member, closed_ns: int) -> None:
        sleep_until(closed_ns + _SAME_SIGNAL_NS + 1)
        self._check_left(member, closed_ns)

    def _check_left(self, member: Member, closed_ns: int) -> None:
        """Mark a worker that closed its part of the load before the load's end: it was stopped separately."""
        goes_on = not (self.state.end.stop.is_set() or self.state.end.over)
        end_ns = min(now_ns(), self.state.phases.load_end_ns or now_ns())
        if member.left or end_ns - closed_ns <= _SAME_SIGNAL_NS:
            return
        member.left = True
        text = f"worker {member.name} was stopped on its own: its turns are recorded, its part of the load is missing"
        self.state.marks.add("worker_left", text, closed_ns, worker=member.name)
        logger.error("%s for the last %.0f s", text, (end_ns - closed_ns) / NS_PER_S)
        if goes_on and all(present.drained for present in self.state.roster.present):
            self.state.end.request_stop(WORKERS_ENDED, early=True)

    def count_listeners(self, messages: Mapping[str, int]) -> None:
        for text, count in messages.items():
            add_message(self.listeners_raised, text, count)

    def check_drained(self) -> None:
        """End the drain once the turns of all workers are over."""
        if all(member.turns_over for member in self.state.roster.awaited):
            self.state.end.drained.set()

    def on_lost(self) -> None:
        """Check, after the loss of a worker, if all others have drained or have no load left, and if there are others."""
        self.check_drained()
        self.check_spent()
        if not self.state.roster.present:
            self.state.end.request_stop("the loss of every worker", early=True)


def register_handlers(runner: Any, current: Callable[[], Inbox | None]) -> None:
    """Register handlers that pass messages to the current run; without one, messages are dropped."""

    def register(kind: str, handle: Callable[[Inbox, Any], None]) -> None:
        def listen(environment: Any, msg: Any) -> None:
            inbox = current()
            if inbox is not None:
                handle(inbox, msg)

        runner.register_message(kind, listen)

    register(protocol.PONG, _pong)
    register(protocol.READY, _of_member(Inbox.on_ready))
    register(protocol.REPORT, _of_member(Inbox.on_report))
    register(protocol.DRAINED, _of_member(Inbox.on_drained))
    register(protocol.SPENT, _of_member(Inbox.on_spent))
    register(protocol.TURNS, _of_member(Inbox.on_turns))
    register(protocol.DELIVERED, _of_member(Inbox.on_delivered))
    register(protocol.INVALID_CALL, _of_member(Inbox.on_invalid_call))


def _pong(inbox: Inbox, msg: Any) -> None:
    member = inbox.state.roster.of_client(msg.node_id)
    if member is not None:
        inbox.on_pong(member, msg.data)


def _of_member(handle: Callable[[Inbox, Member, dict[str, Any]], None]) -> Callable[[Inbox, Any], None]:
    """Return a handler that passes on messages of the current run, only if the worker that they name has sent them."""

    def checked(inbox: Inbox, msg: Any) -> None:
        sender = inbox.state.roster.of_client(msg.node_id)
        named = msg.data.get("name") if isinstance(msg.data, dict) else None
        if sender is None or sender.name != named:
            messages.ignored_messages.add("message in the name of another worker", f"{named} from {msg.node_id}")
        elif msg.data.get("run_id") == inbox.state.run_id:
            handle(inbox, sender, msg.data)

    return checked
