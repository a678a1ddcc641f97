"""Changes in words and cells: percentages, and factors where a percentage hides the size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data import changes
from inferload.analysis.pages import texts

from inferload.scenario import language

RATIOS = st.floats(1e-6, 1e6)


@pytest.mark.parametrize(
    ("ratio", "cell", "words", "chinese"),
    [
        (60.829, "61 times", "61 times as high", "是基准的 61 倍"),
        (1 / 60.829, "1/61", "lower by a factor of 61", "是基准的 1/61"),
        (1234.5, "1,234 times", "1,234 times as high", "是基准的 1,234 倍"),
        (3.27, "3.3 times", "3.3 times as high", "是基准的 3.3 倍"),
        (3.0, "+200.00%", "200.0% higher", "高 200.0%"),
        (1.1018, "+10.18%", "10.2% higher", "高 10.2%"),
        (0.1, "-90.00%", "90.0% lower", "低 90.0%"),
        (0.0, "-100.00%", "100.0% lower", "低 100.0%"),
        (1.0004, "+0.04%", "unchanged", "不变"),
    ],
)
def test_a_change_is_a_percentage_or_a_factor(ratio: float, cell: str, words: str, chinese: str) -> None:
    assert (changes.signed(ratio), changes.in_words(ratio)) == (cell, words)
    with language.used("zh"):
        assert texts.tr(changes.in_words(ratio)) == chinese
        assert texts.tr(f"12.5 ({cell}) worse") == f"12.5（{cell.replace(' times', ' 倍')}）更差" or "times" not in cell


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.069, 1.136, "+6.9% to +13.6%"),
        (57.6, 64.2, "58 to 64 times"),
        (1 / 64.2, 1 / 57.6, "1/64 to 1/58"),
        (0.9, 61.0, "1/1.1 to 61 times"),
        (0.05, 0.5, "1/20 to 1/2"),
    ],
)
def test_both_ends_of_an_interval_have_one_form(low: float, high: float, shown: str) -> None:
    assert changes.interval(low, high) == shown


@given(RATIOS)
def test_the_number_in_a_cell_is_the_change(ratio: float) -> None:
    cell = changes.signed(ratio)
    if cell.endswith("%"):
        assert 1 + float(cell[:-1]) / 100 == pytest.approx(ratio, abs=1e-4)
    else:
        factor = float(re.sub("times|1/|,", "", cell))
        assert (1 / factor if cell.startswith("1/") else factor) == pytest.approx(ratio, rel=0.051)
        assert len(cell) < len("1,000,000 times.")


@given(RATIOS)
def test_a_change_and_its_inverse_have_one_size(ratio: float) -> None:
    if changes.is_factor(ratio) and changes.is_factor(1 / ratio):
        assert changes.size(ratio) == changes.size(1 / ratio)
