"""The roster of workers: reports, clock offsets, lost and late workers, and the start of a run."""

import contextlib
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferload import __version__
from inferload.base import clock
from inferload.base.errors import UsageError
from inferload.locust_adapters.process import WorkerCount
from inferload.results import readers
from inferload.results.documents.manifest_document import Anchor
from inferload.run.master.workers import worker_setup, worker_watchdog
from inferload.run.master.workers.workers import Member, Roster
from inferload.run.process import greenlets, protocol
from inferload.run.process.program_code import ProgramCode
from inferload.scenario import scenario as scenarios
from inferload.turns.record import PhaseWindow
from inferload.turns.socket_reader import SocketReader


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
    monkeypatch.setattr("inferload.run.master.workers.workers.now_ns", lambda: next(times))
    member = Member("w0", None, 0, heard_ns=0)
    member.clock.update(sent_ns=800, mono_ns=5_900, wall_ns=10, here_wall_ns=10)  # round trip of 200 ns
    member.clock.update(
        sent_ns=1_000, mono_ns=7_000, wall_ns=10, here_wall_ns=10
    )  # round trip of 400 ns: longer, so ignored
    assert (member.clock.offset_ns, member.clock.rtt_ns) == (5_900 - 900, 200)


def test_the_same_clock_has_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferload.run.master.workers.workers.now_ns", lambda: 1_000)
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


class Nothing(msgspec.Struct):
    """An assignment without fields."""


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
    monkeypatch.setattr("inferload.run.master.workers.workers.now_ns", lambda: at_ns[0])
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
    assert (run.roster.members[0].lost, run.kinds) == (False, [])


@pytest.mark.parametrize(("silent_s", "lost"), [(6, False), (14, False), (16, True)])
def test_a_worker_without_a_first_report_has_a_longer_timeout(
    silent_s: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ns = [0]
    monkeypatch.setattr("inferload.run.master.workers.workers.now_ns", lambda: at_ns[0])
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
            lambda _member: Nothing(),
            lambda *_message: None,
            clients,
            lambda: None,
            reads_files=False,
        )
        gevent.sleep(0.05)
        assert not waiting.ready()
        clients["b"].state = "ready"
        waiting.get()


def test_missing_workers_end_the_run() -> None:
    runner = SimpleNamespace(clients=SimpleNamespace(ready=["a"]))
    message = (
        "workers: 1 of 2 connected within 0.2 s; start the missing ones with --worker --master-host, "
        "wait longer with --expect-workers-max-wait, or lower --expect-workers"
    )
    with pytest.raises(UsageError, match=f"^{message}$"):
        worker_setup.wait_for_workers(runner, WorkerCount(2, 2, 0.2), lambda: False)


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
    for module in ("run.master.workers.workers", "run.process.greenlets"):
        monkeypatch.setattr(f"inferload.{module}.now_ns", lambda: at_ns[0])
    run, ears = LossDetection("a"), greenlets.SilenceClock()
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


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
READY: dict[str, Any] = {
    "run_id": "r",
    "name": "w0",
    "host": "node1",
    "pid": 7,
    "error": None,
    "adaptations_left_out": ["one"],
    "times_digest": None,
    "anchor": {"wall_ns": 1, "mono_ns": 2},
    "folder": "/tmp/w0",
    "readers": [{"target": "http://h", "reader": "native"}],
    "delivers": False,
    "program": msgspec.to_builtins(ProgramCode(mains=("a.py",))),
}


def send_nothing(*_message: Any) -> None:
    """Drop a message."""


def accepted(member: Member) -> str:
    """Return the refusal of a worker by the master's set-up, "" if it may take part."""
    try:
        worker_setup.send_assignments(
            [member],
            lambda _member: Nothing(),  # type: ignore[arg-type,return-value]
            send_nothing,
            {},
            lambda: None,
            reads_files=False,
        )
    except UsageError as error:
        return str(error)
    return ""


def use(member: Member) -> None:
    """Use what a worker said of itself, as the live display and the files of a run do."""
    assert readers.text(readers.uses_of([member.readers])) is not None
    for document in (member.manifest(), member.ended()):
        json.dumps(msgspec.to_builtins(document))
    worker_setup.log_readers([member])


def test_a_ready_worker_has_its_readers() -> None:
    member = Member("w0", None, 0)
    assert member.readers == ()
    member.take_ready(READY | {"later": 1})
    assert accepted(member) == ""
    assert member.readers == (SocketReader(target="http://h", reader="native"),)
    assert member.manifest().anchor == Anchor(wall_ns=1, mono_ns=2)
    assert (member.delivers, member.facts["pid"], member.facts["host"]) == (False, 7, "node1")
    use(member)


@given(odd=st.dictionaries(st.sampled_from(sorted(READY)) | st.text(max_size=3), ODD, min_size=1))
@example({"readers": 5})
@example({"readers": [{"target": 3}]})
@example({"readers": [None]})
@example({"anchor": {"wall_ns": "now"}})
@example({"anchor": {"wall_ns": 1, "mono_ns": 1, "more": 1}})
@example({"program": {"mains": 5}})
@example({"program": {"loaded": 3}})
@example({"error": 5})
@example({"host": ["\n"]})
def test_an_odd_ready_message_ends_the_set_up_in_one_line_or_is_harmless(odd: dict[str, Any]) -> None:
    member = Member("w0", None, 0, facts={"version": __version__, "host": "node1", "scenario": None})
    member.take_ready(READY | odd)
    refusal = accepted(member)
    if refusal and "malformed" in refusal:
        assert "\n" not in refusal
        assert refusal.startswith("worker w0 on node1: its READY message is malformed: ")
        assert member.readers == ()
    assert (
        not refusal
        or {"readers", "anchor", "host", "pid", "error", "folder", "delivers", "program"} & {*odd}
        or ({"times_digest", "adaptations_left_out"} & {*odd})
    )
    use(member)
    with contextlib.suppress(UsageError):
        if not refusal:
            worker_setup.check_programs([member], ProgramCode(mains=("a.py",), files=(("a.py", "0"),)))


@pytest.mark.parametrize(
    ("cpu_share", "round_s", "warns"),
    [(0.3, 0.26, False), (0.69, 0.3, False), (0.8, 0.26, True), (0.2, 0.7, True)],
)
def test_a_master_near_its_limit_warns(
    cpu_share: float, round_s: float, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s, roster = [100.0], Roster(["a", "b"])
    monkeypatch.setattr(worker_watchdog, "now_ns", lambda: round(at_s[0] * clock.NS_PER_S))
    monkeypatch.setattr(worker_watchdog, "cpu_ns", lambda: round(at_s[0] * cpu_share * clock.NS_PER_S))
    load, texts = worker_watchdog.OwnLoad(roster), []
    for number in range(20):
        at_s[0] += 8.0 if number == 3 else round_s  # one pause, as of a suspended machine, does not count
        roster.members[0].turns += 100
        texts.append(load.warning())
    assert texts[:-1] == [None] * 19
    assert (texts[-1] is not None) == warns
    if texts[-1] is not None:
        assert f"2 workers, {2000 / (at_s[0] - 100):,.0f} turns/s, {cpu_share:.0%} of a core" in texts[-1]
