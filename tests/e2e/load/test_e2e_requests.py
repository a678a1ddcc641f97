"""Runs with several servers. Endpoints and models: tests/unit/run/test_virtual_requests.py."""

import json
from collections import Counter
from typing import Any

from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario

from inferload.run.worker.turn_dispatcher import server_of


def executed(
    sandbox: Sandbox, hosts: list[str], *options: str, mode: str = "local", report: bool = False, **changes: Any
) -> FinishedRun:
    """Run a short closed loop."""
    words = [word for url in hosts[1:] for word in ("--also-host", url)]
    file = scenario(sandbox.folder, phases__measure_s=1.5, **changes)
    fleet = sandbox.fleet(
        mode, "--host", hosts[0], *words, "--scenario", str(file), "--on-invalid", "warn", *options, report=report
    )
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def two_servers(sandbox: Sandbox) -> FinishedRun:
    simulators = [sandbox.simulator("--max-num-seqs", "64") for _ in range(2)]
    workload = {"kind": "chat", "prompt_tokens": 20, "turns": 2, "output_tokens": 6}
    return executed(
        sandbox, [simulator.url for simulator in simulators], mode="processes", report=True, workload=workload
    )


@run_cases(two_servers, ())
def test_sessions_are_distributed_over_the_servers(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.code == 0, ended.text
    check_counts(ended)
    document = json.loads((ended.run_dir / "run.json").read_text())
    urls = [target["url"] for target in document["targets"]]
    assert len(set(urls)) == 2
    assert document["target"] == urls[0]
    indexes = {row["turn_id"]: int(row["session_id"].removeprefix("s")) for row in ended.turns}
    seed = ended.summary["run"]["seed"]
    assert all(row["target"] == urls[server_of(seed, indexes[row["turn_id"]], 2)] for row in ended.turns)
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}
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


def one_of_two_pages(sandbox: Sandbox) -> FinishedRun:
    simulators = [sandbox.simulator() for _ in range(2)]
    urls = [simulator.url for simulator in simulators]
    workload = {"kind": "chat", "prompt_tokens": 20, "output_tokens": 2}
    return executed(sandbox, urls, "--metrics-url", f"{urls[0]}/metrics", workload=workload)


@run_cases(one_of_two_pages, ())
def test_queue_lengths_of_one_of_two_servers_are_not_taken_for_both(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert len(ended.summary["servers"]) == 1
    assert len(ended.summary["by_target"]) == 2
    assert not [reason for reason in ended.summary["verdict"]["reasons"] if "the server's own queues" in reason["text"]]
