"""Runs against llama.cpp's server and Dynamo: every request and token of a run is on the server's own page, and no other."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gateways
import pytest
from e2e_runs import FinishedRun, Sandbox, check_counts, scenario
from gateways import Gateway

from inferload.figures.pages.metric_names import GENERATION_TOKENS, PROMPT_TOKENS, PROMPT_TOKENS_CACHED
from inferload.servers import exposition
from inferload.servers.scrapes_file import read_scrapes
from inferload.servers.series import by_target

pytestmark = pytest.mark.soak

LOOP = {"kind": "closed", "users": 4, "spawn_per_s": 50}
PHASES = {"sessions": 16, "warmup_s": 0, "measure_s": 120, "drain_s": 60}
REQUEST = {"wrong_length": "warn"}  # Dynamo leaves the tools out of the prompt of a turn that calls none
WORKLOADS: Mapping[str, dict[str, Any]] = {
    "chat": {"kind": "chat", "turns": 3, "think_time_s": 0.05, "prompt_tokens": 60, "output_tokens": 12},
    "agent": {
        "kind": "agent",
        **{"tools_tokens": 300, "system_prompt_tokens": 200, "prompt_tokens": 40, "steps": 3, "output_tokens": 12},
        **{"history": "live", "context_limit_tokens": 4096},
        "tools": [{"name": "look", "time_s": 0.05, "result_tokens": 80}],
    },
}
SUPPORT = """
from locust import constant, task
from inferload.users import InferenceUser


class Support(InferenceUser):
    wait_time = constant(0.05)

    @task
    def chats(self):
        with self.conversation(max_tokens=6, ignore_eos=True) as chat:
            for question in ("What is TLS?", "And mTLS?"):
                chat.ask(question).raise_for_failure()

    @task
    def completes(self):
        self.completion("Once upon a time", max_tokens=6, ignore_eos=True).raise_for_failure()
"""
# What each server counts: requests, prompt tokens, cached ones of them, output tokens, each the sum of its metrics.
COUNTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "llamacpp": (
        (),
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ("llamacpp:prompt_tokens_cached_total",),
        ("llamacpp:tokens_predicted_total",),
    ),
    "dynamo": (
        ("dynamo_frontend_requests_total",),
        ("dynamo_frontend_input_sequence_tokens_sum",),
        ("dynamo_frontend_cached_tokens_sum",),
        ("dynamo_frontend_output_tokens_total",),
    ),
}


@pytest.fixture(scope="module", params=COUNTS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Gateway]]:
    started: Callable[[Path], Any] = getattr(gateways, request.param)
    with started(tmp_path_factory.mktemp(request.param) / "server") as gateway:
        yield request.param, gateway


def counted(server: tuple[str, Gateway]) -> list[int]:
    """Return the counts of a server since its start, 0 for one that it does not have."""
    name, gateway = server
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=10) as answer:
        samples = list(exposition.PromParser().parse(answer.read().decode()))
    return [round(sum(sample.value for sample in samples if sample.metric in metrics)) for metrics in COUNTS[name]]


@pytest.mark.parametrize("kind", ["chat", "agent", "locustfile"])
def test_a_run_has_the_counts_of_the_server(server: tuple[str, Gateway], tmp_path: Path, kind: str) -> None:
    sandbox, before = Sandbox(tmp_path), counted(server)
    words = ["--host", server[1].url, "--on-invalid", "warn"]
    try:
        if kind == "locustfile":
            file = sandbox.locustfile(SUPPORT)
            fleet = sandbox.fleet("local", *words, "-u", "4", "-r", "50", "-t", "5s", locustfile=file, report=True)
        else:
            file = scenario(tmp_path, workload=WORKLOADS[kind], arrivals=LOOP, phases=PHASES, request=REQUEST)
            fleet = sandbox.fleet("local", *words, "--scenario", str(file), report=True)
        ended = FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)
    finally:
        sandbox.close()
    check_counts(ended)
    sent, turns = ended.manifest["targets"][0]["before_load"], [turn for turn in ended.turns if not turn["failure"]]
    # llama.cpp closes connections without saying so: on a busy machine a turn may meet the end of one, unread.
    lost = [turn for turn in ended.turns if turn["failure"]]
    assert all((turn["failure"], turn["status"], server[0]) == ("cut", None, "llamacpp") for turn in lost), ended.text
    assert ended.code == bool(lost), ended.text
    reconciled = json.loads((ended.run_dir / "reconcile.json").read_text())
    requests, *tokens = (now - then for now, then in zip(counted(server), before, strict=True))
    of_turns = [sum(turn[f"{of}_tokens"] for turn in turns) for of in ("input", "cached", "output")]
    assert len(turns) > 1
    assert tokens[0] == of_turns[0] + sent["input_tokens"]
    assert tokens[2] == of_turns[2] + sent["output_tokens"]
    assert 0 <= tokens[1] - of_turns[1] <= sent["input_tokens"]
    if COUNTS[server[0]][0]:
        assert len(turns) + sent["served"] <= requests <= reconciled["requests"][0]["total"]
    (series,) = by_target(read_scrapes(ended.run_dir)).values()  # since the preflight
    for metric, total in zip((PROMPT_TOKENS, PROMPT_TOKENS_CACHED, GENERATION_TOKENS), of_turns, strict=True):
        if metric in series.metrics:
            assert series.grown(metric)[-1] == total, metric
    outcomes = {check["check"]: check["outcome"] for check in reconciled["checks"]}
    assert "does not add up" not in outcomes.values(), reconciled["checks"]
    assert (outcomes["parts of a turn"] == "adds up") == (server[0] == "llamacpp")


def test_prefill_and_decode_of_dynamo_are_one_group(tmp_path: Path) -> None:
    """Sessions of several turns, whose history prefill has cached and the answers report as 0 cached tokens."""
    sandbox = Sandbox(tmp_path)
    file = scenario(tmp_path, workload=WORKLOADS["chat"], arrivals=LOOP, phases=PHASES, request=REQUEST)
    with gateways.dynamo(tmp_path / "server", "prefill", "decode") as gateway:
        pages = [f"--metrics-url={url}/metrics" for url in (gateway.url, *gateway.workers)]
        words = ["--host", gateway.url, *pages, "--on-invalid", "warn", "--scenario", str(file)]
        try:
            fleet = sandbox.fleet("local", *words, report=True)
            ended = FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)
        finally:
            sandbox.close()
    assert ended.code == 0, ended.text
    summary, documents = ended.summary, {}
    for name in ("reconcile", "diagnosis"):
        documents[name] = json.loads((ended.run_dir / f"{name}.json").read_text())
    servers = {server["target"]: server for server in summary["servers"]}
    roles = [(servers[url]["role"], servers[url]["role_from"]) for url in gateway.workers]
    assert roles == [("prefill", "label"), ("decode", "label")]
    checks = {check["check"]: check["outcome"] for check in documents["reconcile"]["checks"]}
    counted = {checks[f"{name} at {gateway.url}"] for name in ("requests", "prompt tokens", "output tokens")}
    assert counted == {"adds up"}, documents["reconcile"]["checks"]
    assert summary["cache"]["per_turn"] is None
    assert servers[gateway.url]["prefix_cache_hit_rate"] > 0
    codes = {each["code"] for server in documents["diagnosis"]["servers"] for each in server["findings"]}
    assert not codes & {"before-server", "prefill-bound", "queue-bound"}, documents["diagnosis"]["lines"]
    assert "saturated" not in {each["code"] for each in documents["diagnosis"]["run"]["findings"]}


def test_doctor_speaks_of_the_server(server: tuple[str, Gateway]) -> None:
    words = [sys.executable, "-m", "inferload", "doctor", "--host", server[1].url, "--json"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    checks = {check["what"]: check for check in json.loads(ended.stdout)["server"]}
    assert "fail" not in {check["status"] for check in checks.values()}, checks
    assert "vllm" not in ended.stdout.lower(), checks
