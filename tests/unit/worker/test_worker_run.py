"""The run of a worker: late failures, statistics, phases, and arrivals at the end of the load."""

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from records import turn

from inferload.client.client import Credentials, TlsSettings
from inferload.client.connection.error_log import ErrorLog
from inferload.client.turn_record import TurnResult
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.record import PhaseWindow
from inferload.process.settings import ProcessSettings
from inferload.worker import load_loops, worker
from inferload.worker.load_loops import OpenLoop
from inferload.worker.worker_run import WorkerRun
from inferload.workload.arrivals import Arrival


def test_a_turn_that_fails_while_closing_is_not_counted() -> None:
    run = WorkerRun.__new__(WorkerRun)  # nothing to count with: it must not come to that
    run.closing = True
    run.fail_turn(None, 0, "too late")  # type: ignore[arg-type]


def test_an_exception_in_locusts_statistics_stops_no_later_batch(caplog: pytest.LogCaptureFixture) -> None:
    booked: list[TurnResult] = []

    def book(results: list[TurnResult]) -> None:
        if results[0].record.turn_id == "bad":
            raise ArithmeticError("no such row")
        booked.extend(results)

    run = WorkerRun.__new__(WorkerRun)
    values = {"_locust_stats": SimpleNamespace(add=book), "_faults": ErrorLog(logging.getLogger()), "_pending": 4}
    for name, value in values.items():
        setattr(run, name, value)
    for turn_id in ("bad", "good"):
        run._add_batch([TurnResult(turn(turn_id=turn_id), "", "")] * 2)
    assert [result.record.turn_id for result in booked] == ["good", "good"]
    assert run._pending == 0
    assert "up to 2 turns are missing in Locust's tables" in caplog.text


class PhaseStub:
    """A worker run with phase windows only."""

    def __init__(self, last_planned_ns: int) -> None:
        self.run = run = WorkerRun.__new__(WorkerRun)
        values: dict[str, Any] = {
            "_windows": (PhaseWindow("measure", 1_000),),
            "_latest_ns": last_planned_ns,
            "overrun_ns": 0,
            "loop": SimpleNamespace(exhausted=False),
            "quota": SimpleNamespace(spent=False),
        }
        for name, value in values.items():
            setattr(run, name, value)

    def end(self, at_ns: int) -> int:
        self.run.set_windows((PhaseWindow("measure", 1_000, at_ns), PhaseWindow("drain", at_ns)))
        return self.run.overrun_ns


def test_turns_planned_after_an_unexpected_end_are_overrun() -> None:
    assert PhaseStub(5_300).end(5_000) == 300
    assert PhaseStub(5_000).end(5_000) == 1  # the first instant of the drain
    assert PhaseStub(4_999).end(5_000) == 0


def test_a_planned_end_has_no_overrun() -> None:
    stub = PhaseStub(4_000)
    assert stub.end(5_000) == 0
    stub.run._latest_ns = 5_300  # one of the drain
    assert stub.end(5_000) == 0


def test_a_due_arrival_not_begun_is_not_counted_in_a_report() -> None:
    loop = OpenLoop.__new__(OpenLoop)
    for due_s, booked in ((1.0, True), (3600.0, False)):
        loop._start_ns, loop._closed_ns = now_ns() - 2 * NS_PER_S, None
        loop._schedule = SimpleNamespace(peek=partial(Arrival, 0, due_s))  # type: ignore[assignment]
        due_ns = loop._start_ns + round(due_s * NS_PER_S)
        assert (loop.booked_ns() == due_ns) == booked
        assert loop.booked_ns() <= now_ns()


class LeavingLoop:
    """An open loop of one arrival a second in a load of ten seconds; `books` are its planned and dropped sessions."""

    def __init__(self) -> None:
        self.start_ns = now_ns() - 3600 * NS_PER_S  # long ago: none of its arrivals waits for a timer any more
        self.books: list[str] = []
        seconds = iter(range(100))
        self.next = Arrival(0, next(seconds))
        tallies = SimpleNamespace(
            session_planned=lambda *_, **__: self.books.append("planned"),
            session_dropped=lambda *_, **__: self.books.append("dropped"),
        )
        run = SimpleNamespace(
            tallies=tallies,
            load_end_ns=lambda: self.start_ns + 10 * NS_PER_S,
            window_of=lambda _: PhaseWindow("measure", self.start_ns),
            sessions=SimpleNamespace(class_of=lambda _: "chat"),
            quota=SimpleNamespace(take_session=lambda _: True),
        )

        def step() -> None:
            self.next = Arrival(0, next(seconds))

        self.loop = OpenLoop.__new__(OpenLoop)
        schedule = SimpleNamespace(peek=lambda: self.next, next=step)
        for name, value in {"_run": run, "_schedule": schedule, "_greenlet": None, "_start_ns": self.start_ns}.items():
            setattr(self.loop, name, value)

    def close(self, at_s: float) -> tuple[int, int, float]:
        """Close the loop; return planned and dropped sessions, and the time in seconds up to which they are counted."""
        self.loop.close(self.start_ns + round(at_s * NS_PER_S))
        return (
            self.books.count("planned"),
            self.books.count("dropped"),
            (self.loop.booked_ns() - self.start_ns) / NS_PER_S,
        )


def test_a_leaving_worker_counts_sessions_due_so_far() -> None:
    left = LeavingLoop()
    assert left.close(4.5) == (5, 5, 4.5)
    assert left.close(12) == (10, 10, 10)  # the run's own end, heard of before its books are closed


def test_an_arrival_due_just_before_the_end_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrivals fall due at 0, 1, 2, 3 and 4 s; the load ends 20 ms after the last one, which then is not dropped."""
    left, begun = LeavingLoop(), []
    monkeypatch.setattr(load_loops, "now_ns", lambda: left.start_ns + round(4.02 * NS_PER_S))
    monkeypatch.setattr(left.loop, "_begin_session", lambda index, due_ns, window: begun.append(due_ns - left.start_ns))
    assert left.close(4.02) == (4, 4, 4.02)
    assert begun == [4 * NS_PER_S]


def test_arrivals_after_the_load_are_not_counted() -> None:
    assert LeavingLoop().close(12) == (10, 10, 10)


def test_a_worker_reports_until_its_files_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "REPORT_S", 0.001)
    runner = SimpleNamespace(register_message=lambda *_arguments, **_options: None)
    reporting_worker = worker.Worker(
        SimpleNamespace(runner=runner), ProcessSettings(Credentials(), (), TlsSettings(), None)
    )
    sent: list[str] = []
    monkeypatch.setattr(reporting_worker, "_send", sent.append)
    run = SimpleNamespace(closing=True, reports_ended=False, report=lambda: "report", collect_garbage=lambda: None)
    with gevent.Timeout(3):
        reporting = gevent.spawn(reporting_worker._report, run)
        while len(sent) < 3:  # after the drain, parts are joined
            gevent.sleep(0.001)
        run.reports_ended = True
        reporting.join()
