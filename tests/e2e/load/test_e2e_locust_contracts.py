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
from scripted_server import NOT_FOUND, ScriptedServer, body_of, streamed
from small_scenario import document
from streamed_answers import end_events, text_event

pytestmark = pytest.mark.usefixtures("forked_programs")

NODE = "node-0123456789"
HEAD, _, BODY = streamed(text_event("chat", "Hi"), *end_events("chat", 1, prompt=20)).partition(b"\r\n\r\n")
LOCUSTFILE = """
import os
from inferload.users import InferenceUser
from locust import constant, task

class Talk(InferenceUser):
    wait_time = constant(0.5)

    @task
    def talk(self):
        print("text of a user")
        os.system("echo text of a program")
        with self.conversation(max_tokens=5) as talk:
            for _ in range(3):
                talk.ask("Hello")
"""
CHAT = document(
    name="few",
    workload={"kind": "chat", "turns": 3, "prompt_tokens": 20, "output_tokens": 5},
    arrivals={"kind": "closed", "users": 40, "spawn_per_s": 40},
    phases={"measure_s": 600, "turns": 9},
)


class Router(ScriptedServer):
    """Server that sets a cookie on /my-route where there is none, and keeps the history of /v1/responses."""

    def __init__(self) -> None:
        super().__init__([self.answer])
        self.cookies: list[str] = []
        self.sent: list[tuple[int, str | None]] = []  # messages of each request, and the response that it continues

    def answer(self, sock: socket.socket, request: bytes) -> None:
        if request.startswith(b"POST /v1/responses?v=1 "):
            body = body_of(request)
            self.sent.append((len(body["input"]), body.get("previous_response_id")))
            (end,) = end_events("responses", 5, "stop", prompt=20)
            end["response"]["id"] = f"resp_{len(self.sent)}"
            sock.sendall(streamed(text_event("responses", "Hi"), end))
        elif request.startswith(b"POST /my-route?v=1 "):
            self.cookies.append(request.partition(b"\r\nCookie: ")[2].partition(b"\r\n")[0].decode())
            more = "" if self.cookies[-1] else f"\r\nSet-Cookie: node={NODE}; Path=/; HttpOnly"
            sock.sendall(HEAD + more.encode() + b"\r\n\r\n" + BODY)
        else:
            sock.sendall(NOT_FOUND)


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
    assert server.sent[:2] == [(1, None), (1, "resp_1")]  # before the load
    assert server.sent[2:] == [(1, f"resp_{at}" if at % 3 < 2 else None) for at in range(2, 11)]
    assert next(row["num_requests"] for row in rows if row["method"] == "TURN") == 9
