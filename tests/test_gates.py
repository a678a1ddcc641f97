"""Gates: what they mean, what they say when they cannot be read, and that an unknown value never passes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.measure.gates import MEASURE_NAMES, PLAIN_NAMES, GateError, evaluate, parse
from inferload.measure.intervals import Interval

SUMMARY: dict[str, Any] = {
    "turns": {"sent": 210, "ok": 190, "failed": 10, "unfinished": 10},
    "sessions": {"planned": 50, "dropped": 5, "started": 45, "completed": 40},
    "rates": {"output_tok_per_s": 1234.5, "slo_attainment": None, "turns_per_s": 3},
    "latency": {
        "ttft_ms": {"count": 190, "mean": 80.0, "p50": 70.0, "p90": 150.0, "p99": None, "min": 20.0, "max": 400.0},
    },
    "client": {"delay_ms": {"count": 10_000, "mean": 0.1, "p99": 0.4, "max": 2.0}},
}


@pytest.mark.parametrize(
    ("text", "value", "passed"),
    [
        ("mean(ttft_ms) < 80", 80.0, False),
        ("mean(ttft_ms) <= 80", 80.0, True),
        ("max(ttft_ms)>399.5", 400.0, True),
        ("  p50( ttft_ms )>=7e1 ", 70.0, True),
        ("failed_ratio < 0.05", 0.05, False),
        ("dropped_ratio < 0.2", 0.1, True),
        ("output_tok_per_s > 1000", 1234.5, True),
        ("turns_per_s >= 3", 3.0, True),
        ("p99(client_delay_ms) < 1", 0.4, True),
        ("min(ttft_ms) > -1", 20.0, True),
    ],
)
def test_a_gate_against_a_summary(text: str, value: float, passed: bool) -> None:
    result = evaluate(parse(text), SUMMARY)
    assert (result.gate, result.value, result.passed, result.note) == (text.strip(), value, passed, None)


@pytest.mark.parametrize(
    "text",
    ["p99(ttft_ms) < 1e9", "p95(ttft_ms) < 1e9", "slo_attainment >= 0", "max(itl_ms) < 1e9", "mean(tpot_ms) > 0"],
)
def test_what_is_not_known_does_not_pass(text: str) -> None:
    result = evaluate(parse(text), SUMMARY)
    assert (result.value, result.passed) == (None, False)
    assert result.note is not None
    assert result.note.endswith("is not known")


def test_ratios_of_nothing_are_not_known() -> None:
    empty = SUMMARY | {"turns": {"ok": 0, "failed": 0}, "sessions": {"planned": 0, "dropped": 0}}
    assert [evaluate(parse(f"{name} < 1"), empty).passed for name in ("failed_ratio", "dropped_ratio")] == [
        False,
        False,
    ]


def test_a_percentile_of_few_samples_is_taken_from_the_sample_and_noted() -> None:
    result = evaluate(parse("p99(ttft_ms) < 390"), SUMMARY, lambda measure, q: {("ttft_ms", 0.99): 380.0}[measure, q])
    assert (result.value, result.passed) == (380.0, True)
    assert result.to_dict()["note"] == "of 190 samples, fewer than 10 beyond it; 1,000 samples give 10"
    steady = evaluate(parse("p75(ttft_ms) < 390"), SUMMARY, lambda measure, q: 90.0)
    assert (steady.value, steady.note) == (90.0, None)


@pytest.mark.parametrize(
    ("name", "q"),
    [("p5", 0.05), ("p50", 0.5), ("p75", 0.75), ("p99", 0.99), ("p999", 0.999), ("p99.9", 0.999), ("p9999", 0.9999)],
)
def test_percentile_names(name: str, q: float) -> None:
    assert parse(f"{name}(itl_ms) < 1").q == pytest.approx(q, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "character", "problem"),
    [
        ("p99(tttf_ms) < 2000", 5, "unknown measure tttf_ms; did you mean ttft_ms?"),
        ("p99(zzz) < 2000", 5, "unknown measure zzz; known are lag_ms, connect_ms"),
        ("fail_ratio < 0.01", 1, "unknown name fail_ratio; did you mean failed_ratio?"),
        ("ttft_ms < 2000", 1, "ttft_ms needs a statistic; write p99(ttft_ms)"),
        ("avg(ttft_ms) < 2000", 1, "avg is no statistic; use mean, min, max"),
        ("meen(ttft_ms) < 2000", 1, "meen is no statistic; did you mean mean?"),
        ("p100(ttft_ms) < 2000", 1, "p100 is no percentile; use max"),
        ("p0(ttft_ms) < 2000", 1, "p0 is no percentile; use min"),
        ("p99(ttft_ms < 2000", 13, "a closing bracket is missing after ttft_ms"),
        ("p99() < 2000", 5, "a measure is missing"),
        ("p99(ttft_ms) == 2000", 14, "one of < <= > >= is missing"),
        ("p99(ttft_ms)", 13, "one of < <= > >= is missing"),
        ("p99(ttft_ms) <", 15, "a number is missing after <"),
        ("p99(ttft_ms) < soon", 16, "a number is missing after <"),
        ("p99(ttft_ms) < nan", 16, "a number is missing after <"),
        ("p99(ttft_ms) < 2000 ms", 21, "nothing may follow the limit 2000"),
        ("p99(ttft_ms) < 2s", 17, "nothing may follow the limit 2"),
        ("p99(ttft_ms) < 1e999", 16, "1e999 is too large for a limit"),
        ("", 1, "a name is missing"),
        ("< 3", 1, "a name is missing"),
    ],
)
def test_a_gate_that_cannot_be_read_says_where_and_what(text: str, character: int, problem: str) -> None:
    with pytest.raises(GateError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"gate {text!r}, character {character}: {problem}")
    assert caught.value.position == character - 1


PIECES = ["p99", "(", ")", "ttft_ms", "<", ">", "<=", "3", ".", "mean"]


@given(st.text(max_size=40) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_a_gate_or_a_gate_error(text: str) -> None:
    gate, position = None, 0
    try:
        gate = parse(text)
    except GateError as error:
        position = error.position
    assert 0 <= position <= len(text)
    assert gate is None or gate.name in MEASURE_NAMES + PLAIN_NAMES


@given(
    st.sampled_from(["p50", "p999", "mean", "max"]),
    st.sampled_from(MEASURE_NAMES),
    st.sampled_from(["<", "<=", ">", ">="]),
    st.floats(0, 1e9),
)
def test_every_gate_that_can_be_written_is_read_back(statistic: str, name: str, sign: str, limit: float) -> None:
    gate = parse(f"{statistic}({name}){sign}{limit!r}")
    assert (gate.statistic, gate.name, gate.sign, gate.limit) == (statistic, name, sign, limit)
    assert gate.holds(limit) == (sign in ("<=", ">="))
    assert not gate.holds(None)


@pytest.mark.parametrize(
    ("value", "answer"), [(2700.0, "fail"), (300.0, "fail"), (250.0, "inconclusive"), (90.0, "inconclusive")]
)
def test_a_value_far_beyond_its_limit_needs_no_interval(value: float, answer: str) -> None:
    too_short = Interval(None, None, 2.0)
    result = evaluate(parse("p99(ttft_ms) < 100"), SUMMARY, lambda measure, q: value, lambda measure, q: too_short)
    assert (result.value, result.answer) == (value, answer)
