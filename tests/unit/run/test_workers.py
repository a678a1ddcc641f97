"""The roster of workers: reports, clock offsets, lost and late workers, and the start of a run."""

import subprocess
import sys
from types import SimpleNamespace

import gevent
import pytest

from inferload import __version__
from inferload.base import clock
from inferload.base.errors import UsageError
from inferload.run.master.lifecycle import worker_setup, worker_watchdog
from inferload.run.master.lifecycle.workers import Member, Roster
from inferload.run.process import protocol, silence
from inferload.scenario import scenario as scenarios
from inferload.turns.record import PhaseWindow


def test_the_roster_counts_missing_reports() -> None:
    roster = Roster(["a", "b"])
    member = roster.of_client("b")
    assert member is not None
    assert member.name == "w1"
    assert [member.reported(seq, 0, 0) for seq in (0, 1, 4, 4, 3)] == [True, True, True, False, False]
    assert member.missing_reports == 2
    member.clock.offset_ns = 5
    assert member.reported(5, 0, 105)
    assert member.booked_ns == 100  # on the master's clock


def test_the_ping_with_the_shortest_round_trip_gives_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1_000, 1_400])
    monkeypatch.setattr("inferload.run.master.lifecycle.workers.now_ns", lambda: next(times))
    member = Member("w0", None, 0, heard_ns=0)
    member.clock.update(sent_ns=800, mono_ns=5_900, wall_ns=10, here_wall_ns=10)  # round trip of 200 ns
    member.clock.update(
        sent_ns=1_000, mono_ns=7_000, wall_ns=10, here_wall_ns=10
    )  # round trip of 400 ns: longer, so ignored
    assert (member.clock.offset_ns, member.clock.rtt_ns) == (5_900 - 900, 200)


def test_the_same_clock_has_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferload.run.master.lifecycle.workers.now_ns", lambda: 1_000)
    member = Member("w0", None, 0, heard_ns=0)
    # The reply was fast, the request was slow.
    member.clock.update(sent_ns=800, mono_ns=990, wall_ns=10, here_wall_ns=10, same_clock=True)
    assert (member.clock.offset_ns, member.clock.wall_offset_ns, member.clock.uncertain_ns, member.clock.one_clock) == (
        0,
        0,
        0,
        True,
    )
    # A cloned virtual machine has the same clock id, but another clock.
    member.clock.update(sent_ns=900, mono_ns=1_100, wall_ns=10, here_wall_ns=10, same_clock=True)
    assert (member.clock.offset_ns, member.clock.uncertain_ns, member.clock.one_clock) == (150, 50, False)


def test_processes_of_one_machine_have_one_clock_id() -> None:
    here = clock.clock_id()
    assert here
    words = [sys.executable, "-c", "from inferload.base import clock; print(clock.clock_id())"]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip() == here


def test_windows_move_to_the_workers_clock() -> None:
    windows = [PhaseWindow("warmup", 10, 20), PhaseWindow("measure", 20)]
    moved = protocol.windows_from_wire(protocol.windows_to_wire(windows), offset_ns=5)
    assert moved == (PhaseWindow("warmup", 15, 25), PhaseWindow("measure", 25))


def test_workers_with_another_version_or_scenario_are_refused() -> None:
    members = [Member(name, name, stripe) for stripe, name in enumerate(("w0", "w1", "w2", "w3"))]
    mine = scenarios.load("smoke").digest
    for member, scenario in zip(members, (None, mine, None, None), strict=True):
        member.facts = {"version": __version__, "host": "here", "scenario": scenario}
    worker_setup.check_alike(members, scenarios.load("smoke").digest)
    members[1].facts |= {"version": "0.0.9", "host": "node2"}
    members[2].facts |= {"version": None, "host": "node3"}
    members[3].facts |= {"scenario": scenarios.load("chat").digest, "host": "node4"}
    with pytest.raises(UsageError) as refused:
        worker_setup.check_alike(members, scenarios.load("smoke").digest)
    assert str(refused.value) == (
        f"workers: w1 on node2 runs 0.0.9, w2 on node3 runs an unknown version, and the master inferload {__version__}; "
        f"install the same on all. w3 on node4 was started with scenario {scenarios.load('chat').digest[:12]}, "
        f"and the master with {mine[:12]}; workers need no --scenario: leave it out"
    )


def test_a_late_worker_is_reported_once() -> None:
    roster = Roster(["a", "b"])
    clients = {name: SimpleNamespace(state="ready") for name in ("a", "b")}
    known: set[str] = set()
    assert worker_watchdog.newcomers(roster, clients, known) == []
    clients["late"] = SimpleNamespace(state="ready")
    clients["gone"] = SimpleNamespace(state="missing")
    assert worker_watchdog.newcomers(roster, clients, known) == ["late"]
    assert worker_watchdog.newcomers(roster, clients, known) == []


class LossDetection:
    """Arguments of `mark_lost`, and the losses that it reports."""

    def __init__(self, *names: str) -> None:
        self.roster = Roster(list(names))
        for member in self.roster.members:
            member.began = True
        self.kinds: list[str] = []
        self.looked = 0
        self.marks = SimpleNamespace(add=lambda kind, _text, **_facts: self.kinds.append(kind))

    def on_lost(self) -> None:
        self.looked += 1

    def mark_lost(self, clients: dict[str, SimpleNamespace], listening_s: float) -> None:
        worker_watchdog.mark_lost(self.roster, clients, listening_s, self.marks, self.on_lost)  # type: ignore[arg-type]


def test_a_lost_worker_is_awaited_again_after_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    at_ns = [0]
    monkeypatch.setattr("inferload.run.master.lifecycle.workers.now_ns", lambda: at_ns[0])
    run = LossDetection("a", "b")
    first, second = run.roster.members
    first.heard_ns = second.heard_ns = 0
    clients = {name: SimpleNamespace(state="running") for name in ("a", "b")}
    at_ns[0] = 5 * 10**9
    second.heard()
    run.mark_lost(clients, 60)
    assert (first.lost, run.roster.awaited, run.kinds, run.looked) == (True, [second], ["worker_lost"], 1)
    first.heard()
    clients["a"].state = "missing"  # Locust still counts it as missing
    run.mark_lost(clients, 60)
    assert (first.lost, run.roster.awaited, run.roster.present, run.looked) == (True, [first, second], [second], 1)
    at_ns[0] = 10 * 10**9
    second.heard()
    run.mark_lost(clients, 60)
    assert (run.roster.awaited, run.kinds, run.looked) == ([second], ["worker_lost"], 2)


def test_a_reporting_worker_is_not_lost_if_locust_misses_it() -> None:
    run = LossDetection("a")
    run.roster.members[0].heard()
    run.mark_lost({"a": SimpleNamespace(state="missing")}, 60)
    assert (run.roster.lost, run.kinds) == ([], [])


@pytest.mark.parametrize(("silent_s", "lost"), [(6, False), (14, False), (16, True)])
def test_a_worker_without_a_first_report_has_a_longer_timeout(
    silent_s: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ns = [0]
    monkeypatch.setattr("inferload.run.master.lifecycle.workers.now_ns", lambda: at_ns[0])
    run = LossDetection("a", "b")
    starting, reporting = run.roster.members
    for member in run.roster.members:
        member.heard()
    starting.began = False
    clients = {name: SimpleNamespace(state="running") for name in ("a", "b")}
    at_ns[0] = silent_s * 10**9
    run.mark_lost(clients, 60)
    assert (starting.lost, reporting.lost) == (lost, True)


def test_assignments_wait_until_locust_sees_all_workers() -> None:
    """Locust gives no users to a worker that it counts as missing, and detects its return late."""
    members = Roster(["a", "b"])
    for member in members.members:
        member.ready = True
    clients = {"a": SimpleNamespace(state="ready"), "b": SimpleNamespace(state="missing")}
    with gevent.Timeout(10):
        waiting = gevent.spawn(
            worker_setup.send_assignments,
            members.members,
            lambda _member: SimpleNamespace(to_wire=dict),
            lambda *_message: None,
            clients,
            lambda: None,
            reads_files=False,
        )
        gevent.sleep(0.05)
        assert not waiting.ready()
        clients["b"].state = "ready"
        waiting.get()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_set_up_ends_with_a_worker_that_disconnects(stopped: bool) -> None:
    """A signal to the process group can end a worker before the master receives it."""

    class Stopped(Exception):
        pass

    stop: list[Stopped] = []

    def check_stop() -> None:
        if stop:
            raise stop[0]

    clients = {name: SimpleNamespace(state="ready") for name in ("a", "b")}
    members = Roster(["a", "b"]).members
    worker_setup.check_connected(members, clients, check_stop)
    del clients["b"]
    if stopped:
        gevent.spawn(stop.append, Stopped())
    with pytest.raises(Stopped if stopped else UsageError, match=None if stopped else "w1: disconnected"):
        worker_setup.check_connected(members, clients, check_stop)
    assert worker_setup.check_connected(Roster([None]).members, {}, lambda: None) is None


def test_no_worker_is_lost_because_the_master_was_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    at_ns = [0]
    for module in ("run.master.lifecycle.workers", "run.process.silence"):
        monkeypatch.setattr(f"inferload.{module}.now_ns", lambda: at_ns[0])
    run, ears = LossDetection("a"), silence.SilenceClock()
    member = run.roster.members[0]
    member.heard_ns = 0
    clients = {"a": SimpleNamespace(state="running")}
    for round_ms in (250, 8_000, *range(8_250, 12_001, 250)):  # blocked from 0.25 to 8 s
        at_ns[0] = round_ms * 10**6
        run.mark_lost(clients, ears.listening_s())
    assert not member.lost
    at_ns[0] += 250 * 10**6
    run.mark_lost(clients, ears.listening_s())
    assert member.lost
