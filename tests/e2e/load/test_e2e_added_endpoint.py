"""An endpoint is a row and a module: one from outside, with its own path, body and events, is planned, sent, read and reported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from locust_process import turns_of
from paths import ROOT

ADDED = ROOT / "tests/support/added_endpoint"
TOKENS = 6
SCENARIO = f"""\
schema: 1
name: generated
workload: {{kind: chat, turns: 2, prompt_tokens: 10, output_tokens: {TOKENS}, think_time_s: 0}}
arrivals: {{kind: closed, users: 2, spawn_per_s: 9}}
phases: {{sessions: 3, drain_s: 5}}
request: {{endpoint: generate_stream}}
cache: {{isolate: none}}
"""
TASK = """\
from inferload.users import InferenceUser
from locust import constant, task

class Asking(InferenceUser):
    wait_time = constant(0.1)

    @task
    def ask(self):
        reply = self.turn("generate_stream", "Once", max_tokens=6)
        assert (reply.text, reply.output_tokens) == ("word " * 6, 6), reply
"""


class Server(ThreadingHTTPServer):
    """Server of /generate_stream. `bodies`: of its requests; `others`: paths of other posts."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.others: list[str] = []
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers of the server."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        page = json.dumps({"data": [{"id": "m"}]}).encode() if self.path == "/v1/models" else b""
        self.send_response(200 if page else 404)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/generate_stream":
            self.server.others.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        limit = (body.get("parameters") or {}).get("max_new_tokens") or 1
        for number in range(limit):
            event: dict[str, Any] = {"token": {"text": "word "}, "details": None}
            if number == limit - 1:
                event["details"] = {"finish_reason": "length", "generated_tokens": limit}
            data = b"data:" + json.dumps(event).encode() + b"\n\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running
        running.shutdown()


def inferload(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python with the endpoint."""
    environment = os.environ | {"PYTHONPATH": str(ADDED)}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_an_endpoint_from_outside_is_planned_sent_and_reported(server: Server, tmp_path: Path) -> None:
    scenario, run_dir = tmp_path / "generated.yaml", tmp_path / "run"
    scenario.write_text(SCENARIO)
    plan = inferload("inferload", "plan", str(scenario))
    assert "sent to /generate_stream" in plan.stdout, plan.stderr
    ran = inferload(
        *("inferload", "run", str(scenario), "--host", server.url, "--run-dir", str(run_dir)),
        *("--metrics-url", "none", "--on-invalid", "warn"),
    )
    assert ran.returncode == 0, ran.stderr
    assert f"requests go to {server.url}/generate_stream" in ran.stderr
    assert set(server.others) <= {"/tokenize"}
    assert all(set(body) == {"model", "inputs", "stream", "parameters"} for body in server.bodies)
    summary = json.loads((run_dir / "summary.json").read_text())
    turns = summary["turns"]
    assert (turns["ok"], turns["failed"]) == (6, 0)
    assert summary["latency"]["ttft_ms"]["count"] == 6
    assert [turn["output_tokens"] for turn in turns_of(run_dir)] == [TOKENS] * 6
    assert "endpoint: generate_stream" in (run_dir / "run.json").read_text()


def test_tasks_send_turns_to_an_endpoint_from_outside(server: Server, tmp_path: Path) -> None:
    locustfile, run_dir = tmp_path / "asking.py", tmp_path / "run"
    locustfile.write_text(TASK)
    ran = inferload(
        *("locust", "-f", str(locustfile), "--host", server.url, "--headless", "--users", "1", "--run-time", "4s"),
        *("--run-dir", str(run_dir), "--metrics-url", "none", "--on-invalid", "warn"),
    )
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["turns"]["failed"], summary["exceptions"]["count"]) == (0, 0), ran.stderr
    assert summary["turns"]["ok"] > 0
    assert server.bodies[-1]["inputs"] == "Once"


def test_an_endpoint_from_outside_is_in_the_schema_and_in_lines_of_vllm() -> None:
    schema = inferload("inferload", "schema")
    assert '"generate_stream"' in schema.stdout
    line = inferload("inferload", "import", "vllm bench serve --backend tgi --model m --dataset-name random")
    assert "endpoint: generate_stream" in line.stdout, line.stderr
