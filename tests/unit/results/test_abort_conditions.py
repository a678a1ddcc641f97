"""Conditions that stop a run early: parsing, and the time window in which they hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.figures.limits.abort_condition import LONGEST_S, parse
from inferload.figures.limits.gate import GateError
from inferload.results.abort_conditions import LEAST_ENDED, AbortWatch
from inferload.run.process import run_spec
from inferload.scenario import scenario as scenarios
from inferload.turns.tally import TallySet

CONDITION = "failed_ratio > 0.5 for 5s"


def second(ok: int, failed: int, ttft_ms: float | None = None) -> TallySet:
    tallies = TallySet()
    tally = tallies.at("measure", "chat")
    tally.ok, tally.failed = ok, failed
    if ttft_ms is not None:
        tally.sketch("ttft_ms").add_many(np.array([ttft_ms]))
    return tallies


def test_a_condition_is_a_gate_and_a_duration() -> None:
    condition = parse(" p95(ttft_ms) >= 2000 for 2m ")
    assert (condition.text, condition.span_s) == ("p95(ttft_ms) >= 2000 for 2m", 120)
    assert (condition.gate.statistic, condition.gate.name, condition.gate.sign, condition.gate.limit) == (
        "p95",
        "ttft_ms",
        ">=",
        2000,
    )


@given(
    st.sampled_from(["failed_ratio", "turns_per_s", "mean(e2e_ms)"]), st.sampled_from("<>"), st.integers(1, LONGEST_S)
)
def test_a_written_condition_is_read_back(name: str, sign: str, span_s: int) -> None:
    assert parse(f"{name} {sign} 0.5 for {span_s}s").span_s == span_s


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("failed_ratio > 0.5", 18, "a time such as `for 5s` is missing"),
        ("failed_ratio > 0.5 for 5", 24, "a time such as `for 5s` is missing"),
        ("failed_ratio > 0.5 for 0s", 23, "0 s is out of range"),
        ("failed_ratio > 0.5 for 11m", 23, "660 s is out of range"),
        ("failed_rate > 0.5 for 5s", 0, "did you mean failed_ratio?"),
        ("failed_ratio 0.5 for 5s", 13, "one of < <= > >= == is missing"),
        ("max(requests_waiting) > 5 for 5s", 0, "requests_waiting is not known during a run; use a gate"),
        ("failed_ratio{chat} > 0.5 for 5s", 12, "a condition applies to all turns; remove {chat}"),
        ("p99(client_delay_ms) > 5 for 5s", 0, "client_delay_ms is not known during a run"),
        ("j_per_output_token > 5 for 5s", 0, "j_per_output_token is not known during a run"),
    ],
)
def test_an_invalid_condition_is_named_with_its_place(text: str, position: int, problem: str) -> None:
    with pytest.raises(GateError) as raised:
        parse(text)
    assert problem in str(raised.value)
    assert raised.value.position == position


def test_a_condition_holds_over_the_whole_last_window() -> None:
    watch = AbortWatch([CONDITION])
    # Every turn succeeds for 10 s, then every turn fails. After 3 s, 12 of the 20 turns of the last 5 s have failed.
    reached = [watch.add(at_s + 0.5, second(*((4, 0) if at_s < 10 else (0, 4)))) for at_s in range(20)]
    first = next(index for index, entry in enumerate(reached) if entry is not None)
    assert first == 13
    stop = reached[first]
    assert stop is not None
    assert (stop.condition, stop.value, stop.at_s) == (CONDITION, 0.6, 13.0)
    assert (stop.result().passed, stop.result().gate) == (False, f"abort_on: {CONDITION}")


def test_a_condition_waits_for_a_complete_window() -> None:
    watch = AbortWatch([CONDITION])
    reached = [watch.add(at_s + 0.5, second(0, 4)) is not None for at_s in range(8)]
    assert reached == [False] * 5 + [True] * 3


@pytest.mark.parametrize("statistic", ["p50", "p75", "p99", "p99.9", "p9999", "mean", "min", "max"])
def test_every_statistic_stops_a_run(statistic: str) -> None:
    watch = AbortWatch([f"{statistic}(ttft_ms) > 100 for 5s"])
    reached = [watch.add(at_s + 0.5, second(10, 0, ttft_ms=5000.0)) is not None for at_s in range(8)]
    assert reached == [False] * 5 + [True] * 3


def test_without_turns_there_is_no_ratio() -> None:
    watch = AbortWatch([CONDITION])
    assert all(watch.add(at_s + 0.5, second(0, 0)) is None for at_s in range(20))


def test_a_ratio_of_fewer_than_ten_ended_turns_stops_nothing() -> None:
    few, enough = (AbortWatch(["failed_ratio > 0.5 for 3s"]) for _ in range(2))
    assert all(few.add(at_s + 0.5, second(0, 3)) is None for at_s in range(20))
    reached = [enough.add(at_s + 0.5, second(0, 3 + at_s % 3 // 2)) is not None for at_s in range(5)]
    assert reached == [False, False, False, True, True]


def test_reports_of_several_workers_count_together() -> None:
    watch = AbortWatch(["failed_ratio >= 0.5 for 2s"])
    reached = []
    for at_s in range(4):
        reached += [watch.add(at_s + 0.2, second(4, 0)), watch.add(at_s + 0.7, second(0, 4))]
    assert [entry is not None for entry in reached] == [False, False, False, False, True, False, True, False]


def test_a_percentile_is_of_the_last_seconds() -> None:
    watch = AbortWatch(["p95(ttft_ms) > 1000 for 2s", "turns_per_s > 1000 for 1s"])
    reached = [watch.add(at_s + 0.5, second(4, 0, 50.0 if at_s < 4 else 5000.0)) for at_s in range(8)]
    assert [entry is not None for entry in reached] == [False] * 5 + [True] * 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=6, max_size=40), st.integers(1, 5))
def test_the_value_equals_a_direct_count(seconds: list[tuple[int, int]], span_s: int) -> None:
    watch = AbortWatch([f"failed_ratio > 0.3 for {span_s}s"])
    for number, (ok, failed) in enumerate(seconds):
        reached = watch.add(number + 0.5, second(ok, failed))
        before = seconds[number - span_s : number] if number >= span_s else []
        total, bad = sum(map(sum, before)), sum(failed for _, failed in before)
        expected = bad / total if total >= LEAST_ENDED else None
        assert (reached is not None) == (expected is not None and expected > 0.3)
        if reached is not None:
            assert reached.value == expected


def test_an_invalid_option_is_refused() -> None:
    assert run_spec.abort_on([CONDITION]) == (CONDITION,)
    assert run_spec.abort_on([]) is None
    with pytest.raises(UsageError, match=r"^--abort-on: gate 'failed_rate > 1', character 16"):
        run_spec.abort_on(["failed_rate > 1"])


def test_conditions_are_part_of_the_digest() -> None:
    scenario = scenarios.load("smoke")
    assert scenario.changed({"abort_on": []}).digest == scenario.digest
    assert scenario.changed({"abort_on": [CONDITION]}).digest != scenario.digest


def test_without_conditions_no_counts_are_stored() -> None:
    watch = AbortWatch([])
    assert watch.add(1.0, second(0, 9)) is None
