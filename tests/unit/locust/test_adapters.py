"""Effect of each change to Locust; a new version of Locust must pass these tests."""

import functools
import inspect
import json
import math
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forge
import gevent
import locust
import locust.argument_parser
import locust.env
import locust.main
import locust.runners
import locust.stats
import msgpack
import numpy as np
import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st
from locust import TaskSet, User, constant, task
from locust.dispatch import UsersDispatcher
from locust.rpc import zmqrpc
from locust.rpc.protocol import Message
from locust.runners import WorkerNode

from inferload.base.errors import UsageError
from inferload.locust import options
from inferload.locust_adapters import membership, messages, process, runners, tables, tasks, web_page
from inferload.results import ci
from inferload.scenario.schema.load.arrivals import spawn_duration_s


def test_default_arguments_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = locust.argument_parser.default_args_dict
    calls = []

    @functools.wraps(original)
    def counted() -> dict[str, object]:
        calls.append(1)
        return {"host": None}

    monkeypatch.setattr(locust.argument_parser, "default_args_dict", counted)
    process.cache_default_arguments()
    process.cache_default_arguments()
    first = locust.argument_parser.default_args_dict()
    assert all(
        locust.argument_parser.default_args_dict() is first for _ in range(56)
    )  # once per option of a spawn message
    assert len(calls) == 1


def test_locusts_clock_is_independent_of_wall_clock_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (locust.runners, locust.stats):
        monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(process, "now_ns", lambda: at_ns[0])
    at_ns = [time.monotonic_ns()]
    process.use_steady_clock()
    before_s = locust.runners.time.time()
    assert before_s == pytest.approx(time.time(), abs=5)
    with monkeypatch.context() as stepped:
        stepped.setattr(time, "time", lambda: 1.0)
        at_ns[0] += 2 * 10**9
        assert locust.runners.time.time() - before_s == pytest.approx(2)
    assert locust.stats.time is locust.runners.time
    assert locust.runners.time.monotonic is time.monotonic


def test_a_reaped_worker_process_counts_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locust.main, "os", os)
    child = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])
    child_status = os.waitpid(child.pid, 0)[1]
    with pytest.raises(ChildProcessError):  # as with gevent, for a child already reaped
        locust.main.os.waitpid(child.pid, 0)
    process.tolerate_reaped_workers()
    process.tolerate_reaped_workers()
    assert locust.main.os.waitpid(child.pid, 0) == locust.main.os.waitpid(child.pid, os.WNOHANG) == (child.pid, 0)
    other = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])
    assert locust.main.os.waitpid(other.pid, 0) == (other.pid, child_status)
    assert locust.main.os.environ is os.environ


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> messages.IgnoredMessages:
    monkeypatch.setattr(messages, "ignored_messages", messages.IgnoredMessages())
    return messages.ignored_messages


@given(packets=st.lists(st.binary(max_size=40), max_size=5))
@example(packets=[msgpack.packb(["heartbeat", {"__ObjectId__": True, "as_str": "x"}, "w"])])
def test_random_packets_do_not_block_the_next_message(packets: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch, gevent.Timeout(20):
        patch.setattr(messages, "ignored_messages", messages.IgnoredMessages())
        patch.setattr(zmqrpc.Server, "recv_from_client", zmqrpc.Server.recv_from_client)
        messages.survive_malformed_packets()
        messages.survive_malformed_packets()
        server = zmqrpc.Server("127.0.0.1", 0)
        client = zmqrpc.Client("127.0.0.1", server.port, "a")
        for packet in packets:
            client.socket.send(packet)
        client.send(Message("client_ready", "2.47.0", "b"))
        client.send(Message("client_ready", "2.47.0", "a"))
        sender, message = server.recv_from_client()
        client.close(0)
        server.close(0)
        assert (sender, message.type, message.node_id) == ("a", "client_ready", "a")
        assert sum(messages.ignored_messages.counts.values()) == len(packets) + 1
        assert messages.ignored_messages.counts["message under another sender's name"] >= 1


def test_a_master_that_is_behind_with_its_messages_lets_other_greenlets_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket with waiting messages never waits."""
    at_ns, ran = [0], []

    def receive(_self: object) -> tuple[str, Message]:
        at_ns[0] += 5_000_000
        return "a", Message("heartbeat", None, "a")

    monkeypatch.setattr(zmqrpc.Server, "recv_from_client", receive)
    monkeypatch.setattr(messages, "now_ns", lambda: at_ns[0])
    messages.survive_malformed_packets()
    server = zmqrpc.Server.__new__(zmqrpc.Server)
    server.recv_from_client()
    gevent.spawn(ran.append, 1)
    for _ in range(4):
        server.recv_from_client()
    assert not ran
    server.recv_from_client()
    assert ran


def test_messages_of_unknown_senders_or_malformed_ones_are_ignored(
    monkeypatch: pytest.MonkeyPatch, ignored: messages.IgnoredMessages
) -> None:
    received = []

    def handle_message(_self: object, _client_id: str, message: Message) -> None:
        received.append(message.data["state"])

    monkeypatch.setattr(locust.runners.MasterRunner, "handle_message", handle_message)
    messages.check_senders()
    messages.check_senders()
    runner = locust.runners.MasterRunner.__new__(locust.runners.MasterRunner)
    runner.worker_indexes = {"a": 0}
    runner.greenlet = None  # Locust's destructor reads it
    for sender, data in [("a", {"state": "ready"}), ("a", None), ("b", {"state": "ready"})]:
        runner.handle_message(sender, Message("heartbeat", data, sender))
    assert received == ["ready"]
    assert ignored.counts == {"message that cannot be handled": 1, "message of an unknown sender": 1}


def test_a_missing_worker_does_not_keep_the_master_in_the_state_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    master = locust.runners.MasterRunner
    monkeypatch.setattr(master, "check_stopped", inspect.unwrap(master.check_stopped))
    assert runners.state_after_stop(["ready", "missing"]) == "stopping"
    runners.ignore_missing_workers()
    runners.ignore_missing_workers()
    assert runners.state_after_stop(["ready", "missing"]) == "stopped"
    for waiting in ("running", "spawning", "stopping"):
        assert runners.state_after_stop(["ready", "missing", waiting]) == "stopping"


QUITTING = """
import json, locust
from inferload.locust import plugin

plugin.install()
data = {"user_count": 2}
locust.events.report_to_master.fire(client_id="w", data=data)
print(json.dumps(data))
"""


def started(folder: Path, program: str, *arguments: str) -> Any:
    """Start a program in a process that has imported Locust."""
    (folder / "program_of_test.py").write_text(program)
    return forge.LOCUST.start("program_of_test", arguments, env=os.environ, cwd=folder, errors_too=True)


def test_a_worker_that_quits_while_connecting_sends_valid_reports(tmp_path: Path) -> None:
    quitting = started(tmp_path, QUITTING)
    assert json.loads(quitting.stdout.read()) == {"user_classes_count": {}, "user_count": 2}
    assert quitting.wait(60) == 0


def test_ignored_messages_are_logged_once_per_reason(
    ignored: messages.IgnoredMessages, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        ignored.add("malformed packet", "\x1b[2J\n" * 1000)
    assert ignored.counts["malformed packet"] == 3
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 250


@given(st.floats(0.001, 1e7))
def test_response_time_buckets_are_within_half_a_percent(value_ms: float) -> None:
    assert abs(tables.bucket_ms(value_ms) - value_ms) <= 0.005 * value_ms * (1 + 1e-9)


@given(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=30))
def test_logging_samples_in_a_batch_equals_single_logging(values_ms: list[float]) -> None:
    single, many = (locust.stats.RequestStats(use_response_times_cache=False).get("chat", "ITL") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locust.stats, "bucket_response_time", tables.bucket_ms)
        for value in values_ms:
            single.log(value, 0)
        tables.log_many(many, np.array(values_ms))
    assert many.num_requests == single.num_requests == len(values_ms)
    assert many.total_response_time == pytest.approx(single.total_response_time)
    assert (many.min_response_time, many.max_response_time) == (min(values_ms), max(values_ms))
    assert {round(bucket, 9): n for bucket, n in many.response_times.items()} == {
        round(bucket, 9): n for bucket, n in single.response_times.items()
    }
    assert sum(many.response_times.values()) == len(values_ms)
    assert sum(many.num_reqs_per_sec.values()) == len(values_ms)


def test_the_page_receives_fractional_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locust.stats, "bucket_response_time", locust.stats.bucket_response_time)
    monkeypatch.setattr(locust.stats.StatsEntry, "to_dict", locust.stats.StatsEntry.to_dict)
    tables.use_fine_buckets()
    tables.keep_fractions()
    entry = locust.stats.RequestStats(use_response_times_cache=False).get("chat", "ITL")
    for value in (8.374, 8.37, 9.991):
        entry.log(value, 0)
    row = entry.to_dict(escape_string_values=True)
    assert (row["min_response_time"], row["median_response_time"], row["max_response_time"]) == (8.37, 8.37, 9.99)


def test_an_empty_batch_changes_nothing() -> None:
    entry = locust.stats.RequestStats(use_response_times_cache=False).get("chat", "ITL")
    tables.log_many(entry, np.array([]))
    assert entry.num_requests == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [("", "--host: missing"), ("-u x", "argument -u/--users: invalid int value: 'x'"), ("--worker", "")],
)
def test_an_error_of_the_command_line_is_one_line_and_in_the_outputs(
    words: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def get_parser() -> Any:
        parser = locust.argument_parser.get_parser()
        ci.add_options(parser)
        return parser

    def refuse(_options: object, _elsewhere: object) -> None:
        raise UsageError("--host: missing")

    monkeypatch.setattr(locust.main, "get_parser", get_parser)
    process.check_after_parsing(refuse)
    process.check_after_parsing(refuse)  # a second call has no effect
    arguments = ["--termination-message", str(tmp_path / "log"), *words.split()]
    monkeypatch.setattr(sys, "argv", ["locust", *arguments])
    with pytest.raises(SystemExit) as ended:
        locust.main.get_parser().parse_args(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == "inferload: --host: missing\n" if words != "-u x" else text in said
    written = (tmp_path / "log").read_text() if text else ""
    assert written == (f"inferload: not started: {text}\n" if text else "")


@pytest.mark.parametrize(
    ("words", "wait_s"),
    [("", 60), ("--expect-workers-max-wait 300", 300), ("--expect-workers-max-wait 0", math.inf)],
)
def test_the_time_limit_for_workers_is_that_of_locusts_option(words: str, wait_s: float) -> None:
    parser = locust.argument_parser.get_parser()
    options.add_options(parser, "chat")
    parsed = parser.parse_args(words.split())
    assert process.take_options_over(parsed, 1, 1.0).wait_s == wait_s
    assert parsed.expect_workers == 0  # else Locust waits, and ends the process in its own way


def test_a_worker_that_is_refused_at_a_later_handshake_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that closes the connection first gives another event than one that answers; then ZeroMQ connects again."""
    events = [zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL]
    frames = [[struct.pack("=HI", event, 0), b"tcp://master:5557"] for event in events]
    monitor = SimpleNamespace(recv_multipart=lambda: frames.pop(0), close=lambda linger: None)
    of = {"get_monitor_socket": lambda _events: monitor, "disable_monitor": lambda: None}
    monkeypatch.setattr(membership.gevent, "spawn", lambda wait: wait())
    with pytest.raises(SystemExit) as ended:
        membership._log_refusal(SimpleNamespace(LAST_ENDPOINT=b"tcp://master:5557\0", **of), is_master=False)
    assert ended.value.code == 2
    assert len(caplog.messages) == 1


def test_choices_are_suggestions_only() -> None:
    choices = web_page.AnyOf(["chat", "smoke"])
    assert list(choices) == ["chat", "smoke"]
    assert "/somewhere/mine.yaml" in choices


def test_an_unpatched_standard_library_is_refused() -> None:
    """The standard library is unpatched in the test process; a run would block at its first wait."""
    with pytest.raises(UsageError, match="LOCUST_SKIP_MONKEY_PATCH is set"):
        process.check_patched()


def test_users_by_class_are_those_that_run_during_a_ramp() -> None:
    """Locust sets `target_user_classes_count` at the end of a ramp."""

    class Chat(User):
        @task
        def wait_for_long(self) -> None:
            gevent.sleep(60)

    environment = locust.env.Environment(user_classes=[Chat])
    local = environment.create_local_runner()
    local.spawn_users({"Chat": 2}, wait=False)
    gevent.sleep(0)
    assert runners.user_counts(local) == {"Chat": 2}
    local.quit()

    master = locust.runners.MasterRunner.__new__(locust.runners.MasterRunner)
    master.greenlet, master.clients = None, locust.runners.WorkerNodes()
    for name, state, users in (("a_1", "running", 3), ("a_2", "spawning", 1), ("a_3", "missing", 5)):
        master.clients[name] = WorkerNode(name, state=state)
        master.clients[name].user_classes_count = {"Chat": users}
    assert runners.user_counts(master) == {"Chat": 4}


def test_a_worker_outside_the_roster_gets_no_users() -> None:
    class One(locust.User):
        weight = 1

    a, b, stray, late = (WorkerNode(f"host_{name}") for name in "abcd")
    dispatcher = runners.members_only(lambda: {a.id, b.id})([a, b, stray], [One])
    dispatcher.new_dispatch(target_user_count=8, spawn_rate=4, user_classes=[One])
    next(dispatcher)
    dispatcher.add_worker(late)  # during a ramp: Locust would move users to it
    assert list(dispatcher)[-1] == {a.id: {"One": 4}, b.id: {"One": 4}}
    dispatcher.remove_worker(stray)
    dispatcher.new_dispatch(target_user_count=10, spawn_rate=10, user_classes=[One])
    assert list(dispatcher)[-1] == {a.id: {"One": 5}, b.id: {"One": 5}}


def test_without_a_roster_every_worker_gets_users() -> None:
    class One(locust.User):
        weight = 1

    a, b = WorkerNode("host_a"), WorkerNode("host_b")
    dispatcher = runners.members_only(lambda: None)([a], [One])
    dispatcher.add_worker(b)
    dispatcher.new_dispatch(target_user_count=2, spawn_rate=2, user_classes=[One])
    assert list(dispatcher)[-1] == {a.id: {"One": 1}, b.id: {"One": 1}}


@given(st.integers(1, 500), st.floats(0.1, 200))
def test_the_planned_spawn_duration_equals_locusts(users: int, spawn_per_s: float) -> None:
    dispatcher = UsersDispatcher([WorkerNode("host_a")], [locust.User])
    dispatcher.new_dispatch(target_user_count=users, spawn_rate=spawn_per_s)
    waits = -(-users // dispatcher._user_count_per_dispatch_iteration) - 1
    assert spawn_duration_s(users, spawn_per_s) == pytest.approx(waits * dispatcher._wait_between_dispatch)


class _Waiting(User):
    wait_time = constant(0.01)

    @task
    class Outer(TaskSet):
        @task
        def inner(self) -> None:
            names.append(tasks.task_name(self.user))


names: list[str | None] = []


def test_the_name_of_the_running_task_is_known() -> None:
    tasks.note_task_names()
    names.clear()
    user = _Waiting(None)
    outer = _Waiting.Outer(user)
    outer.execute_task(_Waiting.Outer.inner)
    assert names == ["inner"]
    assert tasks.task_name(user) is None


def test_the_delay_after_a_users_wait_is_known() -> None:
    tasks.note_late_wakes()
    user = _Waiting(None)
    blocking = gevent.spawn(lambda: time.sleep(0.1))
    _Waiting.Outer(user)._sleep(0.01)
    blocking.join()
    assert user.inferload_late_ns > 50e6


def test_a_wait_of_0_s_is_left_out_after_a_task_that_has_waited_only() -> None:
    tasks.note_late_wakes()
    user, ran = _Waiting(None), []
    for waited in (True, False, False):
        gevent.spawn(ran.append, waited)
        user.inferload_waited = waited
        _Waiting.Outer(user)._sleep(0)
        assert (waited in ran) is not waited
        gevent.sleep(0)


SENDER = """
import os, sys
from types import SimpleNamespace
from locust.rpc import zmqrpc
from locust.rpc.protocol import Message
from inferload.locust_adapters import messages

client = zmqrpc.Client("127.0.0.1", int(sys.argv[1]), "a")
for number in range(200):
    client.send(Message("part", "x" * 65_536, "a"))
client.send(Message("last", None, "a"))
messages.flush_messages(SimpleNamespace(client=client))
os._exit(0)
"""


def test_messages_of_a_worker_that_exits_are_sent(tmp_path: Path) -> None:
    server = zmqrpc.Server("127.0.0.1", 0)
    sender = started(tmp_path, SENDER, str(server.port))
    kinds = []
    with gevent.Timeout(60):
        while "last" not in kinds:
            kinds.append(server.recv_from_client()[1].type)
    assert sender.wait(60) == 0
    server.close(linger=0)
    assert kinds.count("part") == 200


class MasterOfMessages(locust.runners.MasterRunner):  # type: ignore[misc]  # Locust has no types
    """Master without a network. `sent`: workers, types of messages and numbers of users."""

    def __init__(self) -> None:
        locust.runners.Runner.__init__(self, locust.env.Environment(user_classes=[User]))
        self.clients = locust.runners.WorkerNodes()
        self.worker_indexes, self.worker_index_max, self._users_dispatcher = {}, 0, None
        self.sent: list[tuple[str, str, int]] = []
        self.server = SimpleNamespace(send_to_client=self.note)
        self.environment.runner = self

    def note(self, message: Message) -> None:
        counts = (message.data or {}).get("user_classes_count", {})
        self.sent.append((message.node_id, message.type, sum(counts.values())))

    def receive(self, kind: str, worker: str, data: object = -1) -> None:
        self.handle_message(worker, Message(kind, data, worker))

    def take(self, kind: str) -> list[tuple[str, int]]:
        """Return the messages of a kind since the last call."""
        sent, self.sent = self.sent, []
        return [(worker, users) for worker, name, users in sent if name == kind]


def test_the_next_run_after_the_loss_of_all_workers_begins_without_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locust's own stop is ignored while a run goes on."""
    monkeypatch.setenv("LOCUST_WAIT_FOR_WORKERS_REPORT_AFTER_RAMP_UP", "0")
    runner = MasterOfMessages()
    start, stop = runners.take_over(runner, lambda *load: None, lambda: None)
    runner.receive("client_ready", "a_1")
    start(50, 100.0)
    assert max(users for _worker, users in runner.take("spawn")) == 50
    runner.receive("spawning_complete", "a_1", {"user_classes_count": {"User": 50}})
    runner.receive("quit", "a_1")
    stop()
    assert runner.state == locust.runners.STATE_STOPPED
    runner.receive("client_ready", "a_2")
    start(3, 2.0)
    assert runner.take("spawn") == [("a_2", 2), ("a_2", 3)]


def test_workers_that_report_again_after_all_were_silent_are_stopped() -> None:
    runner = MasterOfMessages()
    start, stop = runners.take_over(runner, lambda *load: None, lambda: None)
    runner.receive("client_ready", "a_1")
    start(2, 100.0)
    runner.receive("spawning_complete", "a_1", {"user_classes_count": {"User": 2}})
    runner.clients["a_1"].state = locust.runners.STATE_MISSING  # as after 3 s without a heartbeat
    runner.check_stopped()
    heartbeat = {"state": locust.runners.STATE_RUNNING, "current_cpu_usage": 0}
    runner.receive("heartbeat", "a_1", heartbeat)
    runner.take("stop")
    gevent.spawn_later(0.1, runner.receive, "client_stopped", "a_1")
    stop()
    assert runner.take("stop") == [("a_1", 0)]
    assert runner.state == locust.runners.STATE_STOPPED


def figures(**changes: Any) -> dict[str, Any]:
    rates = {"current_rps": 2.5, "current_fail_per_sec": 0.5}
    return {"state": "running", "user_count": 5, "total_rps": 2.5, **rates, "stats": [{"name": "x", **rates}]} | changes


def test_the_header_has_the_users_that_still_have_a_turn_during_the_drain() -> None:
    assert web_page.shown_under_way(figures(), preparing=False, working=None) == figures()
    assert web_page.shown_under_way(figures(), preparing=False, working=2)["user_count"] == 2
    assert web_page.shown_under_way(figures(user_count=1), preparing=False, working=2)["user_count"] == 1
    shown = web_page.shown_under_way(figures(state="stopped"), preparing=False, working=0)
    assert (shown["state"], shown["user_count"]) == ("running", 0)


def test_the_header_has_no_users_and_no_rate_after_a_run() -> None:
    document = figures(state="stopped")
    shown = web_page.shown_ended(document)
    assert (shown["user_count"], shown["total_rps"], shown["current_rps"]) == (0, 0, 0)
    assert shown["stats"] == [{"name": "x", "current_rps": 0, "current_fail_per_sec": 0}]
    assert document == figures(state="stopped"), "Locust keeps its document"
    assert web_page.shown_ended({"state": "ready"}) == {"state": "ready"}


@pytest.mark.parametrize("state", ["ready", "spawning", "running", "cleanup", "stopping", "stopped"])
def test_the_page_polls_until_it_has_the_figures_after_the_run(state: str) -> None:
    """Locust can answer with its response to an earlier poll."""
    assert web_page.shown_ended(figures(state=state))["state"] == (
        state if state in ("ready", "stopped") else "running"
    )
