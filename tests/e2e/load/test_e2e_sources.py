"""Runs of recorded conversations and synthetic requests, and runs refused because of their data."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import locust_process
import pytest
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario
from ports import unused_port

from inferload.scenario.scenario import from_text, load
from inferload.workload.content.data import DataContext, DataFindings
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions


def manifest(ended: FinishedRun) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ended.run_dir / "run.json").read_text())
    return document


def talks(path: Path, count: int = 40) -> Path:
    """Write a ShareGPT file of conversations of one to three turns; one has no answer."""
    messages = [
        {"from": ("human", "gpt")[index % 2], "value": "some words and so on " * (index + 2)}
        for index in range(6)
    ]  # fmt: skip
    conversations = [{"id": str(number), "conversations": messages[: 2 + 2 * (number % 3)]} for number in range(count)]
    path.write_text(json.dumps([*conversations, {"id": "half", "conversations": messages[:1]}]))
    return path


def turns_by_session(ended: FinishedRun) -> dict[int, list[dict[str, Any]]]:
    sessions: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(ended.turns, key=lambda row: row["turn_index"]):
        sessions.setdefault(int(row["session_id"].removeprefix("s")), []).append(row)
    return sessions


# -- runs


def recorded(sandbox: Sandbox) -> FinishedRun:
    workload = {
        "kind": "chat",
        "source": {"kind": "sharegpt", "path": talks(sandbox.folder / "talks.json").name, "chars_per_token": 4},
        "history": "recorded",
    }
    file = scenario(sandbox.folder, workload=workload, phases__measure_s=1.5)
    env = {"XDG_CACHE_HOME": str(sandbox.folder / "cache")}
    words = ["--host", sandbox.simulator().url, "--scenario", str(file), "--on-invalid", "warn"]
    fleet = sandbox.fleet("processes", *words, env=env)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def incomplete(sandbox: Sandbox) -> FinishedRun:
    lines = [{"prompt": "Hi", "output_tokens": 2}, {"prompt": "Hello"}, {"prompt": "Hey", "answer": "Yes."}]
    (sandbox.folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    workload = {"kind": "chat", "source": {"kind": "jsonl", "path": "p.jsonl"}}
    file = scenario(sandbox.folder, workload=workload, phases={"sessions": 2, "drain_s": 60})
    env = {"XDG_CACHE_HOME": str(sandbox.folder / "cache")}
    fleet = sandbox.fleet("local", "--host", sandbox.simulator().url, "--scenario", str(file), env=env, report=False)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(incomplete, ())
def test_turns_left_out_of_a_file_are_reported(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert "p.jsonl:2: first of 1 turn left out: no answer and no output_tokens" in ended.text
    source = manifest(ended)["workload"]["data"]["chat"]["source"]
    assert source["filtered"] == {"without a known answer length": 1}
    assert len(ended.turns) == 2


@run_cases(recorded, ())
def test_two_workers_send_recorded_conversations(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    source = manifest(ended)["workload"]["data"]["chat"]["source"]
    assert source["sessions"] == source["used"] == 40
    assert source["skipped"] == {"one side only": 1}
    assert source["tokens"] == {"how": "given", "chars_per_token": 4.0, "error": None}
    resolved = from_text(manifest(ended)["scenario"]["text"], "run.json")
    sessions = Sessions(resolved, DataContext(str(ended.run_dir.parent / "scenario.yaml")))
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}
    for index, rows in turns_by_session(ended).items():
        plan = list(outline(sessions.begin(index).script, index))
        assert [row["max_tokens"] for row in rows] == [turn.ask.output_tokens for turn in plan[: len(rows)]]
        assert [row["output_tokens"] for row in rows] == [row["max_tokens"] for row in rows]


RANKS = "# TYPE sglang:num_running_reqs gauge\n" + "".join(
    f'sglang:{name}{{dp_rank="{dp}",model_name="m",pid="{9 + tp}",pp_rank="0",tp_rank="{tp}"}} {value}\n'
    for name, value in (("num_running_reqs", 4.0), ("token_usage", 0.5), ("generation_tokens_total", 1000.0))
    for dp in range(2)
    for tp in (2 * dp, 2 * dp + 1)
)


def batch(sandbox: Sandbox) -> FinishedRun:
    """Run a file of a batch API, with the metrics page of a server with two data-parallel engines of two ranks each."""

    def page(sock: socket.socket, request: bytes) -> None:
        sock.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s"
            % (len(RANKS), RANKS.encode())
        )

    lines = [
        {
            "custom_id": f"r-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "any",
                "max_tokens": 3 + number,
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": f"Question {number}"}]},
                ],
            },
        }
        for number in range(4)
    ]
    (sandbox.folder / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    workload = {"kind": "chat", "source": {"kind": "jsonl", "path": "batch.jsonl", "shuffle": False}}
    file = scenario(
        sandbox.folder, workload=workload, phases={"sessions": 8, "drain_s": 60}, request={"ignore_eos": True}
    )
    env = {"XDG_CACHE_HOME": str(sandbox.folder / "cache")}
    words = ["--host", sandbox.simulator().url, "--metrics-url", sandbox.server(page).url, "--scenario", str(file)]
    fleet = sandbox.fleet("local", *words, "--on-invalid", "warn", env=env, report=False)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(batch, ())
def test_the_lines_of_a_batch_are_sent_with_their_limits(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    assert sorted(row["output_tokens"] for row in ended.turns) == [3, 3, 4, 4, 5, 5, 6, 6]
    assert manifest(ended)["workload"]["data"]["chat"]["source"]["sessions"] == 4


@run_cases(batch, ())
def test_ranks_of_one_engine_are_counted_once(run_pool: RunPool, run_case: RunCase) -> None:
    (server,) = run_pool.result(run_case).summary["servers"]
    assert server["requests_running"]["max"] == 8
    assert server["kv_cache_usage"]["max"] == 0.5
    assert [engine["requests_running"]["max"] for engine in server["engines"]] == [4, 4]
    assert (server["restarts"], server["generation_tokens"]) == (0, 0)


def prose(sandbox: Sandbox) -> FinishedRun:
    """Run the bundled RAG scenario with small documents until the context is full, through a server that records requests."""
    simulator = sandbox.simulator()

    def through(sock: socket.socket, request: bytes) -> None:
        with socket.create_connection(("127.0.0.1", simulator.port)) as behind:
            behind.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while data := behind.recv(65536):
                sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)

    server = sandbox.server(through)
    changes = {
        "workload.turns": 4,
        "workload.think_time_s": 0,
        "workload.output_tokens": 6,
        "workload.documents.tokens": 150,
        "workload.context.limit_tokens": 600,
        "arrivals": {"kind": "closed", "users": 3, "spawn_per_s": 50},
        "phases": {"warmup_s": 0, "measure_s": 2, "drain_s": 60},
        "request.affinity_header": "X-Session-ID",
        "gates": [],
    }
    file = sandbox.folder / "rag.yaml"
    file.write_text(load("rag").changed(changes).resolved_text())
    words = ["--host", server.url, "--scenario", str(file), "--metrics-url", "none", "--on-invalid", "warn"]
    fleet = sandbox.fleet("local", *words)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, seen={"requests": list(server.requests)})


@run_cases(prose, ())
def test_token_counts_are_calibrated_on_the_server_and_truncations_counted(
    run_pool: RunPool, run_case: RunCase
) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    block = manifest(ended)["workload"]
    tokens = block["data"]["chat"]["source"]["tokens"]
    assert tokens["how"] == "measured"
    assert block["notes"]["context truncated"] > 0
    context = DataContext(by_class={"chat": DataFindings(None, tokens["chars_per_token"], tokens["error"])})
    sessions = Sessions(from_text(manifest(ended)["scenario"]["text"], "run.json"), context)
    planned, counted = 0, 0
    for index, rows in turns_by_session(ended).items():
        (first,) = outline(sessions.begin(index).script, index, most=1)
        planned += first.input_tokens or 0
        counted += rows[0]["input_tokens"]
    assert counted == pytest.approx(planned, rel=0.15)  # estimated, and the chat template adds tokens


@run_cases(prose, ())
def test_all_turns_of_a_session_carry_its_affinity_header(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    run_id = manifest(ended)["id"]
    requests = [request for request in ended.seen["requests"] if request.startswith(b"POST /v1/chat/completions")]
    matches = [re.search(rb"\r\nX-Session-ID: (\S+)\r\n", request) for request in requests]
    names = [match[1].decode() for match in matches if match]
    before = [name for name in names if name.startswith("preflight-")]  # sessions of their own
    assert (
        len(set(before))
        == len(before)
        == sum(target["before_load"]["requests"] for target in manifest(ended)["targets"])
    )
    assert len(names) == len(requests) == len(ended.turns) + len(before)
    for index, rows in turns_by_session(ended).items():
        assert names.count(f"{run_id}-s{index}") == len(rows)
    assert len(ended.turns) > len(turns_by_session(ended))


def random_requests(sandbox: Sandbox) -> FinishedRun:
    changes = {
        "workload.source.input_tokens": 700,
        "workload.source.output_tokens": 10,
        "workload.source.prefix_tokens": 50,
        "phases": {"warmup_s": 0, "measure_s": 1.5, "drain_s": 60},
    }
    file = sandbox.folder / "random.yaml"
    file.write_text(load("random-7000x1000").changed(changes).resolved_text())
    fleet = sandbox.fleet("local", "--host", sandbox.simulator().url, "--scenario", str(file), "--on-invalid", "warn")
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(random_requests, ())
def test_random_requests_have_exactly_the_planned_lengths(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    sessions = Sessions(from_text(manifest(ended)["scenario"]["text"], "run.json"))
    template_tokens = set()
    for index, (row, *rest) in turns_by_session(ended).items():
        (turn,) = outline(sessions.begin(index).script, index)
        assert rest == []
        assert row["output_tokens"] == turn.ask.output_tokens
        assert 680 <= (turn.input_tokens or 0) <= 820
        template_tokens.add(row["input_tokens"] - turn.input_tokens)
    assert len(template_tokens) == 1


# -- refused


def another_file(sandbox: Sandbox) -> FinishedRun:
    """Run two workers with different home directories, which have different files."""
    homes = [sandbox.folder / name for name in ("first", "second")]
    for home in homes:
        home.mkdir()
    talks(homes[0] / "talks.json")
    talks(homes[1] / "talks.json", count=41)
    file = scenario(sandbox.folder, workload={"kind": "chat", "source": {"kind": "sharegpt", "path": "~/talks.json"}})
    simulator, port = sandbox.simulator(), unused_port()
    address = ["--master-host", "127.0.0.1", "--master-port", str(port)]
    words = ["--host", simulator.url, "--scenario", str(file), "--master", "--expect-workers", "2"]
    bind = ["--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)]
    environments = [{"HOME": str(home), "XDG_CACHE_HOME": str(home)} for home in homes]
    fleet = sandbox.fleet("local", *words, *bind, env=environments[0])
    for env in environments:
        fleet.by_hand.append(
            locust_process.start("--worker", *address, "--scenario", str(file), cwd=sandbox.folder, env=env)
        )
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, seen=simulator.stats())


@run_cases(another_file, ())
def test_a_worker_whose_file_differs_from_the_masters_is_refused(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    complaints = [line for line in ended.text.splitlines() if "/ERROR/" in line]
    message = r"worker w\d on \S+: ~/talks.json: differs from the master's .*copy the same file to every machine"
    assert len(complaints) == 1, ended.text
    assert re.search(message, complaints[0])
    assert ended.code == 2, ended.text
    assert not ended.run_dir.exists()
