"""The live view in a real browser: a run is started from the form, watched, steered and stopped; figures equal the summary's."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chromium
import locust_process
import pytest
from chromium import Browser
from locust_page import LocustPage
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from simulator_process import Simulator

pytestmark = pytest.mark.browser

SCRIPT = "<script>document.title='owned'</script>"
SIX = ("ttft_p50", "itl_p99", "e2e_p95", "offered", "in_flight", "output_tok")  # one column of each chart of the client
CHARTS = """
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
return [...document.querySelectorAll('.il-chart')].filter(chart => !chart.hidden).map(chart => ({
  title: chart.querySelector('.il-chart-title').textContent,
  points: Number(chart.dataset.points || 0),
  label: chart.querySelector('.il-canvas').getAttribute('aria-label') || '',
  inked: [...chart.querySelectorAll('canvas')].some(inked),
}))
"""
MARKS = "return [...document.querySelectorAll('.il-marks li span')].map(item => item.textContent)"
BADGE = (
    "const badge = document.querySelector('.il-badge'); return badge ? [badge.dataset.state, badge.textContent] : null"
)
ERROR = "const line = document.querySelector('.il-error'); return line.hidden ? '' : line.textContent"
REASONS = "return [...document.querySelectorAll('.il-reasons li')].map(item => item.textContent)"
ROWS = """
return [...document.querySelectorAll('table[aria-label="By class"] tr')].map(row => [...row.cells].map(cell => cell.textContent))
"""


class LivePage(LocustPage):
    """The tab "Inference" of Locust's page, or the page /inference."""

    def open_tab(self) -> None:
        """Select the tab as a person does."""
        xpath = "//button[@role='tab'][normalize-space()='Inference']"
        self.until(lambda: self.browser.find_elements(By.XPATH, xpath), "the tab")
        self.click(xpath)
        self.until(self.badge, "the live view")

    def open_alone(self) -> None:
        """Open /inference."""
        self.browser.get(f"{self.url}inference")
        self.until(self.badge, "the live view")

    def charts(self) -> dict[str, dict[str, Any]]:
        """The visible charts by title."""
        return {chart["title"]: chart for chart in self.browser.execute_script(CHARTS)}

    def badge(self) -> list[str] | None:
        """State and text of the badge."""
        badge: list[str] | None = self.browser.execute_script(BADGE)
        return badge

    def marks(self) -> list[str]:
        """Texts of the marks, the newest first."""
        texts: list[str] = self.browser.execute_script(MARKS)
        return texts

    def classes(self) -> dict[str, dict[str, str]]:
        """The first six columns of the table by class."""
        head, *rows = self.browser.execute_script(ROWS)
        return {row[0]: dict(zip(head[1:6], row[1:6], strict=True)) for row in rows}

    def steer(self, button: str, **fields: str) -> None:
        """Fill fields of the steering panel, and press a button of it."""
        for name, text in fields.items():
            field = self.browser.find_element(By.NAME, name.replace("_", "-"))
            field.clear()
            field.send_keys(text)
        xpath = f"//form[@aria-label='Steer the load']//button[normalize-space()='{button}']"
        self.until(self.browser.find_element(By.XPATH, xpath).is_enabled, f"the button {button}")
        self.click(xpath)

    def column(self, name: str) -> list[float | None]:
        """The points of a series; [None] before its first value."""
        points: list[float | None] = self.document()["series"]["points"]["columns"].get(name)
        return points or [None]

    def document(self, query: str = "") -> Any:
        """The polled document."""
        return self.browser.execute_async_script(
            "const done = arguments[1]; fetch(arguments[0]).then(answer => answer.json()).then(done)",
            f"/inferload/live{query}",
        )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium.running(tmp_path_factory.mktemp("profile"), 1280, 720) as started:
        yield started


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., LivePage]]:
    """A factory of pages of a new Locust; at the end no console has complained, and no other host was asked."""
    started: list[locust_process.LocustProcess] = []
    urls: list[str] = []

    def start(*options: str, locustfile: Path | None = None) -> LivePage:
        port = locust_process.free_port()
        web = ("--web-host", "127.0.0.1", "--web-port", str(port), "--run-dir", str(tmp_path / "run"))
        started.append(locust_process.start(*web, *options, cwd=tmp_path, locustfile=locustfile))
        started[-1].wait_for_line("Starting web interface")
        chromium.complaints(browser)
        chromium.requests(browser)
        urls.append(f"http://127.0.0.1:{port}/")
        page = LivePage(browser, urls[-1])
        page.open()
        return page

    yield start
    complaints, requests = chromium.complaints(browser), chromium.requests(browser)
    browser.get("about:blank")
    for each in started:
        each.kill()
    assert complaints == []
    assert [url for url in requests if not url.startswith((*urls, "data:", "blob:", "chrome:", "about:"))] == []


def begin(page: LivePage, users: int) -> None:
    page.fill(userCount=str(users), spawnRate=str(users))
    page.submit()
    page.until(lambda: page.header("Users") == str(users), "the users")


def ended(page: LivePage, run_dir: Path) -> dict[str, Any]:
    """The summary, once the view shows the outcome."""
    page.until((run_dir / "summary.json").is_file, "the summary")
    summary = locust_process.summary_of(run_dir)
    state = summary["outcome"]["state"]
    page.until(lambda: page.badge() == [state, state], "the outcome")
    return summary


def assert_totals(page: LivePage, summary: dict[str, Any]) -> None:
    """The table's counts are the summary's, and the points' failures add up to its failed turns."""
    assert page.browser.execute_script(ERROR) == ""
    rows = page.classes()
    for name, part in (("all (measure)", summary), *summary["by_class"].items()):
        turns = part["turns"]
        shown = {key: int(rows[name][key].replace(",", "")) for key in ("ok", "failed", "unfinished")}
        assert shown == {key: turns[key] for key in ("ok", "failed", "unfinished")}
        assert int(rows[name]["turns"].replace(",", "")) == turns["sent"]
    document = page.document()
    columns = document["series"]["points"]["columns"]
    failed = sum(value or 0 for name, values in columns.items() if name.startswith("failed:") for value in values)
    counts = summary["turns"]["by_phase"]["all"]
    assert failed == counts["failed"] == document["turns"]["failed"]
    assert document["turns"]["sent"] == counts["sent"]


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["local", "two workers"])
def test_a_run_is_watched_and_steered_from_the_tab(
    open_page: Callable[..., LivePage],
    simulator: Callable[..., Simulator],
    tmp_path: Path,
    processes: tuple[str, ...],
) -> None:
    server = simulator("--ttft-ms", "30", "--itl-ms", "5", "--served-model-name", SCRIPT)
    page, run_dir = open_page("--host", server.url, "--scenario", "chat", *processes), tmp_path / "run"
    begin(page, 20)
    page.open_tab()
    page.until(
        lambda: len(charts := page.charts()) == 9 and all(c["points"] and c["inked"] for c in charts.values()),
        "ink in all charts",
    )
    columns = page.document()["series"]["points"]["columns"]
    assert set(SIX) <= set(columns)
    assert "in flight" in page.charts()["Load"]["label"]
    assert page.browser.execute_script(ERROR) == ""
    body = page.browser.find_element(By.ID, "inferload-live").text
    assert "simulator" in body
    assert SCRIPT in body
    assert "owned" not in page.browser.title

    page.steer("Set users", il_level="60")
    page.until(lambda: page.header("Users") == "60", "sixty users")
    page.until(lambda: page.marks()[:1] == ["users changed by hand: 20 -> 60"], "the mark")
    page.steer("Ramp", il_ramp_to="80", il_ramp_over="4s")
    page.until(lambda: "ramp by hand ended at 80 users" in page.marks(), "the end of the ramp")
    page.until(lambda: page.header("Users") == "80", "eighty users")
    page.steer("Ramp", il_ramp_to="300", il_ramp_over="10m")
    page.steer("Hold")
    page.until(lambda: "".join(page.marks()[:1]).startswith("ramp held by hand at 8"), "the hold")
    page.press("Statistics")  # another tab and back
    page.until(lambda: not page.browser.find_elements(By.ID, "inferload-live"), "the end of the view")
    page.until(lambda: "TURN" in page.statistics(), "Locust's own tab")
    page.open_tab()
    page.steer("Stop run")
    summary = ended(page, run_dir)
    assert_totals(page, summary)
    page.open_alone()  # opened late
    page.until(lambda: page.badge() == [summary["outcome"]["state"]] * 2, "the outcome")
    page.until(lambda: all(chart["inked"] for chart in page.charts().values()), "the charts of the ended run")
    assert_totals(page, summary)
    recorded = [json.loads(line)["text"] for line in (run_dir / "marks.jsonl").read_text().splitlines()]
    assert set(page.marks()) == set(recorded)


def test_the_rate_of_an_open_loop_is_steered(
    open_page: Callable[..., LivePage], simulator: Callable[..., Simulator], tmp_path: Path
) -> None:
    page = open_page("--host", simulator("--ttft-ms", "5", "--itl-ms", "1").url, "--scenario", "chat-open")
    page.submit()
    page.until(lambda: page.header("Users") == "2", "the load")
    page.open_alone()
    page.until(lambda: page.document()["steer"], "the steering panel")
    page.steer("Set rate", il_level="8")
    page.until(lambda: page.marks() and page.marks()[0] == "rate changed by hand: 2 -> 8 sessions/s", "the mark")
    page.until(lambda: (page.column("offered")[-1] or 0) > 4, "the higher rate")
    page.steer("Stop run")
    assert_totals(page, ended(page, tmp_path / "run"))


def test_a_failed_run_is_shown_as_failed(
    open_page: Callable[..., LivePage], simulator: Callable[..., Simulator], tmp_path: Path
) -> None:
    server = simulator("--ttft-ms", "5", "--itl-ms", "1")
    page = open_page("--host", server.url, "--scenario", "chat", "--set", "workload.turns=1")
    begin(page, 5)
    page.open_tab()
    page.until(lambda: (page.badge() or [""])[0] == "running", "a run without failures")
    server.chaos(kind="status", status=503, count=100_000)
    page.until(lambda: (page.badge() or [""])[0] == "failing", "the failing run")
    assert "http_5xx" in page.browser.execute_script(REASONS)[0]
    failures = "Failed turns per second (/s)"
    page.until(lambda: "http_5xx" in page.charts().get(failures, {"label": ""})["label"], "the chart of failures")
    page.steer("Stop run")
    summary = ended(page, tmp_path / "run")
    assert summary["outcome"]["state"] == "failed"
    assert_totals(page, summary)


def test_the_form_has_the_scenario_first_and_errors_at_their_field(
    open_page: Callable[..., LivePage], simulator: Callable[..., Simulator], tmp_path: Path
) -> None:
    page = open_page("--host", f"http://127.0.0.1:{locust_process.free_port()}")
    browser = page.browser
    page.until(lambda: page.load_words().startswith("chat: "), "the load of chat")
    first = browser.execute_script("return document.querySelector('form select, form input').id")
    assert first == "inferload-scenario-select"
    Select(browser.find_element(By.ID, first)).select_by_value("smoke")
    page.until(lambda: page.load_values() == ("4", "4", "15s"), "the values of smoke")
    about = browser.find_element(By.ID, "inferload-about").text
    assert about.startswith("Smoke test for pipelines: ")

    def error() -> tuple[str, str | None] | None:
        shown = browser.find_elements(By.ID, "inferload-field-error")
        return (shown[0].text, browser.find_element(By.NAME, "host").get_attribute("aria-invalid")) if shown else None

    page.submit()
    text, invalid = page.until(error, "the error at the field")
    assert "no connection to" in text
    assert invalid == "true"
    page.fill(host=simulator("--ttft-ms", "5", "--itl-ms", "1").url)
    page.until(lambda: error() is None, "the end of the error")
    page.submit()
    page.until(lambda: page.header("Users") == "4", "the run")
    page.press("Stop")
    page.until(lambda: page.has_button("New"), "the end of the run")
    assert not browser.find_elements(By.ID, "inferload-field-error")
