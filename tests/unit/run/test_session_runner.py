"""One session on a worker, without a server: slots in flight and quota are taken once and returned."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from small_scenario import small

from inferload.base.clock import now_ns
from inferload.client.requests.bodies import Texts
from inferload.client.requests.calls import call_of
from inferload.client.turn_record import TurnResult
from inferload.run.worker import load_loops
from inferload.run.worker.load_loops import run_session
from inferload.run.worker.run_part import InFlightLimiter
from inferload.run.worker.session_context import SessionContext
from inferload.run.worker.session_runner import SessionRunner
from inferload.run.worker.turn_dispatcher import TurnDispatcher
from inferload.run.worker.user_turns import TaskContext, TaskSession
from inferload.turns.record import Phase, PhaseWindow, TurnRecord
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet
from inferload.workload.content.messages import Message, Piece, text_message
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import Ask, Fork, Script, Session, Work
from inferload.workload.isolation import Isolation
from inferload.workload.quota import Quota

SCENARIO = small()


def ask() -> Ask:
    return Ask((text_message("user", "q", 3),), 2)


def plain() -> Script:
    yield ask()
    yield ask()


def working() -> Script:
    yield Work(lambda: None)
    yield ask()
    yield ask()


def forking() -> Script:
    yield Fork((("a", one()), ("b", one())))


def one() -> Script:
    yield ask()


class Turns:
    """Dispatcher of a run without a server: each turn is answered at once."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed_ns = 1
        self.planned_ns: list[int] = []
        self.failed: list[tuple[str, str]] = []
        self.headers: list[tuple[tuple[str, str], ...]] = []
        self.cookies: list[Any] = []
        counter: Any = None
        self.dispatcher = TurnDispatcher([], TallySet(), RunWindows(), counter)  # type: ignore[arg-type]
        self.starting = self.dispatcher.starting
        self.clients = SimpleNamespace(forget=lambda session: None)

    def await_turn(self) -> None:
        pass

    def fail(self, request: Any, session: int, detail: str) -> None:
        self.failed.append((request.turn_id, detail))

    def send(self, request: Any, session: int) -> Any:
        self.sent += 1
        self.planned_ns.append(request.planned_ns)
        self.headers.append(request.headers)
        self.cookies.append(request.cookies)
        record = TurnRecord("", "", 0, "", "", "measure", 0, self.closed_ns, output_tokens=2, finish_reason="stop")
        token = f"t{self.sent}" if self.sent != 2 else ""  # the second answer has none
        result = TurnResult(record, "a", "", over_ns=self.closed_ns, session_token=token)
        return SimpleNamespace(wait=lambda: result)


def call_here(call: Any) -> Any:
    return call()


def context(in_thread: Any = call_here) -> Any:
    """Return the context of sessions without a server, with two slots and five turns."""
    part: Any = SimpleNamespace(
        assignment=SimpleNamespace(model="m", run_id="r"),
        scenario=SCENARIO,
        texts=Texts(approximate(), 0),
        limiter=InFlightLimiter(2),
        quota=Quota(None, 5),
        sessions=SimpleNamespace(notes=Counter()),
    )
    turns: Any = Turns()
    return SessionContext(part, RunWindows(), turns, TallySet(), in_thread, lambda: None)


def free(limiter: InFlightLimiter) -> int:
    count = 0
    while limiter.try_enter():
        count += 1
    return count


@pytest.mark.parametrize(("script", "turns"), [(plain, 2), (working, 2), (forking, 2)])
def test_a_session_releases_all_slots(script: Any, turns: int) -> None:
    host = context()
    assert host.part.limiter.try_enter()  # the slot of the first turn, which is taken before the session starts
    assert host.part.quota.take_session("measure")
    ended = SessionRunner(host, Session(0, "chat", script()), Isolation(), 0).perform()
    assert ended.complete
    assert host.turns.sent == turns
    assert free(host.part.limiter) == 2
    left = sum(host.part.quota.take_turn("measure") for _ in range(9))
    assert left == 5 - turns


@pytest.mark.parametrize("kept", [True, False])
def test_the_turns_of_a_session_and_its_sub_agents_share_cookies(kept: bool) -> None:
    request = SCENARIO.request.model_copy(update={"cookies": kept})
    shared = []
    for index in range(2):
        host = context()
        host.part.scenario = SCENARIO.model_copy(update={"request": request})
        assert host.part.limiter.try_enter()
        SessionRunner(host, Session(index, "chat", forking()), Isolation(), 0).perform()
        assert len(host.turns.cookies) == 2
        shared.append({id(each) for each in host.turns.cookies if each is not None})
    assert [len(each) for each in shared] == [int(kept)] * 2


def test_a_session_sends_the_token_of_its_last_answer_back() -> None:
    request = {"affinity_header": "X-Session-ID", "session_token_header": "x-session-token"}
    host = context()
    host.part.scenario = SCENARIO.model_copy(update={"request": SCENARIO.request.model_copy(update=request)})
    assert host.part.limiter.try_enter()
    assert host.part.quota.take_session("measure")

    def script() -> Script:
        for _ in range(4):
            yield ask()

    SessionRunner(host, Session(0, "chat", script()), Isolation(), 0).perform()
    tokens = [dict(headers).get("x-session-token") for headers in host.turns.headers]
    assert tokens == [None, "t1", "t1", "t3"]
    assert {dict(headers)["X-Session-ID"] for headers in host.turns.headers} == {"r-s0"}


def test_work_that_ends_after_the_run_begins_no_turn() -> None:
    host = context()

    def script() -> Script:
        yield Work(lambda: setattr(host, "open", False))
        yield ask()

    assert host.part.limiter.try_enter()
    assert host.part.quota.take_session("measure")
    assert not SessionRunner(host, Session(0, "chat", script()), Isolation(), 0).perform().complete
    assert host.turns.sent == 0
    assert free(host.part.limiter) == 2


def ended_load() -> Any:
    """Return the context of a run whose load has ended, but which is not drained yet: the message of the end is late."""
    host, now = context(), now_ns()
    host.windows.set([PhaseWindow("measure", now - 10**9, now - 1), PhaseWindow("drain", now - 1)])
    return host


def test_no_later_turn_is_planned_after_the_load() -> None:
    host = ended_load()
    assert host.part.limiter.try_enter()
    assert host.part.quota.take_session("measure")
    arrived_ns, host.turns.closed_ns = host.windows.load_start_ns, now_ns()
    assert not SessionRunner(host, Session(0, "chat", plain()), Isolation(), arrived_ns).perform().complete
    assert host.turns.planned_ns == [arrived_ns]


def test_a_closed_loop_begins_no_session_after_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_loops, "IDLE_S", 0)
    host = ended_load()
    host.part.assignment.stripe, host.part.assignment.stripes = 0, 1
    host.part.sessions.sends, host.part.sessions.classes = (lambda index: True), ()
    now = now_ns()
    assert load_loops.ClosedLoop(host).user(now) == now
    assert host.turns.sent == 0


def test_a_task_begins_no_turn_after_the_load() -> None:
    host = ended_load()
    host.part.assignment.stripe, host.part.assignment.stripes = 0, 1
    session = TaskSession(TaskContext(host))
    user = gevent.spawn(session.send, call_of("chat", "Hi", {}), "ask")
    gevent.sleep(0.02)
    assert not user.dead, "Locust counts its users at the begin of the drain"
    host.open = False
    user.join(5)
    assert isinstance(user.value, gevent.GreenletExit)
    assert host.turns.sent == 0


def test_a_drain_waits_for_reads_before_a_first_turn() -> None:
    """The first turn is sent even after the end of the load; a later one is not, and its reads are not awaited."""
    busy: list[bool] = []

    def in_thread(call: Any) -> Any:
        busy.append(host.turns.dispatcher.busy)
        host.open = False
        return call()

    def script() -> Script:
        yield Work(lambda: None, pure=True)
        yield Work(lambda: None, pure=True)
        yield ask()
        yield Work(lambda: None, pure=True)
        yield ask()

    host = context(in_thread)
    assert not performed(host, script())
    assert (host.turns.sent, busy) == (1, [True, True, False])
    assert not host.turns.dispatcher.busy


@pytest.mark.parametrize(("admitted_in", "postponed"), [("warmup", 0), ("measure", 1)])
def test_a_session_that_waits_for_a_slot_into_the_next_phase_is_postponed(admitted_in: Phase, postponed: int) -> None:
    host, planned_ns = context(), now_ns()
    end_ns = planned_ns + (10**12 if admitted_in == "warmup" else 1)
    host.windows.set([PhaseWindow("warmup", planned_ns, end_ns), PhaseWindow("measure", end_ns)])
    host.part.assignment.salt, host.part.assignment.takes_salt = None, False
    host.part.sessions.class_of = lambda _index: "chat"
    host.part.sessions.begin = lambda index: Session(index, "chat", plain())
    assert [host.part.limiter.try_enter() for _ in range(2)] == [True, True]
    waiting = gevent.spawn(run_session, host, 0, planned_ns)
    gevent.sleep(0)
    host.part.limiter.leave()
    gevent.joinall([waiting], timeout=5, raise_error=True)
    total = host.tallies.total("warmup")
    assert (total.sessions_started, total.turns_delayed) == (1, 1)
    assert total.sessions_postponed == postponed


def performed(host: Any, script: Script) -> bool:
    assert host.part.limiter.try_enter()
    assert host.part.quota.take_session("measure")
    complete = SessionRunner(host, Session(0, "chat", script), Isolation(), 0).perform().complete
    assert free(host.part.limiter) == 2
    return complete


def raising_script() -> Script:
    yield ask()
    raise ValueError("no more")


def raising_work() -> Script:
    yield ask()
    yield Work(lambda: {}["missing"])


def unsendable() -> Script:
    yield ask()
    yield Ask((text_message("user", "q", 3),), 2, extra_body={"x": object()})


def limitless() -> Script:
    yield ask()
    yield Ask((text_message("user", "q", 3),), 2**63)


def wrong_type() -> Script:
    yield ask()
    yield Ask((Message("assistant", (Piece("a", 3),), reasoning=["x"]),), 2)  # type: ignore[arg-type]


def too_deep() -> Script:
    yield ask()
    choice: Any = {}
    for _ in range(100_000):
        choice = {"x": choice}
    yield Ask((text_message("user", "q", 3),), 2, tools=b"[]", tool_choice=choice)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (wrong_type, "AttributeError: "),
        (too_deep, "RecursionError: "),
        (raising_script, "ValueError: no more"),
        (raising_work, "KeyError: 'missing'"),
        (unsendable, "TypeError: "),
        (limitless, "ValueError: max_tokens is 9223372036854775808; give a whole number up to 2,147,483,647"),
    ],
)
def test_a_turn_that_cannot_be_made_is_booked_as_a_failed_one(script: Any, message: str) -> None:
    host = context()
    assert not performed(host, script())
    ((turn_id, detail),) = host.turns.failed
    assert turn_id == "s0.1"
    assert list(host.part.sessions.notes.values()) == [1]
    assert detail.startswith(message)


@pytest.mark.parametrize("script", [raising_script, plain])
def test_resources_of_a_session_are_always_closed(script: Any) -> None:
    host, closed = context(), []

    def with_a_thing() -> Script:
        worked = yield Work(lambda: "thing", undo=closed.append)
        assert worked.value == "thing"
        yield from script()

    assert performed(host, with_a_thing()) == (script is plain)
    assert closed == ["thing"]


def test_an_exception_while_closing_is_counted_and_ends_nothing_else() -> None:
    host = context()

    def script() -> Script:
        yield Work(lambda: None, undo=lambda _value: 1 / 0)
        yield ask()

    assert performed(host, script())
    assert not host.turns.failed
    assert list(host.part.sessions.notes.values()) == [1]


def test_a_wait_for_a_thread_makes_the_turn_late_and_is_no_part_of_its_pause() -> None:
    waited_ns = 50_000_000

    def in_busy_thread(call: Any) -> Any:
        until = now_ns() + waited_ns
        while now_ns() < until:
            pass
        return call()

    def script() -> Script:
        yield Work(lambda: None)
        yield ask()

    host = context(in_busy_thread)
    begun_ns = now_ns()
    assert performed(host, script())
    ended_ns = now_ns()
    assert begun_ns <= host.turns.planned_ns[0] <= ended_ns - waited_ns
