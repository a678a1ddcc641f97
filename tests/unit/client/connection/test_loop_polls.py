"""Stamps of the event loop's polls."""

from collections.abc import Callable
from types import SimpleNamespace

import gevent
import pytest

from inferload.base.clock import NS_PER_MS
from inferload.client.connection import python_connection
from inferload.client.connection.python_connection import LoopPolls, polls_of


class ScriptedLoop:
    """Event loop whose iterations are called by the test. `MINPRI` and `MAXPRI` are those of libev."""

    MINPRI, MAXPRI = -2, 2

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at_ms = 0
        self._stamps: list[Callable[[], None]] = []
        patch.setattr(python_connection, "now_ns", lambda: self.at_ms * NS_PER_MS)

    def prepare(self, *, ref: bool, priority: int) -> SimpleNamespace:
        assert not ref
        return SimpleNamespace(start=self._stamps.append)

    check = prepare

    def poll(self, wait_ms: int) -> None:
        """Poll, which waits for a socket."""
        begin, end = self._stamps
        begin()
        self.at_ms += wait_ms
        end()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> ScriptedLoop:
    return ScriptedLoop(monkeypatch)


@pytest.mark.parametrize(("wait_ms", "since_ms"), [(0, 30), (20, 60)], ids=["at once", "after a wait"])
def test_what_a_poll_reports_has_arrived_since_the_poll_before_unless_it_waited(
    loop: ScriptedLoop, wait_ms: int, since_ms: int
) -> None:
    polls = LoopPolls(loop)
    loop.poll(30)
    loop.at_ms += 10  # work
    loop.poll(wait_ms)
    loop.at_ms += 5
    assert polls.unseen_since_ns() == since_ms * NS_PER_MS


def test_a_loop_has_one_pair_of_watchers() -> None:
    loop = gevent.get_hub().loop
    polls = polls_of(loop)
    assert polls_of(loop) is polls
    earlier_ns = polls.unseen_since_ns()
    gevent.sleep(0.002)
    gevent.sleep(0.002)
    assert polls.unseen_since_ns() > earlier_ns


def test_work_of_greenlets_is_outside_of_the_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is between the end of a poll and the begin of the next, in whatever order the watchers were started."""
    monkeypatch.setattr(python_connection, "WAITED_NS", 0)
    steps: list[str] = []
    polls = LoopPolls(gevent.get_hub().loop)
    for watcher, name in zip(polls._watchers, ("begin", "return"), strict=True):
        watcher.stop()
        watcher.start(steps.append, name)
    gevent.sleep(0)
    del steps[:]
    for _ in range(3):
        steps.append("work")
        gevent.sleep(0)
    gevent.sleep(0.001)
    for watcher in polls._watchers:
        watcher.stop()
        watcher.close()
    text = " ".join(steps)
    assert "begin work" not in text, text
    assert text.count("begin return") >= 1, text
