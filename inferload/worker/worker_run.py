"""A worker's part of one run: sessions, turns, counts and reports."""

import gc
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import gevent.event
import msgspec
from gevent.threadpool import ThreadPool

from inferload import rundir
from inferload.client.connection import descriptors
from inferload.client.connection.error_log import ErrorLog
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.content.data import DataContext
from inferload.content.prompts import Vocabulary
from inferload.errors import UsageError
from inferload.locust.adapters.statistics import LocustStats
from inferload.measure.bounded_names import BoundedNames, overflow_text
from inferload.measure.client_health import HealthSet
from inferload.measure.clock import NS_PER_MS, NS_PER_S, Anchor, WallWatch, now_ns
from inferload.measure.record import Failure, PhaseWindow
from inferload.measure.slo import Slo
from inferload.measure.tally import TallySet
from inferload.process.protocol import Assignment, WorkerReport
from inferload.process.settings import ProcessSettings
from inferload.process.trace_export import TraceExport
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

if TYPE_CHECKING:
    from inferload.worker.turn_tracer import TurnTracer

logger = logging.getLogger(__name__)

REPORT_S = 1.0
COLLECT_S = 600.0
SWITCH_S = 0.001
WORK_THREADS = 64
GATHER_S = 0.1  # turns that end within this time are counted together
MAX_BATCH = 64  # turns; a batch of this size takes a millisecond


def slo_of(scenario: scenarios.Scenario, class_name: str) -> Slo | None:
    """Return the SLO limits of a class; None if it has none. In an open loop, times count from the planned instant."""
    limits = scenario.slo_of(class_name)
    if (limits.ttft_ms, limits.tpot_ms, limits.e2e_ms, limits.itl_ms) == (None, None, None, None):
        return None
    return Slo(limits.ttft_ms, limits.tpot_ms, limits.e2e_ms, limits.itl_ms, from_plan=scenario.open_loop)


class Slos(dict[str, Slo | None]):
    """SLO limits by class; those of a class that a task names during the run are added at its first turn."""

    def __init__(self, scenario: scenarios.Scenario) -> None:
        super().__init__()
        self._scenario = scenario

    def __missing__(self, class_name: str) -> Slo | None:
        self[class_name] = slo = slo_of(self._scenario, class_name)
        return slo


def check_descriptors(scenario: scenarios.Scenario, stripe: int, stripes: int) -> None:
    """Raise UsageError if a closed loop needs more file descriptors than this process has left; log a warning for an open loop."""
    descriptors.raise_limit()
    arrivals, left = scenario.arrivals, descriptors.left()
    most = most_users(arrivals) if isinstance(arrivals, Closed) else arrivals.max_in_flight
    needed = 0 if most is None else share(most, stripe, stripes)
    if needed <= left:
        return
    unit = "users" if isinstance(arrivals, Closed) else "turns in flight (arrivals.max_in_flight)"
    text = (
        f"{needed} {unit} in one process need as many connections, and its limit of {descriptors.limit()} open files leaves "
        f"{left}; raise it to {descriptors.limit() - left + needed} with ulimit -n, or use more workers"
    )
    if isinstance(arrivals, Closed):
        raise UsageError(text)
    logger.warning("%s", text)


class WorkerRun:
    """A worker's part of one run, from the master's assignment to `finish`. `open`: sessions and turns may still begin."""

    def __init__(
        self,
        assignment: Assignment,
        own: ProcessSettings,
        environment: Any,
        on_spent: "Callable[[WorkerRun, int], None]" = lambda run, at_ns: None,
    ) -> None:
        self.assignment = assignment
        self.scenario = scenarios.from_text(assignment.scenario_text, assignment.origin)
        data = DataContext.from_wire(assignment.data, assignment.origin)
        self.sessions = Sessions(self.scenario, data)
        if data.has_files:  # in a thread: heartbeats must go on while a large file is read
            gevent.get_hub().threadpool.apply(self.sessions.open)
        self.texts = Texts(Vocabulary.from_wire(assignment.vocabulary), self.scenario.seed)
        stripe, stripes = assignment.stripe, assignment.stripes
        arrivals = self.scenario.arrivals
        most = None if isinstance(arrivals, Closed) else arrivals.max_in_flight
        self.quota = Quota.of(self.scenario, stripe, stripes)
        self.limiter = None if most is None else InFlightLimiter(share(most, stripe, stripes))
        check_descriptors(self.scenario, stripe, stripes)
        self.sessions_running = 0
        self._on_spent, self._spent = on_spent, False
        self.tallies = TallySet()  # sessions, and turns that begin; ended turns are counted by `_counts`
        self.health = HealthSet()
        self.anchor = Anchor.take()
        self._wall = WallWatch()
        self.open, self.closing = True, False
        self.reports_ended = self.finished = False  # reports_ended: the last report has been made
        self.written = WrittenRecords(0)  # known once the run is finished
        # Time after the measure phase's end until which turns were planned as measured: the message of the end came late.
        self.overrun_ns = 0
        self._latest_ns = 0  # when the last turn was planned
        self.folder, self.sender = _folder_and_sender(assignment, own, environment.runner)
        self._windows: tuple[PhaseWindow, ...] = ()
        self._slos = Slos(self.scenario)
        self._paused_until_ns = self._reported_ns = self._collected_ns = now_ns()
        self._logged: set[str] = set()  # kinds of failure
        self._errors = FirstErrors()
        self._clients = TurnClients(self.scenario, assignment, own, self._on_turn)
        self._ended: dict[int, list[TurnResult]] = {}  # not counted yet, by number of the client
        self._names = BoundedNames()  # of tasks' turns
        self.task_sessions = stripe_of(assignment.stripe, assignment.stripes)
        self._unjudged: dict[str, tuple[int, TurnResult] | None] = {}  # by turn id; callers have not judged these
        self._turns = TurnWriter(
            self.folder / rundir.TURNS, assignment.name, self.anchor, assignment.run_id, self.sender
        )
        self._counts = TurnCounts(self._slos, self._turns.extend)
        self._tracer = None if own.export_traces is None else _tracer(own.export_traces, assignment, self.anchor)
        self._counted: list[TurnResult] = []  # not in Locust's tables yet
        self._news = gevent.event.Event()
        self._pending = self._seq = 0
        self._paces_starts = any(client.reader == "python" for client in self._clients)
        self._starting = 0  # turns whose greenlets wait for `await_turn`: a drain waits for them
        self._locust_stats = LocustStats(environment)
        self._faults = ErrorLog(logger)
        self._adding = gevent.spawn(self._add_to_locust)
        _prepare_interpreter()
        self._loop_monitor = LoopMonitor()
        self._threads = ThreadPool(WORK_THREADS)  # threads start on demand
        self.loop: ClosedLoop | OpenLoop = (
            ClosedLoop(self) if assignment.rate is None else OpenLoop(self, assignment.rate)
        )

    # -- phases

    def set_windows(self, windows: Sequence[PhaseWindow]) -> None:
        """Set the phases, on this worker's clock.

        The message of an end may come late: `overrun_ns` is the time after the end until which turns were planned as measured.
        """
        measured = self.window_of(self._latest_ns).phase == "measure"
        self._windows = tuple(windows)
        if measured and self.window_of(self._latest_ns).phase == "drain":
            self.overrun_ns = max(1, self._latest_ns - (self.load_end_ns() or self._latest_ns))
        if self._windows and isinstance(self.loop, OpenLoop) and self.open:
            self.loop.begin(self._windows[0].start_ns)
        self.check_spent()

    def window_of(self, at_ns: int) -> PhaseWindow:
        """Return the phase, or the step of it, that contains an instant; before the first phase, the first."""
        for window in self._windows:
            if window.holds(at_ns):
                return window
        return self._windows[0] if self._windows else PhaseWindow("measure", 0)

    def load_start_ns(self) -> int | None:
        """Start of the first phase; None if not known yet."""
        return self._windows[0].start_ns if self._windows else None

    def load_end_ns(self) -> int | None:
        """End of the measure phase; None if not known yet."""
        return next((window.end_ns for window in reversed(self._windows) if window.phase == "measure"), None)

    def check_spent(self) -> None:
        """Call `on_spent`, once, when nothing more can begin on this worker and all sessions are over."""
        over = self.quota.spent or self.loop.exhausted
        if over and not self.sessions_running and not self._spent and self.open and self._windows:
            self._spent = True
            self._on_spent(self, max(now_ns(), self._windows[0].start_ns))

    # -- turns

    @property
    def reader(self) -> str:
        """Reader of the sockets: native or python."""
        return self._clients.reader

    @property
    def in_flight(self) -> int:
        """Turns begun and not ended; one that its caller has not judged yet is in flight."""
        return sum(client.in_flight for client in self._clients) + sum(map(bool, self._unjudged.values()))

    @property
    def _busy(self) -> bool:
        """True while a turn is in flight, waits to begin, or is not in Locust's tables yet."""
        return bool(self._starting or self._pending or any(client.in_flight for client in self._clients))

    def await_turn(self) -> None:
        """Wait until this greenlet may build its request: many that became ready at once would delay all reads.

        With the native reader, which reads in a thread, there is no wait.
        """
        if not self._paces_starts:
            return
        self._starting += 1
        try:
            self._clients[0].parse_queue.wait()
        finally:
            self._starting -= 1

    def in_thread(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call in a thread; the calling greenlet waits."""
        return self._threads.apply(call)

    def bounded_name(self, name: str) -> str:
        """Return the class under which to count a task's turn: its name, or the common one beyond the bound."""
        bounded = self._names.of(name)
        if bounded != name and self._names.overflows == 1:
            logger.warning("%s", overflow_text("turns"))
        return bounded

    def start_turn(self, request: TurnRequest, session: int, endpoint: Endpoint | None = None) -> Turn:
        """Send a turn, and count it as begun. A session keeps its target. `endpoint`: None for the scenario's."""
        client = self._clients[self._clients.number_of(session, endpoint)]
        self._latest_ns = max(self._latest_ns, request.planned_ns)
        self.tallies.turn_begun(request.phase, request.class_name, request.step)
        if self._tracer is not None:
            headers = (*request.headers, self._tracer.header(request.turn_id))
            request = msgspec.structs.replace(request, headers=headers)
        return client.start(request)

    def defer_count(self, turn_id: str) -> None:
        """Count a turn only after `release`. Call it before the turn is started."""
        self._unjudged[turn_id] = None

    def release(self, turn_id: str, rejected: str | None = None) -> None:
        """Count a deferred turn. `rejected`: reason why its caller rejected the answer; a successful turn then counts as failed."""
        deferred = self._unjudged.pop(turn_id, None)
        if deferred is None:
            return
        client, result = deferred
        if rejected is not None and result.record.ok:
            record = msgspec.structs.replace(result.record, failure=Failure.REJECTED)
            result = msgspec.structs.replace(result, record=record, detail=rejected)
        self._take(client, result)

    def fail_turn(self, request: TurnRequest, session: int, detail: str) -> None:
        """Count a turn that could not be built as a client error; do nothing once the run is closing."""
        if self.closing:
            return
        self.tallies.turn_begun(request.phase, request.class_name, request.step)
        client = self._clients.number_of(session)
        self._on_turn(client, self._clients[client].never_sent(request, detail))

    def _on_turn(self, client: int, result: TurnResult) -> None:
        """Take a result from the event loop, without blocking: another greenlet counts it."""
        self._pending += 1
        if result.record.turn_id in self._unjudged:
            self._unjudged[result.record.turn_id] = client, result
        else:
            self._take(client, result)

    def _take(self, client: int, result: TurnResult) -> None:
        ended = self._ended.setdefault(client, [])
        ended.append(result)
        if len(ended) >= MAX_BATCH:
            self._count()
        self._news.set()

    def _count(self) -> None:
        """Count and write the turns that have ended since the last call: a batch costs less per turn than single turns."""
        ended, self._ended = self._ended, {}
        for client, results in ended.items():
            # A reading thread goes on while the event loop is stopped, and has pauses of its own.
            pauses = self._clients[client].pauses()
            counted = self._counts.count(
                results, self._windows, self._loop_monitor.pauses if pauses is None else pauses
            )
            self._note_errors(counted)
            self._trace(self._clients[client].endpoint, counted)
            self._counted += counted

    def _trace(self, endpoint: Endpoint, results: Sequence[TurnResult]) -> None:
        """Export the spans of turns. An exception does not end the run: they are counted already."""
        if self._tracer is None:
            return
        try:
            self._tracer.add(endpoint, results)
        except Exception as error:  # noqa: BLE001  as above
            self._faults.log(f"up to {len(results)} turns have no span", error)

    def _note_errors(self, results: Sequence[TurnResult]) -> None:
        """Record the first error of each class."""
        for result in results:
            record = result.record
            if record.failure is not None and record.finished:
                self._errors.add(str(record.failure), result.detail, record.closed_ns, record.worker)

    def _add_to_locust(self) -> None:
        while True:
            self._news.wait()
            gevent.sleep(GATHER_S)
            self._news.clear()
            self._count()
            results, self._counted = self._counted, []
            for start in range(0, len(results), MAX_BATCH):
                self._add_batch(results[start : start + MAX_BATCH])
                gevent.sleep(0)

    def _add_batch(self, results: Sequence[TurnResult]) -> None:
        """Add turns to Locust's tables. An exception does not end the greenlet: a drain waits until every turn is added."""
        try:
            for result in results:
                if result.record.failure is not None and result.record.finished:
                    self._log_first(result)
            self._locust_stats.add(results)
        except Exception as error:  # noqa: BLE001  else the greenlet would end, and a drain would wait for ever
            self._faults.log(f"up to {len(results)} turns are missing in Locust's tables", error)
        self._pending -= len(results)

    def _log_first(self, result: TurnResult) -> None:
        """Log the first failure of each kind; all are counted in the tables."""
        failure = result.record.failure
        kind = f"{failure} {result.record.status or ''}".strip()
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("turn failed (%s): %s; further ones of this kind are only counted", kind, result.detail)

    # -- reports

    def report(self) -> WorkerReport:
        """Return the counts since the last report."""
        self._take_beat()
        self._count()
        seq, self._seq = self._seq, self._seq + 1
        tallies, health = self._counts.take()
        tallies.absorb(self.tallies.take())
        health.absorb(self.health.take())
        return WorkerReport(
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
        """Return the reading threads' pauses since the last call; None if the event loop reads."""
        known = [pauses for client in self._clients if (pauses := client.pauses()) is not None]
        if len(known) < len([*self._clients]):
            return None
        new = [pause for pauses in known for pause in pauses if pause[1] > self._paused_until_ns]
        self._paused_until_ns = max((until for _, until in new), default=self._paused_until_ns)
        return [(until - begun) / NS_PER_MS for begun, until in new]

    def collect_garbage(self) -> None:
        """Collect garbage if it is due. The pause is measured like every other."""
        if now_ns() - self._collected_ns > COLLECT_S * NS_PER_S:
            self._collected_ns = now_ns()
            gc.collect(1)

    # -- the end

    def drain(self, until_ns: int) -> None:
        """Begin nothing more; turns in flight go on. `until_ns`: end of the arrivals of this worker."""
        if self.closing:
            return
        self.open = False
        self.loop.close(until_ns)
        if self.limiter is not None:
            self.limiter.close()

    def give_up(self) -> None:
        """End turns in flight as unfinished."""
        for client in self._clients:
            client.give_up_all()
        for turn_id in list(self._unjudged):
            self.release(turn_id)

    def finish(self, send_report: Callable[[WorkerReport], None]) -> None:
        """Wait for turns in flight, write all records, send the last report. Blocks."""
        gevent.sleep(0)  # sessions that `drain` began send their first turns
        while self._busy:
            gevent.sleep(0.02)
        self.closing = True
        self._adding.kill()
        self.written = self._turns.finish()
        self.reports_ended = True
        send_report(self.report())
        self.finished = True
        self._loop_monitor.close()
        gevent.spawn(self._threads.kill)  # not awaited: a call that is not over keeps its thread
        for client in self._clients:
            client.close()
        gc.enable()
        gc.unfreeze()

    def end_traces(self) -> None:
        """Send the remaining spans, after `finish`. Blocks."""
        if self._tracer is not None:
            self._tracer.close()

    def deliver(self) -> str | None:
        """Wait, after `finish`, until the master has every turn. Return the reason if it has not, else None."""
        return self._turns.deliver()


def _tracer(export: TraceExport, assignment: Assignment, anchor: Anchor) -> "TurnTracer":
    from inferload.worker.turn_tracer import TurnTracer  # needs the extra `otel`

    return TurnTracer(export, assignment.run_id, assignment.name, anchor)


def _prepare_interpreter() -> None:
    """Disable automatic garbage collection, and set short time slices for threads."""
    # Longest time for which another thread holds the interpreter while the event loop waits for it.
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # later collections need not scan these objects
    gc.disable()  # turns leave no cycles; `collect_garbage` collects those of other code


def _folder_and_sender(assignment: Assignment, own: ProcessSettings, runner: Any) -> tuple[Path, TurnSender | None]:
    """Return (folder, None) if the token shows that the master's run directory is shared; else an own folder and a sender."""
    if rundir.shared(assignment.run_dir, assignment.token):
        return Path(assignment.run_dir), None
    return own_folder(assignment, own), TurnSender(assignment.run_id, assignment.name, runner.send_message)


def own_folder(assignment: Assignment, own: ProcessSettings) -> Path:
    """Create the run directory of a worker that does not share the master's."""
    name = Path(assignment.run_dir).name
    if not name or name in (".", ".."):
        raise UsageError(f"run directory {assignment.run_dir!r}: not a name that a worker can use")
    # The folder of an earlier run of this process may exist.
    path = rundir.next_free((own.run_dir or Path("runs") / name).absolute())
    path.mkdir(parents=True, exist_ok=True)
    return path
