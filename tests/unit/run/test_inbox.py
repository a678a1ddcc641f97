"""Messages of the workers: the end of a worker's part of the load."""

from types import SimpleNamespace
from typing import Any

import gevent
import numpy as np
import pytest
from msgspec import structs

from inferload.base.clock import NS_PER_S, now_ns
from inferload.figures.turn_figures import TTFT
from inferload.run.master.lifecycle.phases import LoadStage, RunEnd, RunPhases, RunState
from inferload.run.master.workers import inbox as inboxes
from inferload.run.master.workers.inbox import Inbox
from inferload.run.master.workers.workers import Roster
from inferload.run.process.protocol import WorkerReport
from inferload.scenario import scenario as scenarios
from inferload.turns.client_health import Beat, HealthSet
from inferload.turns.tally import TallySet


class Drains:
    """A run with two workers. `load_end_s`: end of the load, in seconds from now; None if it is not known."""

    def __init__(self, load_end_s: float | None, *, over: bool = False, stopped: bool = False) -> None:
        self.now_ns = now_ns()
        self.marks: list[tuple[str, int | None]] = []
        marks: Any = SimpleNamespace(add=lambda kind, text, at_ns=None, **_facts: self.marks.append((kind, at_ns)))
        self.roster, phases, self.end = Roster(["a", "b"]), RunPhases(()), RunEnd(marks)
        phases.set(self._at_ns(-60), self._at_ns(-50), None if load_end_s is None else self._at_ns(load_end_s))
        if over:
            self.end.enter(LoadStage.DRAINING)
        if stopped:
            self.end.stop.set()
        state = RunState("r", self.roster, marks, phases, self.end)
        self.inbox = Inbox(state, scenarios.load("chat"), [], records=None)  # type: ignore[arg-type]

    def _at_ns(self, at_s: float) -> int:
        return self.now_ns + round(at_s * NS_PER_S)

    def drained(self, name: str, closed_s: float) -> None:
        member = self.roster.named(name)
        assert member is not None
        self.inbox.on_drained(member, {"closed_ns": self._at_ns(closed_s)})

    @property
    def left(self) -> list[str]:
        return [member.name for member in self.roster.members if member.left]


@pytest.mark.parametrize(
    ("run", "closed_s", "left"),
    [
        ({"load_end_s": -5, "over": True}, -45, True),  # its last stream ended after the planned end
        ({"load_end_s": -5, "over": True}, -5, False),
        ({"load_end_s": -5, "over": True}, -5.8, False),
        ({"load_end_s": -0.1, "stopped": True}, -3, True),
        ({"load_end_s": 60, "stopped": True}, -0.5, False),  # the master has got the same signal
        ({"load_end_s": 60}, -3, True),
        ({"load_end_s": None}, -3, True),
    ],
)
def test_a_worker_that_closed_its_load_before_the_end_has_left(
    run: dict[str, Any], closed_s: float, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run can end right after the message, so that the worker must be marked at once."""
    drains = Drains(**run)
    monkeypatch.setattr(inboxes, "now_ns", lambda: drains.now_ns)
    drains.drained("w0", closed_s)
    assert drains.left == (["w0"] if left else [])
    assert drains.marks == ([("worker_left", drains._at_ns(closed_s))] if left else [])
    assert drains.end.stop.is_set() == bool(run.get("stopped"))


@pytest.mark.parametrize("over", [False, True])
def test_a_worker_that_has_just_closed_its_load_has_left_if_the_run_goes_on(
    over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal to the process group can reach the master later."""
    monkeypatch.setattr(inboxes, "_SAME_SIGNAL_NS", NS_PER_S // 10)
    drains = Drains(load_end_s=0.05)
    with monkeypatch.context() as clock:
        clock.setattr(inboxes, "now_ns", lambda: drains.now_ns)
        drains.drained("w0", 0)
    assert drains.left == []
    if over:
        drains.end.enter(LoadStage.DRAINING)
    if not over:
        drains.inbox.state.phases.set(0, drains._at_ns(-50), None)
    gevent.sleep(0.4)
    assert drains.left == ([] if over else ["w0"])


def test_the_run_ends_with_its_last_worker() -> None:
    drains = Drains(load_end_s=60)
    drains.drained("w0", -3)
    assert not drains.end.stop.is_set()
    drains.drained("w1", -2)
    assert (drains.left, drains.end.early_by) == (["w0", "w1"], "the end of every worker")


def report(name: str, seq: int, sent: int) -> dict[str, Any]:
    tallies, health = TallySet(), HealthSet()
    for _ in range(sent):
        tallies.at("measure", "chat").turns_begun += 1
    tallies.at("measure", "chat").sketch(TTFT.key).add_many(np.array([10.0 * seq + 1]))
    health.at(name, "measure").beat(Beat([1.0], [], 0.1, 1.0, None))
    return structs.asdict(WorkerReport("r", name, seq, tallies.to_wire(), health.to_wire(), sent, now_ns()))


def test_reports_that_are_added_together_have_the_sums_of_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    drains, alone = Drains(load_end_s=60), Drains(load_end_s=60).inbox
    at_s, reports = [20.1], [("w0", 0, 3), ("w1", 0, 4), ("w0", 1, 5), ("w1", 1, 6)]
    monkeypatch.setattr(RunPhases, "elapsed_s", lambda _self: at_s[0])
    for number, (name, seq, sent) in enumerate(reports):
        at_s[0] = 20.9 + number / 10  # the second one is in the next second
        for inbox in (drains.inbox, alone):
            member = inbox.state.roster.named(name)
            assert member is not None
            inbox.on_report(member, report(name, seq, sent))
        alone.settle()
    assert drains.inbox.totals.tallies == alone.totals.tallies
    assert drains.inbox.totals.health == alone.totals.health
    assert drains.inbox.totals.tallies.total().turns_begun == 18
    assert drains.inbox.recorder.recent.figures(22.0) == alone.recorder.recent.figures(22.0)
    assert drains.inbox.recorder.health.figures(22.0) == alone.recorder.health.figures(22.0)


def test_gathered_reports_are_added_without_a_reader() -> None:
    drains = Drains(load_end_s=60)
    drains.inbox.on_report(drains.roster.members[0], report("w0", 0, 3))
    with gevent.Timeout(20):
        while not drains.inbox._totals.tallies.items():
            gevent.sleep(0.01)
    assert drains.inbox._totals.tallies.total().turns_begun == 3
