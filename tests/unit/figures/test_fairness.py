"""Jain's fairness index, and its figure over the SLO attainment of classes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.figures.limits.gate import GateError
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.figures.rate_figures import jain_index, rates
from inferload.turns.tally import Tally

shares = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


@given(shares, st.floats(1e-6, 1e6))
def test_the_index_is_between_1_over_n_and_1_and_ignores_scale_and_order(values: list[float], factor: float) -> None:
    index = jain_index(values)
    if index is None:
        assert not any(values)
        return
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index([value * factor for value in values[::-1]]) == pytest.approx(index)
    assert jain_index([*values, *values]) == pytest.approx(index)


@given(st.integers(1, 20), st.floats(1e-300, 1e300), st.integers(0, 19))
def test_equal_shares_are_fair_and_one_that_has_all_is_the_least(count: int, value: float, zeros: int) -> None:
    assert jain_index([value] * count) == pytest.approx(1)
    assert jain_index([value] * count + [0.0] * zeros) == pytest.approx(count / (count + zeros))


def of_class(met: int, ok: int, failed: int = 0, dropped: int = 0, judged: bool = True) -> Tally:
    return Tally(ok=ok, failed=failed, slo_met=met, slo_judged=ok + failed if judged else 0, sessions_dropped=dropped)


def test_the_figure_is_of_attainment_whatever_the_share_of_a_class() -> None:
    def fairness(*classes: Tally) -> float | None:
        total = Tally()
        for tally in classes:
            total.absorb(tally)
        return rates(total, 10.0, classes).get("fairness_index")

    assert fairness(of_class(9, 10), of_class(900, 1000)) == pytest.approx(1)
    assert fairness(of_class(10, 10), of_class(5, 8, 1, 1)) == pytest.approx(1.5**2 / (2 * 1.25))
    assert fairness(of_class(10, 10), of_class(0, 10)) == 0.5
    assert fairness(of_class(0, 10), of_class(0, 10)) is None  # nobody has anything to share
    assert fairness(of_class(9, 10), of_class(0, 10, judged=False)) is None  # a class without an SLO
    assert fairness(of_class(9, 10)) is None


def test_a_gate_on_it_has_no_class() -> None:
    assert parse_gate("fairness_index > 0.9").name == "fairness_index"
    with pytest.raises(GateError, match=r"fairness_index is of all classes together; remove \{gold\}"):
        parse_gate("fairness_index{gold} > 0.9")
