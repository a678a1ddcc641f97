"""Runs against servers with another path, another key of the limit, or no list of models, and their refusals before the load.

A gateway on loopback changes what the simulator behind it takes.
"""

import json
import socket
from collections.abc import Callable
from typing import Any

from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario
from scripted_server import Script

PHASES = {"warmup_s": 0, "measure_s": 2, "drain_s": 30}
AZURE = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
NOT_FOUND = {"error": {"message": "Resource not found", "code": "404"}}
# Answer of a gateway to a turn: a status and a document, or None to pass it on.
Refuse = Callable[[dict[str, Any]], tuple[int, dict[str, Any]] | None]


def gateway(port: int, path: str, refuse: Refuse, models: dict[str, Any] | None = None) -> Script:
    """Return a server that passes turns at one path on to a simulator, and has no other page than a list of models."""

    def respond(sock: socket.socket, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)

    def script(sock: socket.socket, request: bytes) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        method, asked = head.decode().split()[:2]
        if method == "GET" and models is not None and asked.endswith("/models"):
            respond(sock, 200, models)
        elif asked != path:
            respond(sock, 404, NOT_FOUND)
        elif (refusal := refuse(json.loads(body))) is not None:
            respond(sock, *refusal)
        else:
            with socket.create_connection(("127.0.0.1", port)) as behind:
                line = b"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\n"
                behind.sendall(line + request.partition(b"\r\n")[2])
                while data := behind.recv(65536):
                    sock.sendall(data)
            sock.shutdown(socket.SHUT_RDWR)

    return script


def refused(message: str) -> tuple[int, dict[str, Any]]:
    return 400, {"error": {"message": message, "type": "invalid_request_error"}}


def run(sandbox: Sandbox, mode: str, path: str, refuse: Refuse, *words: str, **more: Any) -> FinishedRun:
    """Run against a gateway. `more`: `models` of its list, `host` below its origin, and values of the scenario."""
    simulator = sandbox.simulator()
    server = sandbox.server(gateway(simulator.port, path, refuse, more.pop("models", None)))
    host = server.url + more.pop("host", "")
    file = scenario(sandbox.folder, phases=PHASES, **more)
    fleet = sandbox.fleet(mode, "--host", host, "--scenario", str(file), "--on-invalid", "warn", *words)
    code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text, simulator.stats()["requests"], {"url": server.url})


def target_of(ended: FinishedRun) -> dict[str, Any]:
    document = json.loads((ended.run_dir / "run.json").read_text())
    (target,) = document["targets"]
    return target | {"max_tokens_field": document["max_tokens_field"]}


def deployment(sandbox: Sandbox, mode: str) -> FinishedRun:
    host = AZURE.replace("/chat/completions", "")
    return run(sandbox, mode, AZURE, lambda _body: None, "--model", "simulator", host=host)


@run_cases(deployment, ("local",), ("processes",))
def test_the_path_and_query_of_a_deployment_are_those_of_all_turns(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    assert f"requests go to {ended.seen['url']}{AZURE}" in ended.text
    assert target_of(ended)["api"] == ended.seen["url"] + AZURE.replace("/chat/completions", "")
    assert ended.summary["turns"]["ok"] > 0
    check_counts(ended)


def without_version(sandbox: Sandbox) -> FinishedRun:
    path = "/proxy/prefix/chat/completions"
    return run(sandbox, "local", path, lambda _body: None, "--model", "simulator", host="/proxy/prefix")


@run_cases(without_version, ())
def test_an_api_without_v1_is_found(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    assert target_of(ended)["before_load"] | {"input_tokens": 0} == {
        "requests": 2,  # the first one at /proxy/prefix/v1
        "served": 1,
        "input_tokens": 0,
        "output_tokens": 1,
        "finish_reasons": True,
    }
    lengths = json.loads((ended.run_dir / "run.json").read_text())["prompt_tokens"]
    assert "has no /tokenize with plausible counts" in lengths["note"]
    assert [turn["class_name"] for turn in lengths["first_turns"]] == ["chat"]
    assert ended.summary["run"]["prompt_lengths"][0] == lengths["note"] in ended.summary["notes"]
    check_counts(ended)


def new_key(sandbox: Sandbox, mode: str) -> FinishedRun:
    text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."

    def refuse(body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        return refused(text) if "max_tokens" in body else None

    return run(sandbox, mode, "/v1/chat/completions", refuse, "--model", "simulator")


@run_cases(new_key, ("local",), ("processes",))
def test_turns_have_the_key_of_the_limit_that_the_server_takes(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    assert "max_completion_tokens limits the answers" in ended.text
    assert target_of(ended)["max_tokens_field"] == "max_completion_tokens"
    assert {row["output_tokens"] for row in ended.turns if row["failure"] is None} == {8}
    assert ended.summary["turns"]["failed"] == 0
    check_counts(ended)


def unlisted(sandbox: Sandbox) -> FinishedRun:
    def refuse(body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        return refused("integer below minimum value. Expected a value >= 6") if body["max_tokens"] < 6 else None

    models = {"object": "list", "data": [{"id": "unknown"}]}
    return run(sandbox, "local", "/v1/chat/completions", refuse, "--model", "simulator", models=models)


@run_cases(unlisted, ())
def test_a_model_that_no_list_names_is_loaded_if_it_answers(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    warning = next(line for line in ended.text.splitlines() if "does not list model simulator" in line)
    assert "it lists unknown; the first request decides" in warning
    sent = target_of(ended)["before_load"]
    assert (sent["requests"], sent["served"], sent["output_tokens"]) == (2, 1, 8)  # no more than those of a turn
    assert ended.summary["turns"]["ok"] > 0
    check_counts(ended)


def strict(sandbox: Sandbox) -> FinishedRun:
    def refuse(body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        return refused("Unrecognized request argument supplied: ignore_eos") if "ignore_eos" in body else None

    return run(sandbox, "local", "/v1/chat/completions", refuse, "--model", "simulator")


@run_cases(strict, ())
def test_a_strict_server_refuses_before_the_load(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.code == 2, ended.text
    (complaint,) = [line for line in ended.text.splitlines() if "/ERROR/" in line or line.startswith("inferload: ")]
    assert "HTTP 400: Unrecognized request argument supplied: ignore_eos" in complaint
    assert "set request.ignore_eos: false" in complaint
    assert not ended.run_dir.exists()
    assert ended.simulator_stats is not None
    assert ended.simulator_stats["started"] == 0
