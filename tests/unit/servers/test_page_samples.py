"""Pages with own times, of no known kind, or with bad lines, from the text to the figures, on made time."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from inferload.analysis.data import timeline
from paths import DATA
from summaries import server_entries

from inferload.figures.pages import metric_names as names
from inferload.figures.pages import page_names
from inferload.figures.servers.server_figures import Server
from inferload.results.tables.server_tables import servers_tables
from inferload.run.live.live_recorder import Instant, LiveRecorder
from inferload.run.live.recorder import Recorder
from inferload.servers.page_samples import MOST_UNKNOWN, PageSamples
from inferload.servers.scraper import Scrape, ScrapeBuffer, line_of, readings
from inferload.servers.series import by_target

S = 1_000_000_000
NOW = 1_700_000_000
COUNTER, GAUGE = names.GENERATION_TOKENS, names.RUNNING
TARGET = "http://page"
TextAt = Callable[[float], str]


class Scraped:
    """Pages that are scraped each second, and read for the live view."""

    def __init__(self, text_at: TextAt, seconds: int = 150) -> None:
        scrapes: list[Scrape] = []
        buffer, pages, self._live = ScrapeBuffer(on_scrape=scrapes.append), PageSamples(), LiveRecorder(Recorder())
        for second in range(seconds):
            wall_ns = (NOW + second) * S
            page = pages.read(text_at(second), wall_ns)
            buffer.add(Scrape(wall_ns, TARGET, S // 100, 0, page.samples, page=page))
            lines = {TARGET: json.loads(line_of(scrapes[-1]))}
            self._live.close_second(second + 1.0, Instant(0, 0, wall_ns, lines))
        self.table = buffer.take().to_table()
        self.rows = self.table.to_pylist()

    def live(self, key: str) -> list[float]:
        """Return the values of a figure that the live view shows."""
        shown = self._live.series.newest(1000, [key]).columns.get(key, [])
        return [value for value in shown if value is not None]

    def entry(self, start_s: float, end_s: float) -> tuple[Server, str]:
        """Return the entry of the summary, and the note of its table."""
        (entry,) = server_entries(self.table, round((NOW + start_s) * S), round((NOW + end_s) * S), interval_s=1.0)
        return entry, servers_tables([entry], {})[0].note


def collected(
    every_s: float,
    late_s: float,
    offset_s: float = 0.0,
    *,
    per_s: float = 500.0,
    base: float = 1e6,
    form: str = "{:.0f}",
) -> TextAt:
    """Return the page of a collector that asks a server every `every_s` seconds and shows its answer `late_s` later."""

    def text(now_s: float) -> str:
        at_s = (now_s - late_s - offset_s) // every_s * every_s + offset_s
        end = f'{{instance="{per_s}"}} %s {form.format((NOW + at_s) * (1 if "3" in form else 1000))}\n'
        return COUNTER + end % (base + per_s * at_s) + GAUGE + end % 3

    return text


@pytest.mark.parametrize("form", ["{:.0f}", "{:.3f}"])  # ms, s
@pytest.mark.parametrize(("every_s", "late_s"), [(1.0, 0.25), (1.0, 10.0), (10.0, 0.5), (15.0, 3.0)])
def test_samples_with_times_are_of_these_times(every_s: float, late_s: float, form: str) -> None:
    scraped = Scraped(collected(every_s, late_s, form=form))
    entry, note = scraped.entry(30, 149)
    assert entry.generation_tok_per_s == pytest.approx(500)
    assert entry.samples_age_s == pytest.approx(every_s + late_s - 0.5, abs=0.5)
    assert ("old by their own times" in note) == (every_s + late_s > 6)
    times = [row["wall_ns"] for row in scraped.rows if row["metric"] == COUNTER]
    assert set(np.diff(times)) == {every_s * S}
    server = by_target([scraped.table])[TARGET]
    rates = timeline._server(server, (server.wall_ns - NOW * S) / S, 150)["generation_tok_per_s"]
    assert np.isfinite(rates[20:100]).all()
    live = scraped.live("generation_tok_per_s")
    assert np.r_[rates[np.isfinite(rates)], live] == pytest.approx(500)
    assert len(live) > 80


@pytest.mark.parametrize("every_s", [1.0, 5.0, 15.0])
def test_live_figures_of_rare_samples_are_of_the_last_of_them(every_s: float) -> None:
    def text(now_s: float) -> str:
        at_s = (now_s - 1) // every_s * every_s
        tokens, count = 500 * min(at_s, 60), f"{names.PREEMPTIONS} {2 * at_s}"
        return "".join(f"{line} {(NOW + at_s) * 1000:.0f}\n" for line in (f"{COUNTER} {tokens}", count, f"{GAUGE} 3"))

    scraped = Scraped(text, 100)
    slows_s = every_s + max(10.0, every_s) + 1
    assert set(scraped.live("generation_tok_per_s")[-int(100 - 60 - slows_s) :]) == {0}
    assert np.array(scraped.live("preemptions")[-60:]) == pytest.approx(2)  # in a second


_A, _B = collected(15.0, 0.5, 3.2), collected(15.0, 0.5, 11.7, per_s=300.0)
_ALIVE, _AGAIN = collected(10.0, 1.0), collected(10.0, 1.0, base=-25_000.0)


@pytest.mark.parametrize(
    ("text_at", "per_s", "running", "restarts"),
    [
        (lambda at_s: _A(at_s) + _B(at_s), 800, 6, 0),  # of two servers
        (lambda at_s: _A(at_s) + f'{COUNTER}{{instance="b"}} {1e6 + 300 * at_s}\n', 800, 3, 0),  # one without times
        (collected(1.0, -3600.0), 500, 3, 0),  # in the future
        (lambda at_s: _ALIVE(at_s) if at_s < 60 else _AGAIN(at_s), None, 3, 1),
        (lambda _at_s: _A(-600.0), None, None, None),  # a page that does not move
    ],
)
def test_figures_of_other_pages_with_times(
    text_at: TextAt, per_s: float | None, running: int | None, restarts: int | None
) -> None:
    scraped = Scraped(text_at)
    assert all(value in (500, 0) for value in scraped.live("generation_tok_per_s")[30:]) or restarts
    for end_s in (149, 125) if per_s else (125,):
        entry, note = scraped.entry(35, end_s)
        assert per_s is None or entry.generation_tok_per_s == pytest.approx(per_s, rel=0.01)
    grown = by_target([scraped.table])[TARGET].grown(COUNTER)
    assert grown is not None
    assert grown[-1] < 1e6  # the first values are no growth
    assert (entry.requests_running and entry.requests_running.mean, entry.restarts) == (running, restarts)
    if running is None:
        assert entry.generation_tok_per_s is None
        assert entry.too_long_gap_s == 90
        assert "up to 761 s old" in note


def test_a_page_of_prometheus_has_the_servers_figures() -> None:
    """It asks for OpenMetrics, in which the server's client library writes `_` for the colons of its names."""
    text = (DATA / "pages/prometheus-2.42-federate-vllm-0.32.prom").read_text(encoding="utf-8")
    at_ns = 1_795_949_645_349_000_000
    page = PageSamples().read(text, at_ns + 20 * S)
    live = readings(page.samples)
    assert (page.at_ns, live[names.PROMPT_TOKENS], live[names.TTFT + "_count"], live["engines"]) == (at_ns, 1300, 4, 1)
    assert [sample.value for sample in page.stored if sample.metric == names.SAMPLE_AGE] == [20]
    assert page_names.with_colon("vllm_router_requests_total") == "vllm_router_requests_total"
    still = f"{names.PROCESS_START} 1 {NOW * 1000}\n{COUNTER} 7 {(NOW + 90) * 1000}\n"  # a series that rarely changes
    assert PageSamples().read(still, (NOW + 91) * S).at_ns == (NOW + 90) * S


def test_a_page_of_no_known_kind_is_stored_within_limits() -> None:
    def text(now_s: float) -> str:
        return "process_cpu_seconds_total 1\n" + "".join(f'own{{request="{now_s}-{n}"}} 1\n' for n in range(900))

    scraped = Scraped(text, 60)
    own = {row["labels"]: row["wall_ns"] for row in scraped.rows if row["metric"] == "own"}
    assert (len(own), sorted(set(own.values()))) == (MOST_UNKNOWN, [(NOW + second) * S for second in (0, 10, 20)])
    assert f"{TARGET}: 2,001 series of no known engine" in scraped.entry(0, 60)[1]
    pages = PageSamples()
    pages.read("own 1\n", 0)
    assert [sample.metric for sample in pages.read(f"own 1\n{GAUGE} 2\n", S).samples] == [GAUGE]
    for page, why in (("<html>", "HTML"), ("own 1", "no metrics of an inference server")):
        with pytest.raises(ValueError, match=why):
            pages.read(page, 2 * S)


def test_a_bad_line_costs_its_sample_and_is_counted() -> None:
    def text(now_s: float) -> str:
        bad = "NaN of {" if now_s == 20 else ""
        return f'{GAUGE}{{engine="0"}} 2\n{GAUGE}{{engine="1"}} {bad}3\n{COUNTER} {500 * now_s}\nvllm:broken{{ 1\n'

    entry, note = Scraped(text, 60).entry(10, 50)
    assert (entry.requests_running and entry.requests_running.mean, entry.generation_tok_per_s) == (5, 500)
    assert (entry.lines_unread, entry.samples_unusable) == (61, 1)
    assert "61 lines are no samples" in note
