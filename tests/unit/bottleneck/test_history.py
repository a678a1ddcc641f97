"""Causes over time: a queue begins and ends at a scrape, in the report as in the live view."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferload.bottleneck.evidence import Scrapes, WindowEvidence
from inferload.bottleneck.history import LEAST_S, WINDOW_S, History, window_ends
from inferload.bottleneck.rules import judge
from inferload.live.bottleneck import ClientFigures, LiveDiagnosis

CAP = 4


def window(waiting: np.ndarray, at_s: float) -> WindowEvidence:
    """Evidence of the window that ends at `at_s`, with a scrape at each second."""
    seconds = np.arange(len(waiting), dtype=float)
    inside = (seconds >= at_s - WINDOW_S) & (seconds <= at_s)
    known = np.full(inside.sum(), 0.2)
    columns = (np.where(waiting[inside] > 0, CAP, 2.0), waiting[inside], 0 * known, known, np.nan * known)
    return WindowEvidence(0.0, WINDOW_S, "http://x", Scrapes(seconds[inside], *columns), max_num_seqs=CAP)


# Within the first window the begin of a queue is that of the phase.
queues = st.tuples(st.just(0) | st.integers(11, 100), st.integers(12, 100), st.integers(0, 60))


@given(queues, st.integers(1, 5))
def test_a_queue_begins_and_ends_at_a_scrape(lengths: tuple[int, int, int], step_s: int) -> None:
    before, queued, after = lengths
    waiting = np.repeat([0.0, 3.0, 0.0], lengths)
    history = History()
    for at_s in window_ends(0.0, float(len(waiting) - 1), step_s):
        evidence = window(waiting, at_s)
        history.add(at_s, judge(evidence).primary, evidence)
    (queue,) = [span for span in history.spans if span.code == "queue-bound"]
    assert queue.start_s == before
    assert queue.end_s == (before + queued if history.spans[-1] is not queue else len(waiting) - 1)
    assert [span.code for span in history.spans][: 2 if before else 1] == ["kept-up", "queue-bound"][
        0 if before else 1 :
    ]
    assert all(first.end_s == second.start_s for first, second in zip(history.spans, history.spans[1:], strict=False))
    assert after < WINDOW_S or history.spans[-1].code == "kept-up"


@given(queues)
def test_the_live_view_has_the_same_begins(lengths: tuple[int, int, int]) -> None:
    waiting = np.repeat([0.0, 3.0, 0.0], lengths)
    live, history = LiveDiagnosis(max_num_seqs=CAP), History()
    for second, count in enumerate(waiting):
        gauges = {"requests_running": CAP if count else 2.0, "requests_waiting": float(count), "kv_cache_usage": 0.2}
        live.add(float(second), gauges, ClientFigures())
        if second < LEAST_S - 1:
            continue
        evidence = window(waiting, float(second))
        history.add(float(second), judge(evidence).primary, evidence)
        state = live.state()
        assert state is not None
        assert state["since_s"] == history.spans[-1].start_s


@given(st.integers(11, 60), st.integers(7, 40))
def test_a_queue_remains_if_the_server_is_silent_later(before: int, queued: int) -> None:
    waiting, history = np.repeat([0.0, 3.0], [before, queued]), History()
    died_s = len(waiting) - 1
    for at_s in window_ends(0.0, died_s + 50.0, 1.0):
        evidence = window(waiting, at_s)
        history.add(at_s, judge(evidence).primary if at_s < died_s + 5 else None, evidence)
    assert [(span.code, span.start_s, span.end_s) for span in history.spans] == [
        ("kept-up", 0.0, before),
        ("queue-bound", before, died_s),
        (None, died_s, died_s + 50.0),
    ]


@given(st.integers(11, 60), st.integers(7, 20), st.integers(31, 60))
def test_a_short_queue_remains_when_it_has_ended(before: int, queued: int, after: int) -> None:
    waiting, history = np.repeat([0.0, 3.0, 0.0], [before, queued, after]), History()
    for at_s in window_ends(0.0, len(waiting) - 1.0, 1.0):
        evidence = window(waiting, at_s)
        history.add(at_s, judge(evidence).primary, evidence)
    assert [(span.code, span.start_s) for span in history.spans] == [
        ("kept-up", 0.0),
        ("queue-bound", before),
        ("kept-up", before + queued),
    ]


def test_a_short_phase_has_one_window() -> None:
    assert list(window_ends(2.0, 4.0, 1.0)) == [4.0]
    assert list(window_ends(0.0, 9.0, 2.0)) == [7.0, 9.0]
