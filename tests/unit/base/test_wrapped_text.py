"""Wrapping to the cells of a terminal."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from inferload.base.status_lines import wrapped

WORDS = st.text(alphabet="abcDE-%.，。；：（）首次延迟", min_size=1, max_size=12)


@given(st.lists(WORDS, min_size=1, max_size=20), st.integers(20, 60))
def test_lines_fit_and_keep_the_text(words: list[str], cells: int) -> None:
    text = " ".join(words)
    lines = wrapped(text, cells, "* ", "  ")
    assert "".join(line[2:] for line in lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= cells or not any(mark in line for mark in "首次延迟") for line in lines)


def test_a_line_does_not_begin_with_a_closing_mark() -> None:
    for cells in range(12, 40):
        assert not any(line[0] in "，。；：）" for line in wrapped("首次延迟（首次）；首次，延迟：首次。" * 3, cells))


@given(st.text(alphabet="ab -", max_size=80), st.integers(10, 40))
def test_english_text_is_wrapped_at_blanks(text: str, cells: int) -> None:
    assert wrapped(text, cells) == textwrap.wrap(text, cells, break_long_words=False, break_on_hyphens=False)
