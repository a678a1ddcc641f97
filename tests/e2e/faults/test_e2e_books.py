"""Runs against a server that ends connections and answers in other ways with every few requests, and counts its requests itself."""

import json
import socket
import struct
import threading
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from chat_events import ANSWER, CHUNKED, event
from e2e_runs import FinishedRun, RunCase, Sandbox, check_counts, run_cases, scenario
from scripted_server import HEAD, NOT_FOUND, ScriptedServer, chunk, page, read_request

from inferload.client.connection import reader_choice

TURNS, USERS = 180, 24
MIX = 15  # requests until the mix changes, all of them in the order in which they arrive
STALL_S = 4.0
LATE_S = 0.1
FAULTS = (
    *("reset", "closes after it", "429", "cut", "late reset", "closes after it", "reset unread", "503"),
    *("close", "closes after it", "late close", "stall"),
)
AT_ONCE, LATE = ("reset", "reset unread", "close"), ("late reset", "late close")
RESET = struct.pack("ii", 1, 0)

TASKS = """
from locust import constant, task
from inferload.users import InferenceUser


class Asker(InferenceUser):
    wait_time = constant(0.25)

    @task
    def ask(self):
        self.chat("Hi", max_tokens=8)
"""


# The race of the close and the request has a limit of 5 ms, which no test can keep on a busy machine: here every end is within it.
CROSSED = """
from inferload.client import retry

retry.SLACK_NS = 3600 * 10**9
"""


def kind_of(number: int) -> str:
    """Return how the server takes a request; number 0 is that of the preflight."""
    mix, place = divmod(number, MIX)
    return "ok" if place < MIX - 5 else FAULTS[(mix * 3 + place) % len(FAULTS)]


class FickleServer(ScriptedServer):
    """Server with a mix of faults. `seen`: requests of turns by kind. `crossed`: those that ended a used connection."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.crossed = 0
        self.posts = 0
        self._lock = threading.Lock()
        super().__init__([])

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                used = False
                while head := _peeked(sock):
                    if not self._answer(sock, head, used=used):
                        break
                    used = True
            except OSError:  # the client has closed it
                return

    def _answer(self, sock: socket.socket, head: bytes, *, used: bool) -> bool:
        """Answer a request; return False if the connection ends. `used`: by an earlier request."""
        if not head.startswith(b"POST /v1/chat/completions "):
            read_request(sock)
            found = head.startswith(b"GET /v1/models ")
            sock.sendall(page({"data": [{"id": "m"}]}) if found else NOT_FOUND)
            return True
        with self._lock:
            kind = kind_of(self.posts)
            self.posts += 1
            self.seen[kind] += 1
            self.crossed += used and kind in (*AT_ONCE, *LATE)
        if kind != "reset unread":
            read_request(sock)
        return self._take(sock, kind)

    def _take(self, sock: socket.socket, kind: str) -> bool:
        if kind in ("429", "503"):
            sock.sendall(page("", int(kind), "text/plain"))
            return True
        if kind in ("cut", "stall"):
            sock.sendall(HEAD + CHUNKED + b"\r\n" + chunk(event("a")))
            return kind == "stall" and not sock.recv(1)
        if kind in LATE:
            time.sleep(LATE_S)
        if "reset" in kind:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if kind in (*AT_ONCE, *LATE):
            return False
        *first, last = [*map(chunk, ANSWER), b"0\r\n\r\n"]
        sock.sendall(HEAD + CHUNKED + b"\r\n" + b"".join(first))
        if kind == "closes after it":  # the last bytes and the FIN in one segment: no request can arrive between them
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        sock.sendall(last)
        return kind == "ok"


def _peeked(sock: socket.socket) -> bytes:
    """Return the head of the next request without reading it; b"" at the end of the connection."""
    while True:
        data = sock.recv(65_536, socket.MSG_PEEK)
        if b"\r\n\r\n" in data or not data:
            return data
        time.sleep(0.001)


def against_fickle(sandbox: Sandbox, mode: str, load: str, reader: str = "") -> FinishedRun:
    """Run turns of a scenario or of tasks. `load` crossed: a scenario, and every end of a connection is within the limit."""
    server = FickleServer()
    sandbox._servers.append(server)
    limits = {"between_events_s": STALL_S}
    changes: dict[str, Any]
    words = ["--host", server.url, "--on-invalid", "warn"]
    text = {"scenario": "", "tasks": TASKS, "crossed": CROSSED}[load]
    arrivals = {"kind": "closed", "users": USERS, "spawn_per_s": 100}
    changes = {"phases__measure_s": 3, "workload": {"kind": "tasks"}}
    if load != "tasks":
        changes = {"phases": {"warmup_s": 0, "measure_s": None, "turns": TURNS, "drain_s": 60}}
    file = scenario(sandbox.folder, arrivals=arrivals, request__timeouts=limits, **changes)
    words += ["--scenario", str(file)]
    env = {reader_choice.VARIABLE: reader} if reader else None
    fleet = sandbox.fleet(
        mode, *words, locustfile=sandbox.locustfile(text), report=reported(mode, load, reader), env=env
    )
    code = fleet.exit_code()
    seen = {"kinds": server.seen, "posts": server.posts, "crossed": server.crossed}
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen=seen)


def reported(mode: str, load: str, reader: str = "") -> bool:
    """Return True if the run writes a report."""
    return (mode, load, reader) == ("local", "crossed", "")


@run_cases(
    against_fickle,
    *(("processes", "scenario"), ("local", "tasks"), ("local", "crossed"), ("local", "crossed", "python")),
    soak=[("local", "scenario"), ("by_hand", "scenario"), ("local", "scenario", "python"), ("processes", "crossed")],
)
def test_the_books_equal_those_of_the_server(ended: FinishedRun, run_case: RunCase) -> None:
    check_counts(ended)
    seen, posts = ended.seen["kinds"], ended.seen["posts"]
    (target,) = ended.manifest["targets"]
    before, turns = target["before_load"]["requests"], ended.summary["turns"]["by_phase"]["all"]
    assert before == 1
    assert posts == before + turns["sent"] + turns["retried"] == before + turns["requests"]
    assert turns["sent"] == turns["ok"] + turns["failed"] + turns["unfinished"]
    if "python" in run_case.arguments:
        assert ended.summary["client"]["reader"] == "python"
    if run_case.arguments[1] == "crossed":
        assert turns["retried"] == ended.seen["crossed"] > 0
        assert (turns["sent"], turns["unfinished"]) == (TURNS, 0)
    if run_case.arguments[1] == "scenario":
        assert posts // MIX >= 10  # mixes
        assert (turns["sent"], turns["unfinished"]) == (TURNS, 0)
        check_classes(turns, seen)
    if reported(*run_case.arguments):
        check_pages(ended, turns, posts)
    assert ended.code == 1, ended.text


def check_classes(turns: dict[str, Any], seen: Counter[str]) -> None:
    """Check the turns by class of failure. Whether a connection that ended at once was used before is not known here."""
    at_once = sum(seen[kind] for kind in AT_ONCE)
    assert 0 <= turns["retried"] <= at_once
    assert turns["ok"] == seen["ok"] - 1 + seen["closes after it"]
    assert turns["by_failure"] == {
        "cut": seen["cut"] + sum(seen[kind] for kind in LATE) + at_once - turns["retried"],
        "http_429": seen["429"],
        "http_5xx": seen["503"],
        "timeout_between_events": seen["stall"],
    }


def check_pages(ended: FinishedRun, turns: dict[str, Any], posts: int) -> None:
    """Check that the retries are shown."""
    (books,) = json.loads((ended.run_dir / "reconcile.json").read_text())["requests"]
    assert (books["turns"], books["retried"], books["total"]) == (turns["sent"], turns["retried"], posts)
    page = (ended.run_dir / "report.md").read_text()
    assert "Requests by server" in page
    assert f"{turns['retried']} retried" in ended.text
    assert "turns retried" in page


def test_the_mix_changes_ten_times() -> None:
    mixes = [tuple(map(kind_of, range(start, start + MIX))) for start in range(0, TURNS, MIX)]
    assert all(mix != after for mix, after in pairwise(mixes))
    assert len(mixes) > 10
    assert set(FAULTS) <= {kind for mix in mixes for kind in mix}
    assert pytest.approx(sum(kind == "ok" for mix in mixes for kind in mix) / TURNS) == 2 / 3
