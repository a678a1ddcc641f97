"""Workers read the files of recorded conversations. Other sources: tests/unit/run/test_virtual_sources.py."""

import re

import locust_process
from data_files import talks
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario
from ports import unused_port

from inferload.scenario.scenario import load
from inferload.workload.content.data import DataContext
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions


def recorded(sandbox: Sandbox) -> FinishedRun:
    source = {"kind": "sharegpt", "path": talks(sandbox.folder / "talks.json").name, "chars_per_token": 4}
    workload = {"kind": "chat", "source": source, "history": "recorded"}
    file = scenario(sandbox.folder, workload=workload, phases__measure_s=1.5)
    env = {"XDG_CACHE_HOME": str(sandbox.folder / "cache")}
    words = ["--host", sandbox.simulator().url, "--scenario", str(file), "--on-invalid", "warn"]
    fleet = sandbox.fleet("processes", *words, env=env)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(recorded, ())
def test_two_workers_send_recorded_conversations(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    check_counts(ended)
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}
    file = str(ended.run_dir.parent / "scenario.yaml")
    sessions = Sessions(load(file), DataContext(file))
    for row in ended.turns:
        index = int(row["session_id"].removeprefix("s"))
        plan = list(outline(sessions.begin(index).script, index))
        assert row["max_tokens"] == row["output_tokens"] == plan[row["turn_index"]].ask.output_tokens


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
