"""Causes over time: a queue begins and ends at a scrape, in the report as in the live view."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from window_evidence import window_evidence

from inferload.figures.pages import metric_names as names
from inferload.run.live.bottleneck import ClientFigures, LiveDiagnosis
from inferload.servers.bottleneck.evidence import Scrapes
from inferload.servers.bottleneck.finding import Finding
from inferload.servers.bottleneck.history import LEAST_S, WINDOW_S, Span, spans_of, window_ends
from inferload.servers.bottleneck.queue_phases import phases_of
from inferload.servers.bottleneck.rules import judge

CAP = 4


def scrapes_of(waiting: np.ndarray) -> Scrapes:
    """A scrape at each second."""
    seconds = np.arange(len(waiting), dtype=float)
    known = np.full(len(waiting), 0.2)
    return Scrapes(seconds, np.where(waiting > 0, CAP, 2.0), waiting, 0 * known, known, np.nan * known)


def causes(waiting: np.ndarray, end_s: float | None = None) -> list[Span]:
    """Spans of a server with these numbers of waiting requests."""
    scrapes = scrapes_of(waiting)

    def cause(low: float, high: float, _until: float) -> Finding | None:
        inside = (scrapes.at_s >= low) & (scrapes.at_s < high)
        window = Scrapes(*(getattr(scrapes, name)[inside] for name in Scrapes.__struct_fields__[:6]))
        return judge(window_evidence(window, WINDOW_S, max_num_seqs=CAP)).primary

    return spans_of(cause, scrapes, len(waiting) if end_s is None else end_s, 5.0)


# Alternating lengths of phases, with a queue and without one.
lengths = st.lists(st.integers(5, 90), min_size=1, max_size=8)


def waiting_of(lengths: list[int], first: bool) -> np.ndarray:
    return np.concatenate(
        [np.full(length, 3.0 * ((number % 2 == 0) == first)) for number, length in enumerate(lengths)]
    )


@given(lengths, st.booleans())
def test_a_queue_begins_and_ends_at_a_scrape_at_any_position(lengths: list[int], first: bool) -> None:
    spans = causes(waiting_of(lengths, first))
    begins = [0, *np.cumsum(lengths[:-1]).tolist()]
    codes = ["queue-bound" if (number % 2 == 0) == first else "kept-up" for number in range(len(lengths))]
    assert [span.code for span in spans] == codes
    assert np.abs(np.array([span.start_s for span in spans]) - begins).max() <= 2
    assert all(first.end_s == second.start_s for first, second in pairwise(spans))
    assert spans[-1].end_s == sum(lengths)


@given(st.integers(12, 90), st.booleans(), st.data())
def test_one_or_two_scrapes_are_noise(length: int, queued: bool, data: st.DataObject) -> None:
    waiting = np.full(length, 3.0 * queued)
    start = data.draw(st.integers(0, length - 2))
    waiting[start : start + data.draw(st.integers(1, 2))] = 3.0 * (not queued)
    assert [span.code for span in causes(waiting)] == ["queue-bound" if queued else "kept-up"]


@given(st.integers(2, 4), st.integers(10, 40), st.integers(60, 200))
def test_a_queue_that_comes_and_goes_is_one_phase(every: int, before: int, count: int) -> None:
    waiting = np.concatenate([np.zeros(before), 3.0 * (np.arange(count) % every == 0)])
    phases = phases_of(scrapes_of(waiting))
    assert [phase.queued for phase in phases] == [False, True]
    assert phases[1].start_s == before


@given(st.lists(st.integers(5, 40), min_size=1, max_size=3), st.booleans())
def test_the_live_view_has_the_same_begins(lengths: list[int], first: bool) -> None:
    waiting = waiting_of(lengths, first)
    live = LiveDiagnosis(max_num_seqs=CAP)
    for second, count in enumerate(waiting):
        gauges = {names.RUNNING: CAP if count else 2.0, names.WAITING: float(count), names.KV_CACHE_USAGE: 0.2}
        live.add(float(second), gauges, ClientFigures())
        begun = np.flatnonzero(np.diff(waiting[: second + 1], prepend=-1))[-1]
        if second < LEAST_S or second - begun not in (4, 5, 12, 30):  # a phase has five scrapes
            continue
        state, span = live.state(), causes(waiting[: second + 1])[-1]
        assert state is not None
        assert (state["code"], state["since_s"]) == (span.code, span.start_s)


@given(st.integers(7, 60), st.integers(7, 40))
def test_a_queue_remains_if_the_server_is_silent_later(before: int, queued: int) -> None:
    waiting = np.repeat([0.0, 3.0], [before, queued])
    died_s = len(waiting) - 1
    spans = causes(waiting, died_s + 50.0)
    assert [(span.code, span.start_s, span.end_s) for span in spans] == [
        ("kept-up", 0.0, before),
        ("queue-bound", before, died_s),
        (None, died_s, died_s + 50.0),
    ]


def test_a_short_phase_has_one_window() -> None:
    assert list(window_ends(2.0, 4.0, 1.0)) == [4.0]
    assert list(window_ends(0.0, 9.0, 2.0)) == [7.0, 9.0]
