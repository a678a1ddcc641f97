"""Live view in a browser: page object, and a walk through a whole run that tests repeat for each kind of run."""

import contextlib
import functools
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chromium
import locust_process
import pytest
from chromium import Browser
from locust_page import LocustPage
from ports import unused_port
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

OpenPage = Callable[..., "LivePage"]

DRAWN_WITHIN_S = 3.0  # of the first value
# Charts of a run whose metrics page is scraped, with the columns of each.
CHARTS = {
    "TTFT, ms": ("ttft_ms_p50", "ttft_ms_p95"),
    "ITL, ms": ("itl_ms_p50", "itl_ms_p99"),
    "TPOT, ms": ("tpot_ms_p50", "tpot_ms_p95"),
    "E2E, ms": ("e2e_ms_p50", "e2e_ms_p95"),
    "Sessions and turns, /s": ("offered_sessions_per_s", "achieved_sessions_per_s", "turns_per_s"),
    "Output, tok/s": ("output_tok_per_s", "generation_tok_per_s"),
    "Prompt, tok/s": ("input_tok_per_s", "prompt_tok_per_s"),
    "KV cache and hits, %": ("kv_cache_usage", "prefix_cache_hit_rate"),
    "Requests": ("in_flight", "users", "requests_running", "requests_waiting"),
    "Preemptions, /s": ("preemptions",),
}
# Cells of the table of classes, and tiles after the run, by their path in summary.json.
FIGURES = {
    "Turns, turns/s": ("rates", "turns_per_s"),
    "Output, tok/s": ("rates", "output_tok_per_s"),
    "TTFT p50, ms": ("latency", "ttft_ms", "p50"),
    "ITL p50, ms": ("latency", "itl_ms", "p50"),
    "E2E p50, ms": ("latency", "e2e_ms", "p50"),
}
TILES = {
    "TTFT p50": ("latency", "ttft_ms", "p50"),
    "TTFT p95": ("latency", "ttft_ms", "p95"),
    "ITL p50": ("latency", "itl_ms", "p50"),
    "ITL p99": ("latency", "itl_ms", "p99"),
    "E2E p95": ("latency", "e2e_ms", "p95"),
    "Offered sessions": ("rates", "offered_sessions_per_s"),
    "Achieved sessions": ("rates", "achieved_sessions_per_s"),
    "Output": ("rates", "output_tok_per_s"),
}
UNKNOWN = "\N{EN DASH}"
THREE_DIGITS = 0.006  # relative rounding error

_INKED = """
const inked = source => {  // grid, axes and marks of phases are grey; lines have a colour
  const copy = document.createElement('canvas');
  [copy.width, copy.height] = [source.width, source.height];
  const context = copy.getContext('2d', {willReadFrequently: true});
  context.drawImage(source, 0, 0);
  const {data} = context.getImageData(0, 0, copy.width, copy.height);
  for (let at = 0; at < data.length; at += 4) {
    const pixel = [data[at], data[at + 1], data[at + 2]];
    if (data[at + 3] > 100 && Math.max(...pixel) - Math.min(...pixel) > 80) return true;
  }
  return false;
};
const charts = () => [...document.querySelectorAll('.il-chart')].filter(chart => !chart.hidden);
const titleOf = chart => chart.querySelector('.il-chart-title').textContent;
const drawn = chart => [...chart.querySelectorAll('canvas')].some(canvas => canvas.width && inked(canvas));
"""
_LABELS = f"""
{_INKED}
const labelOf = chart => chart.querySelector('.il-canvas').getAttribute('aria-label') || '';
return Object.fromEntries(charts().map(chart => [titleOf(chart), labelOf(chart)]));
"""
# Whether the visible charts have these titles, and each has points and a line. Pixels are read last: they take the most time.
_ALL_DRAWN = f"""
{_INKED}
const visible = charts();
return visible.map(titleOf).sort().join() === [...arguments[0]].sort().join() &&
  visible.every(chart => Number(chart.dataset.points || 0) > 0) && visible.every(drawn);
"""
# Records the time at which the view is first displayed, the time at which each chart first has a line, and the longest pause of the
# page (s), in which it could draw nothing.
_RECORD = f"""
{_INKED}
const times = window.testDrawn = {{shown: null, charts: {{}}, pause: 0}};
let last = performance.now();
const look = () => {{
  times.pause = Math.max(times.pause, (performance.now() - last) / 1000 - 0.1);
  last = performance.now();
  if (times.shown === null && document.querySelector('.il-badge')) times.shown = Date.now() / 1000;
  for (const chart of charts()) {{
    if (!(titleOf(chart) in times.charts) && chart.dataset.points && drawn(chart)) times.charts[titleOf(chart)] = Date.now() / 1000;
  }}
  if (Object.keys(times.charts).length < arguments[0]) setTimeout(look, 100);
}};
look();
"""
# The recorded times, and the durations of the polls (s).
_DRAWN_TIMES = """
const polls = performance.getEntriesByType('resource').filter(({name}) => name.includes('/inferload/live?'));
return {...window.testDrawn, polls: polls.map(({duration}) => duration / 1000)};
"""
_MARKS = "return [...document.querySelectorAll('.il-marks li span')].map(item => item.textContent)"
# The place of the button that stops the run, before and after all texts above it are long.
_STOP_PLACES = """
const place = () => { const {x, y} = document.querySelector('.il-stop').getBoundingClientRect(); return [x, y + scrollY]; };
const before = place();
for (const name of ['badge', 'name', 'facts', 'reasons', 'measurement']) {
  const node = document.querySelector(`.il-${name}`);
  node.hidden = false;
  node.textContent = 'a long text '.repeat(40);
  delete node.dataset.texts;
}
return [before, place()];
"""
_BADGE = (
    "const badge = document.querySelector('.il-badge'); return badge ? [badge.dataset.state, badge.textContent] : null"
)
_ERROR = "const line = document.querySelector('.il-error'); return line.hidden ? '' : line.textContent"
_ROWS = """
const [head, ...rows] = [...document.querySelectorAll(`table[aria-label="${arguments[0]}"] tr`)]
  .map(row => [...row.cells].map(cell => cell.textContent));
return rows.map(row => row.map((text, at) => [head[at], text]));
"""
_TILES = """
return Object.fromEntries([...document.querySelectorAll('.il-tile')].filter(tile => !tile.hidden)
  .map(tile => [tile.querySelector('dt').textContent, tile.querySelector('dd').firstChild.data]))
"""
_ABOVE = f"{_INKED} return charts().find(chart => titleOf(chart) === arguments[0]).dataset.above"
_KEY = "return [...document.querySelectorAll('.il-key li')].map(item => item.textContent)"
_LINKS = "return [...document.querySelectorAll('.il-links a')].map(link => [link.textContent, link.href])"


class LivePage(LocustPage):
    """The tab "Inference" of Locust's page, or the page /inference."""

    # -- queries

    def labels(self) -> dict[str, str]:
        """Return the labels of the visible charts by title."""
        labels: dict[str, str] = self.browser.execute_script(_LABELS)
        return labels

    def all_drawn(self) -> bool:
        """Return True if the charts of a scraped run are visible, each with a line."""
        return bool(self.browser.execute_script(_ALL_DRAWN, list(CHARTS)))

    def badge(self) -> list[str] | None:
        """Return state and text of the badge."""
        badge: list[str] | None = self.browser.execute_script(_BADGE)
        return badge

    def marks(self) -> list[str]:
        """Return the texts of the marks, the newest first."""
        texts: list[str] = self.browser.execute_script(_MARKS)
        return texts

    def load_mark(self) -> str:
        """Return the text of the newest mark of a change of the load; empty if there is none."""
        return next((text for text in self.marks() if text.startswith(("users ", "rate ", "ramp "))), "")

    def error(self) -> str:
        """Return the error of the last poll; empty if none."""
        return str(self.browser.execute_script(_ERROR))

    def table(self, name: str) -> dict[str, dict[str, str]]:
        """Return the rows of a table by their first cell; of columns with the same title, the first."""
        rows: list[list[list[str]]] = self.browser.execute_script(_ROWS, name)
        return {row[0][1]: dict(map(tuple, reversed(row[1:]))) for row in rows}

    def tiles(self) -> dict[str, str]:
        """Return the visible figures by title."""
        tiles: dict[str, str] = self.browser.execute_script(_TILES)
        return tiles

    def files(self) -> dict[str, str]:
        """Return the addresses of report, files and list of runs, by text of the link."""
        return dict(map(tuple, self.browser.execute_script(_LINKS)))

    def limits_above(self, title: str) -> str:
        """Return the words at the upper edge of a chart on limits above its axis."""
        return str(self.browser.execute_script(_ABOVE, title))

    def key(self) -> list[str]:
        """Return the texts of the key to marks and limits."""
        texts: list[str] = self.browser.execute_script(_KEY)
        return texts

    def column(self, name: str) -> list[float | None]:
        """Return the points of a series; [None] before its first value."""
        points: list[float | None] = self.document()["series"]["points"]["columns"].get(name)
        return points or [None]

    def document(self, query: str = "") -> Any:
        """Return the polled document."""
        return self.browser.execute_async_script(
            "const done = arguments[1]; fetch(arguments[0]).then(answer => answer.json()).then(done)",
            f"{self.url}inferload/live{query}",
        )

    # -- actions

    def begin(self, users: int) -> None:
        """Start a run with all users at once."""
        self.fill(userCount=str(users), spawnRate=str(users))
        self.submit()

    def open_tab(self) -> None:
        """Select the tab."""
        xpath = "//button[@role='tab'][normalize-space()='Inference']"
        self.until(lambda: self.browser.find_elements(By.XPATH, xpath), "the tab")
        self.click(xpath)
        self.until(self.badge, "the live view")

    def open_alone(self) -> None:
        """Open /inference."""
        self.browser.get(f"{self.url}inference")
        self.until(self.badge, "the live view")

    def open_runs(self) -> None:
        """Open the list of runs."""
        self.browser.get(f"{self.url}inferload/runs")

    def steer(self, button: str, **fields: str) -> None:
        """Fill fields of the steering panel, and press a button of it."""
        xpath = f"//*[@id='inferload-live']//button[normalize-space()='{button}']"
        (pressed,) = self.until(lambda: self.browser.find_elements(By.XPATH, xpath), f"the button {button}")
        for name, text in fields.items():
            field = self.browser.find_element(By.NAME, name.replace("_", "-"))
            self.until(field.is_displayed, f"the field {name}")
            field.clear()
            field.send_keys(text)
        self.until(lambda: pressed.is_displayed() and pressed.is_enabled(), f"the button {button}")
        self.click(xpath)

    def follow(self, text: str) -> None:
        """Click a link of the view to the report, a file or the list of runs."""
        self.click(f"//nav[@aria-label='Report and runs']/a[text()='{text}']")


@contextlib.contextmanager
def pages(browser: Browser, folder: Path) -> Iterator[OpenPage]:
    """A factory of opened pages of new Locusts with runs in `folder`; at the end no console has complained, and no other host was
    requested."""
    processes: list[locust_process.LocustProcess] = []
    urls: list[str] = []

    def start(*options: str, locustfile: Path | None = None) -> LivePage:
        port = unused_port()
        web = ("--web-host", "127.0.0.1", "--web-port", str(port), "--run-dir", str(folder / "run"))
        processes.append(locust_process.start(*web, *options, cwd=folder, locustfile=locustfile))
        processes[-1].wait_for_line("Starting web interface")
        chromium.complaints(browser)
        chromium.requests(browser)
        urls.append(f"http://127.0.0.1:{port}/")
        page = LivePage(browser, urls[-1])
        page.open()
        return page

    try:
        yield start
        complaints, requests = chromium.complaints(browser), chromium.requests(browser)
    finally:
        browser.get("about:blank")
        for process in processes:
            process.kill()
    assert complaints == []
    assert [url for url in requests if not url.startswith((*urls, "data:", "blob:", "chrome:", "about:"))] == []


def ended(page: LivePage, run_dir: Path) -> dict[str, Any]:
    """Return the summary, once the view displays the outcome."""
    page.until((run_dir / "summary.json").is_file, "the summary")
    summary = locust_process.summary_of(run_dir)
    state = summary["outcome"]["state"]
    page.until(lambda: page.badge() == [state, state.capitalize()], "the outcome")
    return summary


# -- figures against summary.json


def assert_figures(page: LivePage, summary: dict[str, Any]) -> None:
    """Compare tables, tiles and points with a summary."""
    assert page.error() == ""
    rows = page.table("By class")
    parts = {"All (measure)": summary, **summary["by_class"]}
    assert rows.keys() == parts.keys()
    for name, part in parts.items():
        counts = {
            key: int(rows[name][key.capitalize()].replace(",", "")) for key in ("ok", "failed", "unfinished", "turns")
        }
        assert counts == {key: part["turns"]["sent" if key == "turns" else key] for key in counts}
        _assert_close(rows[name], part, FIGURES)
    _assert_close(page.tiles(), summary, TILES)
    document = page.document()
    columns = document["series"]["points"]["columns"]
    failed = sum(value or 0 for name, values in columns.items() if name.startswith("failed:") for value in values)
    counts = summary["turns"]["by_phase"]["all"]
    assert failed == counts["failed"] == document["turns"]["failed"]
    assert document["turns"]["sent"] == counts["sent"]


def _assert_close(shown: dict[str, str], part: dict[str, Any], paths: dict[str, tuple[str, ...]]) -> None:
    for title, path in paths.items():
        value = functools.reduce(lambda inner, key: inner[key], path, part)
        number = None if shown[title] == UNKNOWN else float(shown[title].replace(",", ""))
        assert number == (None if value is None else pytest.approx(value, rel=THREE_DIGITS)), title


def assert_filtered(page: LivePage, class_name: str, summary: dict[str, Any]) -> None:
    """Select a class of an ended run, compare its figures, and select all classes again."""
    select = Select(page.browser.find_element(By.NAME, "il-class"))
    whole, part = page.tiles(), summary["by_class"][class_name]
    select.select_by_value(class_name)
    page.until(lambda: page.tiles() != whole, f"the figures of {class_name}")
    _assert_close(page.tiles(), part, TILES)
    page.until(page.all_drawn, f"the charts of {class_name}")
    select.select_by_value("")
    page.until(lambda: page.tiles() == whole, "the figures of all classes")


# -- the walk


@dataclass(frozen=True)
class Levels:
    """Users of a walk: at the start, after a step, after a ramp, and as the goal of a ramp that the stop ends."""

    first: int = 5
    raised: int = 10
    ramped: int = 15
    last: int = 150


def walk(
    page: LivePage, folder: Path, scenario: str, levels: Levels = Levels(), watched: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Choose a scenario, and start, watch, steer and stop a run. Return its summary. `watched`: called during the run."""
    page.choose(scenario)
    page.begin(levels.first)
    _drawn_in_time(page)
    before, after = page.browser.execute_script(_STOP_PLACES)
    assert before == after, "texts do not move the button that stops the run"
    _steered(page, levels)
    if watched is not None:
        watched()
    page.steer("Stop run")
    summary = ended(page, folder / "run")
    _ended_view(page, folder / "run", summary)
    return summary


def walk_on(page: LivePage, folder: Path, summary: dict[str, Any], repeated: Callable[[], None] | None = None) -> None:
    """After a walk: open the view alone, read the report, repeat the run, and compare both. `repeated`: called after the second
    run, in the tab."""
    page.open_alone()
    page.until(page.all_drawn, "the charts of the ended run")
    _ended_view(page, folder / "run", summary)
    _report(page, summary)
    repeat(page, folder / "run-2")
    if repeated is not None:
        repeated()
    _compared(page)


def _drawn_in_time(page: LivePage) -> None:
    """Open the tab; each chart has a line within seconds of its first value, apart from a pause of the page and a slow poll."""
    page.browser.execute_script(_RECORD, len(CHARTS))
    page.open_tab()
    page.until(page.all_drawn, "lines in all charts")
    page.until(lambda: _drawn_times(page)["charts"].keys() >= CHARTS.keys(), "the time of each line")
    times = _drawn_times(page)
    assert statistics.median(times["polls"]) < 0.5
    within_s = DRAWN_WITHIN_S + times["pause"] + max(times["polls"])
    document = page.document()
    points, start_s = document["series"]["points"], document["run"]["start_s"]
    for title, names in CHARTS.items():
        columns = [points["columns"][name] for name in names if name in points["columns"]]
        known_s = [t for values in columns for t, value in zip(points["t"], values, strict=True) if value is not None]
        first_s = start_s + min(known_s)
        assert times["charts"][title] - max(first_s, times["shown"]) < within_s, title


def _drawn_times(page: LivePage) -> dict[str, Any]:
    """Return the times that _RECORD has recorded so far (s since 1970), the longest pause and the durations of the polls (s)."""
    times: dict[str, Any] = page.browser.execute_script(_DRAWN_TIMES)
    return times


def _steered(page: LivePage, levels: Levels) -> None:
    """Raise the users, end a ramp, and begin another."""
    page.until(lambda: page.header("Users") == str(levels.first), "the first users")
    page.steer("Set users", il_level=str(levels.raised))
    page.until(lambda: page.header("Users") == str(levels.raised), "the raised users")
    mark = f"users changed by hand: {levels.first} -> {levels.raised}"
    page.until(lambda: page.load_mark() == mark, "the mark")
    page.steer("Ramp", il_ramp_to=str(levels.ramped), il_ramp_over="2s")
    page.until(lambda: page.load_mark() == f"ramp by hand ended at {levels.ramped} users", "the end of the ramp")
    page.until(lambda: page.header("Users") == str(levels.ramped), "the users of the ramp")
    page.steer("Ramp", il_ramp_to=str(levels.last), il_ramp_over="10m")
    page.until(lambda: page.load_mark().startswith(f"ramp by hand: {levels.ramped} -> "), "the second ramp")


def _ended_view(page: LivePage, run_dir: Path, summary: dict[str, Any]) -> None:
    """Badge, figures and marks of an ended run are those of its files."""
    page.until(
        lambda: page.badge() == [summary["outcome"]["state"], summary["outcome"]["state"].capitalize()], "the outcome"
    )
    assert_figures(page, summary)
    recorded = [json.loads(line)["text"] for line in (run_dir / "marks.jsonl").read_text().splitlines()]
    assert sorted(page.marks()) == sorted(recorded)
    stopped = recorded.index("stopped by the web UI")
    assert [text for text in recorded[stopped:] if text.startswith("ramp by hand ended with the load at ")] != []
    folder = f"{page.url}inferload/runs/{quote(run_dir.name)}"
    files = {text: url for text, url in page.files().items() if text not in ("Runs", "Locust")}
    assert files.pop("Report") == f"{folder}/report.html"
    assert files == {name: f"{folder}/{name}" for name in ("summary.json", "timeline.csv", "turns.zip", "run.zip")}


def _report(page: LivePage, summary: dict[str, Any]) -> None:
    with chromium.without_charts(page.browser):
        page.follow("Report")
        page.until(lambda: page.browser.title.startswith(summary["outcome"]["headline"]), "the report")
    page.browser.back()
    page.until(page.badge, "the live view")


def repeat(page: LivePage, run_dir: Path) -> None:
    """Repeat the run from the list with a new seed, and stop it once turns of each class have ended and every chart has a line."""
    over = page.badge()
    page.follow("Runs")
    page.click("//button[@aria-label='rerun run']")
    page.click("//button[@aria-label='rerun run with a new seed']")
    page.until(lambda: page.browser.current_url == page.url, "Locust's page")
    page.open_tab()
    page.until(lambda: page.badge() != over, "the second run")
    page.until(lambda: has_turns_of_all_classes(page) and page.all_drawn(), "turns and charts of the second run")
    page.steer("Stop run")
    ended(page, run_dir)


def has_turns_of_all_classes(page: LivePage) -> bool:
    """Return True if two turns of each class have ended."""
    rows = page.table("By class").values()
    return bool(rows) and all(row["Ok"] not in (UNKNOWN, "0", "1") for row in rows)


def _compared(page: LivePage) -> None:
    page.follow("Runs")
    page.click("//input[@aria-label='run as baseline']")
    page.click("//input[@aria-label='run-2 as candidate']")
    with chromium.without_charts(page.browser):
        page.click("//form[@id='compare']//button")
        page.until(lambda: page.browser.title.endswith(": comparison"), "the comparison")
    assert "run-2 against run" in page.browser.find_element(By.TAG_NAME, "main").text
