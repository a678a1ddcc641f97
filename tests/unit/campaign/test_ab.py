"""Comparisons of running servers: plan and command line."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import edited, write_run

from inferload.base.errors import UsageError
from inferload.campaign import ab, pairs
from inferload.campaign.ab import PRESET_PAIRS, PRESETS, AbPlan, AbRun
from inferload.campaign.journal import Journal, RunEnded
from inferload.campaign.runner import MADE, USAGE, problem, stop_if_refused
from inferload.scenario.files import typed_yaml

SIDES, SMOKE = ["A=http://a:1", "B=http://b:1"], ["--scenario", "smoke"]


def plan(**changes: object) -> AbPlan:
    sides = {"A": "http://a:1", "B": "http://b:1"}
    return AbPlan.model_validate({"schema": 1, "sides": sides, "scenario": "smoke", "pairs": 8, **changes})


@given(st.integers(1, 40), st.integers(0, 1000), st.integers(2, 4))
def test_each_side_has_one_run_per_pair_with_the_seed_of_the_pair(count: int, seed: int, sides: int) -> None:
    urls = {f"s{number}": f"http://s{number}:1" for number in range(sides)}
    runs = ab.planned(plan(sides=urls, pairs=count, seed=seed))
    assert len({run.folder for run in runs}) == len(runs) == count * sides
    for number in range(count):
        of_pair = runs[number * sides : (number + 1) * sides]
        assert {run.side for run in of_pair} == set(urls)
        assert len({run.seed for run in of_pair}) == 1
        assert {run.folder.rpartition("/")[2] for run in of_pair} == {f"{number:03d}"}
    assert len({run.seed for run in runs}) == count
    assert all(run.url == urls[run.side] for run in runs)
    assert runs == ab.planned(plan(sides=urls, pairs=count, seed=seed))


def test_the_order_within_pairs_is_random() -> None:
    firsts = [pair.order[0] for pair in pairs.drawn("x", 200, ["A", "B"])]
    assert 60 < firsts.count("A") < 140


def test_a_plan_is_read_back_equal(tmp_path: Path) -> None:
    (tmp_path / ab.PLAN).write_text(typed_yaml.to_text(plan(options={"set": ["workload.turns=3"], "model": "m"})))
    assert ab.read(tmp_path) == plan(options={"set": ["workload.turns=3"], "model": "m"})


def test_a_changed_scenario_is_refused() -> None:
    with pytest.raises(UsageError, match="changed since the start"):
        plan(digest="0" * 64).load()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "needs two sides as NAME=URL and --scenario"),
        (["A=http://a:1", *SMOKE], "A=http://a:1 is the only side"),
        (["http://a:1", "B=http://b:1", *SMOKE], "http://a:1: write a side as NAME=URL"),
        (["A=http://a:1", "A=http://b:1", *SMOKE], "side A is given twice"),
        (["A=http://a:1", "B=", *SMOKE], "B=: write a side as NAME=URL"),
        ([*SIDES, "--scenario", "smok"], "did you mean smoke"),
        ([*SIDES, *SMOKE, "--pairs", "0"], "--pairs 0: must be 1 to 1000"),
        ([*SIDES, *SMOKE, "--seed", "-1"], "--seed -1: not a whole number"),
        ([*SIDES, *SMOKE, "--set", "phases.measure_s=null"], "has no end"),
        ([*SIDES, *SMOKE, "--require", "p99(ttft) < 1"], "did you mean ttft_ms?"),
        ([*SIDES, "--preset", "gateway"], "has the sides A, B; write them as direct=URL through=URL"),
        (
            ["A=http://a:1", "B=http://b:1", "C=http://c:1", "--preset", "router"],
            "compares two sides, not 3 (A, B, C); leave the others out",
        ),
        (
            ["A=http://a:1", "A-no-reuse=http://b:1", "--preset", "router"],
            "is the name of a control run; rename the side",
        ),
        ([*SIDES, *SMOKE, "--metrics-url", "C=http://c:1/metrics"], "no side is named C; name A or B, or none"),
        (["--preset", "router", "--resume", "x"], "the folder has its own plan"),
        (["--resume", "no-such"], "no-such: contains no comparison of servers"),
        (["A=http://a:1", "--resume", "x"], "the folder has its own plan"),
        (["--require", "failed_ratio < 1", "--resume", "x"], "the folder has its own plan"),
    ],
)
def test_mistakes_are_one_line(words: list[str], problem: str, command: Callable[..., str]) -> None:
    error = command("ab", *words, "--dry-run", code=2)
    assert problem in error
    assert error.count("\n") == 1


def test_the_plan_states_the_detectable_change_and_what_the_verdict_holds_for(command: Callable[..., str]) -> None:
    output = command("ab", "A=http://a:1", "B=http://a:1", *SMOKE, "--dry-run")
    assert "B against A on smoke: 16 runs in 8 pairs, in a random order" in output
    assert "8 pairs detect a change of" in output
    assert "the verdict holds for these server starts" in output
    assert "A and B are equal servers: what differs" in output
    assert "cache.isolate is none" in command("ab", *SIDES, *SMOKE, "--set", "cache.isolate=none", "--dry-run")


@pytest.mark.parametrize("name", PRESETS)
def test_each_pair_of_a_preset_has_its_control_runs(name: str, command: Callable[..., str]) -> None:
    row = PRESETS[name]
    sides = {side: f"http://{side.lower()}:1" for side in row.sides or ("A", "B")}
    with_controls = plan(sides=sides, preset=name, scenario=name, pairs=2)
    assert len(ab.planned(with_controls)) == 2 * (2 + len(row.controls(sides)))
    for run in ab.planned(with_controls):
        of = run.folder.partition("/")[0]
        assert run.url == sides[run.side]
        assert run.set == (row.set if of not in sides else ())
        assert with_controls.options_of(run).get("set", []) == [*run.set]
        assert with_controls.load(*run.set).ends_by_itself
    warm = with_controls.model_copy(update={"options": {"set": ["cache.arm=warm"]}})
    assert [warm.load(*row.set).cache.arm, warm.load().cache.arm] == ["cold" if row.set else "warm", "warm"]
    shown = command("ab", *(f"{side}={url}" for side, url in sides.items()), "--preset", name, "--dry-run")
    assert f"runs in {PRESET_PAIRS} pairs" in shown


def test_a_metrics_page_is_read_by_all_runs_or_by_those_of_its_side() -> None:
    pages = ["A=http://a:1/metrics", "http://gpu:1/metrics?x=1", "A=http://b:1/metrics"]
    a, b = (AbRun(side, "", 0, "") for side in "AB")
    named = plan(options={"metrics_url": pages})
    shared = "http://gpu:1/metrics?x=1"
    assert named.options_of(a)["metrics_url"] == ["http://a:1/metrics", "http://b:1/metrics", shared]
    assert named.options_of(b)["metrics_url"] == [shared]
    alone = plan(options={"metrics_url": pages[:1]})
    assert [each.options_of(b).get("metrics_url", []) for each in (plan(), alone)] == [[], []]  # that of its host
    gateway = plan(sides={"direct": "http://d:1/v1", "through": "http://t:1"}, preset="gateway", scenario="gateway")
    assert {tuple(gateway.options_of(run)["metrics_url"]) for run in ab.planned(gateway)} == {("http://d:1/metrics",)}


@pytest.mark.usefixtures("forked_programs")
def test_a_server_that_refuses_its_first_run_ends_the_comparison(command: Callable[..., str], tmp_path: Path) -> None:
    sides = ["A=http://127.0.0.1:9", "B=http://127.0.0.1:9"]
    shown = command("ab", *sides, *SMOKE, "--pairs", "4", "--into", tmp_path / "ab", code=2)
    assert shown.endswith(
        ": no connection to http://127.0.0.1:9: Connection refused; is the server started, and the host right?; "
        "then continue with --resume\n"
    )
    assert "comparison.html" not in shown
    assert len(Journal(tmp_path / "ab").failures) == 1


@given(st.lists(st.sampled_from([0, 1, 2, 3, None]), max_size=4), st.sampled_from([0, 1, 2, 3, None]))
def test_later_refusals_do_not_end_a_campaign(earlier: list[int | None], code: int | None) -> None:
    def entry(number: int, exit_code: int | None) -> RunEnded:
        return RunEnded(folder=f"A/{number}", exit_code=exit_code, cause=None if exit_code in MADE else "why")

    entries = [entry(number, each) for number, each in enumerate(earlier)]
    stops = code == USAGE and not set(earlier) & set(MADE)
    with pytest.raises(UsageError, match=r"^A: why; then") if stops else contextlib.nullcontext():
        stop_if_refused(entry(9, code), "A", entries)


@pytest.mark.parametrize("exit_code", MADE)
@pytest.mark.parametrize("measurement", ["valid", "suspect", "invalid"])
def test_an_invalid_run_is_not_compared_whatever_its_exit_code(
    tmp_path: Path, exit_code: int, measurement: str
) -> None:
    """An overloaded run with a failed gate ends with 1, and one with `--on-invalid warn` with 0."""
    file = write_run(tmp_path / "A" / "1", 1, 100.0) / "summary.json"
    with edited(file) as summary:
        summary["verdict"]["measurement"] = measurement
    found = problem(tmp_path, RunEnded(folder="A/1", exit_code=exit_code))
    assert ("kept but not compared" in found) == (measurement == "invalid") == bool(found)
    assert problem(tmp_path, RunEnded(folder="A/1", exit_code=5, cause="no\n answer")) == "no answer"
    file.write_text("{")
    assert "summary.json" in problem(tmp_path, RunEnded(folder="A/1", exit_code=exit_code))
