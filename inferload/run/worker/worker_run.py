"""A worker's part of one run, from the master's assignment to the last report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gevent
from msgspec import structs

from inferload.base.clock import NS_PER_S, Anchor, is_virtual, now_ns
from inferload.base.threads import give_back_memory
from inferload.locust_adapters.statistics import LocustStats
from inferload.run.process import protocol
from inferload.run.process.protocol import Assignment, WorkerReport
from inferload.run.process.settings import ProcessSettings, class_options
from inferload.run.worker.load_loops import ClosedLoop, OpenLoop
from inferload.run.worker.process_health import HealthReports, LoopMonitor
from inferload.run.worker.run_part import RunPart
from inferload.run.worker.session_context import SessionContext
from inferload.run.worker.turn_counter import Slos, TurnCounter
from inferload.run.worker.turn_dispatcher import TurnClients, TurnDispatcher
from inferload.run.worker.turn_writer import TurnWriter
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PhaseWindow
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet

if TYPE_CHECKING:
    from inferload.run.worker.user_turns import TaskContext

REPORT_S = 1.0
WORK_THREADS = 64


@dataclass(eq=False)
class Reports:
    """Reports of a run's counts to the master, one each second from `start` to `close`.

    `health`: None on a virtual clock, for which the load of this machine does not matter. `booked_ns`, `writes`: as in
    WorkerReport. `deliver`: sends a report.
    """

    context: SessionContext
    counter: TurnCounter
    health: HealthReports | None
    booked_ns: Callable[[], int]
    writes: Callable[[], int | None]
    deliver: Callable[[WorkerReport], None]
    _seq: int = 0
    _ended: bool = False

    def start(self) -> None:
        if self.health is not None:
            self.health.start()
        gevent.spawn(self._send_all)

    def close(self) -> None:
        """Send the last report, and end the measurements."""
        self._ended = True  # the greenlet is not killed: it may be sending
        self.send()
        if self.health is not None:
            self.health.close()

    def _send_all(self) -> None:
        due_ns = now_ns()
        while True:
            due_ns = max(due_ns + round(REPORT_S * NS_PER_S), now_ns())
            gevent.sleep((due_ns - now_ns()) / NS_PER_S)
            if self._ended:
                return
            self.send()

    def send(self) -> None:
        """Send the counts since the last report."""
        process = HealthSet() if self.health is None else self.health.take()
        self.context.turns.count()
        seq, self._seq = self._seq, self._seq + 1
        tallies, health = self.counter.tallies.take(), self.counter.health.take()
        tallies.absorb(self.context.tallies.take())
        health.absorb(process)
        report = WorkerReport(
            self.context.part.assignment.run_id,
            self.context.part.assignment.name,
            seq,
            tallies.to_wire(),
            health.to_wire(),
            self.context.turns.in_flight,
            self.booked_ns(),
            self.counter.errors.take(),
            canaries=[] if self.context.turns.canaries is None else self.context.turns.canaries.take(),
            writes=self.writes(),
        )
        self.deliver(report)


class WorkerRun:
    """Parts of one run on a worker. Call `start` before all other methods, and `finish` at the end.

    `on_spent`: called once with the run and an instant when nothing more can begin and all sessions are over.
    """

    def __init__(
        self,
        assignment: Assignment,
        own: ProcessSettings,
        environment: Any,
        on_spent: "Callable[[WorkerRun, int], None]" = lambda run, at_ns: None,
    ) -> None:
        self.part = RunPart.of(assignment)
        of_classes = class_options(self.part.scenario, assignment.origin, own)
        anchor = Anchor.take()
        self.windows = RunWindows()
        self.writer = TurnWriter.of(assignment, anchor, own.run_dir, environment.runner.send_message)
        monitor = LoopMonitor()
        self.counter = TurnCounter(
            Slos(self.part.scenario),
            self.writer.extend,
            self.windows,
            monitor,
            LocustStats(environment),
            tracer=_tracer(assignment, own, anchor),
        )
        tallies = TallySet()
        clients = TurnClients(self.part.scenario, assignment, own)
        self.turns = TurnDispatcher(clients, tallies, self.windows, self.counter)
        # Threads start on demand; on a virtual clock the pool of the hub has none.
        self._threads = type(gevent.get_hub().threadpool)(WORK_THREADS)
        if self.part.scenario.agents:
            from inferload.run.worker.step_processes import let_threads_start_processes  # only agents have steps

            let_threads_start_processes()
        self.context = SessionContext(
            self.part,
            self.windows,
            self.turns,
            tallies,
            self._threads.apply,
            self.check_spent,
            class_options=of_classes,
        )
        most_idle_s = self.part.scenario.max_system_idle_s
        if most_idle_s is not None:
            from inferload.run.worker.idle_cap import SystemIdleCap  # of few scenarios

            self.context.idle = SystemIdleCap(most_idle_s, self.windows, self.part.sessions.notes)
        self.loop: ClosedLoop | OpenLoop = (
            ClosedLoop(self.context) if assignment.rate is None else OpenLoop(self.context, assignment.rate)
        )
        health = None if is_virtual() else HealthReports(assignment.name, self.windows, monitor, clients)
        self._reports = Reports(
            self.context,
            self.counter,
            health,
            booked_ns=self.loop.booked_ns,
            writes=lambda: self.writer.writes if self.turns.closed else None,
            deliver=lambda report: environment.runner.send_message(protocol.REPORT, structs.asdict(report)),
        )
        self.finished = False
        self.closed_ns = 0  # end of its part of the load, set by `drain`
        self._on_spent: Callable[[WorkerRun, int], None] | None = on_spent

    def start(self) -> None:
        """Create the clients, and begin to write turn files and to report."""
        self.writer.start()
        self.turns.start()
        self.turns.canaries = self.turns.clients.canaries()
        self._reports.start()

    def set_windows(self, windows: Sequence[PhaseWindow]) -> None:
        """Set the phases, on this worker's clock. The message of an end may come late."""
        self.windows.set(windows)
        if self.windows.all and isinstance(self.loop, OpenLoop) and self.context.open:
            self.loop.begin(self.windows.all[0].start_ns)
        self.check_spent()

    @cached_property
    def tasks(self) -> "TaskContext":
        """Return the data that the sessions of own tasks share."""
        from inferload.run.worker.user_turns import TaskContext  # of locustfiles with tasks that send turns

        return TaskContext(self.context)

    def check_spent(self) -> None:
        """Call `on_spent`, once, when nothing more can begin on this worker and all sessions are over."""
        over = self.part.quota.spent or self.loop.exhausted
        start_ns, on_spent = self.windows.load_start_ns, self._on_spent
        if not over or self.context.sessions_running or not self.context.open or start_ns is None or on_spent is None:
            return
        self._on_spent = None
        on_spent(self, max(now_ns(), start_ns))

    def drain(self, until_ns: int) -> None:
        """Begin nothing more; turns in flight go on. `until_ns`: end of the arrivals of this worker."""
        if self.turns.closed:
            return
        if self.context.open:
            self.closed_ns = until_ns
        self.context.open = False
        self.loop.close(until_ns)
        if self.part.limiter is not None:
            self.part.limiter.close()

    def finish(self) -> None:
        """Wait for turns in flight, write all records, send the last report. Blocks."""
        gevent.sleep(0)  # sessions that `drain` began send their first turns
        while self.turns.busy:
            gevent.sleep(0.02)
        self.turns.close()
        self._reports.send()  # after this report the master waits for files only
        self.writer.finish()
        self._reports.close()  # reports go on while files are written, or the master takes the worker for lost
        self.finished = True
        gevent.spawn(self._threads.kill)  # not awaited: a call that is not over keeps its thread
        self.turns.close_clients()
        give_back_memory()  # of the load: a summary may follow in this process


def _tracer(assignment: Assignment, own: ProcessSettings, anchor: Anchor) -> Any:
    """Return the tracer of a run; None without export of traces."""
    if own.export_traces is None:
        return None
    from inferload.run.worker.turn_tracer import TurnTracer  # needs the extra `otel`

    return TurnTracer(own.export_traces, assignment.run_id, assignment.name, anchor)
