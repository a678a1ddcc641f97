"""Runs with several servers, several models and other endpoints."""

import json
from collections import Counter
from typing import Any

import pytest
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario
from inferload.deploy.pasted import kinds
from inferload.deploy.pasted.bench import translate
from inferload.deploy.pasted.shell import commands
from recorded_server import recorded

from inferload.run.worker.turn_dispatcher import server_of
from inferload.scenario.scenario import load
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.workload.sessions import model_of

TURNS = {"turns": 2, "output_tokens": 6}


def executed(
    sandbox: Sandbox, hosts: list[str], *options: str, mode: str = "local", report: bool = False, **changes: Any
) -> FinishedRun:
    """Run a short closed loop."""
    words = [word for url in hosts[1:] for word in ("--also-host", url)]
    file = scenario(sandbox.folder, phases__measure_s=1.5, **changes)
    fleet = sandbox.fleet(mode, "--host", hosts[0], *words, "--scenario", str(file), *options, report=report)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def manifest(ended: FinishedRun) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ended.run_dir / "run.json").read_text())
    return document


# -- several servers


def two_servers(sandbox: Sandbox) -> FinishedRun:
    simulators = [sandbox.simulator("--max-num-seqs", "64") for _ in range(2)]
    workload = {"kind": "chat", "prompt_tokens": 20, **TURNS}
    return executed(
        sandbox, [simulator.url for simulator in simulators], mode="processes", report=True, workload=workload
    )


@run_cases(two_servers, ())
def test_sessions_are_distributed_over_the_servers(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    document = manifest(ended)
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


# -- endpoints


def endpoint(sandbox: Sandbox, name: str) -> FinishedRun:
    url = sandbox.simulator().url if name == "completions" else sandbox.server(recorded).url
    workload = {"kind": "chat", "prompt_tokens": 20, **TURNS}
    return executed(sandbox, [url], workload=workload, request={"endpoint": name})


@run_cases(endpoint, ("completions",), ("responses",), ("messages",))
def test_a_run_on_another_endpoint(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    assert len(ended.turns) > 4
    assert {row["failure"] for row in ended.turns} == {None}
    for row in ended.turns:
        assert row["finish_reason"] == ("length" if row["output_tokens"] == 6 else "stop")
        assert row["sent_ns"] <= row["first_event_ns"] <= row["first_ns"] <= row["last_ns"] <= row["closed_ns"]
        assert 0 < len(row["event_ns"]) <= row["output_tokens"] <= 6
    if ENDPOINTS[run_case.arguments[0]].ignore_eos:
        assert {row["output_tokens"] for row in ended.turns} == {6}
    assert manifest(ended)["endpoint"] == run_case.arguments[0]
    if run_case.arguments[0] == "completions":  # without a chat template
        assert not [note for note in ended.summary["cache"]["expected"]["notes"] if "template" in note]


# -- a command of vLLM's benchmark


def translated(sandbox: Sandbox) -> FinishedRun:
    simulator = sandbox.simulator()
    (command,) = commands(
        f"vllm bench serve --backend openai-chat --base-url {simulator.url} --random-input-len 30 --random-output-len 5 "
        "--random-range-ratio 0.2 --num-prompts 12 --max-concurrency 4 --goodput ttft:60000"
    )
    recognised = kinds.recognised(command)
    assert recognised is not None
    bench = translate(recognised)
    file = sandbox.folder / "bench.yaml"
    file.write_text(bench.text(str(file)))
    fleet = sandbox.fleet("local", *bench.run, "--scenario", str(file))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(translated, ())
def test_a_translated_vllm_bench_command_sends_its_number_of_prompts(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    assert len(ended.turns) == 12
    assert {row["failure"] for row in ended.turns} == {None}
    assert all(4 <= row["output_tokens"] <= 6 for row in ended.turns)
    assert ended.summary["rates"]["slo_attainment"] == 1


# -- models


def not_served(sandbox: Sandbox) -> FinishedRun:
    models = [{"name": "simulator", "share": 0.5}, {"name": "adapter", "share": 0.5}]
    return executed(sandbox, [sandbox.simulator("--model", "simulator").url], request={"models": models})


@run_cases(not_served, ())
def test_an_unknown_model_is_refused_before_the_load(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.code == 2
    assert "no streamed answer from model adapter: HTTP 404: " in ended.text
    assert "the server lists simulator: name another model" in ended.text
    assert not (ended.run_dir / "run.json").exists()


def two_models(sandbox: Sandbox) -> FinishedRun:
    models = [{"name": "base", "share": 0.5}, {"name": "adapter", "share": 0.5}]
    simulator = sandbox.simulator("--served-model-name", "base", "adapter")
    return executed(sandbox, [simulator.url], request={"models": models})


@run_cases(two_models, ())
def test_each_session_uses_its_sampled_model(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    resolved = load(str(ended.run_dir.parent / "scenario.yaml"))
    models = {int(row["session_id"].removeprefix("s")): row["model"] for row in ended.turns}
    assert {row["failure"] for row in ended.turns} == {None}
    assert models == {index: model_of(resolved, index) for index in models}
    assert set(models.values()) == {"base", "adapter"} == set(ended.summary["by_model"])
    assert ended.summary["run"]["model"] == manifest(ended)["model"] == "base, adapter"


def test_models_are_sampled_by_their_shares_of_sessions(tmp_path: Any) -> None:
    models = [{"name": "base", "share": 0.75}, {"name": "adapter", "share": 0.25}]
    resolved = load(str(scenario(tmp_path, request={"models": models})))
    counts = Counter(model_of(resolved, index) for index in range(4000))
    assert counts["adapter"] == pytest.approx(1000, abs=110)  # four standard deviations
    assert model_of(load(str(scenario(tmp_path))), 0) is None
