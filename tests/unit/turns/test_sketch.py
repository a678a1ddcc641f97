"""The sketch against exact quantiles, and merging."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import merged

from inferload.servers.text_format import ITL_S, REQUEST_S, TTFT_S
from inferload.turns.sketch import SMALLEST, Sketch, rank

VALUES = st.lists(
    st.one_of(
        st.floats(min_value=0, max_value=1e5),
        st.floats(min_value=-1e3, max_value=1e12, allow_subnormal=False),
        st.sampled_from([0.0, -0.0, 1.0, 250.0, 1e-12, 1e-7, 1e290, -1e290]),
    ),
    max_size=80,
)
QUANTILES = st.floats(min_value=0, max_value=1)


def sketch_of(values: list[float], relative_error: float = 0.0025) -> Sketch:
    sketch = Sketch(relative_error)
    sketch.add_many(np.array(values))
    return sketch


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=20), max_size=20))
def test_buffered_values_are_counted(arrays: list[list[float]]) -> None:
    gathered, added = Sketch(), Sketch()
    for values in arrays:
        gathered.gather(np.array(values))
        added.add_many(np.array(values))
    assert gathered == added
    assert (gathered.count, gathered.min, gathered.max, gathered.mean) == (
        added.count,
        added.min,
        added.max,
        added.mean,
    )
    assert merged(added, gathered) == merged(gathered, added)


@given(VALUES.filter(bool), QUANTILES, st.sampled_from([0.0025, 0.01, 0.2]))
def test_quantiles_are_within_the_stated_error(values: list[float], q: float, error: float) -> None:
    exact = sorted(values)[rank(q, len(values)) - 1]
    estimate = sketch_of(values, error).quantile(q)
    assert estimate is not None
    assert abs(estimate - exact) <= error * abs(exact) * (1 + 1e-9) + SMALLEST
    assert min(values) <= estimate <= max(values)


def test_the_error_bound_is_reached_at_bucket_limits() -> None:
    """The two ends of a bucket have exactly the stated error, so a coarser or finer sketch would fail."""
    values = np.exp(np.linspace(0, 3, 200_001))
    sketch = Sketch(0.01)
    sketch.add_many(values)
    off = [abs((sketch.quantile(q) or 0) / values[rank(q, len(values)) - 1] - 1) for q in np.linspace(0.01, 0.99, 2000)]
    assert 0.0095 < max(off) <= 0.01 * (1 + 1e-9)


@given(VALUES)
def test_adding_many_values_equals_adding_each(values: list[float]) -> None:
    at_once = Sketch()
    at_once.add_many(np.array(values, dtype=np.float64))
    assert at_once == sketch_of(values)


@given(VALUES, VALUES)
def test_merging_is_commutative_and_changes_no_operand(a: list[float], b: list[float]) -> None:
    left, right = sketch_of(a), sketch_of(b)
    both = merged(left, right)
    assert both == merged(right, left) == sketch_of(a + b)
    assert left == sketch_of(a)
    assert right == sketch_of(b)
    both.add_many(np.array([3.0]))
    assert left == sketch_of(a)


@given(VALUES, VALUES, VALUES)
def test_merging_is_associative(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = sketch_of(a), sketch_of(b), sketch_of(c)
    assert merged(merged(x, y), z) == merged(x, merged(y, z))


@given(VALUES, VALUES)
def test_a_sketch_is_equal_after_transfer(values: list[float], more: list[float]) -> None:
    sketch = sketch_of(values)
    sent = Sketch.from_wire(json.loads(json.dumps(sketch.to_wire())))
    assert sent == sketch
    assert (sent.count, sent.min, sent.max, sent.total) == (sketch.count, sketch.min, sketch.max, sketch.total)
    sent.absorb(sketch_of(more))
    assert sent == sketch_of(values + more)


@given(VALUES.filter(bool))
def test_count_extremes_and_mean_are_exact(values: list[float]) -> None:
    sketch = sketch_of(values)
    assert (sketch.count, sketch.min, sketch.max) == (len(values), min(values), max(values))
    assert sketch.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-9, abs=1e-6)


def test_an_empty_sketch_has_no_quantiles() -> None:
    sketch = Sketch()
    assert (sketch.count, sketch.min, sketch.max, sketch.mean, sketch.quantile(0.5)) == (0, None, None, None, None)
    assert merged(sketch, Sketch()) == sketch


def test_sketches_with_different_errors_do_not_merge() -> None:
    with pytest.raises(ValueError, match=r"0\.01 and 0\.02"):
        Sketch(0.01).absorb(Sketch(0.02))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e301])
def test_invalid_values_are_refused_without_effect(value: float) -> None:
    sketch = Sketch()
    with pytest.raises(ValueError, match="values from"):
        sketch.add_many(np.array([1.0, value]))
    assert sketch == Sketch()


@pytest.mark.parametrize(("q", "n", "expected"), [(0.5, 4, 2), (0.5, 5, 3), (0, 9, 1), (1, 9, 9), (0.07, 100, 7)])
def test_nearest_rank_indices(q: float, n: int, expected: int) -> None:
    assert rank(q, n) == expected


@given(VALUES, st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8))
def test_counts_up_to_a_bound_are_within_the_error(values: list[float], bounds: list[float]) -> None:
    sketch = sketch_of(values)
    width = (1 + sketch.relative_error) / (1 - sketch.relative_error) * (1 + 1e-9)
    assert width < 1.0051
    for bound, count in zip(bounds, sketch.counts_up_to(bounds), strict=True):
        assert sum(value <= bound for value in values) <= count <= sum(value <= bound * width for value in values)


def test_a_value_equal_to_a_bound_is_included() -> None:
    bounds = [bound * 1000 for bound in (*TTFT_S, *ITL_S, *REQUEST_S)]
    for bound in bounds:
        assert sketch_of([bound, bound * 1.006]).counts_up_to([bound, bound * 2]) == [1, 2]
