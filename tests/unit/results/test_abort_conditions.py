"""Conditions that stop a run early: how they are read, and over which seconds they are true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.errors import UsageError
from inferload.locust import options
from inferload.measure.tally import TallySet
from inferload.results.abort_conditions import LEAST_ENDED, LONGEST_S, AbortWatch, parse
from inferload.scenario import scenario as scenarios
from inferload.verdict.gates import GateError

CONDITION = "failed_ratio > 0.5 for 5s"


def second(ok: int, failed: int, ttft_ms: float | None = None) -> TallySet:
    found = TallySet()
    tally = found.at("measure", "chat")
    tally.ok, tally.failed = ok, failed
    if ttft_ms is not None:
        tally.sketch("ttft_ms").gather_one(ttft_ms)
    return found


def test_a_condition_is_a_gate_and_a_time() -> None:
    found = parse(" p95(ttft_ms) >= 2000 for 2m ")
    assert (found.text, found.span_s) == ("p95(ttft_ms) >= 2000 for 2m", 120)
    assert (found.gate.statistic, found.gate.name, found.gate.sign, found.gate.limit) == ("p95", "ttft_ms", ">=", 2000)


@given(
    st.sampled_from(["failed_ratio", "turns_per_s", "mean(e2e_ms)"]), st.sampled_from("<>"), st.integers(1, LONGEST_S)
)
def test_what_is_written_is_read(name: str, sign: str, span_s: int) -> None:
    assert parse(f"{name} {sign} 0.5 for {span_s}s").span_s == span_s


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("failed_ratio > 0.5", "a time such as `for 5s` is missing"),
        ("failed_ratio > 0.5 for 5", "a time such as `for 5s` is missing"),
        ("failed_ratio > 0.5 for 0s", "0 s is out of range"),
        ("failed_ratio > 0.5 for 11m", "660 s is out of range"),
        ("failed_rate > 0.5 for 5s", "did you mean failed_ratio?"),
        ("failed_ratio 0.5 for 5s", "one of < <= > >= == is missing"),
        ("max(requests_waiting) > 5 for 5s", "requests_waiting is not known during a run; use a gate"),
        ("failed_ratio{chat} > 0.5 for 5s", "a condition applies to all turns; remove {chat}"),
        ("p99(client_delay_ms) > 5 for 5s", "client_delay_ms is not known during a run"),
    ],
)
def test_a_condition_that_cannot_be_read_is_named(text: str, problem: str) -> None:
    with pytest.raises(GateError) as raised:
        parse(text)
    assert problem in str(raised.value)


def test_a_condition_is_true_of_the_last_seconds_as_a_whole() -> None:
    watch = AbortWatch([CONDITION])
    # All is well for 10 s, then every turn fails: of 5 s with 4 turns each, more than half after 3 s.
    reached = [watch.add(at_s + 0.5, second(*((4, 0) if at_s < 10 else (0, 4)))) for at_s in range(20)]
    first = next(place for place, one in enumerate(reached) if one is not None)
    assert first == 13
    found = reached[first]
    assert found is not None
    assert (found.condition, found.value, found.at_s) == (CONDITION, 0.6, 13.0)
    assert (found.result().passed, found.result().gate) == (False, f"abort_on: {CONDITION}")


def test_a_condition_waits_until_the_load_has_lasted_long_enough() -> None:
    watch = AbortWatch([CONDITION])
    reached = [watch.add(at_s + 0.5, second(0, 4)) is not None for at_s in range(8)]
    assert reached == [False] * 5 + [True] * 3


def test_no_turn_makes_no_ratio() -> None:
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
    assert [one is not None for one in reached] == [False, False, False, False, True, False, True, False]


def test_a_percentile_is_of_the_last_seconds() -> None:
    watch = AbortWatch(["p95(ttft_ms) > 1000 for 2s", "turns_per_s > 1000 for 1s"])
    reached = [watch.add(at_s + 0.5, second(4, 0, 50.0 if at_s < 4 else 5000.0)) for at_s in range(8)]
    assert [one is not None for one in reached] == [False] * 5 + [True] * 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=6, max_size=40), st.integers(1, 5))
def test_the_value_is_that_of_a_count_by_hand(seconds: list[tuple[int, int]], span_s: int) -> None:
    watch = AbortWatch([f"failed_ratio > 0.3 for {span_s}s"])
    for number, (ok, failed) in enumerate(seconds):
        reached = watch.add(number + 0.5, second(ok, failed))
        before = seconds[number - span_s : number] if number >= span_s else []
        total, bad = sum(map(sum, before)), sum(one for _, one in before)
        expected = bad / total if total >= LEAST_ENDED else None
        assert (reached is not None) == (expected is not None and expected > 0.3)
        if reached is not None:
            assert reached.value == expected


def test_an_option_that_cannot_be_read_is_refused() -> None:
    assert options.abort_on([CONDITION]) == (CONDITION,)
    assert options.abort_on([]) is None
    with pytest.raises(UsageError, match=r"^--abort-on: gate 'failed_rate > 1', character 16"):
        options.abort_on(["failed_rate > 1"])


def test_conditions_are_part_of_the_digest_of_a_scenario_that_has_some() -> None:
    scenario = scenarios.load("smoke")
    assert scenario.changed({"abort_on": []}).digest == scenario.digest
    assert scenario.changed({"abort_on": [CONDITION]}).digest != scenario.digest


def test_without_conditions_nothing_is_kept() -> None:
    watch = AbortWatch([])
    assert watch.add(1.0, second(0, 9)) is None
