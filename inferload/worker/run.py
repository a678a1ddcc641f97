"""One worker's part of one run: its sessions, its turns, its books."""

import gc
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import msgspec
from gevent.threadpool import ThreadPool

from inferload import rundir
from inferload.client.connection import descriptors
from inferload.client.connection.error_log import ErrorLog
from inferload.client.turn import Turn, TurnRequest, TurnResult
from inferload.content.data import Data
from inferload.content.prompts import Vocabulary
from inferload.errors import UsageError
from inferload.locust.adapters.statistics import LocustStats
from inferload.measure.bounded_names import BoundedNames, overflow_text
from inferload.measure.client_health import HealthSet
from inferload.measure.clock import NS_PER_MS, NS_PER_S, Anchor, WallWatch, now_ns
from inferload.measure.record import Failure, PhaseWindow
from inferload.measure.slo import Slo
from inferload.measure.tally import TallySet
from inferload.process.messages import Assignment, Report
from inferload.process.settings import ProcessSettings
from inferload.requests.bodies import Texts
from inferload.scenario import scenario as scenarios
from inferload.scenario.schema.arrivals import Closed
from inferload.scenario.schema.endpoints import Endpoint
from inferload.verdict.failures import FirstErrors
from inferload.worker.limits import InFlightLimiter, Quota, most_users
from inferload.worker.load_loops import ClosedLoop, OpenLoop
from inferload.worker.loop_monitor import LoopMonitor
from inferload.worker.turn_clients import TurnClients
from inferload.worker.turn_counter import TurnCounts
from inferload.worker.turn_sender import TurnSender
from inferload.worker.turn_writer import TurnWriter, WrittenRecords
from inferload.workload.arrivals import share
from inferload.workload.arrivals import stripe as stripe_of
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)

REPORT_S = 1.0
TIDY_S = 600.0
SWITCH_S = 0.001
WORK_THREADS = 64
GATHER_S = 0.1  # turns that end within so long are counted together
MOST_AT_ONCE = 64  # but so many at once take a millisecond


def slo_of(scenario: scenarios.Scenario, class_name: str) -> Slo | None:
    """The limits of a class's turns; None where there are none. In an open loop the caller's wait counts, from the plan."""
    limits = scenario.slo_of(class_name)
    if (limits.ttft_ms, limits.tpot_ms, limits.e2e_ms, limits.itl_ms) == (None, None, None, None):
        return None
    return Slo(limits.ttft_ms, limits.tpot_ms, limits.e2e_ms, limits.itl_ms, from_plan=scenario.open_loop)


class Slos(dict[str, Slo | None]):
    """The limits of each class, also of one that a task names during the run."""

    def __init__(self, scenario: scenarios.Scenario) -> None:
        super().__init__()
        self._scenario = scenario

    def __missing__(self, class_name: str) -> Slo | None:
        self[class_name] = found = slo_of(self._scenario, class_name)
        return found


def check_descriptors(scenario: scenarios.Scenario, stripe: int, stripes: int) -> None:
    """UsageError where this worker's users need more connections than it may open; a warning where its turns may."""
    descriptors.raise_limit()
    arrivals, left = scenario.arrivals, descriptors.left()
    most = most_users(arrivals) if isinstance(arrivals, Closed) else arrivals.max_in_flight
    wanted = 0 if most is None else share(most, stripe, stripes)
    if wanted <= left:
        return
    what = "users" if isinstance(arrivals, Closed) else "turns in flight (arrivals.max_in_flight)"
    text = (
        f"{wanted} {what} in one process need as many connections, and its limit of {descriptors.limit()} open files leaves "
        f"{left}; raise it to {descriptors.limit() - left + wanted} with ulimit -n, or use more workers"
    )
    if isinstance(arrivals, Closed):
        raise UsageError(text)
    logger.warning("%s", text)


class WorkerRun:
    """Begins when the master's assignment comes; `finish` is its end. `open`: sessions and turns may still begin."""

    def __init__(
        self,
        assignment: Assignment,
        own: ProcessSettings,
        environment: Any,
        on_spent: "Callable[[WorkerRun, int], None]" = lambda run, at_ns: None,
    ) -> None:
        self.assignment = assignment
        self.scenario = scenarios.from_text(assignment.scenario_text, assignment.origin)
        data = Data.from_wire(assignment.data, assignment.origin)
        self.sessions = Sessions(self.scenario, data)
        if data.has_files:  # reading a large file takes its time: in a thread, so that the master hears from us
            gevent.get_hub().threadpool.apply(self.sessions.open)
        self.texts = Texts(Vocabulary.from_wire(assignment.vocabulary), self.scenario.seed)
        stripe, stripes = assignment.stripe, assignment.stripes
        arrivals = self.scenario.arrivals
        most = None if isinstance(arrivals, Closed) else arrivals.max_in_flight
        self.quota = Quota.of(self.scenario, stripe, stripes)
        self.limiter = None if most is None else InFlightLimiter(share(most, stripe, stripes))
        check_descriptors(self.scenario, stripe, stripes)
        self.live = 0
        self._on_spent, self._spent = on_spent, False
        self.tallies = TallySet()  # sessions, and turns that begin; ended turns are counted by `_counts`
        self.health = HealthSet()
        self.anchor = Anchor.take()
        self._wall = WallWatch()
        self.open, self.closing = True, False
        self.said_all = self.finished = False  # said_all: the last report has been made
        self.written = WrittenRecords(0)  # known once the run is finished
        # How long after the measure phase's end a turn was planned as measured: word of the end came late.
        self.overrun_ns = 0
        self._latest_ns = 0  # when the last turn was planned
        self.folder, self.sender = _place_of(assignment, own, environment.runner)
        self._windows: tuple[PhaseWindow, ...] = ()
        self._slos = Slos(self.scenario)
        self._seq = 0
        self._paused_until_ns = self._reported_ns = self._tidied_ns = now_ns()
        self._told: set[str] = set()
        self._errors = FirstErrors()
        self._clients = TurnClients(self.scenario, assignment, own, self._on_turn)
        self._ended: dict[int, list[TurnResult]] = {}  # not counted yet, by client
        self._names = BoundedNames()  # of tasks' turns
        self.task_sessions = stripe_of(assignment.stripe, assignment.stripes)
        self._held: dict[str, tuple[int, TurnResult] | None] = {}  # by turn: whose caller has not judged it yet
        self._turns = TurnWriter(
            self.folder / rundir.TURNS, assignment.name, self.anchor, assignment.run_id, self.sender
        )
        self._counts = TurnCounts(self._slos, self._turns.extend)
        self._counted: list[TurnResult] = []  # not booked yet
        self._news = gevent.event.Event()
        self._unbooked = 0
        self._awaits = any(client.reader == "python" for client in self._clients)
        self._starting = 0  # turns that will be sent as soon as it is their greenlet's turn: a drain waits for them
        self._books = LocustStats(environment)
        self._faults = ErrorLog(logger)
        self._booker = gevent.spawn(self._book)
        _prepare_interpreter()
        self._loop_monitor = LoopMonitor()
        self._threads = ThreadPool(WORK_THREADS)  # a thread begins when there is work for it
        self.loop: ClosedLoop | OpenLoop = (
            ClosedLoop(self) if assignment.rate is None else OpenLoop(self, assignment.rate)
        )

    # -- phases

    def set_windows(self, windows: Sequence[PhaseWindow]) -> None:
        """The phases as they are planned now, on this worker's clock.

        Word of an end may come late: `overrun_ns` is how long after it a turn was planned that is taken for measured.
        """
        measured = self.window_of(self._latest_ns).phase == "measure"
        self._windows = tuple(windows)
        if measured and self.window_of(self._latest_ns).phase == "drain":
            self.overrun_ns = max(1, self._latest_ns - (self.load_end_ns() or self._latest_ns))
        if self._windows and isinstance(self.loop, OpenLoop) and self.open:
            self.loop.begin(self._windows[0].start_ns)
        self.look_whether_spent()

    def window_of(self, at_ns: int) -> PhaseWindow:
        """The phase, and step of it, that an instant lies in; before the first, the first."""
        for window in self._windows:
            if window.holds(at_ns):
                return window
        return self._windows[0] if self._windows else PhaseWindow("measure", 0)

    def load_start_ns(self) -> int | None:
        """When the first phase begins; None while nobody knows."""
        return self._windows[0].start_ns if self._windows else None

    def load_end_ns(self) -> int | None:
        """When the measure phase ends; None while nobody knows."""
        return next((window.end_ns for window in reversed(self._windows) if window.phase == "measure"), None)

    def look_whether_spent(self) -> None:
        """Say so, once, when nothing more can begin here and all that has begun is over."""
        over = self.quota.spent or self.loop.exhausted
        if over and not self.live and not self._spent and self.open and self._windows:
            self._spent = True
            self._on_spent(self, max(now_ns(), self._windows[0].start_ns))

    # -- turns

    @property
    def reader(self) -> str:
        """What takes the tokens off the sockets: native or python."""
        return self._clients.reader

    @property
    def in_flight(self) -> int:
        """Turns begun whose records are not booked yet."""
        return sum(client.in_flight for client in self._clients) + self._unbooked + self._starting

    def await_turn(self) -> None:
        """Wait until this greenlet may build its request: a crowd that became ready at once would hold up all reads.

        Where a thread reads there are none to hold up.
        """
        if not self._awaits:
            return
        self._starting += 1
        try:
            self._clients[0].parse_queue.wait()
        finally:
            self._starting -= 1

    def beside_the_loop(self, call: Callable[[], Any]) -> Any:
        """What a call returns, made in a thread; the calling greenlet waits."""
        return self._threads.apply(call)

    def bounded_name(self, name: str) -> str:
        """Return the class under which to count a task's turn: its name, or the common one beyond the bound."""
        bounded = self._names.of(name)
        if bounded != name and self._names.overflows == 1:
            logger.warning("%s", overflow_text("turns"))
        return bounded

    def start_turn(self, request: TurnRequest, session: int, endpoint: Endpoint | None = None) -> Turn:
        """Send a turn; the books know of it from here on. Sessions take the targets in turn, each keeps to its own.

        `endpoint`: another one than the scenario's.
        """
        client = self._clients[self._clients.place(session, endpoint)]
        self._latest_ns = max(self._latest_ns, request.planned_ns)
        self.tallies.turn_begun(request.phase, request.class_name, request.step)
        return client.start(request)

    def hold(self, turn_id: str) -> None:
        """Count a turn only once its caller has judged its answer; before it is started."""
        self._held[turn_id] = None

    def release(self, turn_id: str, rejected: str | None = None) -> None:
        """Count a held turn. `rejected`: why its caller refused the answer, which makes a turn that ended well a failed one."""
        held = self._held.pop(turn_id, None)
        if held is None:
            return
        place, result = held
        if rejected is not None and result.record.ok:
            record = msgspec.structs.replace(result.record, failure=Failure.REJECTED)
            result = msgspec.structs.replace(result, record=record, detail=rejected)
        self._take(place, result)

    def fail_turn(self, request: TurnRequest, session: int, detail: str) -> None:
        """Book a turn that could not even be made as one that failed by a fault of ours; nothing once the books are closed."""
        if self.closing:
            return
        self.tallies.turn_begun(request.phase, request.class_name, request.step)
        place = self._clients.place(session)
        self._on_turn(place, self._clients[place].never_sent(request, detail))

    def _on_turn(self, place: int, result: TurnResult) -> None:
        """Take a result from the event loop; it is counted with others, and what may block is left to the booker."""
        self._unbooked += 1
        if result.record.turn_id in self._held:
            self._held[result.record.turn_id] = place, result
        else:
            self._take(place, result)

    def _take(self, place: int, result: TurnResult) -> None:
        ended = self._ended.setdefault(place, [])
        ended.append(result)
        if len(ended) >= MOST_AT_ONCE:
            self._count()
        self._news.set()

    def _count(self) -> None:
        """Count and keep the turns that have ended since the last call: of many, each costs a part of what it costs alone."""
        ended, self._ended = self._ended, {}
        for place, results in ended.items():
            # A thread that reads on while the event loop stands still has pauses of its own.
            pauses = self._clients[place].pauses()
            counted = self._counts.count(
                results, self._windows, self._loop_monitor.pauses if pauses is None else pauses
            )
            self._note_errors(counted)
            self._counted += counted

    def _note_errors(self, results: Sequence[TurnResult]) -> None:
        """Keep the first error of each class."""
        for result in results:
            record = result.record
            if record.failure is not None and record.finished:
                self._errors.add(str(record.failure), result.detail, record.closed_ns, record.worker)

    def _book(self) -> None:
        while True:
            self._news.wait()
            gevent.sleep(GATHER_S)
            self._news.clear()
            self._count()
            results, self._counted = self._counted, []
            for start in range(0, len(results), MOST_AT_ONCE):
                self._book_some(results[start : start + MOST_AT_ONCE])
                gevent.sleep(0)

    def _book_some(self, results: Sequence[TurnResult]) -> None:
        """Book turns with Locust. An exception does not end the booker: the drain waits until every turn is booked."""
        try:
            for result in results:
                if result.record.failure is not None and result.record.finished:
                    self._tell_first(result)
            self._books.book(results)
        except Exception as error:  # noqa: BLE001  as above
            self._faults.log(f"up to {len(results)} turns are missing in Locust's tables", error)
        self._unbooked -= len(results)

    def _tell_first(self, result: TurnResult) -> None:
        """One line for the first failure of each kind; the rest are in the tables."""
        failure = result.record.failure
        kind = f"{failure} {result.record.status or ''}".strip()
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("turn failed (%s): %s; further ones of this kind are only counted", kind, result.detail)

    # -- reports

    def report(self) -> Report:
        """What happened since the last report."""
        self._take_beat()
        self._count()
        seq, self._seq = self._seq, self._seq + 1
        tallies, health = self._counts.take()
        tallies.absorb(self.tallies.take())
        health.absorb(self.health.take())
        return Report(
            self.assignment.run_id,
            self.assignment.name,
            seq,
            tallies.to_wire(),
            health.to_wire(),
            self.in_flight,
            self.loop.booked_ns(),
            self._errors.take(),
        )

    def _take_beat(self) -> None:
        at_ns = now_ns()
        phase = self.window_of((self._reported_ns + at_ns) // 2).phase
        self._reported_ns = at_ns
        beat = self._loop_monitor.take()._replace(
            read_pauses_ms=self._read_pauses_ms(), clock_stepped_ns=self._wall.stepped_ns()
        )
        self.health.at(self.assignment.name, phase).beat(beat)

    def _read_pauses_ms(self) -> list[float] | None:
        """For how long the reading threads were held up, each time since the last call; None where an event loop reads."""
        known = [pauses for client in self._clients if (pauses := client.pauses()) is not None]
        if len(known) < len([*self._clients]):
            return None
        new = [pause for pauses in known for pause in pauses if pause[1] > self._paused_until_ns]
        self._paused_until_ns = max((until for _, until in new), default=self._paused_until_ns)
        return [(until - begun) / NS_PER_MS for begun, until in new]

    def tidy(self) -> None:
        """Collect what cycles there are, if it is time: a pause that is measured like every other."""
        if now_ns() - self._tidied_ns > TIDY_S * NS_PER_S:
            self._tidied_ns = now_ns()
            gc.collect(1)

    # -- the end

    def drain(self, until_ns: int) -> None:
        """Begin nothing more; what is under way goes on. Until when arrivals are this worker's: a later word may add to it."""
        if self.closing:
            return
        self.open = False
        self.loop.close(until_ns)
        if self.limiter is not None:
            self.limiter.close()

    def give_up(self) -> None:
        """End what is under way as unfinished."""
        for client in self._clients:
            client.give_up_all()
        for turn_id in list(self._held):
            self.release(turn_id)

    def finish(self, send_report: Callable[[Report], None]) -> None:
        """Wait for what is under way, write everything, send the last report. Blocks; once is enough."""
        gevent.sleep(0)  # sessions that `drain` began send their first turn before the first look
        while self.in_flight:
            gevent.sleep(0.02)
        self.closing = True
        self._booker.kill()
        self.written = self._turns.finish()
        self.said_all = True
        send_report(self.report())
        self.finished = True
        self._loop_monitor.close()
        gevent.spawn(
            self._threads.kill
        )  # work that is not over yet keeps its thread for so long, and nobody waits for it
        for client in self._clients:
            client.close()
        gc.enable()
        gc.unfreeze()

    def deliver(self) -> str | None:
        """Wait until the master has every turn, after `finish`; why it has not, or None."""
        return self._turns.deliver()


def _prepare_interpreter() -> None:
    """No collection in the midst of turns, and short slices for its threads."""
    # gevent polls for reads at least this often while greenlets run, and a native thread gives the interpreter back so soon.
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what stands now stays: no collection need look at it again
    gc.disable()  # turns leave no cycles behind; what others do is collected between turns, by `tidy`


def _place_of(assignment: Assignment, own: ProcessSettings, runner: Any) -> tuple[Path, TurnSender | None]:
    """Return the master's run directory if its token shows that it is shared; else one of this worker's own, and a sender."""
    if rundir.shared(assignment.run_dir, assignment.token):
        return Path(assignment.run_dir), None
    return own_folder(assignment, own), TurnSender(assignment.run_id, assignment.name, runner.send_message)


def own_folder(assignment: Assignment, own: ProcessSettings) -> Path:
    """Make the run directory of a worker that does not share the master's."""
    name = Path(assignment.run_dir).name
    if not name or name in (".", ".."):
        raise UsageError(f"run directory {assignment.run_dir!r}: not a name that a worker can use")
    path = rundir.next_free(
        (own.run_dir or Path("runs") / name).absolute()
    )  # an earlier run of this process may lie there
    path.mkdir(parents=True, exist_ok=True)
    return path
