"""Load of one run on the master, from its announcement to the end of the drain, with its adaptive warm-up."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import gevent
from gevent.event import Event
from msgspec import Struct

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.threads import in_thread
from inferload.results.statistics.steady_state import Steadiness
from inferload.results.tables.cells import step_level
from inferload.run.master.lifecycle.marks import Marks
from inferload.run.master.lifecycle.phases import GivenUp, LoadStage, RunState
from inferload.run.master.lifecycle.steering import Steering
from inferload.run.master.workers import worker_watchdog
from inferload.run.master.workers.inbox import Inbox
from inferload.run.master.workers.workers import LEAD_NS, WorkerChannel
from inferload.run.process import protocol
from inferload.run.process.greenlets import sleep_until
from inferload.run.process.protocol import windows_to_wire
from inferload.run.process.run_spec import RunSpec
from inferload.scenario.scenario import Phases, Scenario
from inferload.scenario.schema.load.arrivals import Arrivals
from inferload.turns.tally import TallySet
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)

_POLL_S = 0.1


class AdaptiveWarmup(Struct, frozen=True):
    """Condition that ends the warm-up of a run. `tallies` and `steadiness` are updated by the workers' reports.

    `turns`: end it after so many turns; None: when TTFT is steady.
    """

    phases: Phases
    tallies: TallySet
    steadiness: Steadiness
    marks: Marks
    stop: Event
    turns: int | None

    def wait(self, start_ns: int, lead_ns: int) -> int:
        """Wait for the end of the warm-up, at most `warmup_s`. Return the start of the measure phase, at least `lead_ns` later."""
        latest_ns = start_ns + round(self.phases.warmup_s * NS_PER_S)
        while (left_ns := latest_ns - lead_ns - now_ns()) > 0 and not self.stop.is_set():
            reason = self._reached(start_ns)
            if reason is not None:
                logger.info("the warm-up is over: %s", reason)
                self.marks.add("warmup_over", reason)
                return now_ns() + lead_ns
            self.stop.wait(min(_POLL_S, left_ns / NS_PER_S))
        if not self.stop.is_set():
            state = "TTFT was not steady" if self.turns is None else f"fewer than {self.turns} turns were over"
            text = f"the warm-up ended with its {self.phases.warmup_s:g} s: {state}"
            logger.warning("%s", text)
            self.marks.add("warmup_over", text)
        return latest_ns

    def _reached(self, start_ns: int) -> str | None:
        """Return a text if the condition holds."""
        if self.turns is not None:
            over = sum(tally.ended for _, tally in self.tallies.items())
            return f"{over} turns were over" if over >= self.turns else None
        if not self.steadiness.now:
            return None
        return f"TTFT is steady, {(now_ns() - start_ns) / NS_PER_S:.0f} s after the load began"


_LOCAL_LEAD_NS = 50_000_000  # as LEAD_NS, without workers in other processes
_ABORT_S = 10.0  # time for workers to end their turns after an abort
_SHORT_DRAIN_S = 1.0  # after an invalid call
_LATE_TURNS_S = 0.2  # after the end of the load, until the last turns have begun


StartUsers = Callable[[int, float], None]  # starts Locust's users at a rate per second; it may block while they ramp


@dataclass(eq=False)
class RunLoad:
    """Load of one run. `user_counts`: returns the number of Locust's running users by class.

    Within its context, lost workers are detected, and phases are marked when they begin.
    """

    _spec: RunSpec
    _state: RunState
    _inbox: Inbox
    _channel: WorkerChannel
    _steering: Steering
    user_counts: Callable[[], Mapping[str, int]]
    sessions: Sessions | None = None  # of a warm-up until `primed`
    _marking: list[gevent.Greenlet] = field(default_factory=list)
    _background: list[gevent.Greenlet] = field(default_factory=list)
    _starter: gevent.Greenlet | None = None  # starts the first users, or those of a step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:  # an error between two phases: nothing else ends the load
            self._channel.announce(protocol.DRAIN)
            self.abort()
        gevent.killall(self._marking, block=False)
        self.end_start()
        gevent.killall(self._background, block=False)

    # -- the phases, in order

    def begin(self, start_users: StartUsers) -> int:
        """Announce the load, and start the first users at its start, which is returned."""
        start_ns = now_ns() + (LEAD_NS if self._state.roster.remote else _LOCAL_LEAD_NS)
        measure_ns = None if self._spec.scenario.phases.adaptive else self._latest_measure_ns(start_ns)
        self._announce(start_ns, measure_ns, self._planned_end_ns(measure_ns))
        lead_s = max(0.0, (start_ns - now_ns()) / NS_PER_S)
        self._starter = gevent.spawn_later(lead_s, start_users, self._spec.users, self._spec.spawn_per_s)
        roster, clients, marks = self._state.roster, self._channel.clients, self._state.marks
        self._background = [gevent.spawn(worker_watchdog.watch, roster, clients, marks, self._inbox.on_lost)]
        return start_ns

    def warm_up(self, start_ns: int) -> int:
        """Return the start of the measure phase; an adaptive warm-up is awaited first, and its end announced."""
        phases, marks, stop = self._spec.scenario.phases, self._state.marks, self._state.end.stop
        if not phases.adaptive:
            return self._latest_measure_ns(start_ns)
        primed = phases.warmup_until == "primed"
        turns = in_thread(self.sessions.primers).turns if primed and self.sessions else phases.warmup_turns
        warmup = AdaptiveWarmup(phases, self._inbox.totals.tallies, self._inbox.steadiness, marks, stop, turns)
        measure_ns = warmup.wait(start_ns, LEAD_NS)
        if not stop.is_set():
            self._announce(start_ns, measure_ns, self._planned_end_ns(measure_ns))
        return measure_ns

    def measure(self, start_ns: int, measure_ns: int, start_users: StartUsers) -> int:
        """Apply the planned changes of the load; after its time or a stop, announce and return the end of the load."""
        stepper = gevent.spawn(self._follow_steps, measure_ns, start_users)
        self._background.append(stepper)
        planned_ns = self._planned_end_ns(measure_ns)
        self._state.end.stop.wait(None if planned_ns is None else max(0.0, (planned_ns - now_ns()) / NS_PER_S))
        stepper.kill()
        self.end_start()
        end_ns = self._end_ns(planned_ns)
        self._announce(start_ns, min(measure_ns, end_ns), end_ns)
        return end_ns

    def drain(self, end_ns: int) -> None:
        """End the load, and wait until the turns of all workers are over."""
        end, roster, marks = self._state.end, self._state.roster, self._state.marks
        sleep_until(end_ns)
        self._state.phases.mark(marks)
        end.enter(LoadStage.DRAINING)
        self._steering.end_load()
        end.users = dict(self.user_counts())
        drain_s = self._spec.scenario.phases.drain_s
        if end.invalid_call:
            drain_s = min(drain_s, _SHORT_DRAIN_S)
        self._channel.announce(protocol.DRAIN)
        if end.given_up is GivenUp.TURNS and not end.drained.wait(_LATE_TURNS_S):
            self._channel.announce(protocol.ABORT)  # for turns that began between the first announcement and the end
        if not end.drained.wait(drain_s):
            in_flight = sum(member.in_flight for member in roster.awaited)
            text = f"{in_flight} turns were still in flight {drain_s:g} s after the last was sent"
            marks.add("unfinished_drain", text)
            self.abort()
            end.drained.wait(_ABORT_S)

    # -- from other greenlets

    def end_start(self) -> None:
        """End a planned ramp of users that is in progress: an older start would overwrite the users of a newer one."""
        if self._starter is not None and self._starter is not gevent.getcurrent():  # a listener can begin another start
            self._starter.kill(block=False)

    def abort(self) -> None:
        """End turns in flight now."""
        self._state.end.request_abort()
        self._channel.announce(protocol.ABORT)

    def _follow_steps(self, measure_ns: int, start_users: StartUsers) -> None:
        """Apply the planned changes of the load, whose times count from the measure phase."""

        def set_users(users: int) -> None:
            self.end_start()
            self._steering.planned_users(users)
            self._starter = gevent.spawn(start_users, users, self._spec.spawn_per_s)

        follow_steps(self._spec.scenario, measure_ns, self._state.marks, set_users)

    def _latest_measure_ns(self, start_ns: int) -> int:
        return start_ns + round(self._spec.scenario.phases.warmup_s * NS_PER_S)

    def _planned_end_ns(self, measure_ns: int | None) -> int | None:
        measure_s = self._spec.scenario.phases.measure_s
        return None if measure_ns is None or measure_s is None else measure_ns + round(measure_s * NS_PER_S)

    def _end_ns(self, planned_ns: int | None) -> int:
        """Return the end of the load; after a stop, the earliest instant that every worker can know in time."""
        end = self._state.end
        if end.spent_ns is not None:
            return end.spent_ns
        if planned_ns is None:
            return self._channel.earliest_ns()
        # Workers end the load at the planned end by themselves.
        return min(planned_ns, self._channel.earliest_ns()) if end.stop.is_set() else planned_ns

    def _announce(self, start_ns: int, measure_ns: int | None, end_ns: int | None) -> None:
        """Announce the phases to the workers; None: not known yet."""
        phases = self._state.phases
        phases.set(start_ns, measure_ns, end_ns)
        gevent.killall(self._marking, block=False)
        self._marking = [gevent.spawn(self._mark_phases_from, window.start_ns) for window in phases.windows]
        self._channel.announce(protocol.WINDOWS, windows=windows_to_wire(phases.stepped))

    def _mark_phases_from(self, at_ns: int) -> None:
        sleep_until(at_ns)
        self._state.phases.mark(self._state.marks)


def follow_steps(scenario: Scenario, measure_ns: int, marks: Marks, set_users: Callable[[int], None]) -> None:
    """Apply each change of the profile at its time, which counts from the measure phase. Return at the profile's end."""
    for at_s, users, text in _events(scenario.arrivals):
        at_ns = measure_ns + round(at_s * NS_PER_S)
        sleep_until(at_ns)
        if text:
            marks.add("step", text, at_ns)
            logger.info("%s", text)
        if users is not None and at_s > 0:
            set_users(users)


def _events(arrivals: Arrivals) -> Iterator[tuple[float, int | None, str]]:
    """Yield (seconds, users in a closed loop, text of the mark) of each change."""
    texts = [f"step {number} begins: {step_level(**level)}" for number, level in enumerate(arrivals.step_levels)]
    for number, (at_s, users) in enumerate(arrivals.user_changes):
        yield at_s, users, texts[number] if texts else ""
    if not arrivals.user_changes:
        for at_s, text in zip(arrivals.step_bounds_s, texts, strict=True):
            yield at_s, None, text
