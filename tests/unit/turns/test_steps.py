"""Steps of the measure phase."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inferload.turns.record import PhaseWindow, stepped

BOUNDS = st.lists(st.floats(0.1, 20), max_size=6).map(
    lambda gaps: tuple(sum(gaps[:place]) for place in range(len(gaps) + 1)) if gaps else ()
)


@given(BOUNDS, st.one_of(st.none(), st.integers(1, 100)))
def test_steps_divide_the_measure_phase_without_gaps(bounds_s: tuple[float, ...], length_s: int | None) -> None:
    second = 10**9
    end_ns = None if length_s is None else (10 + length_s) * second
    windows = [PhaseWindow("warmup", 0, 10 * second), PhaseWindow("measure", 10 * second, end_ns)]
    if end_ns is not None:
        windows.append(PhaseWindow("drain", end_ns))
    cut = stepped(windows, bounds_s)
    assert [window.phase for window in cut] == sorted(
        (window.phase for window in cut), key=["warmup", "measure", "drain"].index
    )
    assert all(one.end_ns == other.start_ns for one, other in pairwise(cut))
    assert (cut[0], cut[-1].end_ns) == (windows[0], windows[-1].end_ns)
    assert [window.step for window in cut if window.phase == "measure"] == (
        list(range(sum(length_s is None or bound_s < length_s for bound_s in bounds_s))) if bounds_s else [None]
    )
