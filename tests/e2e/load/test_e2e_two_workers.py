"""Loads that two workers share. Those of one process: tests/unit/run/test_virtual_*.py."""

import re
import socket
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from changed_servers import AZURE, changed, refuse_max_tokens
from data_files import talks
from e2e_runs import FinishedRun, Sandbox, check_counts, run_cases, scenario

from inferload.client.connection import reader_choice
from inferload.run.worker.turn_dispatcher import server_of
from inferload.scenario.scenario import load
from inferload.workload.content.data import DataContext
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

pytestmark = pytest.mark.timeout(180)


def executed(sandbox: Sandbox, hosts: list[str], *options: str, report: bool = False, **changes: Any) -> FinishedRun:
    """Run a scenario with two workers to its end."""
    words = [word for url in hosts[1:] for word in ("--also-host", url)]
    words += ["--scenario", str(scenario(sandbox.folder, **changes)), "--on-invalid", "warn", *options]
    env = {"XDG_CACHE_HOME": str(sandbox.folder / "cache")}
    fleet = sandbox.fleet("processes", "--host", hosts[0], *words, env=env, report=report)
    ended = FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)
    assert ended.code == 0, ended.text
    check_counts(ended)
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}
    reader = "native" if reader_choice.built() else "python"
    assert {each["reader"] for each in ended.manifest["workers"]} == {reader} == {ended.summary["client"]["reader"]}
    assert ended.summary["turns"]["unfinished"] == ended.summary["turns"]["failed"] == 0
    return ended


def stepped_users(sandbox: Sandbox) -> FinishedRun:
    """One user, then four, then two, on two servers, of which one has a page of metrics."""
    steps = [{"users": users, "for_s": 1.5} for users in (1, 4, 2)]
    urls = [sandbox.simulator().url for _ in range(2)]
    return executed(
        sandbox,
        urls,
        *("--metrics-url", f"{urls[0]}/metrics"),
        arrivals={"kind": "closed", "users": 4, "spawn_per_s": 50, "profile": {"kind": "steps", "steps": steps}},
        workload__output_tokens=4,
        phases={"measure_s": 4.5, "drain_s": 20},
    )


@run_cases(stepped_users, ())
def test_users_of_all_workers_start_and_stop_as_planned(ended: FinishedRun) -> None:
    steps = ended.summary["steps"]
    assert [step["users"] for step in steps] == [1, 4, 2]
    assert steps[1]["turns"]["ok"] > steps[0]["turns"]["ok"] > 0
    assert (len(ended.summary["servers"]), len(ended.summary["by_target"])) == (1, 2)
    texts = [reason["text"] for reason in ended.summary["verdict"]["reasons"]]
    assert not any("the server's own queues" in text for text in texts), "one server's for both"


def deployment(sandbox: Sandbox) -> FinishedRun:
    """Run until 25 turns have ended, on a server with another path and another key of the limit, before a simulator."""
    simulator, script = sandbox.simulator(), changed(AZURE, refuse_max_tokens)

    def answer(sock: socket.socket, request: bytes) -> None:
        def pass_on(request: bytes) -> None:
            with socket.create_connection(("127.0.0.1", simulator.port)) as behind:
                behind.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                while data := behind.recv(65536):
                    sock.sendall(data)
            sock.shutdown(socket.SHUT_RDWR)

        script(SimpleNamespace(sendall=sock.sendall, pass_on=pass_on), request)

    host = sandbox.server(answer).url + AZURE.replace("/chat/completions", "")
    phases = {"warmup_s": 0, "turns": 25, "drain_s": 30}
    return executed(sandbox, [host], "--model", "simulator", workload__turns=3, phases=phases)


@run_cases(deployment, ())
def test_all_workers_send_turns_as_the_preflight_found_and_end_by_count(ended: FinishedRun) -> None:
    document = ended.manifest
    (target,) = document["targets"]
    assert target["api"].endswith(AZURE.replace("/chat/completions", ""))
    assert document["max_tokens_field"] == "max_completion_tokens"
    assert {row["output_tokens"] for row in ended.turns} == {8}
    assert sum(row["phase"] == "measure" for row in ended.turns) == ended.summary["turns"]["ok"] == 25


def recorded(sandbox: Sandbox) -> FinishedRun:
    """Send 25 recorded conversations in an open loop to two servers."""
    source = {"kind": "sharegpt", "path": talks(sandbox.folder / "talks.json").name, "chars_per_token": 4}
    return executed(
        sandbox,
        [sandbox.simulator("--max-num-seqs", "64").url for _ in range(2)],
        report=True,
        workload={"kind": "chat", "source": source, "history": "recorded"},
        arrivals={"kind": "poisson", "sessions_per_s": 30},
        phases={"sessions": 25, "drain_s": 60},
    )


@run_cases(recorded, ())
def test_two_workers_send_each_recorded_conversation_once(ended: FinishedRun) -> None:
    file = str(ended.run_dir.parent / "scenario.yaml")
    sessions = Sessions(load(file), DataContext(file))
    planned = {}
    for index in range(25):
        for turn, each in enumerate(outline(sessions.begin(index).script, index)):
            planned[f"s{index}", turn] = each.ask.output_tokens
    assert {(row["session_id"], row["turn_index"]): row["max_tokens"] for row in ended.turns} == planned
    assert len(ended.turns) == len(planned)
    assert all(row["max_tokens"] == row["output_tokens"] for row in ended.turns)


@run_cases(recorded, ())
def test_sessions_are_distributed_over_the_servers(ended: FinishedRun) -> None:
    document = ended.manifest
    urls = [target["url"] for target in document["targets"]]
    assert len(set(urls)) == 2
    assert document["target"] == urls[0]
    seed = ended.summary["run"]["seed"]
    indexes = {row["turn_id"]: int(row["session_id"].removeprefix("s")) for row in ended.turns}
    assert all(row["target"] == urls[server_of(seed, indexes[row["turn_id"]], 2)] for row in ended.turns)
    assert len({row["target"] for row in ended.turns}) == 2
    assert ended.summary["run"]["target"] == ", ".join(urls)
    assert len(ended.summary["servers"]) == 2
    report = (ended.run_dir / "report.md").read_text()
    assert "By target" in report
    assert all(f"| {url} |" in report for url in urls)
    by_target = ended.summary["by_target"]
    assert {url: block["turns"]["ok"] for url, block in by_target.items()} == dict(
        Counter(row["target"] for row in ended.turns if row["phase"] == "measure" and row["failure"] is None)
    )


def another_file(sandbox: Sandbox) -> FinishedRun:
    """Run two workers with different home directories, which have different files."""
    source = {"kind": "sharegpt", "path": "~/talks.json"}
    words = ("--scenario", str(scenario(sandbox.folder, workload={"kind": "chat", "source": source})))
    environments = []
    for name, count in (("first", 40), ("second", 41)):
        home = sandbox.folder / name
        home.mkdir()
        talks(home / "talks.json", count=count)
        environments.append({"HOME": str(home), "XDG_CACHE_HOME": str(home)})
    host = ("--host", sandbox.simulator().url)
    fleet = sandbox.fleet("by_hand", *host, *words, workers=0, expected=2, env=environments[0])
    for env in environments:
        sandbox.join(fleet, *words, env=env)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(another_file, ())
def test_a_worker_whose_file_differs_from_the_masters_is_refused(ended: FinishedRun) -> None:
    complaints = [line for line in ended.text.splitlines() if "/ERROR/" in line]
    message = r"worker w\d on \S+: ~/talks.json: differs from the master's .*copy the same file to every machine"
    assert len(complaints) == 1, ended.text
    assert re.search(message, complaints[0])
    assert ended.code == 2, ended.text
    assert not ended.run_dir.exists()
