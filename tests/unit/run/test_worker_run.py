"""The run of a worker: reports, late failures, statistics, phases, and arrivals at the end of the load."""

import gc
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import gevent
import gevent.lock
import pytest
from records import turn

from inferload.base.clock import NS_PER_S, now_ns
from inferload.client.turn_record import TurnResult
from inferload.results.verdict.first_errors import FirstErrors
from inferload.run.process import protocol
from inferload.run.process.protocol import WorkerReport
from inferload.run.worker import load_loops, process_health, turn_dispatcher, worker_run
from inferload.run.worker.load_loops import OpenLoop
from inferload.run.worker.process_health import HealthReports, LoopMonitor
from inferload.run.worker.session_context import SessionContext
from inferload.run.worker.turn_counter import TurnCounter
from inferload.run.worker.turn_dispatcher import TurnDispatcher
from inferload.run.worker.worker import Worker
from inferload.run.worker.worker_run import WorkerRun
from inferload.turns.record import Failure, PhaseWindow, TurnRecord
from inferload.turns.run_windows import RunWindows
from inferload.turns.socket_reader import SocketReader
from inferload.turns.tally import TallySet
from inferload.workload.arrivals import Arrival


class OneClient(list[Any]):
    """Clients of one server that answers each turn at once."""

    def __init__(self) -> None:
        client = SimpleNamespace(
            reader=SocketReader(target="http://a", reader="native"), endpoint="chat", in_flight=0, pauses=list
        )
        client.never_sent = lambda request, detail: TurnResult(
            turn(turn_id=request.turn_id, failure=Failure.CLIENT_ERROR), "", detail
        )
        super().__init__([client])

    def open(self, on_turn: Any) -> None:
        self.on_turn = on_turn

    def number_of(self, session: int, endpoint: Any = None) -> int:
        return 0


class Dispatched:
    """A dispatcher without a network. `batches`: turns counted together; `booked`: turns in Locust's tables."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.booked: list[str] = []
        self.clients: Any = OneClient()
        stats: Any = SimpleNamespace(add=self.book)
        counter = TurnCounter({"chat": None}, self.write, RunWindows(), LoopMonitor(), stats)
        self.tallies = TallySet()
        self.turns = TurnDispatcher(self.clients, self.tallies, RunWindows(), counter)

    def write(self, records: Sequence[TurnRecord]) -> None:
        self.batches.append([record.turn_id for record in records])

    def book(self, results: list[TurnResult], _by_key: object) -> None:
        if results[0].record.turn_id == "bad":
            raise ArithmeticError("no such row")
        self.booked += [result.record.turn_id for result in results]

    def end(self, *turn_ids: str) -> None:
        for turn_id in turn_ids:
            self.clients.on_turn(0, TurnResult(turn(turn_id=turn_id), "", ""))

    def wait(self) -> None:
        with gevent.Timeout(20):
            while self.turns.busy:
                gevent.sleep(0.01)


def test_a_turn_that_fails_while_closing_is_not_counted() -> None:
    dispatched = Dispatched()
    dispatched.turns.start()
    request: Any = SimpleNamespace(turn_id="s0.0", phase="measure", class_name="chat", step=None)
    dispatched.turns.fail(request, 0, "in time")
    dispatched.wait()
    dispatched.turns.close()
    dispatched.turns.fail(request, 0, "too late")
    assert dispatched.booked == ["s0.0"]
    assert dispatched.tallies.total().turns_begun == 1


def test_a_constructed_dispatcher_has_no_side_effect() -> None:
    dispatched = Dispatched()
    assert not hasattr(dispatched.clients, "on_turn")
    assert not dispatched.turns._gathering.started


def test_turns_are_counted_in_batches_and_a_deferred_one_at_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_dispatcher, "MAX_BATCH", 2)
    dispatched = Dispatched()
    dispatched.turns.start()
    dispatched.turns.defer_count("late")
    dispatched.end("a", "late", "b", "c")
    dispatched.turns.count()
    assert dispatched.batches == [["a", "b"], ["c"]]
    assert (dispatched.turns.in_flight, dispatched.turns.busy) == (1, True)
    dispatched.turns.release("late")
    dispatched.wait()
    assert dispatched.batches[2:] == [["late"]]
    assert dispatched.booked == ["a", "b", "c", "late"]


def test_an_exception_in_locusts_statistics_stops_no_later_batch(caplog: pytest.LogCaptureFixture) -> None:
    dispatched = Dispatched()
    dispatched.turns.start()
    for turn_id in ("bad", "good"):
        dispatched.end(turn_id, turn_id)
        dispatched.wait()
    assert dispatched.booked == ["good", "good"]
    assert "up to 2 turns are missing in Locust's tables" in caplog.text


def overrun_ns(windows: RunWindows, latest_ns: int, end_ns: int) -> int:
    """Return the overrun in ns after the end of the load is set, with the latest turn planned at `latest_ns`."""
    windows.latest_ns = latest_ns
    windows.set((PhaseWindow("measure", 1_000, end_ns), PhaseWindow("drain", end_ns)))
    return windows.overrun_ns


@pytest.mark.parametrize(("latest_ns", "over_ns"), [(5_300, 300), (5_000, 1), (4_999, 0)])
def test_turns_planned_after_a_late_announced_end_are_overrun(latest_ns: int, over_ns: int) -> None:
    windows = RunWindows()
    windows.set((PhaseWindow("measure", 1_000),))
    assert overrun_ns(windows, latest_ns, 5_000) == over_ns


def test_turns_counted_before_a_late_announced_end_are_overrun() -> None:
    """The rates of the measure phase have them, and its length does not."""
    windows = RunWindows()
    windows.set((PhaseWindow("measure", 1_000),))
    counter = TurnCounter({"chat": None}, lambda _records: None, windows, LoopMonitor(), cast(Any, None))
    counter.count(OneClient()[0], [TurnResult(turn(planned_ns=4_000, closed_ns=5_300), "", "")])
    assert overrun_ns(windows, windows.latest_ns, 5_000) == 300


def test_a_planned_end_has_no_overrun() -> None:
    windows = RunWindows()
    windows.set((PhaseWindow("measure", 1_000),))
    assert overrun_ns(windows, 4_000, 5_000) == 0
    assert overrun_ns(windows, 5_300, 5_000) == 0  # the latest turn belongs to the drain


def test_a_due_arrival_not_begun_is_not_counted_in_a_report() -> None:
    loop = OpenLoop.__new__(OpenLoop)
    for due_s, booked in ((1.0, True), (3600.0, False)):
        loop._start_ns, loop._closed_ns = now_ns() - 2 * NS_PER_S, None
        loop._schedule = SimpleNamespace(peek=partial(Arrival, 0, due_s))  # type: ignore[assignment]
        due_ns = loop._start_ns + round(due_s * NS_PER_S)
        assert (loop.booked_ns() == due_ns) == booked
        assert loop.booked_ns() <= now_ns()


class LeavingLoop:
    """An open loop of 1 arrival/s in a load of 10 s."""

    def __init__(self) -> None:
        self.start_ns = now_ns() - 3600 * NS_PER_S  # 1 h ago: all arrivals are due without a timer
        self.tallies = TallySet()
        seconds = iter(range(100))
        self.next = Arrival(0, next(seconds))
        windows = RunWindows()
        windows.set((PhaseWindow("measure", self.start_ns, self.start_ns + 10 * NS_PER_S),))
        part = SimpleNamespace(
            sessions=SimpleNamespace(class_of=lambda _: "chat"), quota=SimpleNamespace(take_session=lambda _: True)
        )
        run = SimpleNamespace(tallies=self.tallies, windows=windows, part=part)

        def step() -> None:
            self.next = Arrival(0, next(seconds))

        self.loop = OpenLoop.__new__(OpenLoop)
        schedule = SimpleNamespace(peek=lambda: self.next, next=step)
        for name, value in {"_run": run, "_schedule": schedule, "_greenlet": None, "_start_ns": self.start_ns}.items():
            setattr(self.loop, name, value)

    def close(self, at_s: float) -> tuple[int, int, float]:
        """Close the loop; return planned and dropped sessions, and the time in seconds up to which they are counted."""
        self.loop.close(self.start_ns + round(at_s * NS_PER_S))
        tally, booked_ns = self.tallies.total(), self.loop.booked_ns()
        return tally.sessions_planned, tally.sessions_dropped, (booked_ns - self.start_ns) / NS_PER_S


def test_a_leaving_worker_counts_sessions_due_so_far() -> None:
    left = LeavingLoop()
    assert left.close(4.5) == (5, 5, 4.5)
    assert left.close(12) == (10, 10, 10)  # the load ended at 10 s


def test_an_arrival_due_just_before_the_end_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load ends 20 ms after the arrival at 4 s, which begins; those at 0, 1, 2 and 3 s are dropped."""
    left, begun = LeavingLoop(), []
    monkeypatch.setattr(load_loops, "now_ns", lambda: left.start_ns + round(4.02 * NS_PER_S))
    monkeypatch.setattr(left.loop, "_begin_session", lambda index, due_ns, window: begun.append(due_ns - left.start_ns))
    assert left.close(4.02) == (4, 4, 4.02)
    assert begun == [4 * NS_PER_S]


def test_arrivals_after_the_load_are_not_counted() -> None:
    assert LeavingLoop().close(12) == (10, 10, 10)


def test_a_worker_reports_until_its_reports_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_run, "REPORT_S", 0.001)
    for method in ("start", "close"):
        monkeypatch.setattr(process_health.InterpreterSettings, method, lambda settings: None)
    windows, tallies = RunWindows(), TallySet()
    monitor = LoopMonitor()
    counter = TurnCounter({}, lambda _records: None, windows, monitor, cast(Any, None))
    part: Any = SimpleNamespace(assignment=SimpleNamespace(run_id="r", name="w0"))
    turns: Any = SimpleNamespace(count=lambda: None, in_flight=3, canaries=None)
    context = SessionContext(part, windows, turns, tallies, lambda call: call(), lambda: None)
    sent: list[WorkerReport] = []
    health = HealthReports("w0", windows, monitor, [])
    reports = worker_run.Reports(
        context, counter, health, booked_ns=lambda: 7, writes=lambda: None, deliver=sent.append
    )
    gevent.sleep(0.01)
    assert sent == []
    reports.start()
    with gevent.Timeout(3):
        while len(sent) < 3:
            gevent.sleep(0.001)
    reports.close()
    last = len(sent)
    gevent.sleep(0.01)
    assert [report.seq for report in sent] == [*range(last)]
    assert (sent[-1].in_flight, sent[-1].booked_ns) == (3, 7)


def test_a_loop_monitor_measures_from_its_start_to_its_end() -> None:
    callbacks = list(gc.callbacks)
    monitor = LoopMonitor()
    assert gc.callbacks == callbacks
    monitor.start()
    gevent.sleep(0.1)
    gc.collect(0)
    beat = monitor.take()
    monitor.close()
    assert beat.loop_lags_ms
    assert beat.gc_pauses_ms
    assert gc.callbacks == callbacks


def test_a_worker_sends_the_instant_at_which_it_first_closed_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master's own message of the end can follow while the last turns are in flight."""
    sent: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr("inferload.run.worker.worker.messages.send_last_stats", lambda runner: None)
    run = WorkerRun.__new__(WorkerRun)
    values: dict[str, Any] = {
        "part": SimpleNamespace(
            assignment=SimpleNamespace(run_id="r", name="w0", offset_ns=1_000),
            limiter=None,
            sessions=SimpleNamespace(notes={}),
        ),
        "turns": SimpleNamespace(closed=False),
        "context": SimpleNamespace(open=True),
        "loop": SimpleNamespace(close=lambda until_ns: None),
        "windows": RunWindows(),
        "writer": SimpleNamespace(records=0, error=None, sender=None, run_dir="run"),
        "counter": SimpleNamespace(tracer=None, errors=FirstErrors()),
        "finish": lambda: None,
        "finished": False,
    }
    for name, value in values.items():
        setattr(run, name, value)
    run.drain(41_000)  # after a signal
    run.drain(81_000)
    worker = Worker.__new__(Worker)
    worker._ending = gevent.lock.RLock()
    worker._runner = SimpleNamespace(send_message=lambda kind, data: sent.append((kind, data)))
    worker._finish(run)
    assert [(kind, data["closed_ns"]) for kind, data in sent] == [(protocol.DRAINED, 40_000)]
