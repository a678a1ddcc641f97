"""Frames: rows are selected, ordered, joined and grouped as lists of records are."""

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data.frame import Frame, concat, known, last_known, mean, rows_by_text

TEXTS = st.none() | st.sampled_from(["a", "b", ""])
NUMBERS = st.just(float("nan")) | st.integers(-9, 9).map(float)
ROWS = st.lists(st.tuples(TEXTS, NUMBERS), max_size=30)


def frame_of(rows: list[tuple[str | None, float]]) -> Frame:
    return Frame(
        {
            "text": np.array([text for text, _ in rows], dtype=object),
            "number": np.array([number for _, number in rows], dtype=np.float64),
        }
    )


def rows_of(frame: Frame) -> list[tuple[Any, ...]]:
    """Rows with `nan` as a word: it differs from itself."""
    return [
        tuple(value if value == value else "nan" for value in row)  # noqa: PLR0124
        for row in zip(*(column.tolist() for _, column in frame.items()), strict=True)
    ]


def order(number: float) -> tuple[bool, float]:
    """Unknown numbers are last, in any order of their own."""
    return np.isnan(number), 0.0 if np.isnan(number) else number


@given(ROWS, st.randoms())
def test_masks_slices_and_indexes_select_rows(rows: list[tuple[str | None, float]], random: Any) -> None:
    frame = frame_of(rows)
    mask = np.array([random.random() < 0.5 for _ in rows], dtype=np.bool_)
    chosen = [row for row, inside in zip(rows, mask, strict=True) if inside]
    assert rows_of(frame[mask]) == rows_of(frame[np.flatnonzero(mask).tolist()]) == rows_of(frame_of(chosen))
    assert rows_of(frame[2:5]) == rows_of(frame_of(rows[2:5]))
    assert len(frame[mask]) == mask.sum()


@given(ROWS)
def test_rows_of_equal_or_unknown_numbers_keep_their_order(rows: list[tuple[str | None, float]]) -> None:
    expected = sorted(rows, key=lambda row: order(row[1]))
    assert rows_of(frame_of(rows).sorted_by("number")) == rows_of(frame_of(expected))


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_joined_frames_have_all_rows_and_columns(parts: list[list[tuple[str | None, float]]]) -> None:
    frames = [frame_of(rows) for rows in parts]
    assert rows_of(concat(frames)) == [row for frame in frames for row in rows_of(frame)]
    more = frames[0].with_columns(
        {"word": np.full(len(frames[0]), "w", dtype=object), "whole": np.arange(len(frames[0]))}
    )
    joined, rest = concat([more, *frames[1:]]), sum(map(len, frames[1:]))
    assert joined["word"].tolist() == ["w"] * len(frames[0]) + [None] * rest
    assert np.isnan(joined["whole"][len(frames[0]) :].astype(float)).all()
    assert joined["whole"][: len(frames[0])].tolist() == list(range(len(frames[0])))


@given(st.lists(TEXTS, max_size=40))
def test_each_row_is_in_the_group_of_its_text(texts: list[str | None]) -> None:
    groups = rows_by_text(np.array(texts, dtype=object))
    assert {text: rows.tolist() for text, rows in groups.items()} == {
        text: [row for row, own in enumerate(texts) if own == text] for text in texts
    }
    assert list(groups) == [*sorted(text for text in groups if text is not None), *([None] if None in groups else [])]


@given(st.lists(NUMBERS, max_size=30))
def test_means_and_gaps_of_known_values(values: list[float]) -> None:
    column = np.array(values, dtype=np.float64)
    present = [value for value in values if value == value]  # noqa: PLR0124
    assert column[known(column)].tolist() == present
    assert mean(column) == pytest.approx(sum(present) / len(present) if present else float("nan"), nan_ok=True)
    latest = list(accumulate(values, lambda before, value: before if np.isnan(value) else value))
    np.testing.assert_array_equal(last_known(column), latest)


def test_a_missing_column_is_unknown() -> None:
    frame = frame_of([("a", 1.0), (None, 2.0)])
    assert np.isnan(frame.numbers("other")).all()
    assert frame.texts("other").tolist() == [None, None]
    assert frame.texts("other", "").tolist() == ["", ""]
    with pytest.raises(ValueError, match="2 lengths"):
        frame.with_columns({"short": [1.0]})
