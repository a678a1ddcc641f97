"""An endpoint is a row and a module: one from outside, with its own path, body and events, is planned, sent, read and reported."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from locust_process import turns_of
from paths import ROOT
from scripted_server import ScriptedServer, body_of, one_model, page, streamed

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


def answer(sock: socket.socket, request: bytes) -> None:
    """Answer /generate_stream."""
    limit = (body_of(request).get("parameters") or {}).get("max_new_tokens") or 1
    last = {"finish_reason": "length", "generated_tokens": limit}
    sock.sendall(streamed(*({"token": {"text": "word "}, "details": each} for each in [*[None] * (limit - 1), last])))


def classified(sock: socket.socket, request: bytes) -> None:
    """Answer /classify."""
    texts = body_of(request)["input"]
    usage = {"prompt_tokens": 3 * len(texts)}
    sock.sendall(page({"data": [{"index": 0, "probs": [0.5, 0.5]}] * len(texts), "usage": usage}))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with closing(ScriptedServer([one_model(answer, "/generate_stream")])) as running:
        yield running


def bodies(server: ScriptedServer) -> list[dict[str, Any]]:
    """Return the bodies of the requests to the endpoint."""
    return [body_of(request) for request in server.requests if request.startswith(b"POST /generate_stream ")]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the endpoint."""
    command, environment = [sys.executable, *arguments], os.environ | {"PYTHONPATH": str(ADDED)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def ran(locustfile: Path, server: ScriptedServer, run_dir: Path, *words: str) -> str:
    """Run a locustfile to its end; return its output."""
    own = f"-f {locustfile} --headless --host {server.url} --run-dir {run_dir} --no-report".split()
    done = python("-m", "locust", *own, *words, "--metrics-url", "none", "--on-invalid", "warn")
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_an_endpoint_from_outside_is_planned_sent_and_reported(server: ScriptedServer, tmp_path: Path) -> None:
    scenario, run_dir = tmp_path / "generated.yaml", tmp_path / "run"
    scenario.write_text(SCENARIO)
    output = ran(ROOT / "locustfiles" / "chat.py", server, run_dir, "--scenario", str(scenario))
    assert f"requests go to {server.url}/generate_stream" in output
    posts = {request.split(b" ")[1] for request in server.requests if request.startswith(b"POST ")}
    assert posts <= {b"/generate_stream", b"/tokenize"}
    assert all(set(body) == {"model", "inputs", "stream", "parameters"} for body in bodies(server))
    summary = json.loads((run_dir / "summary.json").read_text())
    turns = summary["turns"]
    assert (turns["ok"], turns["failed"]) == (6, 0)
    assert summary["latency"]["ttft_ms"]["count"] == 6
    assert [turn["output_tokens"] for turn in turns_of(run_dir)] == [TOKENS] * 6
    assert "endpoint: generate_stream" in (run_dir / "run.json").read_text()
    of_vllm = ("import", "vllm bench serve --backend tgi --model m --dataset-name random")
    commands = (("plan", str(scenario)), ("schema",), of_vllm, ("report", str(run_dir)))
    done = python("-c", f"from inferload.cli import main\nfor words in {commands}: print('ended', main(words))")
    plan, schema, line, _report, _end = done.stdout.split("ended 0\n")
    assert "sent to /generate_stream" in plan, done.stderr
    assert '"generate_stream"' in schema
    assert "endpoint: generate_stream" in line
    assert (run_dir / "report.md").exists()


def test_tasks_send_turns_to_an_endpoint_from_outside(server: ScriptedServer, tmp_path: Path) -> None:
    locustfile, run_dir = tmp_path / "asking.py", tmp_path / "run"
    locustfile.write_text(TASK)
    output = ran(locustfile, server, run_dir, "--users", "1", "--run-time", "2s")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["turns"]["failed"], summary["exceptions"]["count"]) == (0, 0), output
    assert summary["turns"]["ok"] > 0
    assert bodies(server)[-1]["inputs"] == "Once"


def test_an_endpoint_from_outside_without_a_stream(tmp_path: Path) -> None:
    scenario, run_dir = tmp_path / "classified.yaml", tmp_path / "run"
    workload = "{kind: texts, texts_per_request: 2, text_tokens: 10}"
    text = SCENARIO.replace("generate_stream", "classify").split("\n")
    scenario.write_text("\n".join(f"workload: {workload}" if line.startswith("workload") else line for line in text))
    with closing(ScriptedServer([one_model(classified, "/classify")])) as server:
        output = ran(ROOT / "locustfiles" / "chat.py", server, run_dir, "--scenario", str(scenario))
        sent = [body_of(post) for post in server.requests if b"POST /classify " in post]
    assert f"requests go to {server.url}/classify" in output
    assert {*map(frozenset, sent)} == {frozenset({"model", "input"})}
    assert {len(body["input"]) for body in sent} == {2}
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["turns"]["ok"], summary["turns"]["texts"], summary["turns"]["input_tokens"]) == (3, 6, 18)
