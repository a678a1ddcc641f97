"""Broken candidates: more turns not served than on the baseline, and a load that was not served, in every form of a comparison."""

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import summaries
from hypothesis import example, given
from hypothesis import strategies as st
from inferload.analysis.comparison import baselines
from inferload.analysis.comparison.best import best_by_goal
from inferload.analysis.comparison.not_served import compare as decide
from inferload.analysis.comparison.output import documents
from inferload.analysis.comparison.output import text as output
from inferload.analysis.comparison.served import mostly_not_served
from inferload.analysis.comparison.sides import Run, Side
from made_sides import PRIMARY, compared, having, made_run
from run_folders import edited, write_run
from scipy import stats
from test_imported import STORED, sglang

from inferload import cli
from inferload.results.statistics.not_served import LEAST_MORE, LEVEL, NotServed, is_more, more_runs, p_more

CHECK = "--fail-on-regression"
FAULT = {"phase": "measure", "level": "invalid", "text": "a fault; a remedy"}
STALLED = [FAULT | {"code": "no_turns"}, FAULT | {"code": "unfinished_drain"}]
OVERLOAD = {"code": "overload", "phase": "measure", "level": "suspect", "text": "overloaded: 9/s offered; lower it"}


def write(
    folder: Path,
    failed: int = 0,
    planned: int = 100,
    seed: int = 1,
    *,
    unfinished: int = 0,
    sessions: dict[str, int] | None = None,
    reasons: Sequence[dict[str, str]] = (),
    aborted: str = "",
    prompt: int = 20,
) -> Path:
    """Write a run directory of `planned` turns, of which some failed or did not end; without latencies if none ended well."""
    ok = planned - failed - unfinished
    turns = summaries.NO_TURNS | {"sent": planned, "ok": ok, "failed": failed, "unfinished": unfinished}
    levels = {reason["level"] for reason in reasons}
    with edited(write_run(folder, seed, 100.0 + seed, prompt) / "summary.json") as summary:
        summary |= {
            "turns": turns | {"by_phase": {"measure": turns | {"input_tokens": 2000, "input_tokens_from": 100}}},
            "sessions": sessions or {"planned": planned, "dropped": 0, "at_limit": 0},
            "verdict": {
                "measurement": "invalid" if "invalid" in levels else "suspect" if levels else "valid",
                "reasons": list(reasons),
                "gates": [{"gate": f"abort_on: {aborted}", "passed": False}] if aborted else [],
            },
            "latency": {"ttft_ms": {"count": ok, "mean": 100.0 + seed}} if ok else {},
        }
        summary["rates"] |= {"failed_ratio": failed / (ok + failed) if ok + failed else None}
        summary["by_class"] = {"chat": {key: summary[key] for key in ("turns", "sessions", "rates", "latency")}}
    return folder


def side_of(folder: Path, count: int, failed: int = 0) -> Path:
    """Write a folder of runs with so many failed turns of 100 each."""
    for number in range(count):
        write(folder / f"{number:03}", failed, seed=number + 1)
    return folder


def code(*words: object) -> int:
    return cli.main(["compare", *map(str, words), CHECK])


# --- shares, forms


@pytest.mark.parametrize("percent", [12, 50, 100])
@pytest.mark.parametrize("runs", [1, 2, 3, 6, 8])
def test_a_candidate_with_failed_turns_is_a_regression_for_any_number_of_runs(
    tmp_path: Path, percent: int, runs: int, command: Callable[..., str]
) -> None:
    base, new = side_of(tmp_path / "base", runs), side_of(tmp_path / "new", runs, percent)
    shown = command("compare", base, new, CHECK, code=4)
    assert "new against base: WORSE, " in shown
    counts = f"{percent * runs} of {100 * runs} ({percent * runs} failed) against 0 of {100 * runs}"
    assert f"Turns not served are {counts}, p < 0.001" in shown
    assert f"new did not serve the load: over 10 % of the turns not served in {runs} of {runs} run" in shown
    assert code(new, base) == 0  # the repaired server
    assert code(base, f"same={base}") == 0


def test_a_class_of_a_mix_is_judged_by_its_own_turns(tmp_path: Path) -> None:
    base, new = write(tmp_path / "base"), write(tmp_path / "new", 9)
    assert code(base, new, "--class", "chat") == 4
    with edited(new / "summary.json") as summary:
        summary["by_class"]["chat"]["turns"] |= {"ok": 100, "failed": 0}
    assert (code(base, new, "--class", "chat"), code(base, new)) == (0, 4)


@pytest.mark.parametrize(("failed", "expected"), [(0, 0), (1, 0), (12, 4), (100, 4)])
def test_a_candidate_is_compared_with_the_turns_of_all_occasions(tmp_path: Path, failed: int, expected: int) -> None:
    file, runs = tmp_path / "b.json", [write(tmp_path / "runs" / str(day), int(day == 3)) for day in range(1, 9)]
    new = [write(tmp_path / "new" / name, failed) for name in "ab"]
    for day, run_dir in enumerate([*runs, *new], 1):
        with edited(run_dir / "run.json") as manifest:
            manifest["started_at"] = f"2026-02-{day:02d}T08:00:00"
    baselines.add(file, runs)
    assert baselines.read(file).not_served == NotServed(1, 800, 1, 0, 0)
    assert code("--baseline", file, tmp_path / "new") == expected
    with edited(file) as document:  # of an earlier version: its turns are not known
        for occasion in document["occasions"]:
            for name in ("ok_and_sent", "dropped", "collapsed"):
                del occasion[name]
    assert baselines.read(file).not_served is None
    assert code("--baseline", file, tmp_path / "new") == expected


def aiperf(failed: int) -> Any:
    counts = {"error_request_count": {"avg": failed}} if failed else {}
    if failed < 560:
        return STORED["aiperf"] | counts | {"request_count": {"avg": 560 - failed}}
    # Without a completed request AIPerf omits the metrics of these.
    metrics = {key for key, value in STORED["aiperf"].items() if isinstance(value, dict) and "avg" in value}
    return {key: value for key, value in STORED["aiperf"].items() if key not in metrics} | counts


def guidellm(failed: int) -> Any:
    (benchmark,) = STORED["guidellm"]["benchmarks"]
    totals = {"successful": 560 - failed, "errored": failed, "incomplete": 20, "total": 580}
    metrics = benchmark["metrics"] | {"request_totals": totals}
    return STORED["guidellm"] | {"benchmarks": [benchmark | {"metrics": metrics}]}


GENAI = STORED["genai-bench"]
CLIENTS: dict[str, Callable[[int], Any]] = {
    "vllm": lambda failed: STORED["vllm-bench"] | {"completed": 560 - failed, "failed": failed},
    "sglang": lambda failed: sglang(completed=560 - failed, errors=["503"] * failed + [""] * (560 - failed)),
    "aiperf": aiperf,
    "guidellm": guidellm,
    "genai": lambda failed: (
        GENAI
        | {
            "aggregated_metrics": GENAI["aggregated_metrics"]
            | {"num_error_requests": failed, "num_completed_requests": 560 - failed}
        }
    ),
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("failed", [20, 67, 280, 560])
def test_failed_requests_of_other_clients_are_compared(tmp_path: Path, client: str, failed: int) -> None:
    base, new = tmp_path / "base.json", tmp_path / "new.json"
    base.write_text(json.dumps(CLIENTS[client](0)))
    new.write_text(json.dumps(CLIENTS[client](failed)))
    assert (code(base, new), code(base, f"same={base}")) == (4, 0)


def test_requests_of_a_printed_block_are_compared_and_unknown_ones_are_not(tmp_path: Path) -> None:
    base, new, unknown = (tmp_path / f"{name}.txt" for name in ("base", "new", "unknown"))
    for file, count in ((base, "Failed requests: 0\n"), (new, "Failed requests: 90\n"), (unknown, "")):
        head = f"{' Serving Benchmark Result ':=^50}\nSuccessful requests: 400\n"
        file.write_text(f"{head}{count}Mean TTFT (ms): 40.0\n{'=' * 50}\n")
    assert code(base, new) == code(unknown, new) == 4  # 18 % failed
    assert code(base, unknown) == code(unknown, base) == 0


# --- what counts as failed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"unfinished": 12}, 4),
        ({"unfinished": 9}, 4),
        ({"unfinished": 100, "reasons": STALLED}, 4),  # the server hangs
        ({"failed": 40, "reasons": [FAULT | {"code": "server_restart"}]}, 4),  # it crashes
        ({"failed": 40, "reasons": [FAULT | {"code": "token_balance"}]}, 4),  # it breaks streams
        ({"failed": 40, "reasons": [FAULT | {"code": "client_lag"}]}, 0),  # not comparable: perhaps the client failed
        ({"failed": 40, "reasons": [FAULT | {"code": "server_restart"}, FAULT | {"code": "lost_worker"}]}, 0),
        ({"failed": 40, "reasons": [FAULT | {"code": "of a later version"}]}, 0),
        ({"failed": 50, "prompt": 2000}, 0),  # not comparable: another load
        ({"sessions": {"planned": 120, "dropped": 20, "at_limit": 20}}, 4),  # max_in_flight: the server is slow
        ({"sessions": {"planned": 120, "dropped": 20, "at_limit": 0}}, 0),  # the client was late
        ({"sessions": {"planned": 120, "dropped": 20}}, 4),  # not known why
        ({"aborted": "failed_ratio > 0.5 for 5s", "failed": 6, "planned": 10}, 4),
        ({"aborted": "failed_ratio > 0.5 for 5s", "planned": 0, "reasons": STALLED[:1]}, 4),  # in the warm-up
        ({"planned": 0, "reasons": STALLED[:1]}, 0),  # stopped by hand in the warm-up
        ({"reasons": [OVERLOAD]}, 4),
        ({"failed": 2, "planned": 12}, 0),
        ({"failed": 2, "planned": 40}, 0),
        ({"failed": 4, "planned": 60}, 0),
        ({"failed": 3, "planned": 25, "of_base": 25}, 0),  # 12 % of few turns may be chance
        ({"failed": 12}, 4),
        ({"failed": 120, "planned": 1000, "of_base": 1000}, 4),
    ],
)
def test_turns_that_the_server_did_not_serve_are_failed(tmp_path: Path, changes: dict[str, Any], expected: int) -> None:
    new = write(tmp_path / "new", **{key: value for key, value in changes.items() if key != "of_base"})
    base = write(tmp_path / "base", planned=changes.get("of_base", 100))
    assert code(base, new) == expected
    assert cli.main(["compare", str(base), str(new)]) == 0
    assert code(base, new, "--strict") == 4
    if "prompt" in changes:
        assert code(base, new, "--allow", "workload.prompt_tokens") == 4


@pytest.mark.parametrize("runs", [1, 3, 6])
def test_a_candidate_that_is_as_broken_as_the_baseline_is_no_regression(tmp_path: Path, runs: int) -> None:
    assert code(side_of(tmp_path / "base", runs, 40), side_of(tmp_path / "new", runs, 42)) == 0


@pytest.mark.parametrize(("overloaded", "expected"), [(1, 0), (2, 0), (3, 0), (4, 4), (6, 4)])
def test_most_of_the_runs_decide_that_a_load_was_not_served(
    tmp_path: Path, overloaded: int, expected: int, command: Callable[..., str]
) -> None:
    base, new = side_of(tmp_path / "base", 6), tmp_path / "new"
    for seed in range(1, 7):
        write(new / str(seed), seed=seed, reasons=[OVERLOAD] if seed <= overloaded else [])
    shown = command("compare", base, new, CHECK, code=expected)
    assert f"overloaded in {overloaded} of 6 runs" in shown
    assert ("did not serve the load" in shown) == (expected == 4)


# --- the decision


counts = st.integers(1, 400).flatmap(lambda planned: st.tuples(st.integers(0, planned), st.just(planned)))


@given(counts, counts)
def test_more_turns_failed_by_fishers_exact_test_and_at_least_three_more(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    baseline, candidate, none = NotServed(*before), NotServed(*after), NotServed(0, 0)
    p = float(stats.fisher_exact([[n, of - n] for n, of in (before, after)]).pvalue)
    beyond = candidate.count - candidate.planned * baseline.count / baseline.planned
    assert is_more(p_more(baseline, candidate)) == (p < LEVEL and beyond >= LEAST_MORE)
    assert not (is_more(p_more(baseline, candidate)) and is_more(p_more(candidate, baseline)))
    if before[1] == after[1] and is_more(p_more(baseline, candidate)):
        assert candidate.count >= baseline.count + LEAST_MORE
    assert p_more(none, candidate) is p_more(candidate, none) is None, "a side without turns has no test"


@cache
def run_of(seed: int, failed: int, ttft_ms: float = 100.0, planned: int = 100, collapsed: str | None = None) -> Run:
    return made_run(
        seed,
        {PRIMARY.name: ttft_ms * (1 + seed / 100), "output_tok_per_s": 100.0 + seed},
        start=f"{seed}-{ttft_ms}",
        ok_and_sent=(planned - failed, planned),
        collapsed=mostly_not_served(NotServed(failed, planned)) if collapsed is None else collapsed,
    )


def two(before: Sequence[Run], after: Sequence[Run]) -> tuple[Side, Side]:
    return Side("base", tuple(before)), Side("new", tuple(after))


def sides_of(failed: int, ttft_ms: float = 100.0, runs: int = 6) -> tuple[Side, Side]:
    after = [run_of(seed, failed, ttft_ms * (1 + seed / 1000)) for seed in range(runs)]
    return two([run_of(seed, 0) for seed in range(runs)], after)


@pytest.mark.parametrize(
    ("failed", "ttft_ms", "verdict"),
    [(0, 50.0, "better"), (3, 50.0, "mixed"), (12, 50.0, "worse"), (3, 100.0, "worse"), (3, 200.0, "worse")],
)
def test_a_faster_candidate_with_failed_turns_is_mixed_and_one_that_did_not_serve_the_load_is_worse(
    failed: int, ttft_ms: float, verdict: str
) -> None:
    comparison = compared(*sides_of(failed, ttft_ms))
    assert (comparison.verdict, comparison.regressed) == (verdict, verdict != "better")
    best = best_by_goal([comparison])[0].results[0]
    if best.label == "new":
        assert ("Turns not served" in best.worse) == (failed > 0)
        assert ("did not serve the load" in best.worse) == (failed == 12)


def test_a_run_without_known_turns_leaves_failed_turns_untested() -> None:
    base, new = sides_of(3)
    comparison = compared(having(base, at=[0], ok_and_sent=None), new)
    assert not comparison.not_served.more
    case = ElementTree.fromstring(documents.junit([comparison])).find(".//testcase[@name='not_served']")
    assert case is not None
    assert case.find("skipped") is not None


def test_every_output_has_the_decision(tmp_path: Path, command: Callable[..., str]) -> None:
    base, new, out = side_of(tmp_path / "base", 3), side_of(tmp_path / "new", 3, 9), tmp_path / "out"
    shown = command("compare", base, new, CHECK, "--write", out, "--github", code=4)
    sentence = "worse: Turns not served are 27 of 300 (27 failed) against 0 of 300, p < 0.001"
    assert re.search(rf"^::error .*{re.escape(sentence)}", shown, re.MULTILINE)
    (candidate,) = json.loads((out / "comparison.json").read_text())["candidates"]
    turns = candidate["not_served"]
    assert (candidate["regressed"], candidate["verdict"]) == (True, "worse")
    assert (turns["more"], turns["collapsed"]) == (True, False)
    assert turns["candidate"] == {"count": 27, "planned": 300, "failed": 27, "unfinished": 0, "dropped": 0}
    (suite,) = ElementTree.parse(out / "comparison.xml").getroot()
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["not_served"]
    assert (suite.get("failures"), suite.get("tests")) == ("1", str(len(suite)))


def test_failed_turns_that_are_no_regression_are_a_remark() -> None:
    assert "Turns not served are 1 of 100 against 0 of 100" in output.remarks(compared(*sides_of(1, runs=1)))
    assert not any("Turns not served" in line for line in output.remarks(compared(*sides_of(0))))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unfinished": 65}, "65 of 100 (65 unfinished)"),
        ({"failed": 12, "unfinished": 20}, "32 of 100 (12 failed, 20 unfinished)"),
        (
            {"failed": 1, "sessions": {"planned": 120, "dropped": 20, "at_limit": 20}},
            "21 of 120 (1 failed, 20 sessions dropped)",
        ),
    ],
)
def test_the_parts_of_turns_not_served_are_named(
    tmp_path: Path, changes: dict[str, Any], words: str, command: Callable[..., str]
) -> None:
    base, new, out = write(tmp_path / "base"), write(tmp_path / "new", **changes), tmp_path / "out"
    shown = command("compare", base, new, CHECK, "--write", out, "--github", code=4)
    files = [html.unescape(file.read_text()).replace("\\", "") for file in out.iterdir()]
    assert shown.count(f"Turns not served are {words} against 0 of 100") >= 2
    assert sum(f"Turns not served are {words} against 0 of 100" in text for text in files) >= 4
    assert not any(re.search("failed turns|of the turns failed", text, re.IGNORECASE) for text in (shown, *files))
    baselines.add(tmp_path / "b.json", [base])
    entry = json.loads((tmp_path / "b.json").read_text())["occasions"][0]
    assert [entry[part] for part in ("failed", "unfinished", "dropped")] == [0, 0, 0]


@given(st.lists(st.tuples(*[st.none() | st.integers(0, 9)] * 3), min_size=1, max_size=4))
def test_a_part_that_is_unknown_for_a_run_is_unknown_for_the_side(parts: list[tuple[int | None, ...]]) -> None:
    runs = tuple(
        replace(run_of(seed, 30), failed=failed, unfinished=unfinished, dropped=dropped)
        for seed, (failed, unfinished, dropped) in enumerate(parts)
    )
    found = Side("a", runs).not_served
    assert found is not None
    sums = [None if None in column else sum(part or 0 for part in column) for column in zip(*parts, strict=True)]
    assert [found.failed, found.unfinished, found.dropped] == sums


# --- a load that was not served


def collapsed_sides(before: Sequence[int], after: Sequence[int], turns: int) -> tuple[Side, Side]:
    """Return two sides with these failed turns of each run."""
    base, new = ([run_of(seed, n, planned=turns) for seed, n in enumerate(side)] for side in (before, after))
    return two(base, new)


def overloaded_sides(before: int, of_before: int, after: int, of_after: int) -> tuple[Side, Side]:
    """Return two sides of which so many runs are overloaded."""
    base, new = (
        [run_of(seed, 0, collapsed="overloaded" if seed < count else "") for seed in range(of)]
        for count, of in ((before, of_before), (after, of_after))
    )
    return two(base, new)


@given(st.integers(60, 140), st.integers(60, 140), st.integers(1, 8))
@example(98, 102, 1)
def test_sides_on_either_side_of_ten_percent_differ_by_fishers_test_only(before: int, after: int, runs: int) -> None:
    comparison = compared(*collapsed_sides([before] * runs, [after] * runs, 1000))
    p = p_more(NotServed(before * runs, 1000 * runs), NotServed(after * runs, 1000 * runs))
    assert comparison.regressed == is_more(p)
    assert comparison.not_served.collapsed == (is_more(p) and before <= 100 < after)
    if not is_more(p) and before <= 100 < after:
        headline = output.headline(comparison)
        assert f"new: over 10 % of the turns not served in {runs} of {runs} run" in headline
        assert "did not serve the load" not in headline + output.brief(comparison)
        assert comparison.verdict not in ("worse", "mixed")


@pytest.mark.parametrize(("runs", "turns"), [(1, 100), (1, 1000), (3, 300), (6, 100), (8, 300)])
@pytest.mark.parametrize("share", [0.08, 0.1, 0.12])
def test_equal_sides_near_ten_percent_are_not_called_collapsed_beyond_the_level(
    runs: int, turns: int, share: float
) -> None:
    dice, called = np.random.default_rng(7), 0
    for _ in range(400):
        before, after = dice.binomial(turns, share, (2, runs)).tolist()
        called += decide(*collapsed_sides(before, after, turns)).regressed
    assert called <= 0.015 * 400  # the level of 0.01, one-sided: 0.005 are expected at most


@pytest.mark.parametrize("runs", range(3, 13))
def test_equal_sides_near_capacity_are_not_called_collapsed_beyond_the_level(runs: int) -> None:
    """The exact share of equal sides that differ, for the worst chance of a run to be overloaded."""
    region = np.array(
        [
            [decide(*overloaded_sides(before, runs, after, runs)).collapsed for before in range(runs + 1)]
            for after in range(runs + 1)
        ]
    )
    worst = 0.0
    for chance in np.linspace(0.02, 0.98, 49):
        weights = stats.binom.pmf(np.arange(runs + 1), runs, chance)
        worst = max(worst, float(weights @ region @ weights))
    assert worst <= 0.032
    assert region[runs, 0]


@pytest.mark.parametrize(
    ("before", "of_before", "after", "of_after", "expected"),
    [
        (0, 1, 1, 1, True),
        (0, 3, 3, 3, True),
        (0, 8, 1, 1, True),  # a single candidate
        (1, 3, 2, 3, False),
        (0, 3, 2, 3, False),
        (1, 1, 1, 1, False),
        (0, 6, 4, 6, True),
        (1, 25, 25, 25, True),
        (1, 25, 5, 25, False),  # the candidate served its load in most runs
        (3, 6, 6, 6, False),
        (1, 6, 6, 6, True),
    ],
)
def test_overloaded_runs_decide_by_their_number(
    before: int, of_before: int, after: int, of_after: int, expected: bool
) -> None:
    comparison = compared(*overloaded_sides(before, of_before, after, of_after))
    assert comparison.not_served.collapsed == comparison.regressed == expected
    both = 2 * before > of_before and 2 * after > of_after
    assert ("new did not serve the load" in output.headline(comparison)) == (expected or both)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_not_both_sides_have_more_runs_that_did_not_serve_their_load(a: int, b: int, c: int, d: int) -> None:
    first, second = (min(a, b), max(a, b)), (min(c, d), max(c, d))
    assert not (more_runs(first, second) and more_runs(second, first))


# --- equal sides


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05])
@pytest.mark.parametrize(("runs", "turns"), [(1, 100), (6, 100), (8, 300)])
def test_equal_sides_whose_turns_fail_independently_differ_in_under_one_percent(
    share: float, runs: int, turns: int
) -> None:
    assert more_of(runs, turns, lambda dice: np.full((2, runs), share)) <= 0.01


@pytest.mark.parametrize("runs", [6, 8])
def test_failures_that_come_together_break_the_level_as_documented(runs: int) -> None:
    """One run in ten has a burst that fails a tenth of its turns: the test counts turns, and cannot know that it was one event."""
    assert 0.1 < more_of(runs, 100, lambda dice: 0.1 * (dice.random((2, runs)) < 0.1)) < 0.35


def more_of(runs: int, turns: int, shares: Callable[[np.random.Generator], Any], draws: int = 1000) -> float:
    """Return the share of comparisons of equal sides that call more failed turns. `shares`: probability to fail, of each run."""
    dice = np.random.default_rng(5)
    decide_once = cache(lambda *failed: is_more(p_more(*(NotServed(int(count), runs * turns) for count in failed))))
    return sum(decide_once(*dice.binomial(turns, shares(dice)).sum(axis=1).tolist()) for _ in range(draws)) / draws


@pytest.mark.parametrize("wrong", [(True, False), (False, True), (True, True)])
def test_a_side_with_wrong_canary_answers_fails_the_comparison_and_is_not_the_best(wrong: tuple[bool, bool]) -> None:
    text = "1 of 200 canary answers wrong: swapped 1"
    both = [
        having(side, at=[0], wrong=text) if bad else side for side, bad in zip(sides_of(0, 50.0), wrong, strict=True)
    ]
    comparison = compared(*both)
    assert (comparison.regressed, comparison.verdict) == (True, "worse")
    assert text in output.headline(comparison)
    (decision,) = best_by_goal([comparison])
    assert decision.ruled_out.keys() == {side.label for side, bad in zip(both, wrong, strict=True) if bad}
    assert {best.label for best in decision.results} & decision.ruled_out.keys() == set()
