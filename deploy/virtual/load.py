"""Load of a run on a virtual clock: users of a closed loop, or arrivals of an open loop, run sessions in greenlets."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor

from greenlet import getcurrent

from inferload.base.clock import NS_PER_S
from inferload.base.errors import UsageError
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.client.turn_record import request_of
from inferload.scenario.scenario import Scenario
from inferload.turns.record import PhaseWindow
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet
from inferload.workload.arrivals import schedule_of
from inferload.workload.content.script import Ask, EffectResult, ScriptEnd, Session, Sink, interpret
from inferload.workload.isolation import isolation
from inferload.workload.quota import Quota
from inferload.workload.sessions import Sessions

from .client import VirtualClient
from .clock import VirtualClock, wait


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Load of a run. `salt`: separates its prompts from those of other runs."""

    scenario: Scenario
    sessions: Sessions
    texts: Texts
    model: str
    salt: str


class Slots:
    """Slots of turns in flight; waiting turns enter first come, first served. `most` None: no limit."""

    def __init__(self, clock: VirtualClock, most: int | None) -> None:
        self._clock = clock
        self._free = most
        self._waiting: deque[Callable[[], object]] = deque()
        self._closed = False

    def try_enter(self) -> bool:
        """Take a slot if one is free and no turn waits for it."""
        if self._free is None:
            return True
        if self._closed or self._waiting or not self._free:
            return False
        self._free -= 1
        return True

    def enter(self) -> bool:
        """Block the calling greenlet until it has a slot; False if the slots were closed meanwhile."""
        if self.try_enter():
            return True
        if not self._closed:
            self._waiting.append(getcurrent().switch)
            wait()
        return not self._closed

    def leave(self) -> None:
        """Release a slot, to the turn that has waited longest if any waits."""
        if self._waiting:
            self._clock.at(self._clock.now_ns(), self._waiting.popleft())
        elif self._free is not None:
            self._free += 1

    def close(self) -> None:
        """Admit no more turns, and resume those that wait."""
        self._closed = True
        while self._waiting:
            self._clock.at(self._clock.now_ns(), self._waiting.popleft())


class Load:
    """Sessions of one run. `spent_ns`: end of the last session of a load that ends by itself; None before."""

    def __init__(self, part: LoadPart, clock: VirtualClock, client: VirtualClient) -> None:
        self.part = part
        self.clock = clock
        self.client = client
        self.windows = RunWindows()
        self.tallies = TallySet()
        self.quota = Quota.of(part.scenario, 0, 1)
        self.slots = Slots(clock, part.scenario.arrivals.most_in_flight)
        self.open = True
        self.spent_ns: int | None = None
        self._running = 0
        self._indexes = part.sessions.indexes
        self._exhausted = False

    def begin(self) -> None:
        """Schedule the users or arrivals. The windows must be set."""
        arrivals = self.part.scenario.arrivals
        if arrivals.rate is not None:
            self._schedule = schedule_of(self.part.scenario, self.part.sessions, arrivals.rate)
            self._await_arrival()
            return
        start_ns = self.windows.load_start_ns or 0
        users, spawn_per_s = arrivals.locust_users
        at_once = max(1, floor(spawn_per_s))  # as Locust starts them
        for user in range(users):
            at_ns = start_ns + round(user // at_once * at_once / spawn_per_s * NS_PER_S)
            self.clock.spawn(self._user, at_ns)

    def close(self) -> None:
        """Begin nothing more; turns in flight go on."""
        self.open = False
        self.slots.close()

    def takes(self, window: PhaseWindow) -> bool:
        """Return True if a session or turn planned in the window may begin."""
        return self.open and window.phase != "drain"

    def _user(self) -> None:
        free_ns = self.clock.now_ns()
        while True:
            self.clock.sleep_until(free_ns)
            window = self.windows.at(free_ns)
            if not self.takes(window) or not self.quota.take_session(window.phase):
                return
            index = next(self._indexes)
            self._planned(index, window)
            self._running += 1
            free_ns = self._run_session(index, free_ns, admitted=False)

    def _await_arrival(self) -> None:
        arrival = self._schedule.peek()
        if arrival is not None:
            self.clock.at((self.windows.load_start_ns or 0) + round(arrival.due_s * NS_PER_S), self._arrive)
        elif self._schedule.exhausted:
            self._exhausted = True
            self._check_spent()

    def _arrive(self) -> None:
        due_ns = self.clock.now_ns()
        window = self.windows.at(due_ns)
        arrival = self._schedule.peek()
        if arrival is None or not self.takes(window) or not self.quota.take_session(window.phase):
            return
        self._schedule.next()
        self._planned(arrival.index, window)
        admitted = self.slots.try_enter()
        if not admitted and self.part.scenario.arrivals.drops:
            self.tallies.session_dropped(
                window.phase, self.part.sessions.class_of(arrival.index), step=window.step, at_limit=True
            )
        else:
            self._running += 1
            self.clock.spawn(partial(self._run_session, arrival.index, due_ns, admitted=admitted))
        self._await_arrival()

    def _planned(self, index: int, window: PhaseWindow) -> None:
        self.tallies.session_planned(window.phase, self.part.sessions.class_of(index), step=window.step)

    def _run_session(self, index: int, planned_ns: int, *, admitted: bool) -> int:
        """Run a session; return the instant from which its user is free."""
        try:
            return self._ended_session(self.part.sessions.begin(index), planned_ns, admitted)
        finally:
            self._running -= 1
            self._check_spent()

    def _ended_session(self, session: Session, planned_ns: int, admitted: bool) -> int:
        window = self.windows.at(planned_ns)
        if not admitted and not self.enter(session, window):
            self.tallies.session_dropped(window.phase, session.class_name, step=window.step, at_limit=True)
            return planned_ns
        self.tallies.session_started(window.phase, session.class_name, step=window.step)
        if self.windows.at(self.clock.now_ns()).phase != window.phase:
            self.tallies.session_postponed(window.phase, session.class_name, step=window.step)
        run = _SessionRun(self, session, planned_ns)
        ended = interpret(session.script, _TurnSink(run, ""), planned_ns)
        if ended.complete:
            self.tallies.session_completed(window.phase, session.class_name, step=window.step)
        return ended.at

    def enter(self, session: Session, window: PhaseWindow) -> bool:
        """Wait for a slot in flight, and count the wait; False if the run takes no more turns."""
        if self.slots.try_enter():
            return True
        since_ns = self.clock.now_ns()
        admitted = self.slots.enter()
        if admitted:
            waited_ns = self.clock.now_ns() - since_ns
            self.tallies.turn_delayed(window.phase, session.class_name, waited_ns, step=window.step)
        return admitted

    def _check_spent(self) -> None:
        over = self.quota.spent or self._exhausted
        if over and not self._running and self.open and self.spent_ns is None:
            self.spent_ns = max(self.clock.now_ns(), self.windows.load_start_ns or 0)


class _SessionRun:
    """A session whose first turn has its slot in flight."""

    def __init__(self, load: Load, session: Session, arrived_ns: int) -> None:
        self._load = load
        self._session = session
        self._arrived_ns = arrived_ns
        self._first = True  # the next turn is the first: it has its slot, and is sent even after the end of the load
        self._counted = True  # the next turn is in the run's quota already
        part = load.part
        self._settings = BodySettings.of(part.scenario, part.model)
        self._isolated = isolation(part.scenario.cache.isolate, part.salt, session.index, takes_salt=True)

    def bodies(self) -> BodyWriter:
        """Return a writer for the request bodies of one script."""
        return BodyWriter(self._load.part.texts, self._settings, self._isolated)

    def turn(self, ask: Ask, path: str, number: int, at_ns: int, bodies: BodyWriter) -> EffectResult[int]:
        """Send one turn at its planned time and wait for its answer."""
        load = self._load
        planned_ns = ask.planned_ns(at_ns, self._arrived_ns)
        load.clock.sleep_until(planned_ns)
        window = load.windows.at(planned_ns)
        counted, self._counted = self._counted, False
        if self._first:
            self._first = False
        elif (
            not load.takes(window)
            or not (counted or load.quota.take_turn(window.phase))
            or not load.enter(self._session, window)
        ):
            return EffectResult(load.clock.now_ns())
        request = request_of(
            self._session,
            ask,
            path,
            number,
            window=window,
            planned_ns=planned_ns,
            body=bodies.body(ask),
            model=self._settings.model,
            headers=(),
        )
        load.tallies.turn_begun(request.phase, request.class_name, request.step)
        cancel_ns = None if ask.cancel_after_s is None else planned_ns + round(ask.cancel_after_s * NS_PER_S)
        result = load.client.send(request, cancel_ns)
        load.slots.leave()
        return EffectResult(result.free_ns, result.reply() if result.record.ok else None)

    def together(self, scripts: Sequence[Callable[[], ScriptEnd[int]]]) -> list[ScriptEnd[int]]:
        """Run scripts at the same time."""
        if self._first:
            self._first = False
            self._load.slots.leave()
        ends: dict[int, ScriptEnd[int]] = {}

        def run(position: int, script: Callable[[], ScriptEnd[int]]) -> None:
            ends[position] = script()

        self._load.clock.together([partial(run, position, script) for position, script in enumerate(scripts)])
        return [ends[position] for position in range(len(scripts))]


class _TurnSink(Sink[int]):
    """Executes the steps of one script; times are nanoseconds of the virtual clock."""

    def __init__(self, run: _SessionRun, path: str) -> None:
        self._run = run
        self._path = path
        self._bodies = run.bodies()

    def ask(self, ask: Ask, number: int, at: int) -> EffectResult[int]:
        return self._run.turn(ask, self._path, number, at, self._bodies)

    def raised(self, error: Exception, number: int, at: int) -> int:
        raise UsageError(f"turn {number} of a session could not be made: {type(error).__name__}: {error}") from error

    def child(self, name: str) -> "_TurnSink":
        return _TurnSink(self._run, f"{self._path}/{name}")

    def together(self, scripts: Sequence[Callable[[], ScriptEnd[int]]]) -> list[ScriptEnd[int]]:
        return self._run.together(scripts)
