"""The reading thread with real sockets: endings, forks, many connections, stopped processes, and cleanup."""

import os
import resource
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import forge
import gevent
import psutil
import pytest
from chat_events import ANSWER, event
from scripted_server import HEAD, ScriptedServer, chunk, chunked, send

from inferload.base.clock import NS_PER_MS, now_ns
from inferload.client import turn as turn_module
from inferload.client.client import Client, ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.http1 import News
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.turns.record import Failure

native = pytest.importorskip("inferload.client.connection._transport", reason="the compiled reader was not built")

CLOSED, FAILED, STRAY, MUCH = 128, 256, 512, 1024
PATIENCE_S = 20.0


@pytest.fixture
def reader() -> Iterator[object]:
    raw = native.Reader()
    yield raw
    raw.close()


def next_endings(reader: object) -> list[tuple[int, int, int, int]]:
    """Wait for the thread to report endings."""
    ready, _, _ = select.select([reader], [], [], PATIENCE_S)
    assert ready
    return reader.ended()  # type: ignore[attr-defined, no-any-return]


def request(number: int = 0) -> TurnRequest:
    return TurnRequest(b"{}", f"s{number}.0", f"s{number}", 0, "chat", "measure", now_ns())


@pytest.fixture
def client_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Client]]:
    monkeypatch.setenv(reader_choice.VARIABLE, "native")
    clients: list[Client] = []

    def make(url: str, on_turn: Callable[[TurnResult], None] = lambda _result: None) -> Client:
        clients.append(Client(ClientSettings(Target.parse(url), "m"), on_turn))
        return clients[-1]

    yield make  # type: ignore[misc]
    for client in clients:
        client.close()


# A process of each script, forked from one that has imported the client.
CLIENTS = forge.Forge("gevent.os", "inferload.client.connection.native_connection", "inferload.client.endpoints.chat")
START = """
import os, gevent, gevent.os
from inferload.base.clock import now_ns
from inferload.client.client import Client, ClientSettings
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnRequest
def request():
    return TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns())
"""

Script = Callable[[str], "forge.Forked | subprocess.Popen[str]"]


@pytest.fixture
def start_script(tmp_path: Path) -> Script:
    """`start_script(text)` starts a process with a client's imports that runs the text."""

    def start(text: str) -> "forge.Forked | subprocess.Popen[str]":
        (tmp_path / "script.py").write_text(START + text)
        environment = {**os.environ, reader_choice.VARIABLE: "native"}
        return CLIENTS.start("script", [], env=environment, cwd=tmp_path)

    return start


@pytest.fixture
def run_script(start_script: Script) -> Callable[[str], str]:
    """`run_script(text)` returns what the text prints."""

    def run(text: str) -> str:
        process = start_script(text)
        assert process.stdout is not None
        with gevent.Timeout(PATIENCE_S):
            reported = gevent.get_hub().threadpool.apply(process.stdout.read)
        assert process.wait(PATIENCE_S) == 0
        return reported.strip()

    return run


# ---- one connection


@pytest.mark.parametrize(
    ("pauses", "busy_ms"),
    [([], 0), ([(10, 90)], 85), ([(0, 9), (10, 94)], 85), ([(10, 75)], 0), ([(10, 90), (96, 190)], 0)],
    ids=["no pause", "pause", "latest of two", "long ago", "afterwards"],
)
def test_an_end_may_have_waited_for_a_pause_of_the_thread(pauses: list[tuple[int, int]], busy_ms: int) -> None:
    from inferload.client.connection.native_connection import NativeConnection

    in_ns = [(begin * NS_PER_MS, end * NS_PER_MS) for begin, end in pauses]
    raw = Mock(lost_at=lambda _number: 95 * NS_PER_MS, pauses=lambda: in_ns)
    near, far = socket.socketpair()
    with near, far:
        connection = NativeConnection(near, SimpleNamespace(raw=raw, add=lambda *_: 1))  # type: ignore[arg-type]
        end = connection.end_by_peer()
    assert end is not None
    assert end.busy_ns == busy_ms * NS_PER_MS


def test_two_replies_on_one_connection_end_separately(reader: native.Reader) -> None:
    near, far = socket.socketpair()
    with near, far:
        number = reader.add(near.fileno())
        for reply, text in enumerate((b"first", b"second"), 1):
            assert reader.expect(number) == reply
            for piece in (chunked(text)[:-9], chunked(text)[-9:]):
                far.sendall(piece)
            assert next_endings(reader) == [(number, News.COMPLETE, 0, reply)]
            head, data, ends, at_ns, _delays, _unstamped = reader.take(number, 0)
            assert head + data == chunked(text)
            assert head.endswith(b"\r\n\r\n")
            assert len(ends) == len(at_ns) == 8 * (1 + (len(ends) > 8))
            assert not reader.lost(number)
        far.close()
        assert next_endings(reader) == [(number, STRAY, 0, 2)]
        assert reader.lost(number)
        reader.expect(number)  # used before the close of the peer was detected
        assert next_endings(reader) == [(number, CLOSED, 0, 3)]
        reader.forget(number)
        with pytest.raises(KeyError):
            reader.expect(number)


def test_unrequested_bytes_end_the_connection(reader: native.Reader) -> None:
    near, far = socket.socketpair()
    with near, far:
        number = reader.add(near.fileno())
        far.sendall(b"hello?")
        assert next_endings(reader) == [(number, STRAY, 0, 0)]
        assert reader.lost(number)


def test_a_reset_has_its_errno(reader: native.Reader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        number = reader.add(near.fileno())
        reader.expect(number)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        ((_, ending, error, _),) = next_endings(reader)
        assert ending == FAILED
        assert "reset" in os.strerror(error)


def test_a_half_closed_reply_is_complete_according_to_its_head(reader: native.Reader) -> None:
    near, far = socket.socketpair()
    with near, far:
        number = reader.add(near.fileno())
        reader.expect(number)
        far.sendall(HEAD + b"\r\nall of it")
        far.shutdown(socket.SHUT_WR)
        reported = []
        while len(reported) < 2:
            reported += [ending for _, ending, *_ in next_endings(reader)]
        assert reported == [News.ASKS_FOR_HEAD, CLOSED]  # the head is parsed in Python
        assert reader.frame(number, len(HEAD) + 2, 3, 0) == 0
        assert reader.take(number, 0)[:2] == (HEAD + b"\r\n", b"all of it")


def test_connection_ids_are_not_reused(reader: native.Reader) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    numbers = []
    for near, far in pairs:
        number = reader.add(near.fileno())
        reader.expect(number)
        far.sendall(b"x")
        reader.forget(number)
        numbers.append(number)
        near.close()
        far.close()
    assert len(set(numbers)) == 3  # the slot is the same, its generation is not
    assert len({number & 0xFFFF_FFFF for number in numbers}) == 1


def test_an_invalid_descriptor_or_id_is_refused(reader: native.Reader) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.add(987_654)
    with pytest.raises(KeyError):
        reader.take(1 << 40, 0)


def test_a_closed_reader_allows_only_forget() -> None:
    closed = native.Reader()
    closed.close()
    closed.close()
    closed.forget(0)
    with pytest.raises(RuntimeError, match="closed"):
        closed.add(0)


# ---- turns


def test_a_reply_larger_than_all_buffers_is_read(client_of: Callable[[str], Client]) -> None:
    word = "x" * 900
    count = 3_000
    server = ScriptedServer([send(chunked(*[event(word)] * count, *ANSWER[-3:]))])
    with gevent.Timeout(PATIENCE_S):
        result = client_of(server.url).start(request()).wait()
    server.close()
    assert result.record.failure is None, result.detail
    assert len(result.text) == count * len(word)
    assert result.record.event_ns is not None
    assert len(result.record.event_ns) == count
    assert result.reads_unstamped + len(result.record.delay_ns or ()) > 1


def test_a_turn_given_up_keeps_its_text_and_frees_its_connection(client_of: Callable[[str], Client]) -> None:
    release = threading.Event()

    def hang(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")) + chunk(event("b"))[:9])
        release.wait(PATIENCE_S)

    server = ScriptedServer([hang])
    client = client_of(server.url)
    turns = [client.start(request(number)) for number in range(20)]
    with gevent.Timeout(PATIENCE_S):
        while any(turn._reply.body_bytes < len(HEAD) for turn in turns):
            gevent.sleep(0.01)
        client.give_up_all()
        results = [turn.wait() for turn in turns]
    release.set()
    server.close()
    assert {result.record.failure for result in results} == {Failure.UNFINISHED}
    assert {result.text for result in results} == {"a"}
    assert client._thread is not None
    assert not client._thread._connections


def test_more_connections_than_select_supports(client_of: Callable[[str], Client]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 700  # each with two descriptors, the last ones above 1,024
    if hard != resource.RLIM_INFINITY and hard < 4 * count:
        pytest.fail(f"this machine allows {hard} open files, too few for the test")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * count), hard))
    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    accepted: list[socket.socket] = []

    def serve() -> None:
        while len(accepted) < count:
            accepted.append(listener.accept()[0])
        for sock in accepted:  # all are open at once before the first is answered
            sock.recv(65_536)
            sock.sendall(chunked(*ANSWER))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    client = client_of(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with gevent.Timeout(PATIENCE_S):
        results = [turn.wait() for turn in [client.start(request(number)) for number in range(count)]]
    thread.join(PATIENCE_S)
    client.close()
    for sock in (listener, *accepted):
        sock.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(result.record.ok for result in results), {result.detail for result in results}


def test_thousands_of_turns_leak_no_descriptors_or_memory(client_of: Callable[[str], Client]) -> None:
    server = ScriptedServer([send(chunked(*ANSWER))])
    client = client_of(server.url)
    process = psutil.Process()

    def rounds(count: int) -> tuple[int, int]:
        for first in range(0, count, 20):
            for turn in [client.start(request(first + number)) for number in range(20)]:
                assert turn.wait().record.ok
            server.requests.clear()
        return process.num_fds(), process.memory_info().rss

    with gevent.Timeout(3 * PATIENCE_S):
        before = rounds(400)
        after = rounds(TURNS)
    server.close()
    assert after[0] <= before[0] + 2
    assert after[1] - before[1] < 3_000_000 + 40 * TURNS


# The whole test by hand: INFERLOAD_SOAK=1.
TURNS = 10_000 if os.environ.get("INFERLOAD_SOAK") else 2_000


def test_a_late_ending_is_not_attributed_to_the_next_reply(
    client_of: Callable[[str], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large answer in one burst: the parse queue finishes it before the event loop sees the ending."""
    monkeypatch.setattr(turn_module, "_BODY_END_NS", 1 << 60)  # else a busy machine ends the turn before its body
    listener = socket.create_server(("127.0.0.1", 0))
    client = client_of(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert client._thread is not None
    thread = client._thread
    burst = chunked(*[event("x" * 900)] * 60, *ANSWER[-3:])
    with gevent.Timeout(PATIENCE_S):
        turn = client.start(request())
        while turn._written_ns is None:
            gevent.sleep(0)
        far, _ = listener.accept()
        for number in range(5):
            far.sendall(burst)
            (connection,) = thread._connections
            until_ns = now_ns() + round(PATIENCE_S * 1e9)
            while thread.raw.waiting(connection)[1] < len(burst):  # the event loop must not run
                assert now_ns() < until_ns
            turn.queued = True  # as the parse queue sets it
            while not turn.step():
                pass
            result = turn.wait()
            assert result.record.failure is None, result.detail
            turn = client.start(request(number + 1))
            wait_for(lambda: not select.select([thread.raw], [], [], 0)[0])  # the event loop handles the late ending
            assert turn.result is None
        far.sendall(chunked(*ANSWER))
        result = turn.wait()
    assert result.record.failure is None, result.detail
    assert result.record.connect_ns is None
    far.close()
    listener.close()


# ---- processes


def test_a_forked_child_has_its_own_reading_thread(run_script: Callable[[str], str]) -> None:
    server = ScriptedServer([send(chunked(*ANSWER))])
    reported = run_script(
        f"""
client = Client(ClientSettings(Target.parse("{server.url}"), "m"), lambda _result: None)
assert client.start(request()).wait().record.ok
child = gevent.os.fork()
if child == 0:
    client.close()  # the thread belongs to the parent
    own = Client(ClientSettings(Target.parse("{server.url}"), "m"), lambda _result: None)
    result = own.start(request()).wait()
    own.close()
    os._exit(0 if result.record.ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.start(request()).wait().record.ok
client.close()
print("parent goes on")
"""
    )
    server.close()
    assert reported == "parent goes on"


LEVELS = """
for _ in range(3):
    client = Client(ClientSettings(Target.parse("{url}"), "m"), lambda _result: None)
    assert client.start(request()).wait().record.ok
names = {{int(task): open(f"/proc/self/task/{{task}}/comm").read().strip() for task in os.listdir("/proc/self/task")}}
readers = [task for task, name in names.items() if name == "inferload-read"]
policies = [os.sched_getscheduler(task) & ~os.SCHED_RESET_ON_FORK for task in readers]
above = [os.getpriority(os.PRIO_PROCESS, os.getpid()) - os.getpriority(os.PRIO_PROCESS, task) for task in readers]
print(["round robin" if policy == os.SCHED_RR else levels for policy, levels in zip(policies, above)])
client.close()
"""


# Drop CAP_SYS_NICE (capability 23).
UNPRIVILEGED = """
import ctypes
libc, head, sets = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(head, sets) == 0
sets[0] &= ~(1 << 23)
assert libc.capset(head, sets) == 0
"""


@pytest.mark.parametrize("drop", ["", UNPRIVILEGED], ids=["privileged", "unprivileged"])
def test_the_reading_thread_has_priority_over_the_event_loop(drop: str, run_script: Callable[[str], str]) -> None:
    server = ScriptedServer([send(chunked(*ANSWER))])
    reported = run_script(drop + LEVELS.format(url=server.url))
    server.close()
    # With the permission, real-time or higher priority is used.
    assert reported in (["[3, 3, 3]"] if drop else [str(3 * ["round robin"]), "[10, 10, 10]", "[3, 3, 3]"])


def test_an_end_right_after_the_last_bytes_is_seen(reader: native.Reader) -> None:
    """The kernel reports bytes and end together or in sequence."""
    count = 200
    reported: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        for _ in range(count):
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            far, _ = listener.accept()
            number = reader.add(near.fileno())
            reader.expect(number)
            far.sendall(HEAD + b"Content-Type: text/plain\r\nContent-Length: 100\r\n\r\nnot a hundred bytes")
            far.close()
        while len(reported) < count:
            reported += [ending for _, ending, *_ in next_endings(reader)]
    assert reported == count * [CLOSED]


def test_much_data_is_reported_once_until_it_is_taken(reader: native.Reader) -> None:
    near, far = socket.socketpair()
    with near, far:
        number = reader.add(near.fileno())
        reader.expect(number)
        far.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(2):
            for _ in range(3):
                far.sendall(chunk(bytes(65_536)))
            reported = next_endings(reader)
            while reader.waiting(number)[1] < 3 * 65_536:
                gevent.sleep(0.001)
            assert reported + reader.ended() == [(number, MUCH, 0, 1)]
            reader.take(number, 0)


# Send chunks as fast as possible for a second; then print the context switches of the thread and the milliseconds.
THICK = """
import re, select, socket, time
from inferload.client.connection import _transport
reader, pairs = _transport.Reader(), [socket.socketpair() for _ in range(20)]
for near, far in pairs:
    reader.expect(reader.add(near.fileno()))
    far.sendall({head!r})
task = next(task for task in os.listdir("/proc/self/task") if "inferload-read" in open(f"/proc/self/task/{{task}}/comm").read())
begun = time.monotonic()
while time.monotonic() < begun + 1:
    for _, far in pairs:
        far.sendall({chunk!r})
slept = int(re.search(r"(?m)^voluntary_ctxt_switches:\\s+(\\d+)", open(f"/proc/self/task/{{task}}/status").read())[1])
ranked = os.sched_getscheduler(int(task)) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
print(ranked, slept, round(1000 * (time.monotonic() - begun)))
reader.close()
"""


def test_dense_chunks_do_not_wake_the_thread_each(run_script: Callable[[str], str]) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    ranked, slept, took_ms = run_script(THICK.format(head=head, chunk=chunk(b"x"))).split()
    if ranked != "True":
        pytest.skip("the thread may not rank above others here, and so takes no rests")
    # A pause is 0.3 ms, and a round sleeps at most twice; pauses begin after one or two rounds.
    assert int(slept) < 2 * int(took_ms) / 0.3 + 1_000


@pytest.mark.usefixtures("stamping")
def test_a_stopped_process_records_the_pause_and_the_delay(start_script: Script) -> None:
    stopped, sent, release = threading.Event(), threading.Event(), threading.Event()

    def script(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("a")))
        stopped.wait(PATIENCE_S)
        sock.sendall(chunk(event("b")))
        sent.set()
        release.wait(PATIENCE_S)
        sock.sendall(b"".join(chunk(piece) for piece in ANSWER[-3:]) + b"0\r\n\r\n")

    server = ScriptedServer([script])
    process = start_script(
        f"""
client = Client(ClientSettings(Target.parse("{server.url}"), "m"), lambda _result: None)
turn = client.start(request())
for size in ({len(HEAD)}, {len(HEAD) + 1} + {len(chunk(event("a")))} + {len("Transfer-Encoding: chunked")} + 4):
    while turn._reply.body_bytes < size:
        gevent.sleep(0.005)
    print("read", flush=True)
record = turn.wait().record
print(record.ok, max(record.delay_ns) > 100_000_000, any(b - a > 100_000_000 for a, b in client.pauses()), flush=True)
"""
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "read"
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    stopped.set()
    wait_for(sent.is_set)
    gevent.sleep(0.3)  # the measured time of the stop
    process.send_signal(signal.SIGCONT)
    assert (
        process.stdout.readline().strip() == "read"
    )  # before more arrives: the kernel stamps merged data with the newest time
    release.set()
    reported = process.stdout.read()
    assert process.wait(PATIENCE_S) == 0
    server.close()
    assert reported.split() == ["True", "True", "True"]


def wait_for(there: Callable[[], bool]) -> None:
    with gevent.Timeout(PATIENCE_S):
        while not there():
            gevent.sleep(0.01)
