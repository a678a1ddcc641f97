"""Numbers, shares and times as text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.numbers import (
    NOT_KNOWN,
    clock,
    duration,
    exact,
    listed,
    number,
    percent,
    plural,
    short,
    spread,
    supported,
    time_unit,
)


def test_unknown_values_are_not_zero() -> None:
    assert {number(None), percent(None), duration(None), number(float("nan")), percent(float("nan"))} == {NOT_KNOWN}
    assert (short(None), short(float("inf")), number(None, unknown="?"), percent(None, "-")) == ("-", "-", "?", "-")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3, "3"), (0.04123, "0.0412"), (9.876, "9.88"), (98.76, "98.8"), (987.6, "988"), (12345.6, "12,346"),
     (1e-7, "1e-07"), (-2.5, "-2.5"), (0.99999, "1"), (99.96, "100"), (1e6, "1,000,000"), (1234567, "1,234,567")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00083, "0.00083"),
        (199.96, "200"),
        (199.6, "199.6"),
        (41.084, "41.08"),
        (0.12345, "0.1235"),
        (2000.4, "2,000"),
    ],
)
def test_table_cells_have_four_digits(value: float, text: str) -> None:
    assert short(value) == text


@given(st.floats(1e-4, 1e9), st.integers(3, 4))
def test_rounding_errors_are_at_most_half_a_digit(value: float, digits: int) -> None:
    text = number(value, digits)
    assert re.fullmatch(r"[\d,]+(\.\d*[1-9])?", text)
    exact = float(text.replace(",", ""))
    assert exact == pytest.approx(value, rel=0.5001 * 10.0 ** (1 - digits), abs=0.0)


@given(st.lists(st.none() | st.floats(0, 1e7), max_size=5))
def test_times_that_stand_together_have_one_unit_and_no_five_digits(values_ms: list[float | None]) -> None:
    unit, factor = time_unit(values_ms)
    known = [value for value in values_ms if value]
    assert (unit, factor) in (("ms", 1.0), ("s", 1e-3))
    assert unit == "s" or all(value < 10_000 for value in known)
    assert unit == "ms" or any(value >= 999.5 for value in known)


@given(st.floats(1e-3, 1e5), st.floats(0, 1), st.floats(0, 1))
def test_a_value_with_an_interval_is_printed_inside_of_it(value: float, below: float, above: float) -> None:
    low, high = value * (1 - below), value * (1 + above)
    shown = supported(value, low, high)
    assert shown == number(value) or low <= float(shown.replace(",", "")) <= high
    assert supported(value, None, high) == supported(value, low, None) == number(value)


def test_a_wide_interval_supports_two_digits() -> None:
    assert [supported(27.63, low, high) for low, high in ((25, 30), (10, 90), (27.6, 90))] == ["27.6", "28", "28"]


def test_shares_are_not_rounded_to_0_or_100_percent() -> None:
    assert [percent(share) for share in (0, 1, 0.5, 0.1234, 0.00001, 0.999999, 0.004, 0.9996, 1.5)] == [
        "0 %", "100 %", "50 %", "12.3 %", "under 0.01 %", "over 99.99 %", "0.4 %", "99.96 %", "150 %"]  # fmt: skip


@given(st.floats(0, 1))
def test_only_exact_shares_are_0_or_100_percent(share: float) -> None:
    assert (percent(share) == "0 %") == (share == 0)
    assert (percent(share) == "100 %") == (share * 100 == 100)


def test_durations_as_text() -> None:
    assert [duration(value_s) for value_s in (0.5, 60, 119.96, 120, 300, 3661, 7200)] == [
        "0.5 s", "60 s", "120 s", "2 min", "5 min", "1 h 1 min 1 s", "2 h"]  # fmt: skip
    assert [clock(value_s) for value_s in (0.9, 65.2, 3661)] == ["0:00", "1:05", "1:01:01"]


def test_plurals_and_lists() -> None:
    assert [plural(count, "turn") for count in (0, 1, 1200)] == ["0 turns", "1 turn", "1,200 turns"]
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "none",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert (spread([3.0, 3.0]), spread([1.0, 3.5])) == ("3", "2.25 (1 to 3.5)")


@given(st.integers(0, 10**10), st.integers(0, 10**6 - 1))
def test_an_exact_number_has_all_its_digits(whole: int, millionths: int) -> None:
    text = exact(whole + millionths / 1e6)
    assert float(text) == pytest.approx(whole + millionths / 1e6, abs=2e-6)
    assert text.partition(".")[0] == str(whole)
    assert not set(text) - set("0123456789.")


@given(st.floats(0.0, 1.0), st.sampled_from([0.05, 0.2, 0.8, 0.85]))
def test_a_share_is_printed_on_its_side_of_the_limit(share: float, limit: float) -> None:
    for near in (share, limit + (share - 0.5) / 1000, limit + (share - 0.5) / 1e6):
        printed = percent(near, limit=limit).removeprefix("under ").removeprefix("over ").removesuffix(" %")
        shown = float(printed) / 100
        assert (shown > limit, shown < limit) == (near > limit, near < limit) or shown == pytest.approx(
            limit, abs=1e-15
        )
