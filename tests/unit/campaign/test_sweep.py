"""Sweeps: plan, journal, and sweeps on the simulator that are killed and resumed."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from e2e_runs import wait_until
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.launcher import launch, machine_checks, probe, server_state
from inferload.deploy.servers import engines, local
from inferload.deploy.servers.engines import Command, ServerSpec
from inferload.deploy.variants.variant import check_name
from own_commands import begin
from ports import unused_port
from processes import alive
from simulator_process import Simulator

from inferload.base import clock, deployments
from inferload.base.errors import UsageError
from inferload.campaign import process
from inferload.campaign.commands.sweep import _open_journal
from inferload.campaign.journal import Journal, PortChosen, RunEnded, RunRetried, ServerReady, ServerStarting, alone
from inferload.campaign.sweep import definition, grid
from inferload.campaign.sweep import plan as sweep_plan
from inferload.campaign.sweep.definition import Sweep
from inferload.campaign.sweep.runner import SweepRunner, clear_up, port_for
from inferload.scenario import overrides
from inferload.scenario import scenario as scenarios_of
from inferload.scenario.files import catalog, typed_yaml
from inferload.scenario.files.yaml_text import ScenarioError

SWEEPS = sorted((catalog.folder() / "sweeps").glob("*.yaml"))
TEXT = """\
schema: 1
name: small
engine: simulator
baseline: tiny-baseline
variants: [tiny-prefix-caching, tiny-all]
scenarios: [smoke]
pairs: 4
"""


def small(**changes: object) -> Sweep:
    return Sweep.model_validate({**typed_yaml.from_text(TEXT, "x", Sweep).model_dump(by_alias=True), **changes})


def write_sweep(file: Path, *lines: str) -> Path:
    """Write the sweep with these lines in place of those of the same keys."""
    keys = {line.partition(":")[0] for line in lines}
    kept = [line for line in TEXT.splitlines() if line.partition(":")[0] not in keys]
    file.write_text("\n".join([*kept, *lines, ""]))
    return file


@given(st.integers(1, 9), st.integers(0, 1000), st.sampled_from(["each", "once"]))
def test_every_variant_runs_every_pair_with_the_same_seed(pairs: int, seed: int, restart: str) -> None:
    sweep = small(pairs=pairs, seed=seed, restart=restart, scenarios=("smoke", "demo"))
    plan = sweep_plan.starts(sweep, ["smoke", "demo"])
    runs = [run for start in plan for run in start.runs]
    assert len({run.folder for run in runs}) == len(runs) == 3 * 2 * pairs
    assert len(plan) == (3 * pairs if restart == "each" else 3)
    assert len({(run.pair, run.seed) for run in runs}) == len({run.seed for run in runs}) == pairs
    assert all({run.variant for run in start.runs} == {start.variant} for start in plan)
    assert plan == sweep_plan.starts(sweep, ["smoke", "demo"])


def test_the_order_within_a_pair_is_random() -> None:
    plan = sweep_plan.starts(small(pairs=40), ["smoke"])
    firsts = [start.variant for start in plan[::3]]
    assert min(firsts.count(name) for name in ("tiny-baseline", "tiny-prefix-caching", "tiny-all")) > 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pairs": 8}, "8 pairs detect a change of"),
        ({"pairs": 4}, "cannot reject with fewer than 6"),
        ({"pairs": 2}, "2 pairs: nothing is tested; a test needs 3 pairs, and 6 to be confirmed"),
        ({"restart": "once"}, "one start per variant: verdicts hold for these server starts"),
    ],
)
def test_the_detectable_change_is_printed_before_the_sweep(changes: dict[str, Any], words: str) -> None:
    assert words in sweep_plan.outlook(small(**changes))


def test_a_grid_is_a_variant_per_combination() -> None:
    grid_ = {"max-num-seqs": [1, 2], "enforce-eager": [True, False]}
    sweep = small(variants=(), grid=grid_, set=["dtype=float16"], sd_log=0.08).with_digests()
    found = [sweep.variant(name).args for name in sweep.others]
    assert [(args["max-num-seqs"], args["enforce-eager"], args["dtype"]) for args in found] == [
        (seqs, eager, "float16") for seqs in (1, 2) for eager in (True, False)
    ]
    assert sweep.variant(sweep.others[0]).factor == "max-num-seqs=1, enforce-eager=true"
    assert typed_yaml.from_text(typed_yaml.to_text(sweep), "x", Sweep) == sweep


K2, K4, NGRAM = ({"method": name, "num_speculative_tokens": k} for name, k in (("mtp", 2), ("mtp", 4), ("ngram", 4)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("aA1./- é", max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab-.", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([None, K2, K4], ["speculative-config-off", "num_speculative_tokens-2", "num_speculative_tokens-4"]),
        ([K2, NGRAM], ["method-mtp.num_speculative_tokens-2", "method-ngram.num_speculative_tokens-4"]),
        ([None, K2], ["speculative-config-off", "method-mtp.num_speculative_tokens-2"]),
        ([{"method": "mtp"}, K2], ["num_speculative_tokens-off", "num_speculative_tokens-2"]),
        ([{"a": {"b": [1, 2]}}, {"a": {"b": [1]}}], ["a-b-1-2", "a-b-1"]),
        ([{"model": "org/a b"}, {"model": "org/a-b"}], ["model-org-a-b", "model-org-a-b-2"]),
        (["a", "A", 0.5], ["speculative-config-a", "speculative-config-A-2", "speculative-config-0.5"]),
    ],
)
def test_a_combination_is_named_by_what_differs(values: list[Any], names: list[str]) -> None:
    sweep = small(variants=(), grid={"speculative-config": values})
    assert list(sweep.grid_points) == names
    assert [sweep.variant(name).args.get("speculative-config") for name in names] == values
    assert typed_yaml.from_text(typed_yaml.to_text(sweep, defaults=False), "x", Sweep) == sweep


@given(st.dictionaries(st.text("ab-.", min_size=1, max_size=40), st.lists(VALUES, min_size=1, max_size=4), max_size=3))
def test_names_of_combinations_are_distinct_and_valid_for_folders(values: dict[str, list[Any]]) -> None:
    found = grid.points(values)
    assert list(map(list, found.values())) == [list(values)] * len(found)
    assert [list(each.values()) for each in found.values()] == (
        [list(x) for x in product(*values.values())] if values else []
    )
    assert len({name.casefold() for name in found}) == len(found)
    assert [check_name(name) for name in found] == list(grid.points(values))
    for each in values.values():
        assert len(set(grid.words(each))) == len(each)


def test_values_of_a_grid_are_different_and_no_more_than_the_limit() -> None:
    for grid_, problem in [
        ({"a": list(range(101))}, "101 combinations"),
        ({"a": [[1], [1]]}, r"grid: a \[1\] is listed twice"),
        ({"max-num-seqs": [1], "max_num_seqs": [2]}, "max-num-seqs is listed twice"),
    ]:
        with pytest.raises(ValueError, match=problem):
            small(grid=grid_)
    with pytest.raises(UsageError, match="--api-key in the grid"):
        small(grid={"api-key": ["x"]}).variant("api-key-x")


def test_a_scenario_can_occur_several_times_with_changed_keys() -> None:
    twice = small(scenarios=["smoke", {"scenario": "smoke", "name": "long", "set": ["workload.turns=9"]}])
    loads = twice.loads()
    assert list(loads) == ["smoke", "long"]
    assert loads["long"].scenario.as_data()["workload"]["turns"] == 9
    with pytest.raises(UsageError, match="duplicate name smoke; set name"):
        small(scenarios=["smoke", {"scenario": "smoke", "set": ["workload.turns=9"]}]).loads()


@pytest.mark.usefixtures("any_machine")
def test_engine_and_arguments_can_be_changed_on_the_command_line(command: Callable[..., str]) -> None:
    words = ("sweep", "tiny", "--dry-run")
    output = command(*words, "--engine", "vllm-cpu", "--set", "max-num-seqs=3")
    assert "of vllm-cpu" in output
    assert "max-num-seqs" not in output  # the same on all variants
    command(*words, "--set", "no-such", code=2)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_bundled_sweeps_are_valid(path: Path, command: Callable[..., str]) -> None:
    output = command("sweep", path.stem, "--dry-run")
    assert f"sweep {path.stem}: " in output
    assert not re.search("the same as the baseline|are equal ", output)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("pairs: 0", "7: pairs: must be at least 1, is 0"),
        ("engine: simulatr", "7: engine: is 'simulatr'; did you mean simulator?"),
        ("variants: [tiny-all, tiny-all]", "variant tiny-all is listed twice"),
        ("cost: {gpu_hour_price: .inf}", "cost.gpu_hour_price: must be finite, is inf"),
        ("cost: {gpu_hour_price: .nan}", "cost.gpu_hour_price: "),
        ("pears: 3", "8: pears: unknown key; did you mean pairs?"),
    ],
)
def test_each_mistake_has_one_line(line: str, output: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=re.escape(output)):
        typed_yaml.from_text(write_sweep(tmp_path / "x", line).read_text(), "x", Sweep)


def test_missing_variants_and_files_are_refused(tmp_path: Path, command: Callable[..., str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(TEXT.replace("tiny-all", "tiny-al"))
    for words, problem in (
        ((file, "--dry-run"), "variant tiny-al: unknown; did you mean tiny-all?"),
        (("no-such", "--dry-run"), "bundled sweeps; bundled are tiny"),
        (("--resume", tmp_path), "contains no sweep"),
        (("tiny", "--into", f"{file}/out"), f"--into {file}/out: {file} is no folder that can be written to"),
    ):
        assert problem in command("sweep", *words, code=2)


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with scenarios and a family, without a GPU and vLLM for the CPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VENV_VLLM", str(tmp_path / "none"))
    monkeypatch.setattr(machine_checks, "nvidia_smi", lambda _query: [])
    for name, workload, measure_s in (
        ("data", "{kind: chat, output_tokens: 8, source: {kind: sharegpt, path: none.json}}", 1),
        ("agent", "{kind: live_agent, agent: no.py:A}", 1),
        ("tasks", "{kind: tasks}", 1),
        ("endless", "{kind: chat, prompt_tokens: 40, output_tokens: 8}", "null"),
    ):
        head = f"schema: 1\nname: {name}\nworkload: {workload}\narrivals: {{kind: closed, users: 1, spawn_per_s: 1}}\n"
        Path(f"{name}.yaml").write_text(f"{head}phases: {{warmup_s: 0, measure_s: {measure_s}, drain_s: 1}}\n")
    hardware = "hardware: {gpu: any, gpus: 1, memory_gib: 16}\nsimulated_as: no-such-card\n"
    Path("family.yaml").write_text(f"source: x\nmodel: x/y\n{hardware}variants: {{a: {{purpose: x}}}}\n")


@pytest.fixture
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for a machine that has all engines."""
    monkeypatch.setattr(engines, "check", lambda _spec: None)


RUNNING = ["engine: running", "restart: once"]


@pytest.mark.usefixtures("bare_machine")
def test_variants_for_which_the_machine_is_too_small_are_named(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "nvidia_smi", lambda _query: [["A100", "81920", "81000", "GPU-1"]])
    monkeypatch.setenv("VLLM", "/bin/vllm")
    monkeypatch.setattr(engines.weights, "check", lambda *_arguments: None)
    base = TEXT.replace("simulator", "vllm").replace("tiny-baseline", "llama3-baseline")
    for more, code in (("llama3-awq, llama3-tp4", 0), ("llama3-tp4", 2)):
        Path("s.yaml").write_text(base.replace("tiny-prefix-caching, tiny-all", more))
        problem = "llama3-tp4: needs 4 x A100 80GB, this machine has 1"
        assert problem in command("sweep", "s.yaml", "--dry-run", code=code)


@pytest.mark.parametrize("clock", ["real", "virtual"])
@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["variants: ['family.yaml:a']"], "a: --hardware no-such-card: unknown; choose from"),
        (["set: [no-such-flag=1]"], "--no-such-flag: unknown"),
        (["grid: {max-num-seqs: [0]}"], "--max-num-seqs 0: from 1"),
        (["scenarios: [data.yaml]"], "scenario data: none.json: no such file"),
        (["scenarios: [agent.yaml]"], "scenario agent: no.py: no such file"),
        (["scenarios: [tasks.yaml]"], "is for the tasks of a locustfile"),
        (["scenarios: [endless.yaml]"], "scenario endless.yaml has no end; set measure_s"),
        (["primary: mean(foo)"], "primary: gate 'mean(foo) < 0', character 6: unknown measure foo"),
        (["primary: mean(kv_cache_usage)"], "comparisons use figures of all turns"),
        (["engine: vllm"], "its model is generated, for --engine vllm-cpu or simulator only"),
        (["engine: vllm", "baseline: llama31-base", "variants: []"], "llama31-base: needs "),
        (["engine: vllm-cpu"], "vllm-cpu: not installed in "),
        ([*RUNNING, "variants: []", "hosts: {tiny-baseline: server:8000}"], "host 'server:8000': no http:// or"),
    ],
)
@pytest.mark.usefixtures("bare_machine")
def test_what_refuses_the_first_run_refuses_the_plan(
    lines: list[str], problem: str, clock: str, command: Callable[..., str]
) -> None:
    virtual = clock == "virtual" and not any(line.startswith("engine:") for line in lines)
    write_sweep(Path("s.yaml"), *lines, f"clock: {'virtual' if virtual else 'real'}")
    for options in (["--dry-run"], []):
        output = command("sweep", "s.yaml", *options, code=2)
        assert problem in output
        assert output.count("\n") == 1


@pytest.mark.parametrize("pairs", ["0", "-1", "1001"])
def test_invalid_pairs_are_refused(pairs: str, command: Callable[..., str]) -> None:
    words = ("sweep", "tiny", "--dry-run", "--pairs")
    assert command(*words, pairs, code=2) == f"inferload: --pairs {pairs}: must be 1 to 1000\n"
    output = command(*words, "7")
    assert "70 runs on 35 starts" in output
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize(
    "option",
    [["--pairs", "12"], ["--into", "x"], ["--engine", "vllm"], ["--clock", "real"], ["--set", "max-num-seqs=1"]],
)
def test_a_resumed_sweep_keeps_its_pairs_and_folder(
    option: list[str], tmp_path: Path, command: Callable[..., str]
) -> None:
    (tmp_path / "sweep.yaml").write_text(TEXT)
    words = ("sweep", "--resume", tmp_path, "--dry-run")
    command(*words)
    assert command(*words, *option, code=2) == f"inferload: {option[0]}: not with --resume; remove it\n"


@pytest.mark.parametrize(
    "line",
    ["3", "[]", "{}", '{"kind": "other"}', '{"kind": "run"}', '{"kind": "port", "port": "x"}', '{"kind": "run", "fol'],
)
def test_lines_of_a_journal_that_are_no_entries_are_left_out(line: str, tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    entry = '{"kind": "run", "folder": "a", "wall_ns": 1}\n'
    for text in (f"{line}\n{entry}", f"{entry}{line}"):  # the last line may be cut off
        file.write_text(text)
        journal = Journal(tmp_path)
        assert ([run.folder for run in journal.runs], journal.port) == (["a"], None)


SCENARIO = """\
schema: 1
name: quick
workload: {kind: chat, prompt_tokens: 40, output_tokens: 8, turns: 2}
arrivals: {kind: closed, users: 4, spawn_per_s: 50}
phases: {measure_s: 1, drain_s: 10}
"""


CLOSED = "arrivals: {kind: closed, users: 4, spawn_per_s: 9}\nphases: {"
CONSTANT = "arrivals: {kind: constant, sessions_per_s: 5}\nphases: {"
COUNTED = f"{CONSTANT}sessions: 100"
AT_MOST = "at most about 10 min: a run of quick may end before its time limit"


def planned(folder: Path, command: Callable[..., str], parts: str, change: str = "", *more: str) -> str:
    """The planned time of a sweep of a scenario with `parts`, and with one changed line of the sweep file."""
    workload = "workload: {kind: chat, prompt_tokens: 40, output_tokens: 8, turns: 1}"
    (folder / "quick.yaml").write_text(f"schema: 1\nname: quick\n{workload}\n{parts}\n")
    file = write_sweep(folder / "sweep.yaml", f"scenarios: [{folder}/quick.yaml]", change)
    text = command("sweep", *(more or [file]), "--dry-run").split(" runs on ")[1]
    return " ".join(re.split("\n  (?:4 pairs|one start)", text)[0].split())


# 12 runs, each with a server start of 2 s and 8 s besides its phases.
@pytest.mark.parametrize(
    ("parts", "change", "output"),
    [
        (f"{CONSTANT}warmup_s: 2, measure_s: 18, drain_s: 600}}", "", "about 6 min"),
        (f"{COUNTED}, warmup_s: 10}}", "", "about 7 min 59 s"),  # the last of 100 sessions is due after 29.9 s
        (f"{COUNTED}, measure_s: 10}}", "", "about 3 min 59 s"),
        (f"{COUNTED}, measure_s: 3600}}", "", "about 5 min 59 s"),
        (f"{COUNTED}}}", "measure_s: 10", "about 3 min 59 s"),
        (f"{COUNTED}}}", "reports: false", "about 5 min 23 s"),
        (f"{COUNTED}}}", "restart: once", "about 5 min 41 s"),
        (f"{COUNTED}}}", "engine: vllm", "about 29 min 35 s"),
        (f"{CONSTANT}turns: 100}}", "", "about 5 min 59 s"),
        (f"{CLOSED}turns: 100}}", "", "at least about 2 min: the duration of a run of quick is unknown"),
        (f"{CLOSED}turns: 100, measure_s: 30, drain_s: 10}}", "", AT_MOST),
        (f"{CLOSED}turns: 100, drain_s: 10}}", "measure_s: 30", AT_MOST),
        (f"{CLOSED}warmup_until: steady, warmup_s: 20, measure_s: 20, drain_s: 0}}", "", AT_MOST),
        (f"{CLOSED}measure_s: 20}}\ncache: {{arm: both}}", "", "about 10 min"),
    ],
)
@pytest.mark.usefixtures("any_machine")
def test_the_planned_time_follows_from_phases_and_counts(
    parts: str, change: str, output: str, tmp_path: Path, command: Callable[..., str]
) -> None:
    assert planned(tmp_path, command, parts, change).partition(", ")[2] == output


def test_the_planned_time_of_a_resumed_sweep_uses_its_runs(tmp_path: Path, command: Callable[..., str]) -> None:
    by_count = f"{CLOSED}turns: 100}}"
    assert "at least about 2 min" in planned(tmp_path, command, by_count)
    sweep = definition.load(tmp_path / "sweep.yaml")
    runs = [run for start in sweep_plan.starts(sweep, ["quick"]) for run in start.runs]
    out = tmp_path / "out"
    out.mkdir()
    (out / "sweep.yaml").write_text(typed_yaml.to_text(sweep))
    journal = Journal(out)
    journal.write(ServerReady(port=1, took_s=4.0))
    journal.write(ServerReady(port=1, took_s=6.0))
    journal.write(RunEnded(folder=runs[0].folder, exit_code=0, took_s=10.0))
    journal.write(RunEnded(folder=runs[1].folder, exit_code=1, took_s=20.0))
    journal.write(RunEnded(folder=runs[2].folder, exit_code=2, took_s=1.0, cause="x"))
    resume = ("--resume", str(out))
    left = "12 starts of simulator, about 3 min{} left"
    assert planned(tmp_path, command, by_count, "", *resume) == left.format(" 20 s")
    assert planned(tmp_path, command, by_count, "", *resume, "--no-retry") == left.format("")
    journal.write(RunRetried(folder=runs[2].folder))
    assert planned(tmp_path, command, by_count, "", *resume, "--no-retry") == left.format(" 20 s")


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("max-num-seqs: 8", "max-num-seqs: 9", True),
        ("model: m", "model: n", True),
        ("purpose: small batches", "purpose: few sequences", False),
        ("max-num-seqs: 8", "max-num-seqs: 8  # comment", False),
    ],
)
def test_a_sweep_with_a_changed_variant_is_not_resumed(
    before: str, after: str, changed: bool, tmp_path: Path, command: Callable[..., str]
) -> None:
    family, out = tmp_path / "family.yaml", tmp_path / "out"
    family.write_text(
        "source: s\nmodel: m\nhardware: {gpu: none, gpus: 0, memory_gib: 0}\nsimulated_as: tiny\n"
        "variants:\n  a: {purpose: base}\n"
        "  b:\n    purpose: small batches\n    base: a\n    factor: sequences\n    args:\n      max-num-seqs: 8\n"
    )
    file = write_sweep(tmp_path / "plan.yaml", f"baseline: {family}:a", f"variants: ['{family}:b']")
    out.mkdir()
    _open_journal(definition.load(file), out, [], retry=False)
    resume = ("sweep", "--resume", out, "--dry-run")
    command(*resume)
    family.write_text(family.read_text().replace(before, after))
    shown = command(*resume, code=2 if changed else 0)
    named = "a" if before.startswith("model") else "b"
    problem = f"--resume {out}: variant {family}:{named} has changed since the sweep started; undo the change, or start"
    assert shown.startswith(f"inferload: {problem} a new sweep\n") == changed


def run_under_way(out: Path) -> int:
    """Wait until a run has started; return its process id."""
    return wait_until(
        lambda: out.is_dir() and [run_process.pid for run_process in Journal(out).under_way.values()], "a run"
    )[0]


def entries(out: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.usefixtures("forked_programs")
def test_scenarios_that_end_by_count_can_be_swept(tmp_path: Path, command: Callable[..., str]) -> None:
    (tmp_path / "quick.yaml").write_text(SCENARIO.replace("measure_s: 1", "sessions: 7"))
    lines = (f"scenarios: [{tmp_path}/quick.yaml]", "variants: []", "pairs: 1", "reports: false")
    write_sweep(tmp_path / "sweep.yaml", *lines)
    output = begin(tmp_path, "sweep", "sweep.yaml", "--into", "out").communicate(timeout=200)[0]
    out = tmp_path / "out"
    assert Journal(out).failures == [], output
    assert "at least about 7 s: the duration of a run of quick is unknown" in " ".join(output.split())
    summary = json.loads((out / "quick/tiny-baseline/000/summary.json").read_text())
    assert summary["sessions"]["completed"] == 7
    assert len(entries(out, "server_ready")) == len(entries(out, "run")) == 1
    longest_s = max(entry["took_s"] for entry in entries(out, "run"))
    wall_ns = [entry["wall_ns"] for kind in ("server_starting", "run") for entry in entries(out, kind)]
    assert 0 < longest_s <= (max(wall_ns) - min(wall_ns)) / clock.NS_PER_S
    assert "about 0 s left" in command("sweep", "--resume", out, "--dry-run")


@pytest.mark.usefixtures("forked_programs")
def test_a_sweep_resumes_after_a_signal_and_a_kill(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(SCENARIO)
    (tmp_path / "v.yaml").write_text(
        "source: test\nmodel: tiny\nhardware: {gpu: none, gpus: 0, memory_gib: 1}\nsimulated_as: cpu-tiny\nvariants:\n"
        "  base: {purpose: p, args: {enable-prefix-caching: false}}\n"
        "  cached: {base: base, factor: f, purpose: p, args: {enable-prefix-caching: true}}\n"
        "  broken: {base: base, factor: f, purpose: p, args: {exit-after-s: 0.001}}\n"
    )
    lines = ["baseline: v.yaml:base", "variants: ['v.yaml:cached', 'v.yaml:broken']", "scenarios: [quick.yaml]"]
    lines += ["pairs: 1", "reports: false", "cost: {gpu_hour_price: 2.5}"]
    write_sweep(tmp_path / "sweep.yaml", *lines)
    out = tmp_path / "out"

    terminated = begin(tmp_path, "sweep", "sweep.yaml", "--into", "out")
    interrupted = run_under_way(out)
    terminated.send_signal(signal.SIGTERM)
    output = terminated.communicate(timeout=60)[0]
    assert terminated.returncode == 128 + signal.SIGTERM, output
    assert "interrupted; continue with: inferload sweep --resume out" in output
    assert not alive(interrupted)
    assert servers_of(out) == []

    killed = begin(tmp_path, "sweep", "--resume", "out")
    orphan = run_under_way(out)
    with pytest.raises(UsageError, match="under way in another process"), alone(out):
        pass
    killed.kill()
    killed.communicate()
    assert alive(orphan)
    (left_behind,) = servers_of(out)

    resumed = begin(tmp_path, "sweep", "--resume", "out")
    output = resumed.communicate(timeout=200)[0]
    assert resumed.returncode == 1, output
    assert not alive(orphan)
    assert server_state.group(left_behind) == []
    assert servers_of(out) == []
    summaries = {str(path.relative_to(out).parent) for path in out.glob("quick/*/[0-9]*/summary.json")}
    assert summaries == {"quick/base/000", "quick/cached/000"}
    assert len({entry["port"] for entry in entries(out, "server_starting")}) == 1
    index = (out / "index.md").read_text()
    assert "| quick/broken/000 | the server did not start" in index
    assert "cached against base" in index, index
    assert "million output tok" in index
    variant = json.loads((out / "quick/cached/000/run.json").read_text())["variant"]
    known = {"name": "cached", "hardware": {"gpu": "none", "gpus": 0, "memory_gib": 1}}
    known["prices"] = {"gpu_hour": 2.5, "gpus": 1}
    assert variant.items() >= known.items()
    assert variant["memory_mb"] > 1
    assert min(variant["startup_s"], variant["weights_gb"]) > 0
    assert variant["command_line"].startswith("inferload deploy up tiny --engine simulator -- --hardware cpu-tiny ")
    assert (Journal(out).servers, Journal(out).under_way) == (set(), {})


def test_the_prefix_cache_is_reset_between_runs(
    tmp_path: Path, simulator: Callable[..., Simulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = simulator("--ttft-ms", "1", "--itl-ms", "1").port
    body = {"model": "simulator", "prompt": "one two three four five six seven eight " * 40, "max_tokens": 1}
    cached: list[int] = []

    def ask(_self: SweepRunner, run: sweep_plan.PlannedRun, *_server: object) -> None:
        usage = [probe.ask("127.0.0.1", port, "/v1/completions", body)["usage"] for _ in range(2)]
        cached.extend(each_usage["prompt_tokens_details"]["cached_tokens"] for each_usage in usage)

    server = server_state.LocalServer("simulator", "tiny", "127.0.0.1", port, 0, "", (), tmp_path / "log")
    monkeypatch.setattr(SweepRunner, "_run", ask)
    monkeypatch.setattr(SweepRunner, "_up", lambda *_: server)
    monkeypatch.setattr(launch, "stop", lambda _server: True)
    start = sweep_plan.starts(small(scenarios=("smoke", "demo")), ["smoke", "demo"])[0]
    SweepRunner(small(), tmp_path, {}, Journal(tmp_path), print).perform([start])
    assert len(cached) == 4
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0
    assert not probe.empty_prefix_cache("127.0.0.1", unused_port())


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({}, [1, 3]),
        ({"keep_cache": True}, [0, 1, 2, 3]),
        (
            {"keep_cache": True, "engine": "running", "hosts": {"tiny-baseline": "http://a", "tiny-all": "http://b"}},
            [1, 3],
        ),
    ],
)
def test_runs_that_depend_on_earlier_ones_of_their_start_are_resumed_with_them(
    changes: dict[str, Any], again: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run of a start was not made, the last one failed and is retried."""
    made: list[sweep_plan.PlannedRun] = []
    monkeypatch.setattr(SweepRunner, "_run_on_server", lambda _self, _start, runs: made.extend(runs))
    planned = small(restart="once", variants=("tiny-all",), **changes)
    start = sweep_plan.starts(planned, ["smoke"])[0]
    journal = Journal(tmp_path)
    for number in (0, 2, 3):
        journal.write(RunEnded(folder=start.runs[number].folder, exit_code=0, cause="failed" if number == 3 else None))
    journal.retry()
    SweepRunner(planned, tmp_path, {}, journal, print).perform([start])
    assert [start.runs.index(run) for run in made] == again
    assert [entry.folder for entry in Journal(tmp_path).runs] == [
        start.runs[number].folder for number in (0, 2) if number not in again
    ]


@pytest.mark.parametrize("engine", ["running", "simulator"])
@pytest.mark.parametrize(
    ("cache", "salted"),
    [(["cache={isolate: none, block_size: 32}"], True), (["cache.isolate=none"], True), ([], False)],
)
def test_each_pair_has_its_own_cache_on_a_running_server_that_keeps_it(
    cache: list[str], salted: bool, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(SweepRunner, "_run", lambda self, run, *_: made.append(self._options(run)["set"]))
    monkeypatch.setattr(SweepRunner, "_run_on_server", lambda self, _start, runs: [self._run(run) for run in runs])
    scenarios = [{"scenario": "smoke", "name": name, "set": [*cache, "gates=[]"]} for name in ("first", "again")]
    hosts = {"tiny-baseline": "http://a"} if engine == "running" else {}
    planned = small(
        restart="once", variants=(), keep_cache=True, pairs=2, engine=engine, hosts=hosts, scenarios=scenarios
    )
    plan = sweep_plan.starts(planned, ["first", "again"])
    for _resumed in range(2):  # a resumed pair continues with its salt
        SweepRunner(planned, tmp_path, planned.loads(), Journal(tmp_path), print).perform(plan)
    loads = [scenarios_of.load("smoke", overrides.parse_settings(settings)).cache for settings in made]
    if not salted or engine == "simulator":
        assert {load.salt for load in loads} == {None}
        return
    assert made[:4] == made[4:]
    assert [load.salt for load in loads[:4:2]] == [load.salt for load in loads[1:4:2]]
    assert len({load.salt for load in loads}) == 2
    assert {load.isolate for load in loads} == {"run"}
    assert {load.block_size for load in loads} == {32 if "32" in cache[0] else None}


@pytest.mark.usefixtures("forked_programs")
def test_a_running_server_that_refuses_its_first_run_ends_the_sweep(tmp_path: Path) -> None:
    hosts = dict.fromkeys(("tiny-baseline", "tiny-all"), "http://127.0.0.1:9")
    planned = small(restart="once", variants=("tiny-all",), engine="running", hosts=hosts, reports=False)
    loads, journal = planned.loads(), Journal(tmp_path)
    with pytest.raises(UsageError, match=r"no connection to http://127\.0\.0\.1:9"):
        SweepRunner(planned, tmp_path, loads, journal, print).perform(sweep_plan.starts(planned, list(loads)))
    assert len(journal.runs) == len(journal.failures) == 1


def test_another_engine_does_not_use_the_running_servers_of_the_file(
    tmp_path: Path, command: Callable[..., str]
) -> None:
    names = ("tiny-baseline", "tiny-prefix-caching", "tiny-all")
    hosts = f"hosts: {json.dumps(dict.fromkeys(names, 'http://127.0.0.1:9'))}"
    file = write_sweep(tmp_path / "own.yaml", *RUNNING, hosts)
    assert "on 3 running servers" in command("sweep", file, "--dry-run")
    shown = command("sweep", file, "--dry-run", "--engine", "simulator")
    assert "of simulator" in shown
    assert "are equal servers" not in shown, "as those of one URL are"
    write_sweep(file, *RUNNING)
    assert "engine running: hosts has no URL of" in command("sweep", file, "--dry-run", code=2)


def servers_of(out: Path) -> list[server_state.LocalServer]:
    """Return the known servers at the port of the sweep."""
    return [server for server in server_state.remembered() if server.port == Journal(out).port]


def test_failed_runs_are_retried_once_and_orphaned_servers_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "state_dir", lambda: tmp_path / "deploy")
    journal = Journal(tmp_path)
    good, bad = (run for start in sweep_plan.starts(small(), ["smoke"])[:2] for run in start.runs)
    port = unused_port()
    journal.write(PortChosen(port=port))
    journal.write(RunEnded(folder=good.folder, exit_code=1))
    journal.write(RunEnded(folder=bad.folder, cause="the server did not start"))
    assert Journal(tmp_path).retry() == 1
    assert Journal(tmp_path).retry() == 0
    assert Journal(tmp_path).outcome(good.folder) is not None
    assert Journal(tmp_path).outcome(bad.folder) is None
    journal.write(ServerStarting(start_id="a", port=port, variant="x"))
    sleeper = Command((sys.executable, "-c", "import time; time.sleep(600)"), dict(os.environ), ready_s=10.0)
    other = local.start(ServerSpec(port=unused_port()), sleeper, "b")
    server = local.start(ServerSpec(port=port), sleeper, "a")
    # A start time in whole seconds can be before the entry of the start.
    server_state.remember(replace(server, started_at="2026-01-01T00:00:00Z"))
    try:
        clear_up(Journal(tmp_path))
        assert server_state.group(server) == []
        assert server_state.group(other) == [other.pid]
        assert Journal(tmp_path).servers == set()
        assert port_for(Journal(tmp_path)) == port
    finally:
        launch.stop(server)
        launch.stop(other)


def test_an_orphaned_run_is_identified_by_pid_and_start_time(tmp_path: Path) -> None:
    child, run_process = process.begin([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    try:
        assert not process.RunProcess(run_process.pid, run_process.started_s - 100).end()
        assert run_process.alive()
        assert run_process.end()
        assert not run_process.alive()
        assert not run_process.end()
    finally:
        child.kill()
        child.wait()
