"""One session on a worker, without a server: its places in flight and its part of the count are taken once and given back."""

from types import SimpleNamespace
from typing import Any

import pytest

from inferload.measure.record import PhaseWindow
from inferload.swarm.limits import Gate, Quota
from inferload.swarm.talk import Talk
from inferload.workload.bodies import Isolation, Texts
from inferload.workload.messages import text_message
from inferload.workload.prompts import approximate
from inferload.workload.scenario import from_text
from inferload.workload.script import Ask, Fork, Script, Session, Work

SCENARIO = from_text(
    "schema: 1\nname: p\nworkload: {kind: chat, prompt_tokens: 10, output_tokens: 5}\n"
    "arrivals: {kind: constant, sessions_per_s: 2}\nphases: {measure_s: 1}\n",
    "x",
)


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


class Host:
    """What a session needs of its run, and a count of what is sent."""

    def __init__(self) -> None:
        self.assignment = SimpleNamespace(model="m", run_id="r")
        self.scenario = SCENARIO
        self.texts = Texts(approximate(), 0)
        self.gate, self.quota = Gate(2), Quota(None, 5)
        self.open = True
        self.sent = 0

    def window_of(self, at_ns: int) -> PhaseWindow:
        return PhaseWindow("measure", 0)

    def await_turn(self) -> None:
        pass

    def beside_the_loop(self, call: Any) -> Any:
        return call()

    def start_turn(self, request: Any, session: int) -> Any:
        self.sent += 1
        record = SimpleNamespace(failure=None, closed_ns=1, output_tokens=2, finish_reason="stop")
        result = SimpleNamespace(record=record, text="a", reasoning="", tool_calls=())
        return SimpleNamespace(wait=lambda: result)


def free(gate: Gate) -> int:
    count = 0
    while gate.try_enter():
        count += 1
    return count


@pytest.mark.parametrize(("script", "turns"), [(plain, 2), (working, 2), (forking, 2)])
def test_a_session_takes_what_its_turns_need_and_leaves_nothing_taken(script: Any, turns: int) -> None:
    host: Any = Host()
    assert host.gate.try_enter()  # for its first turn, as whoever starts a session does
    assert host.quota.take_session("measure")
    ended = Talk(host, Session(0, "chat", script()), Isolation(), 0).perform()
    assert ended.complete
    assert host.sent == turns
    assert free(host.gate) == 2
    left = sum(host.quota.take_turn("measure") for _ in range(9))
    assert left == 5 - turns


def test_work_that_ends_after_the_run_begins_no_turn() -> None:
    host: Any = Host()

    def script() -> Script:
        yield Work(lambda: setattr(host, "open", False))
        yield ask()

    assert host.gate.try_enter()
    assert host.quota.take_session("measure")
    assert not Talk(host, Session(0, "chat", script()), Isolation(), 0).perform().complete
    assert host.sent == 0
    assert free(host.gate) == 2
