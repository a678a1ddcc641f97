"""Wrapping to the width of a terminal."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st

from inferload.base.status_lines import wrapped


@given(st.text(alphabet="ab -", max_size=80), st.integers(10, 40))
def test_english_text_is_wrapped_at_blanks(text: str, cells: int) -> None:
    assert wrapped(text, cells) == textwrap.wrap(text, cells, break_long_words=False, break_on_hyphens=False)


@given(st.text(alphabet="abc ，。首次延迟", max_size=80), st.integers(10, 40))
def test_chinese_text_is_left_to_the_terminal(text: str, cells: int) -> None:
    assert wrapped(f"首{text}", cells, "* ", "  ") == [f"* 首{text}"]
