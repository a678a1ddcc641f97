"""Runs and the prefix cache: expected hits, hits counted by the server, cold and warm passes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e_runs import BUSY_MACHINE_CODES, FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario
from locust_process import summary_of, turns_of

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
SIMULATOR = ("--ttft-ms", "5", "--itl-ms", "2", "--num-gpu-blocks", "20000")


def _run(sandbox: Sandbox, mode: str, name: str, report: bool = False, **changes: Any) -> FinishedRun:
    server = sandbox.simulator(*SIMULATOR)
    return _again(sandbox, server.url, mode, name, report, **changes)


def _again(sandbox: Sandbox, url: str, mode: str, name: str, report: bool = False, **changes: Any) -> FinishedRun:
    sandbox.run_dir = sandbox.folder / name
    path = scenario(sandbox.folder / f"{name}-scenario", **TALK, **changes)
    fleet = sandbox.fleet(mode, "--host", url, "--scenario", str(path), "--details", report=report)
    code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, sandbox.text)


def _isolated(sandbox: Sandbox, isolate: str) -> FinishedRun:
    return _run(
        sandbox, "processes" if isolate == "session" else "local", "run", isolate == "run", cache__isolate=isolate
    )


def _twice(sandbox: Sandbox, salt: str | None) -> tuple[FinishedRun, FinishedRun]:
    """Send the same prompts twice to a server."""
    url = sandbox.simulator(*SIMULATOR).url
    changes = {} if salt is None else {"cache__salt": salt}
    return _again(sandbox, url, "local", "first", **changes), _again(sandbox, url, "local", "second", **changes)


def _arms(sandbox: Sandbox, arm: str) -> FinishedRun:
    return _run(sandbox, "processes" if arm == "both" else "local", "run", report=True, cache__arm=arm)


def _cache(ended: FinishedRun) -> dict[str, Any]:
    cache: dict[str, Any] = ended.summary["cache"]
    return cache


def _codes(run_dir: Path) -> set[str]:
    return {reason["code"] for reason in summary_of(run_dir)["verdict"]["reasons"]} - BUSY_MACHINE_CODES


@run_cases(_isolated, ("run",), ("session",), ("none",))
def test_expected_server_and_per_turn_cache_hits_are_equal(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    cache = _cache(ended)
    assert (cache["block_size"], cache["block_size_from"], cache["enabled"]) == (16, "server", True)
    expected, counted, per_turn = cache["expected"], cache["counted"], cache["per_turn"]
    assert (expected["exactness"], expected["notes"]) == ("exact", [])
    assert expected["cached_tokens"] == counted["hits"] == per_turn["cached_tokens"] > 0
    assert expected["input_tokens"] == counted["queries"] == per_turn["input_tokens"]
    assert counted["notes"] == []
    assert expected["turns"] == per_turn["turns"] == ended.summary["turns"]["by_phase"]["all"]["ok"]
    assert "warm_cache" not in ended.codes
    check_counts(ended)
    assert "counted by the server" in ended.text
    if run_case.arguments == ("run",):
        assert "Prefix cache" in (ended.run_dir / "report.md").read_text()


@run_cases(_twice, ("same",), (None,))
def test_a_cache_filled_by_an_earlier_run_is_detected(run_pool: RunPool, run_case: RunCase) -> None:
    first, second = run_pool.result(run_case)
    salted = run_case.arguments[0] is not None
    assert "warm_cache" not in first.codes
    assert ("warm_cache" in second.codes) == salted
    assert (_cache(second)["counted"]["hits"] > _cache(second)["expected"]["cached_tokens"]) == salted


@run_cases(_arms, ("both",), ("warm",))
def test_cache_passes_run_in_sequence_and_are_compared(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    both = run_case.arguments[0] == "both"
    folder = ended.run_dir
    other = folder.with_name(folder.name + ("-warm" if both else "-warming"))
    before, warm = (folder, other) if both else (other, folder)
    caches = [summary_of(path)["cache"] for path in (before, warm)]
    assert [cache["arm"] for cache in caches] == ["cold" if both else "warming", "warm"]
    assert caches[0]["earlier"] is None
    earlier = caches[1]["earlier"]
    assert earlier["run_dir"] == before.name
    assert summary_of(warm)["turns"]["ok"] == earlier["measures"]["ttft_ms"]["pairs"] > 10
    # The simulator repeats its answers, which count as not cached.
    assert caches[1]["expected"]["cached_tokens"] < caches[1]["counted"]["hits"]
    assert caches[1]["expected"]["exactness"] == "approximate"
    (note,) = caches[1]["expected"]["notes"]
    assert note.endswith("prompts carry answers to repeated prompts, which count as not cached")
    assert caches[0]["counted"]["hits"] < caches[1]["counted"]["hits"]
    assert "warm_cache" not in _codes(before) | _codes(warm)
    arms = f"{caches[0]['arm'].capitalize()} and warm runs"
    assert arms in (warm / "report.md").read_text()
    assert arms in (warm / "report.html").read_text()
    text = f"The same turns in {before.name} ({caches[0]['arm']}) and in this run (warm)"
    assert text in " ".join(ended.text.split())
    ids = [json.loads((path / "run.json").read_text())["id"] for path in (before, warm)]
    assert ids[0] != ids[1]


def _occupied(sandbox: Sandbox) -> FinishedRun:
    """Run both passes while the directory of the second is not empty."""
    other = sandbox.folder / "run-warm"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    return _run(sandbox, "local", "run", cache__arm="both")


@run_cases(_occupied, ())
def test_the_directory_of_a_later_cache_pass_is_checked_before_the_first(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.code == 2
    assert "run-warm: not empty" in ended.text
    assert not ended.run_dir.exists()


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


def _planned(sandbox: Sandbox, ends: str) -> FinishedRun:
    changes = PLANNED | BY_COUNT[ends]
    sandbox.run_dir = sandbox.folder / "run"
    path = scenario(sandbox.folder / "run-scenario", **changes)
    server = sandbox.simulator(*SIMULATOR)
    fleet = sandbox.fleet("local", "--host", server.url, "--scenario", str(path), report=False)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), sandbox.text)


@run_cases(_planned, *((ends,) for ends in BY_COUNT))
def test_a_run_that_ends_by_count_sends_the_planned_turns(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    resolved = load(str(ended.run_dir.with_name("run-scenario") / "scenario.yaml"))
    plan = planned_load(resolved, Sessions(resolved), SampleSize(1_000, 8_000))
    cache = PlannedCache(resolved, plan.sessions)
    turns, expected = ended.summary["turns"]["by_phase"]["all"], ended.summary["cache"]["expected"]
    assert plan.whole
    started = Counter(row["session_id"] for row in turns_of(ended.run_dir))
    assert started == Counter({f"s{session.index}": len(session.sent) for session in plan.sessions})
    assert turns["sent"] == turns["ok"] == sum(len(session.sent) for session in plan.sessions)
    assert turns["output_tokens"] == sum(turn.ask.output_tokens for session in plan.sessions for turn in session.sent)
    hits = cache.hits.total
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
    "phases__measure_s": 2,
}


def _mixed(sandbox: Sandbox) -> tuple[Path, Path, Path]:
    """Run the mix, and each class alone, with one and with two workers."""
    url = sandbox.simulator(*SIMULATOR).url
    path = scenario(sandbox.folder / "mix", **MIX)
    folders = []
    for name, mode in (("mix", "processes"), ("chat", "local"), ("rag", "processes")):
        sandbox.run_dir = sandbox.folder / f"run-{name}"
        only = [] if name == "mix" else ["--only", name]
        sandbox.fleet(mode, "--host", url, "--scenario", str(path), "--on-invalid", "warn", *only).exit_code()
        folders.append(sandbox.run_dir)
    return folders[0], folders[1], folders[2]


@run_cases(_mixed, ())
def test_a_class_alone_sends_the_turns_that_it_has_in_the_mix(
    run_pool: RunPool, run_case: RunCase, capsys: pytest.CaptureFixture[str]
) -> None:
    mix, *alone = run_pool.result(run_case)
    ids = {path: {row["turn_id"] for row in turns_of(path)} for path in (mix, *alone)}
    # On a busy machine a session that could not start in time is dropped.
    dropped = {path: summary_of(path)["sessions"]["dropped"] for path in (mix, *alone)}
    both = ids[alone[0]] | ids[alone[1]]
    assert len(both - ids[mix]) <= dropped[mix]
    assert len(ids[mix] - both) <= dropped[alone[0]] + dropped[alone[1]]
    assert not ids[alone[0]] & ids[alone[1]]
    planned = {path: {row["turn_id"]: row["planned_ns"] for row in turns_of(path)} for path in (mix, *alone)}
    for path in alone:
        first, *others = sorted(planned[path].keys() & planned[mix].keys())
        shift_ns = planned[path][first] - planned[mix][first]
        assert all(abs(planned[path][turn] - planned[mix][turn] - shift_ns) < 1e9 for turn in others)
        assert summary_of(path)["sessions"]["planned"] == len(ids[path]) + dropped[path]

    for name, path in zip(("chat", "rag"), alone, strict=True):
        assert cli.main(["compare", f"alone={path}", f"mix={mix}", "--class", name, "--format", "json"]) == 0
        (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
        assert not [line for line in candidate["refusals"] if "not a valid measurement" not in line]
        assert f"only class: {name} against not set" in candidate["compared"]
        figures = {row["figure"]: row for row in candidate["figures"]}
        for side, folder in (("baseline", path), ("candidate", mix)):
            assert figures["mean(ttft_ms)"][side] == summary_of(folder)["by_class"][name]["latency"]["ttft_ms"]["mean"]
    assert cli.main(["compare", str(alone[0]), str(mix), "--class", "rag"]) == 2
    assert f"--class rag: no such class in {alone[0]}; it has chat" in capsys.readouterr().err


def _refused(sandbox: Sandbox) -> FinishedRun:
    path = scenario(sandbox.folder / "mix", **MIX)
    fleet = sandbox.fleet("local", "--host", "http://127.0.0.1:1", "--scenario", str(path), "--only", "chta")
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), sandbox.text)


def test_a_single_class_of_a_closed_loop_requires_users(tmp_path: Path) -> None:
    path = scenario(tmp_path / "mix", **MIX | {"arrivals": {"kind": "closed", "users": 8, "spawn_per_s": 8}})
    with pytest.raises(UsageError, match=r"--only rag: in a closed loop .*give it with --users"):
        resolve(RunOptions(str(path), "http://127.0.0.1:1", only="rag"))
    spec = resolve(RunOptions(str(path), "http://127.0.0.1:1", only="rag", users=5))
    assert spec.users == 5


@run_cases(_refused, ())
def test_an_unknown_class_is_refused_before_the_load(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.code == 2
    assert "--only chta: no class of the mix, which has chat, rag" in ended.text


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
