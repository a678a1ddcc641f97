"""Refusal of invalid input in one line, faults during a run, exit codes, and secrecy of keys."""

import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from e2e_runs import (
    FinishedRun,
    Fleet,
    RunCase,
    RunPool,
    Sandbox,
    check_counts,
    check_files,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import ROOT
from ports import unused_port
from scripted_server import chunked

NO_KEY = {"OPENAI_API_KEY": ""}

# -- refused


def unknown_key(sandbox: Sandbox) -> list[str]:
    file = scenario(sandbox.folder, arrivals={"kind": "closed", "usres": 4, "spawn_per_s": 1})
    return ["--host", sandbox.simulator().url, "--scenario", str(file)]


def refused_connection(_sandbox: Sandbox) -> list[str]:
    return ["--scenario", "smoke", "--host", f"http://127.0.0.1:{unused_port()}"]


def wrong_key(sandbox: Sandbox) -> list[str]:
    file = sandbox.folder / "key"
    file.write_text("sk-wrong\n")
    url = sandbox.simulator("--api-key", "sk-right").url
    return ["--scenario", "smoke", "--host", url, "--api-key-file", str(file)]


def run_dir_full(sandbox: Sandbox) -> list[str]:
    sandbox.run_dir.mkdir()
    (sandbox.run_dir / "precious.txt").write_text("do not touch")
    return ["--scenario", "smoke", "--host", sandbox.simulator().url]


# Parts of the error message: subject, value if any, and remedy. More are in test_refused_input.py.
REFUSED: dict[Callable[[Sandbox], list[str]], tuple[str, ...]] = {
    unknown_key: ("scenario.yaml:", "usres", "unknown key; did you mean users?"),
    refused_connection: ("127.0.0.1:", "refused", "is the server started"),
    wrong_key: ("/v1/models", "401", "refuses the key", "--api-key-file"),
    run_dir_full: ("run directory", "not empty", "--run-dir"),
}
BY_NAME = {execute.__name__: execute for execute in REFUSED}


def refused(sandbox: Sandbox, name: str, mode: str) -> FinishedRun:
    fleet = sandbox.fleet(mode, *BY_NAME[name](sandbox), env=NO_KEY)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(refused, ("refused_connection", "local"), *((name, "processes") for name in BY_NAME))
def test_invalid_input_is_refused_in_one_line(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    name = run_case.arguments[0]
    complaints = [line for line in ended.text.splitlines() if line.startswith("inferload: ") or "/ERROR/" in line]
    assert len(complaints) == 1, ended.text
    for part in REFUSED[BY_NAME[name]]:
        assert part in complaints[0]
    assert "Traceback" not in ended.text, ended.text
    assert ended.code == 2, ended.text
    assert "sk-wrong" not in ended.text
    files = [path.name for path in ended.run_dir.iterdir()] if ended.run_dir.is_dir() else []
    assert files == (["precious.txt"] if name == "run_dir_full" else [])


def by_command(sandbox: Sandbox, *_: Any) -> FinishedRun:
    """`inferload run` with an invalid scenario, and without a host."""
    command = [sys.executable, "-m", "inferload", "run"]
    outputs, codes = [], []
    for words in ([unknown_key(sandbox)[3], "--host", "http://127.0.0.1:1"], ["smoke"]):
        done = subprocess.run(
            [*command, *words],
            cwd=sandbox.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        outputs.append(done.stderr)
        codes.append(done.returncode)
    return FinishedRun(sandbox.run_dir, max(codes), outputs[0], seen={"codes": codes, "outputs": outputs})


@run_cases(by_command, ())
def test_inferload_run_refuses_invalid_input(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.seen["codes"] == [2, 2]
    assert "did you mean users?" in ended.seen["outputs"][0]
    assert "--host: missing" in ended.seen["outputs"][1]
    assert "--host http://server:8000" in ended.seen["outputs"][1]
    assert "Traceback" not in "".join(ended.seen["outputs"])


# -- a low limit of open files


def few_descriptors(sandbox: Sandbox, arrivals: str) -> FinishedRun:
    """`inferload run` with a limit of open files that is too low for the connections of a scenario."""
    load: dict[str, Any] = {"kind": "poisson", "sessions_per_s": 80, "max_in_flight": 120}
    if arrivals == "closed":
        load = {"kind": "closed", "users": 120, "spawn_per_s": 50}
    file = scenario(sandbox.folder, arrivals=load, phases={"measure_s": 1.5, "drain_s": 60})
    url = sandbox.simulator("--ttft-ms", "3000", "--itl-ms", "1", paced=False).url
    words = [sys.executable, "-m", "inferload", "run", str(file), "--host", url, "--on-invalid", "warn"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *words, "--run-dir", str(sandbox.run_dir), "--no-report"],
        cwd=sandbox.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **NO_KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return FinishedRun(sandbox.run_dir, done.returncode, done.stdout)


@run_cases(few_descriptors, ("closed",))
def test_more_users_than_file_descriptors_are_refused(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    (complaint,) = [line for line in ended.text.splitlines() if "/ERROR/" in line]
    assert "120 users in one process" in complaint
    assert "ulimit -n" in complaint
    assert "Traceback" not in ended.text, ended.text
    assert ended.code == 2, ended.text
    assert not ended.run_dir.exists()


@run_cases(few_descriptors, ("poisson",))
def test_a_run_that_reaches_the_limit_of_open_files_ends_with_its_summary(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    turns = ended.summary["turns"]["by_phase"]["all"]
    assert set(turns["by_failure"]) == {"client_error"}
    assert turns["ok"] > 0
    assert "the limit of 64 open files is reached; raise it with ulimit -n" in ended.text
    assert "Traceback" not in ended.text, ended.text
    assert ended.code == 1
    check_files(ended.run_dir)
    check_counts(ended)


# -- only warned


def no_metrics(sandbox: Sandbox) -> FinishedRun:
    """Run against a server without the default metrics page."""
    simulator = sandbox.simulator()

    def all_but_metrics(sock: socket.socket, request: bytes) -> None:
        if request.startswith(b"GET /metrics"):
            sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", simulator.port)) as behind:
            behind.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while data := behind.recv(65536):
                sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)

    url = sandbox.server(all_but_metrics).url
    file = scenario(sandbox.folder, phases={"measure_s": 3, "drain_s": 20})
    fleet = sandbox.fleet("local", "--host", f"{url}/v1", "--scenario", str(file), "--on-invalid", "warn", env=NO_KEY)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"], {"url": url})


@run_cases(no_metrics, ())
def test_a_missing_default_metrics_page_is_a_warning(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    warning = next(line for line in ended.text.splitlines() if "/WARNING/" in line and "metrics" in line)
    assert f"{ended.seen['url']}/metrics: HTTP 404" in warning
    assert "--metrics-url" in warning
    assert "Traceback" not in ended.text, ended.text
    assert ended.code == 0, ended.text
    assert ended.summary["servers"] == []
    assert ended.summary["turns"]["ok"] > 0
    check_files(ended.run_dir, metrics=False)
    check_counts(ended)


# -- nothing sent


def no_turns(sandbox: Sandbox) -> FinishedRun:
    """Run until before the first arrival."""
    arrivals = {"kind": "poisson", "sessions_per_s": 1e-6}
    file = scenario(sandbox.folder, arrivals=arrivals, phases={"warmup_s": 0, "measure_s": 1, "drain_s": 5})
    fleet = sandbox.fleet("local", "--host", sandbox.simulator().url, "--scenario", str(file), "--details", env=NO_KEY)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(no_turns, ())
def test_a_run_without_turns_has_no_warning_on_receive_timestamps(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.code == 3, ended.text
    assert "Traceback" not in ended.text, ended.text
    codes = {reason["code"] for reason in ended.summary["verdict"]["reasons"]}
    assert "no_turns" in codes
    assert codes.isdisjoint({"user_stamps", "stamps_missing"})
    assert ended.summary["client"]["stamps"] is None
    assert ["timestamps", "none"] in [line.split() for line in ended.text.splitlines()]


# -- numbers out of range

ODD_METRICS = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} +Inf
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} -Inf
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} NaN
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} +Inf
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 1e308
vllm:prompt_tokens_total{engine="1"} 1e308
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} 7
"""
TEXT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
FINISH = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
ODD_EVENTS = [
    b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 18446744073709551615}}',
    b'{"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 5}}',
    b'{"choices": [], "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1e20}}}',
    b'{"choices": [], "metrics": {"queue_time_ms": 1e308}}',
    b'{"choices": [], "error": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


def odd_numbers(sandbox: Sandbox) -> FinishedRun:
    """Run against a server of which every third reply, and all but one metric, has a number out of range."""
    simulator = sandbox.simulator()
    turns = itertools.count()

    def answers(sock: socket.socket, request: bytes) -> None:
        if request.startswith(b"GET /metrics"):
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
            sock.sendall(head % len(ODD_METRICS) + ODD_METRICS)
            return
        number = next(turns) if b'"stream":true' in request.replace(b" ", b"") else 0
        if number % 3 == 2:
            odd = ODD_EVENTS[number // 3 % len(ODD_EVENTS)]
            sock.sendall(chunked(TEXT, b"data: " + odd + b"\n\n", FINISH, b"data: [DONE]\n\n"))
            return
        with socket.create_connection(("127.0.0.1", simulator.port)) as behind:
            behind.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while data := behind.recv(65536):
                sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)

    url = sandbox.server(answers).url
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "turns": 4 * len(ODD_EVENTS), "drain_s": 20})
    words = ["--host", f"{url}/v1", "--scenario", str(file), "--on-invalid", "warn", "--details"]
    fleet = sandbox.fleet("processes", *words, env=NO_KEY)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(odd_numbers, ())
def test_numbers_out_of_range_are_unknown_and_named(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    summary = ended.summary
    turns = summary["turns"]["by_phase"]["all"]
    assert turns["ok"] > turns["failed"] > 0
    assert {row["failure"] for row in ended.turns} == {None, "bad_event"}  # an event that is nested too deeply
    assert summary["turns"]["remarks"]["odd_event"]["turns"] >= len(ODD_EVENTS) - 1
    assert "count_mismatch" not in {reason["code"] for reason in summary["verdict"]["reasons"]}
    (server,) = summary["servers"]
    assert server["requests_running"] == server["requests_waiting"] == {"mean": None, "max": None}
    assert (server["generation_tokens"], server["prompt_tokens"], server["preemptions"]) == (None, None, 0)
    assert server["samples_unusable"] > 0
    assert f"{server['samples_unusable']} samples were not numbers" in " ".join(ended.text.split())
    check_counts(ended)


# -- keys

TAP = """
import os
from inferload.users import ScenarioUser
from locust.rpc import protocol

serialize = protocol.Message.serialize


def tapped(message):
    data = serialize(message)
    with open(f"wire-{os.getpid()}.bin", "ab") as file:
        file.write(data)
    return data


protocol.Message.serialize = tapped

class ChatUser(ScenarioUser):
    pass
"""
PAGES = (
    "/",
    "/inferload/status",
    "/stats/requests",
    "/logs",
    "/exceptions",
    "/stats/report",
    "/stats/failures/csv",
    "/tasks",
)


def canary(sandbox: Sandbox, where: str, mode: str) -> FinishedRun:
    """Run with a required key and a header, against a server that echoes the key in an error."""
    key, header = f"sk-canary-{secrets.token_hex(8)}", f"header-canary-{secrets.token_hex(8)}"
    tap, key_file = sandbox.folder / "tap.py", sandbox.folder / "key"
    tap.write_text(TAP)
    key_file.write_text(key + "\n")
    simulator = sandbox.simulator("--api-key", key)
    words = ["--header", f"X-Tenant: {header}"]
    words += ["--api-key-file", str(key_file)] if where == "file" else []
    file = scenario(sandbox.folder)
    master = ["--host", simulator.url, "--scenario", str(file), *words]
    env = {"OPENAI_API_KEY": key if where == "environment" else ""}
    fleet = sandbox.fleet(mode, *master, web=True, env=env, worker_arguments=words, locustfile=tap)
    commands = [command_lines(fleet)]
    fleet.wait_for_page()
    commands.append(command_lines(fleet))
    pages = pages_of(fleet)
    assert fleet.post("/swarm", user_count=4, spawn_rate=50)["success"]
    wait_for_measure_phase(sandbox.run_dir)
    simulator.chaos(kind="status", count=2, status=401, message=f"what is {key}?")
    wait_until(lambda: not simulator.json("GET", "/chaos")["active"], "two turns refused")
    finished = simulator.stats()["requests"]["finished"]
    wait_until(lambda: simulator.stats()["requests"]["finished"] > finished + 8, "turns")
    commands.append(command_lines(fleet))
    pages |= {f"{path} in the run": body for path, body in pages_of(fleet).items()}
    assert fleet.press_stop()
    pages |= {f"{path} at the end": body for path, body in pages_of(fleet).items()}
    fleet.signal(signal.SIGINT, whole_group=False)
    code = fleet.exit_code()
    messages = {path.name: path.read_bytes() for path in sandbox.folder.glob("wire-*.bin")}
    seen = {"key": key, "header": header, "pages": pages, "messages": messages, "commands": commands}
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen=seen)


def command_lines(fleet: Fleet) -> dict[int, bytes]:
    """Return the command line of each running process of the fleet."""
    commands = {}
    for pid in fleet.pids():
        try:
            commands[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return commands


def pages_of(fleet: Fleet) -> dict[str, bytes]:
    return {path: fleet.get(path) for path in PAGES}


def contents(run_dir: Path) -> dict[str, bytes]:
    """Return the bytes of each file of a run, and the decoded content of Parquet files."""
    files = {}
    for path in run_dir.rglob("*"):
        if path.is_file():
            files[path.name] = path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            files[f"{path.name}, decoded"] = repr((table.to_pydict(), table.schema.metadata)).encode()
    return files


@run_cases(canary, ("environment", "processes"), ("file", "by_hand"))
def test_keys_and_headers_are_in_no_output(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    seen = ended.seen
    turns = ended.summary["turns"]["by_phase"]["all"]
    assert turns["ok"] > 8, "the key was not sent"
    assert turns["by_failure"] == {"http_4xx": 2}
    assert "turn failed (http_4xx 401)" in ended.text
    assert "what is ***" in ended.text  # redacted
    assert len(seen["messages"]) == 3  # of a master and two workers
    assert all(b"inferload_" in sent for sent in seen["messages"].values())
    assert len(seen["commands"][-1]) == 4  # master, workers, scraper
    outputs = {**contents(ended.run_dir), **seen["pages"], **seen["messages"], "output": ended.text.encode()}
    assert len(outputs) > 40
    for name, data in outputs.items():
        assert seen["key"].encode() not in data, f"the key is in {name}"
        assert seen["header"].encode() not in data, f"the header is in {name}"
    for commands in seen["commands"]:
        for pid, command in commands.items():
            assert seen["key"].encode() not in command, f"the key is in the command line of {pid}: {command!r}"
