"""The master's control of a run, and the worker's books at its end, without a run: exit codes, users asked for, late faults."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import gevent
import pyarrow as pa
import pytest
from gevent.event import Event
from records import turn

from inferload.client.turn_record import TurnResult
from inferload.master.controller import Controller
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.record import Failure, PhaseWindow
from inferload.measure.tally import TallySet
from inferload.summarise.cache_figures import as_sent
from inferload.worker import load_loops, turn_dispatcher
from inferload.worker.load_loops import OpenLoop
from inferload.worker.process_health import LoopMonitor
from inferload.worker.run_windows import RunWindows
from inferload.worker.turn_counter import TurnCounter
from inferload.worker.turn_dispatcher import TurnDispatcher
from inferload.workload.arrivals import Arrival


class Asked:
    """A controller with a run that is about to begin its load; what was asked of Locust and of the run is noted."""

    def __init__(self) -> None:
        self.locust: list[int] = []
        self.changes: list[int] = []
        self.changed_by: list[str] = []
        self.shape_began: list[int] = []
        self.while_starting: int | None = None
        self.controller = controller = Controller.__new__(Controller)
        values: dict[str, Any] = {
            "run": SimpleNamespace(stop=SimpleNamespace(is_set=bool), change_users=self.change_users),
            "preparing": False,
            "_load_awaited": True,
            "_later": None,
            "_locust_start": self.locust_start,
            "_runner": SimpleNamespace(target_user_count=0, shape_greenlet=None),
            "_load_begun": Event(),
            "environment": SimpleNamespace(shape_class=SimpleNamespace(reset_time=lambda: self.shape_began.append(1))),
        }
        for name, value in values.items():
            setattr(controller, name, value)

    def change_users(self, users: int, by: str = "hand") -> None:
        self.changes.append(users)
        self.changed_by.append(by)

    def locust_start(self, users: int, spawn_rate: float, *, wait: bool, user_classes: Any) -> None:
        self.locust.append(users)
        newer, self.while_starting = self.while_starting, None
        if newer is not None:
            self.controller.start(newer, 1.0)


def test_users_asked_for_before_the_load_are_those_it_starts_with() -> None:
    asked = Asked()
    asked.controller.start(8, 1.0)
    asked.controller._start_users(4, 1.0)
    assert (asked.locust, asked.changes) == ([8], [8])


def test_the_time_of_a_shape_counts_from_the_start_of_the_load() -> None:
    asked = Asked()
    assert not asked.controller._load_begun.is_set()
    asked.controller._start_users(4, 1.0)
    asked.controller._start_users(6, 1.0)  # a step of the load
    assert asked.controller._load_begun.is_set()
    assert asked.shape_began == [1]


def test_a_newer_number_of_users_is_not_overridden_by_an_older_one() -> None:
    asked = Asked()
    asked.controller.start(8, 1.0)
    asked.while_starting = 12
    asked.controller._start_users(4, 1.0)
    assert (asked.locust, asked.changes) == ([8, 12], [8, 12])


def test_a_change_is_the_shapes_if_its_greenlet_asks_for_it() -> None:
    asked = Asked()
    asked.controller._start_users(4, 1.0)
    asked.controller.start(5, 1.0)
    asked.controller._runner.shape_greenlet = gevent.getcurrent()
    asked.controller.start(6, 1.0)
    assert (asked.changes, asked.changed_by) == ([5, 6], ["hand", "shape"])


@pytest.mark.parametrize(("users", "said"), [(4, 0), (5, 1)])
def test_in_a_drain_only_somebodys_own_start_is_answered(
    users: int, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Locust itself starts the users that there are once more whenever a worker goes."""
    asked = Asked()
    asked.controller._load_awaited = False
    asked.controller._runner = SimpleNamespace(target_user_count=4)
    asked.controller.run = SimpleNamespace(stop=SimpleNamespace(is_set=lambda: True))  # type: ignore[assignment]
    asked.controller.start(users, 1.0)
    assert [record.message for record in caplog.records] == said * ["the run is draining; start again after its end"]
    assert asked.locust == []


class OneClient(list[Any]):
    """Clients of one server that answers each turn at once."""

    def __init__(self) -> None:
        client = SimpleNamespace(reader="native", endpoint="chat", in_flight=0, pauses=list)
        client.never_sent = lambda request, detail: TurnResult(
            turn(turn_id=request.turn_id, failure=Failure.CLIENT_ERROR), "", detail
        )
        super().__init__([client])

    def open(self, on_turn: Any) -> None:
        self.on_turn = on_turn

    def number_of(self, session: int, endpoint: Any = None) -> int:
        return 0


class Dispatched:
    """A dispatcher without a network. `batches`: turns that were counted together; `booked`: those in Locust's tables."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.booked: list[str] = []
        self.clients: Any = OneClient()
        counts: Any = SimpleNamespace(count=self.count)
        stats: Any = SimpleNamespace(add=self.book)
        counter = TurnCounter(counts, RunWindows(), LoopMonitor(), stats)
        self.tallies = TallySet()
        self.turns = TurnDispatcher(self.clients, self.tallies, RunWindows(), counter)

    def count(self, results: list[TurnResult], *_others: Any) -> list[TurnResult]:
        self.batches.append([result.record.turn_id for result in results])
        return results

    def book(self, results: list[TurnResult]) -> None:
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


def test_a_turn_that_fails_while_files_are_joined_is_not_counted() -> None:
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


def test_an_exception_of_a_booking_does_not_stop_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    dispatched = Dispatched()
    dispatched.turns.start()
    for turn_id in ("bad", "good"):
        dispatched.end(turn_id, turn_id)
        dispatched.wait()
    assert dispatched.booked == ["good", "good"]
    assert "up to 2 turns are missing in Locust's tables" in caplog.text


def test_turns_with_token_ids_come_as_they_were_sent_on_any_worker() -> None:
    table = pa.table(
        {
            "worker": ["a", "a", "b", "b"],
            "sent_ns": pa.array([10, 30, 5, None], pa.int64()),
            "block_hashes": pa.array([[1, 2], None, [3], []], pa.list_(pa.int64())),
        }
    )
    rows = list(as_sent(table, {"a": 100, "b": 120}))
    assert [(row["worker"], row["sent_ns"], row["block_hashes"]) for row in rows] == [
        ("a", 10, [1, 2]), ("b", 5, [3]), ("a", 30, None),
    ]  # fmt: skip


def overrun_ns(windows: RunWindows, latest_ns: int, end_ns: int) -> int:
    """Return the overrun after the announcement of an end, if the latest turn was planned at an instant."""
    windows.latest_ns = latest_ns
    windows.set((PhaseWindow("measure", 1_000, end_ns), PhaseWindow("drain", end_ns)))
    return windows.overrun_ns


@pytest.mark.parametrize(("latest_ns", "over_ns"), [(5_300, 300), (5_000, 1), (4_999, 0)])
def test_turns_planned_after_an_end_that_was_announced_late_are_reported(latest_ns: int, over_ns: int) -> None:
    windows = RunWindows()
    windows.set((PhaseWindow("measure", 1_000),))
    assert overrun_ns(windows, latest_ns, 5_000) == over_ns


def test_an_end_that_was_known_beforehand_has_no_turns_after_it() -> None:
    windows = RunWindows()
    windows.set((PhaseWindow("measure", 1_000),))
    assert overrun_ns(windows, 4_000, 5_000) == 0
    assert overrun_ns(windows, 5_300, 5_000) == 0  # the latest one is of the drain


def test_an_arrival_that_is_due_and_not_begun_yet_is_not_in_a_report() -> None:
    loop = OpenLoop.__new__(OpenLoop)
    for due_s, booked in ((1.0, True), (3600.0, False)):
        loop._start_ns, loop._closed_ns = now_ns() - 2 * NS_PER_S, None
        loop._schedule = SimpleNamespace(peek=partial(Arrival, 0, due_s))  # type: ignore[assignment]
        due_ns = loop._start_ns + round(due_s * NS_PER_S)
        assert (loop.booked_ns() == due_ns) == booked
        assert loop.booked_ns() <= now_ns()


class Left:
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
        windows = RunWindows()
        windows.set((PhaseWindow("measure", self.start_ns, self.start_ns + 10 * NS_PER_S),))
        part = SimpleNamespace(
            sessions=SimpleNamespace(class_of=lambda _: "chat"), quota=SimpleNamespace(take_session=lambda _: True)
        )
        run = SimpleNamespace(tallies=tallies, windows=windows, part=part)

        def step() -> None:
            self.next = Arrival(0, next(seconds))

        self.loop = OpenLoop.__new__(OpenLoop)
        schedule = SimpleNamespace(peek=lambda: self.next, next=step)
        for name, value in {"_run": run, "_schedule": schedule, "_greenlet": None, "_start_ns": self.start_ns}.items():
            setattr(self.loop, name, value)

    def close(self, at_s: float) -> tuple[int, int, float]:
        """Sessions planned and dropped, and up to when in seconds of the load its books go."""
        self.loop.close(self.start_ns + round(at_s * NS_PER_S))
        return (
            self.books.count("planned"),
            self.books.count("dropped"),
            (self.loop.booked_ns() - self.start_ns) / NS_PER_S,
        )


def test_a_worker_that_leaves_books_what_was_due_and_leaves_the_rest_of_its_load_to_the_master() -> None:
    left = Left()
    assert left.close(4.5) == (5, 5, 4.5)
    assert left.close(12) == (10, 10, 10)  # the run's own end, heard of before its books are closed


def test_an_arrival_that_waits_for_its_timer_as_the_load_ends_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrivals fall due at 0, 1, 2, 3 and 4 s; the load ends 20 ms after the last one, which then is not dropped."""
    left, begun = Left(), []
    monkeypatch.setattr(load_loops, "now_ns", lambda: left.start_ns + round(4.02 * NS_PER_S))
    monkeypatch.setattr(left.loop, "_begin_session", lambda index, due_ns, window: begun.append(due_ns - left.start_ns))
    assert left.close(4.02) == (4, 4, 4.02)
    assert begun == [4 * NS_PER_S]


def test_arrivals_after_the_load_are_nobodys() -> None:
    assert Left().close(12) == (10, 10, 10)
