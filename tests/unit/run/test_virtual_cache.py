"""Runs on a virtual clock and the prefix cache: expected hits, hits counted by the server, cold and warm passes, classes alone."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sharegpt_file
import virtual
from e2e_runs import scenario
from locust_process import summary_of

from inferload import cli
from inferload.base.errors import UsageError
from inferload.run.master.lifecycle import cache_passes
from inferload.run.process.run_spec import RunOptions, resolve
from inferload.scenario.scenario import Cache, load
from inferload.workload.plan.planned_load import SampleSize, planned_load
from inferload.workload.plan.prefix_cache import PlannedCache
from inferload.workload.sessions import Sessions

TALK = {
    "workload__turns": 3,
    "workload__system_prompt_tokens": 60,
    "workload__prompt_tokens": 40,
    "arrivals": {"kind": "constant", "sessions_per_s": 4},
    "phases": {"sessions": 9, "drain_s": 60},
}
SIMULATOR = "--ttft-ms 5 --itl-ms 2 --num-gpu-blocks 20000"


def executed(folder: Path, *options: str, **changes: Any) -> virtual.VirtualRun:
    return virtual.run(folder, scenario(folder, **TALK | changes), "--details", *options, simulator=SIMULATOR)


@pytest.mark.parametrize("isolate", ["run", "session", "none"])
def test_expected_server_and_per_turn_cache_hits_are_equal(isolate: str, tmp_path: Path) -> None:
    run = executed(tmp_path, *["--report"] * (isolate == "run"), cache__isolate=isolate)
    run.check_counts()
    cache = run.summary["cache"]
    assert (cache["block_size"], cache["block_size_from"], cache["enabled"]) == (16, "server", True)
    expected, counted, per_turn = cache["expected"], cache["counted"], cache["per_turn"]
    assert (expected["exactness"], expected["notes"]) == ("exact", [])
    assert expected["cached_tokens"] == counted["hits"] == per_turn["cached_tokens"] > 0
    assert expected["input_tokens"] == counted["queries"] == per_turn["input_tokens"]
    assert counted["notes"] == []
    assert expected["turns"] == per_turn["turns"] == run.summary["turns"]["by_phase"]["all"]["ok"] == 27
    assert "warm_cache" not in run.codes
    assert "counted by the server" in run.text
    if isolate == "run":
        assert "Prefix cache" in (run.run_dir / "report.md").read_text()


# Tokens of the blog post: 53 a prompt, of which three blocks of 16 are full.
@pytest.mark.parametrize(("name", "hits"), [("agent-short-static", 19 * 48), ("agent-short-dynamic", 0)])
def test_short_prompts_of_agents_are_counted_as_in_their_source(name: str, hits: int, tmp_path: Path) -> None:
    run = virtual.run(tmp_path, name, "--set", "phases={sessions: 20, drain_s: 60}", simulator=SIMULATOR)
    cache = run.summary["cache"]
    assert (cache["per_turn"]["input_tokens"], cache["per_turn"]["cached_tokens"]) == (20 * 53, hits)
    assert cache["expected"]["cached_tokens"] == hits


def test_hits_on_prefixes_that_recorded_texts_share_are_expected(tmp_path: Path) -> None:
    sharegpt_file.write(tmp_path / "s.json", 300)
    source = {"kind": "sharegpt", "path": str(tmp_path / "s.json"), "sampler": "first_two"}
    loaded = {"workload": {"kind": "chat", "source": source}, "phases": {"sessions": 60, "drain_s": 60}}
    cache = virtual.run(tmp_path, scenario(tmp_path, **loaded), simulator=SIMULATOR).summary["cache"]
    expected, counted = cache["expected"]["cached_tokens"], cache["counted"]["hits"]
    assert counted > 0
    assert expected == pytest.approx(counted, rel=0.2)  # by characters


def test_hits_of_a_small_cache_are_those_estimated_for_it(tmp_path: Path) -> None:
    workload = {"turns": 6, "system_prompt_tokens": 300, "prompt_tokens": 400, "output_tokens": 60, "think_time_s": 2}
    loaded = {
        **{"workload": {"kind": "chat", **workload}, "phases": {"sessions": 40, "drain_s": 60}},
        **{"arrivals": {"kind": "closed", "users": 12, "spawn_per_s": 6}},
    }
    options = "--ttft-ms 5 --itl-ms 2 --max-model-len 6000 --num-gpu-blocks 2000"
    cache = virtual.run(tmp_path, scenario(tmp_path, **loaded), simulator=options).summary["cache"]
    expected, counted = cache["expected"], cache["counted"]["hit_rate"]
    assert expected["engine_tokens"] == 2000 * 16
    assert expected["hit_rate"] - counted > 0.05
    assert expected["engine_hit_rate"] == pytest.approx(counted, abs=0.03)


@pytest.mark.parametrize("arm", ["both", "warm"])
def test_cache_passes_run_in_sequence_and_are_compared(arm: str, tmp_path: Path) -> None:
    run = executed(tmp_path, "--report", cache__arm=arm)
    both = arm == "both"
    other = run.run_dir.with_name("run-warm" if both else "run-warming")
    before, warm = (run.run_dir, other) if both else (other, run.run_dir)
    summaries = [summary_of(path) for path in (before, warm)]
    caches = [summary["cache"] for summary in summaries]
    assert [cache["arm"] for cache in caches] == ["cold" if both else "warming", "warm"]
    assert caches[0]["earlier"] is None
    earlier = caches[1]["earlier"]
    assert earlier["run_dir"] == before.name
    assert summaries[1]["turns"]["ok"] == earlier["measures"]["ttft_ms"]["pairs"] == 27
    # The simulator repeats its answers, which count as not cached.
    assert caches[1]["expected"]["cached_tokens"] < caches[1]["counted"]["hits"]
    assert caches[1]["expected"]["exactness"] == "approximate"
    (note,) = caches[1]["expected"]["notes"]
    assert note.endswith("prompts carry answers to repeated prompts, which count as not cached")
    assert caches[0]["counted"]["hits"] < caches[1]["counted"]["hits"]
    assert not [reason for summary in summaries for reason in summary["verdict"]["reasons"]]
    arms = f"{caches[0]['arm'].capitalize()} and warm runs"
    assert arms in (warm / "report.md").read_text()
    assert arms in (warm / "report.html").read_text()
    text = f"The same turns in {before.name} ({caches[0]['arm']}) and in this run (warm)"
    assert text in " ".join(run.text.split())
    ids = [json.loads((path / "run.json").read_text())["id"] for path in (before, warm)]
    assert ids[0] != ids[1]


def test_the_directory_of_a_later_cache_pass_is_checked_before_the_first(tmp_path: Path) -> None:
    other = tmp_path / "run-warm"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    run = executed(tmp_path, cache__arm="both")
    assert run.code == 2
    assert "run-warm: not empty" in run.text
    assert not run.run_dir.exists()


# -- the plan and the run

PLANNED = {
    "workload__turns": {"dist": "uniform", "min": 1, "max": 4},
    "workload__prompt_tokens": {"dist": "uniform", "min": 20, "max": 60},
    "workload__system_prompt_tokens": 60,
    "request__endpoint": "completions",  # without a chat template, whose tokens a plan does not include
}
_CLOSED = {"kind": "closed", "users": 3, "spawn_per_s": 100}
_CONSTANT = {"kind": "constant", "sessions_per_s": 20}
BY_COUNT: dict[str, dict[str, Any]] = {
    "closed sessions": {"arrivals": _CLOSED, "phases": {"sessions": 12, "drain_s": 60}},
    "closed turns": {"arrivals": _CLOSED, "phases": {"turns": 11, "drain_s": 60}, "workload__turns": 1},
    "open sessions": {"arrivals": _CONSTANT, "phases": {"sessions": 9, "warmup_s": 0.3, "drain_s": 60}},
}


@pytest.mark.parametrize("ends", BY_COUNT)
def test_a_run_that_ends_by_count_sends_the_planned_turns(ends: str, tmp_path: Path) -> None:
    file = scenario(tmp_path, **PLANNED | BY_COUNT[ends])
    run, resolved = virtual.run(tmp_path, file, simulator=SIMULATOR), load(str(file))
    plan = planned_load(resolved, Sessions(resolved), SampleSize(1_000, 8_000))
    turns, expected = run.summary["turns"]["by_phase"]["all"], run.summary["cache"]["expected"]
    assert plan.whole
    started = Counter(row["session_id"] for row in run.turns)
    assert started == Counter({f"s{session.index}": len(session.sent) for session in plan.sessions})
    assert turns["sent"] == turns["ok"] == sum(len(session.sent) for session in plan.sessions)
    assert turns["output_tokens"] == sum(turn.ask.output_tokens for session in plan.sessions for turn in session.sent)
    hits = PlannedCache(resolved, plan.sessions).hits.total
    assert (expected["input_tokens"], expected["cached_tokens"]) == (hits.input, hits.cached)
    assert expected["hit_rate"] == hits.rate


# -- classes of a mix, together and alone

MIX = {
    "workload": {
        "kind": "mix",
        "classes": [
            {"name": "chat", "share": 0.6, "workload": {"kind": "chat", "prompt_tokens": 30, "output_tokens": 8}},
            {"name": "rag", "share": 0.4, "workload": {"kind": "chat", "prompt_tokens": 900, "output_tokens": 8}},
        ],
    },
    "arrivals": {"kind": "poisson", "sessions_per_s": 20},
    "phases__measure_s": 1,
}


def test_a_class_alone_sends_the_turns_that_it_has_in_the_mix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = scenario(tmp_path, **MIX)
    mix = virtual.run(tmp_path / "mix", file, simulator=SIMULATOR)
    alone = {name: virtual.run(tmp_path / name, file, "--only", name, simulator=SIMULATOR) for name in ("chat", "rag")}
    planned_ns = {row["turn_id"]: row["planned_ns"] for row in mix.turns}
    by_class = {name: {row["turn_id"]: row["planned_ns"] for row in run.turns} for name, run in alone.items()}
    assert by_class["chat"] | by_class["rag"] == planned_ns
    assert not by_class["chat"].keys() & by_class["rag"].keys()
    for name, run in alone.items():
        assert run.summary["sessions"]["planned"] == len(by_class[name])
        assert cli.main(
            ["compare", f"alone={run.run_dir}", f"mix={mix.run_dir}", "--class", name, "--format", "json"]
        ) == 0  # fmt: skip
        (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
        assert candidate["refusals"] == []
        assert f"only class: {name} against not set" in candidate["compared"]
        figures = {row["figure"]: row for row in candidate["figures"]}
        for side, each in (("baseline", run), ("candidate", mix)):
            assert figures["mean(ttft_ms)"][side] == each.summary["by_class"][name]["latency"]["ttft_ms"]["mean"]
    assert cli.main(["compare", str(alone["chat"].run_dir), str(mix.run_dir), "--class", "rag"]) == 2
    assert f"--class rag: no such class in {alone['chat'].run_dir}; choose from chat" in capsys.readouterr().err


def test_an_unknown_class_is_refused_before_the_load(tmp_path: Path) -> None:
    run = virtual.run(tmp_path, scenario(tmp_path, **MIX), "--only", "chta")
    assert run.code == 2
    assert "--only chta: no class of the mix; did you mean chat?" in run.text


def test_a_single_class_of_a_closed_loop_requires_users(tmp_path: Path) -> None:
    path = scenario(tmp_path, **MIX | {"arrivals": {"kind": "closed", "users": 8, "spawn_per_s": 8}})
    with pytest.raises(UsageError, match=r"--only rag: in a closed loop .*give it with --users"):
        resolve(RunOptions(str(path), "http://127.0.0.1:1", only="rag"))
    spec = resolve(RunOptions(str(path), "http://127.0.0.1:1", only="rag", users=5))
    assert spec.users == 5


@pytest.mark.parametrize("arm", ["cold", "warm", "both"])
def test_cache_passes_of_each_arm(arm: str) -> None:
    assert [cache_pass.arm for cache_pass in cache_passes.passes(Cache(arm=arm))] == {
        "cold": ["cold"],
        "warm": ["warming", "warm"],
        "both": ["cold", "warm"],
    }[arm]
    assert [cache_pass.arm for cache_pass in cache_passes.passes(Cache(arm=arm, salt="s"))][-1] == (
        "cold" if arm == "cold" else "warm"
    )
