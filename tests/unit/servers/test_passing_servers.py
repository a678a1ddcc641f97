"""Servers that are there for a part of the measure phase: their own figures, those of all, and their scrapes."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.clock import Anchor
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import VLLM
from inferload.servers import scraper, window_figures
from inferload.servers.scrape_http import MetricsUrl
from inferload.servers.series import MetricSeries, ServerSeries
from inferload.servers.window import windows_of

S = 1_000_000_000


def server(name: str, first_s: int, last_s: int, rate: float, running: float) -> ServerSeries:
    at_s = np.arange(first_s, last_s + 1)
    metrics = {
        names.GENERATION_TOKENS: (MetricSeries({}, rate * at_s),),
        names.RUNNING: (MetricSeries({}, np.full(len(at_s), running)),),
    }
    return ServerSeries(name, at_s * S, metrics, np.zeros(len(at_s), dtype=np.bool_), VLLM)


@given(st.integers(0, 50), st.integers(8, 60), st.floats(1, 100), st.floats(1, 100))
def test_sums_are_those_of_the_whole_window(first_s: int, lasts_s: int, rate: float, other: float) -> None:
    last_s = min(60, first_s + lasts_s)
    servers = {
        "http://a": server("http://a", 0, 60, other, 2),
        "http://b": server("http://b", first_s, last_s, rate, 4),
    }
    windows = windows_of(servers, 0, 60 * S, joined=["http://b"], left=["http://b"])
    whole, part = window_figures.entries(windows)
    assert whole.seen_s is None
    assert part.seen_s == [first_s, last_s]
    assert part.generation_tok_per_s == pytest.approx(rate)  # of its part
    together, share = window_figures.together(windows), (last_s - first_s) / 60
    assert together["generation_tok_per_s"] == pytest.approx(other + rate * share)
    assert together["generation_tokens"] == pytest.approx(60 * other + rate * (last_s - first_s))
    assert together["requests_running"] == pytest.approx(2 + 4 * share)
    if share < 0.8:  # else the gap at its end is one of a whole server, too
        assert window_figures.together(windows_of(servers, 0, 60 * S))["generation_tok_per_s"] is None
    gone = servers | {"http://c": server("http://c", 0, 10, 1, 1)}
    (_, died) = windows_of(
        {"http://a": servers["http://a"], "http://b": gone["http://c"]}, 0, 60 * S, joined=["http://b"]
    )
    assert (died.seen_s, died.window_s) == ((0, 60), None)  # it did not leave: its silence is no part
    assert len(windows_of(gone, 20 * S, 60 * S, left=["http://b", "http://c"])) == 2 - (first_s >= 60 or last_s <= 20)


class Page:
    """A page that counts its scrapes, and answers until the test ends it."""

    def __init__(self, name: str) -> None:
        self.url = MetricsUrl.parse(f"http://{name}/metrics")
        self.scraped, self.answers = threading.Semaphore(0), True

    def get(self, timeout_s: float) -> str:
        self.scraped.release()
        if not self.answers:
            raise OSError("refused")
        return "vllm:num_requests_running 1\n"

    def close(self) -> None:
        pass


def test_a_page_that_leaves_is_scraped_until_it_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = Page("a:1"), Page("b:1"), Page("c:1")
    seen: list[tuple[str, bool]] = []
    buffer = scraper.ScrapeBuffer(on_scrape=lambda scrape: seen.append((scrape.target, scrape.error is None)))
    changes: list[Sequence[Page]] = []

    def steps() -> Iterator[bool]:
        assert a.scraped.acquire(timeout=30)
        changes.append([b])
        yield False
        for page in (b, a, a):  # turns may still be in flight at a
            assert page.scraped.acquire(timeout=30)
        a.answers = False
        changes.append([b, c])
        yield False
        assert c.scraped.acquire(timeout=30)
        yield True

    each = steps()
    job = scraper.ScrapeJob([a], 0.01, tmp_path, Anchor.take(), changed=lambda: changes.pop() if changes else None)
    scraper.scrape_all(job, buffer, lambda timeout_s: next(each))
    assert {target for target, _ in seen} == {a.url.target, b.url.target, c.url.target}
    assert all(up for _, up in seen)  # it left: no gap, and no line on stderr
    assert capsys.readouterr().err == ""
