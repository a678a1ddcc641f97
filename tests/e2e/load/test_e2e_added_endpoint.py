"""An endpoint is a row and a module: one from outside, with its own path, body and events, is planned, sent, read and reported."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from forge import Forge
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


@pytest.fixture(scope="module")
def programs() -> Iterator[Forge]:
    """Python with the endpoints."""
    with closing(Forge("locust.main", "inferload.locust.plugin", "inferload.client.turn", first=ADDED)) as forge:
        yield forge


def output(programs: Forge, program: str, *words: object) -> str:
    """Run a program that ends well; return its output."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ADDED), str(ROOT)))}
    ended = programs.start(program, [*map(str, words)], env=environment, cwd=ROOT, errors_too=True)
    assert ended.stdout is not None
    text: str = ended.stdout.read()
    assert ended.wait(120) == 0, text
    return text


def ran(programs: Forge, locustfile: Path, server: ScriptedServer, run_dir: Path, *words: str) -> str:
    """Run a locustfile to its end; return its output."""
    own = ("-f", locustfile, "--headless", "--host", server.url, "--run-dir", run_dir, "--no-report")
    return output(programs, "locust", *own, *words, "--metrics-url", "none", "--on-invalid", "warn")


def test_an_endpoint_from_outside_is_planned_sent_and_reported(
    programs: Forge, server: ScriptedServer, tmp_path: Path
) -> None:
    scenario, run_dir = tmp_path / "generated.yaml", tmp_path / "run"
    scenario.write_text(SCENARIO)
    shown = ran(programs, ROOT / "locustfiles" / "chat.py", server, run_dir, "--scenario", str(scenario))
    assert f"requests go to {server.url}/generate_stream" in shown
    posts = {request.split(b" ")[1] for request in server.requests if request.startswith(b"POST ")}
    assert posts <= {b"/generate_stream", b"/tokenize"}
    assert all(set(body) == {"model", "inputs", "stream", "parameters"} for body in bodies(server))
    summary = json.loads((run_dir / "summary.json").read_text())
    turns = summary["turns"]
    assert (turns["ok"], turns["failed"]) == (6, 0)
    assert summary["latency"]["ttft_ms"]["count"] == 6
    assert [turn["output_tokens"] for turn in turns_of(run_dir)] == [TOKENS] * 6
    assert "endpoint: generate_stream" in (run_dir / "run.json").read_text()
    of_vllm = "vllm bench serve --backend tgi --model m --dataset-name random"
    assert "sent to /generate_stream" in output(programs, "inferload", "plan", scenario)
    assert '"generate_stream"' in output(programs, "inferload", "schema")
    assert "endpoint: generate_stream" in output(programs, "inferload", "import", of_vllm)
    output(programs, "inferload", "report", run_dir)
    assert (run_dir / "report.md").exists()


def test_tasks_send_turns_to_an_endpoint_from_outside(programs: Forge, server: ScriptedServer, tmp_path: Path) -> None:
    locustfile, run_dir = tmp_path / "asking.py", tmp_path / "run"
    locustfile.write_text(TASK)
    shown = ran(programs, locustfile, server, run_dir, "--users", "1", "--run-time", "2s")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["turns"]["failed"], summary["exceptions"]["count"]) == (0, 0), shown
    assert summary["turns"]["ok"] > 0
    assert bodies(server)[-1]["inputs"] == "Once"


def test_an_endpoint_from_outside_without_a_stream(programs: Forge, tmp_path: Path) -> None:
    scenario, run_dir = tmp_path / "classified.yaml", tmp_path / "run"
    workload = "{kind: texts, texts_per_request: 2, text_tokens: 10}"
    text = SCENARIO.replace("generate_stream", "classify").split("\n")
    scenario.write_text("\n".join(f"workload: {workload}" if line.startswith("workload") else line for line in text))
    with closing(ScriptedServer([one_model(classified, "/classify")])) as server:
        shown = ran(programs, ROOT / "locustfiles" / "chat.py", server, run_dir, "--scenario", str(scenario))
        sent = [body_of(post) for post in server.requests if b"POST /classify " in post]
    assert f"requests go to {server.url}/classify" in shown
    assert {*map(frozenset, sent)} == {frozenset({"model", "input"})}
    assert {len(body["input"]) for body in sent} == {2}
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["turns"]["ok"], summary["turns"]["texts"], summary["turns"]["input_tokens"]) == (3, 6, 18)
