"""Refusal of invalid input in one line, faults during a run, exit codes, and secrecy of keys."""

import secrets
import signal
from pathlib import Path

from e2e_runs import (
    FinishedRun,
    Fleet,
    Sandbox,
    check_run,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import contents

NO_KEY = {"OPENAI_API_KEY": ""}

# -- refused


def refused(sandbox: Sandbox) -> FinishedRun:
    """Run with a key that the server refuses. More are in test_refused_input.py."""
    file = sandbox.folder / "key"
    file.write_text("sk-wrong\n")
    url = sandbox.simulator("--api-key", "sk-right").url
    words = ["--scenario", "smoke", "--host", url, "--api-key-file", str(file)]
    fleet = sandbox.fleet("processes", *words, env=NO_KEY)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(refused, ())
def test_workers_and_master_end_in_one_line(ended: FinishedRun) -> None:
    (complaint,) = [line for line in ended.text.splitlines() if line.startswith("inferload: ") or "/ERROR/" in line]
    for part in ("/v1/models", "401", "refuses the key", "--api-key-file"):
        assert part in complaint
    assert ended.code == 2, ended.text
    assert "sk-wrong" not in ended.text
    assert not ended.run_dir.exists()


# -- a low limit of open files


LIMITED = """
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
"""


def few_descriptors(sandbox: Sandbox) -> FinishedRun:
    """Run with a limit of open files that is too low for the connections of a scenario."""
    load = {"kind": "poisson", "sessions_per_s": 80, "max_in_flight": 120}
    file = scenario(sandbox.folder, arrivals=load, phases={"measure_s": 1.5, "drain_s": 60})
    url = sandbox.simulator("--ttft-ms", "3000", "--itl-ms", "1", paced=False).url
    words = ("--host", url, "--scenario", str(file), "--on-invalid", "warn")
    fleet = sandbox.fleet("local", *words, locustfile=sandbox.locustfile(LIMITED))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(few_descriptors, ())
def test_a_run_that_reaches_the_limit_of_open_files_ends_with_its_summary(ended: FinishedRun) -> None:
    turns = ended.summary["turns"]["by_phase"]["all"]
    assert set(turns["by_failure"]) == {"client_error"}
    assert turns["ok"] > 0
    assert "the limit of 64 open files is reached; raise it with ulimit -n" in ended.text
    assert ended.code == 1
    check_run(ended)


# -- keys

TAP = """
import os
from locust.rpc import protocol

serialize = protocol.Message.serialize


def tapped(message):
    data = serialize(message)
    with open(f"wire-{os.getpid()}.bin", "ab") as file:
        file.write(data)
    return data


protocol.Message.serialize = tapped
"""
PAGES = [
    "/",
    "/inferload/status",
    "/stats/requests",
    "/logs",
    "/exceptions",
    "/stats/report",
    "/stats/failures/csv",
    "/tasks",
]


def canary(sandbox: Sandbox) -> FinishedRun:
    """Run with a header and a required key in a file and in the environment, against a server that echoes the key in an error."""
    key, header = f"sk-canary-{secrets.token_hex(8)}", f"header-canary-{secrets.token_hex(8)}"
    tap, key_file = sandbox.locustfile(TAP), sandbox.folder / "key"
    key_file.write_text(key + "\n")
    simulator = sandbox.simulator("--api-key", key)
    words = ["--header", f"X-Tenant: {header}", "--api-key-file", str(key_file)]
    file = scenario(sandbox.folder)
    master = ["--host", simulator.url, "--scenario", str(file), *words]
    env = {"OPENAI_API_KEY": key}
    fleet = sandbox.fleet("by_hand", *master, workers=0, expected=2, web=True, env=env, locustfile=tap)
    for options in (words, words[:2]):
        sandbox.join(fleet, *options, env=env, locustfile=tap)
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


@run_cases(canary, ())
def test_keys_and_headers_are_in_no_output(ended: FinishedRun) -> None:
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
