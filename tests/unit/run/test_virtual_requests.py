"""Runs on a virtual clock with other endpoints and several models, and of a command of vLLM's benchmark."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import virtual
from e2e_runs import scenario
from inferload.analysis.interop.pasted import kinds
from inferload.analysis.interop.pasted.bench import translate
from inferload.analysis.interop.pasted.shell import commands

from inferload.scenario.scenario import load
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.workload.sessions import model_of

CHAT = {"kind": "chat", "prompt_tokens": 20, "turns": 2, "output_tokens": 6}


def executed(folder: Path, *, simulator: str = virtual.PACED, script: str | None = None, **changes: Any) -> Any:
    """Run a short closed loop."""
    file = scenario(folder, phases__measure_s=0.8, **changes)
    return virtual.run(folder, file, simulator=simulator, script=script)


@pytest.mark.parametrize("name", ["completions", "responses", "messages"])
def test_a_run_on_another_endpoint(name: str, tmp_path: Path) -> None:
    script = None if name == "completions" else "recorded_server:recorded"
    run = executed(tmp_path, script=script, workload=CHAT, request={"endpoint": name})
    assert run.code == 0, run.text
    run.check_counts(by_server=script is None)
    rows = run.turns
    assert len(rows) > 4
    assert {row["failure"] for row in rows} == {None}
    for row in rows:
        assert row["finish_reason"] == ("length" if row["output_tokens"] == 6 else "stop")
        assert row["sent_ns"] <= row["first_event_ns"] <= row["first_ns"] <= row["last_ns"] <= row["closed_ns"]
        assert 0 < len(row["event_ns"]) <= row["output_tokens"] <= 6
    if ENDPOINTS[name].ignore_eos:
        assert {row["output_tokens"] for row in rows} == {6}
    assert run.manifest["endpoint"] == name
    if name == "completions":  # without a chat template
        assert not [note for note in run.summary["cache"]["expected"]["notes"] if "template" in note]


def test_a_translated_vllm_bench_command_sends_its_number_of_prompts(tmp_path: Path) -> None:
    (command,) = commands(
        "vllm bench serve --backend openai-chat --base-url http://127.0.0.1:1 --random-input-len 30 --random-output-len 5 "
        "--random-range-ratio 0.2 --num-prompts 12 --max-concurrency 4 --goodput ttft:60000"
    )
    recognised = kinds.recognised(command)
    assert recognised is not None
    bench = translate(recognised)
    assert bench.run == ["--host", "http://127.0.0.1:1"]
    file = tmp_path / "bench.yaml"
    file.write_text(bench.text(str(file)))
    run = virtual.run(tmp_path, file)
    assert run.code == 0, run.text
    run.check_counts()
    assert len(run.turns) == 12
    assert {row["failure"] for row in run.turns} == {None}
    assert all(4 <= row["output_tokens"] <= 6 for row in run.turns)
    assert run.summary["rates"]["slo_attainment"] == 1


def test_an_unknown_model_is_refused_before_the_load(tmp_path: Path) -> None:
    models = [{"name": "simulator", "share": 0.5}, {"name": "adapter", "share": 0.5}]
    run = executed(tmp_path, request={"models": models})
    assert run.code == 2
    assert "no streamed answer from model adapter: HTTP 404: " in run.text
    assert "the server lists simulator: name another model" in run.text
    assert not (run.run_dir / "run.json").exists()


def test_each_session_uses_its_sampled_model(tmp_path: Path) -> None:
    models = [{"name": "base", "share": 0.5}, {"name": "adapter", "share": 0.5}]
    simulator = f"{virtual.PACED} --served-model-name base adapter"
    run = executed(tmp_path, simulator=simulator, request={"models": models})
    assert run.code == 0, run.text
    resolved = load(str(tmp_path / "scenario.yaml"))
    used = {int(row["session_id"].removeprefix("s")): row["model"] for row in run.turns}
    assert {row["failure"] for row in run.turns} == {None}
    assert used == {index: model_of(resolved, index) for index in used}
    assert set(used.values()) == {"base", "adapter"} == set(run.summary["by_model"])
    assert run.summary["run"]["model"] == run.manifest["model"] == "base, adapter"


def test_models_are_sampled_by_their_shares_of_sessions(tmp_path: Path) -> None:
    models = [{"name": "base", "share": 0.75}, {"name": "adapter", "share": 0.25}]
    resolved = load(str(scenario(tmp_path, request={"models": models})))
    counts = Counter(model_of(resolved, index) for index in range(4000))
    assert counts["adapter"] == pytest.approx(1000, abs=110)  # four standard deviations
    assert model_of(load(str(scenario(tmp_path))), 0) is None
