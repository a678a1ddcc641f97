"""Rows of integers by group."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from inferload.workload.grouped import Grouped

PAIR = st.tuples(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))


@given(st.lists(st.lists(PAIR, max_size=5), max_size=8))
def test_rows_sums_and_first_rows_are_those_of_each_group(groups: list[list[tuple[int, int]]]) -> None:
    grouped = Grouped.of((array("q", [value for row in group for value in row]) for group in groups), 2)
    assert len(grouped) == len(groups)
    assert [[tuple(row) for row in grouped[group]] for group in range(len(grouped))] == groups
    assert grouped.sums(1).tolist() == [sum(row[1] for row in group) for group in groups]
    filled = Grouped.of((array("q", group[0]) for group in groups if group), 2)
    assert filled.first(0).tolist() == [group[0][0] for group in groups if group]
