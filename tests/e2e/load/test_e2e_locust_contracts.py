"""Locust's contracts: JSON on standard output, settings of LOCUST_* and files; and the way to a server: cookies, whole address."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from locust_process import ROOT
from scripted_server import ScriptedServer, chunked

NODE = "node-0123456789"
EVENTS = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 1}}\n\n',
    b"data: [DONE]\n\n",
)
HEAD, _, BODY = chunked(*EVENTS).partition(b"\r\n\r\n")
LOCUSTFILE = """
import os
from inferload.users import InferenceUser
from locust import constant, task

class Talk(InferenceUser):
    wait_time = constant(0.05)

    @task
    def talk(self):
        print("text of a user")
        os.system("echo text of a program")
        with self.conversation(max_tokens=5) as talk:
            for _ in range(3):
                talk.ask("Hello")
"""
CHAT = {
    "schema": 1,
    "name": "few",
    "workload": {"kind": "chat", "turns": 3, "prompt_tokens": 20, "output_tokens": 5},
    "arrivals": {"kind": "closed", "users": 40, "spawn_per_s": 40},
    "phases": {"measure_s": 600, "turns": 9},
}


class Router(ScriptedServer):
    """Server whose only path is /my-route, and that sets a cookie where there is none."""

    def __init__(self) -> None:
        super().__init__([self.answer])
        self.cookies: list[str] = []
        self.kept: dict[str | None, int] = {}
        self.sent: list[tuple[int, int]] = []  # messages of each request, and of its context

    def answer(self, sock: socket.socket, request: bytes) -> None:
        if request.startswith(b"POST /v1/responses?v=1 "):
            self.keep(sock, json.loads(request.partition(b"\r\n\r\n")[2]))
            return
        head = request.split(b"\r\n\r\n")[0].decode()
        if not head.startswith("POST /my-route?v=1 "):
            sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        self.cookies.append(next((line[8:] for line in head.split("\r\n") if line.startswith("Cookie: ")), ""))
        more = "" if self.cookies[-1] else f"\r\nSet-Cookie: node={NODE}; Path=/; HttpOnly"
        sock.sendall(HEAD + more.encode() + b"\r\n\r\n" + BODY)

    def keep(self, sock: socket.socket, body: Any) -> None:
        """Answer a turn, and keep its number of messages with those of the response that it continues."""
        messages = len(body["input"]) + self.kept.get(body.get("previous_response_id"), 0)
        self.kept[name := f"resp_{len(self.kept)}"] = messages + 1
        self.sent.append((len(body["input"]), messages))
        usage = {"input_tokens": 20 * messages, "output_tokens": 5}
        end = {"type": "response.completed", "response": {"id": name, "status": "completed", "usage": usage}}
        events = ({"type": "response.output_text.delta", "delta": "Hi"}, end)
        sock.sendall(chunked(*(b"data: %s\n\n" % json.dumps(event).encode() for event in events)))


def run(folder: Path, *words: str, path: str = "/my-route", **environment: str) -> tuple[Any, str, Router]:
    """Run Locust with --json; return what it printed, its log, and the server."""
    (folder / "locust.conf").write_text("stop-timeout = 7\nrun-time = 2s\n", encoding="utf-8")
    (folder / "few.json").write_text(json.dumps(CHAT), encoding="utf-8")
    (folder / "talk.py").write_text(LOCUSTFILE, encoding="utf-8")
    server = Router()
    command = [sys.executable, *words, "--json", "--host", f"{server.url}{path}?v=1", "--model", "m"]
    command += ["--metrics-url", "none", "--on-invalid", "warn", "--no-report"]
    settings = {"PYTHONPATH": str(ROOT), "LOCUST_USERS": "2", **environment}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, timeout=120, check=False
    )
    server.close()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, server


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_tasks(tmp_path: Path, processes: tuple[str, ...]) -> None:
    rows, log, server = run(tmp_path, "-m", "locust", "-f", "talk.py", "--headless", *processes)
    assert sum(row["num_requests"] for row in rows if row["method"] == "TURN") > 0
    assert "text of a user" in log
    assert "text of a program" in log
    assert "no metrics were scraped" in log  # in the summary
    assert "stop-timeout=7 (locust.conf)" in log
    assert "/my-route?v=*** (the address as it is" in log
    assert set(server.cookies) == {"", f"node={NODE}"}
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert NODE.encode() not in written
    assert NODE not in log


def test_a_scenario(tmp_path: Path) -> None:
    words = "-m", "inferload", "run", "few.json"
    _, log, server = run(tmp_path, *words, "--set", "request.cookies=false", LOCUST_RUN_TIME="33s")
    assert "LOCUST_USERS=2 (environment) replaces the load of scenario few: arrivals.users is 2 instead of 40" in log
    assert (
        "LOCUST_RUN_TIME=33s (environment) replaces the load of scenario few: phases.measure_s is 33 instead of 600"
        in log
    )
    assert set(server.cookies) == {""}
    _, log, _server = run(tmp_path, *words, "--users", "3")
    assert "LOCUST_USERS=2 (environment) is not used: the command line sets arrivals.users" in log
    assert "run-time=2s (locust.conf) replaces the load of scenario few: phases.measure_s is 2 instead of 600" in log


def test_a_history_that_the_server_keeps(tmp_path: Path) -> None:
    more = ("workload.history=server", "request.endpoint=responses", "request.wrong_length=warn")
    words = [word for setting in more for word in ("--set", setting)]
    rows, log, server = run(tmp_path, "-m", "inferload", "run", "few.json", *words, "--users", "1", path="")
    assert "Traceback" not in log
    assert server.sent[:2] == [(1, 1), (1, 3)]  # before the load
    assert server.sent[2:] == [(1, 1), (1, 3), (1, 5)] * 3
    assert next(row["num_requests"] for row in rows if row["method"] == "TURN") == 9
