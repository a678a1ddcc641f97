"""The live view in a real browser: runs are started from the form, watched, steered, stopped, read, repeated and compared."""

import json
from collections.abc import Callable
from pathlib import Path

import live_page
import locust_process
import pytest
import screens
from chromium import Browser
from live_page import LivePage, OpenPage
from selenium.webdriver.common.by import By
from simulator_process import Simulator

from inferload.base.numbers import short

pytestmark = pytest.mark.browser

SCRIPT = "<script>document.title='owned'</script>"
PACE = ("--ttft-ms", "30", "--itl-ms", "40")
# Own tasks of two classes of turns, and a user of another kind.
TASKS = """
from locust import HttpUser, between, task
from inferload.users import InferenceUser


class Support(InferenceUser):
    wait_time = between(1, 2)
    weight = 9

    @task
    def ask(self):
        self.chat("How do I reset my password?", max_tokens=8)

    @task
    def talk(self):
        with self.conversation(max_tokens=20) as chat:
            for question in ("What is TLS?", "And mTLS?"):
                chat.ask(question)


class Reader(HttpUser):
    wait_time = between(1, 2)

    @task
    def models(self):
        self.client.get("/v1/models")
"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
LIST = """
return [...document.querySelectorAll("#runs tbody tr")].map(row =>
  Object.fromEntries([...row.querySelectorAll("[data-name]")].map(cell => [cell.dataset.name, cell.innerText.trim()])))
"""
REASONS = "return [...document.querySelectorAll('.il-reasons li')].map(item => item.textContent)"
CLASSES_BEFORE_CHARTS = """
const [classes, chart] = ['.il-classes', '.il-chart'].map(name => document.querySelector(name).getBoundingClientRect());
return classes.height > 0 && classes.bottom <= chart.top;
"""
FAILURES = """
return [...document.querySelectorAll('table tbody tr')].reduce((sum, row) => sum + Number(row.cells[0].innerText), 0)
"""
LINE_LINKS = "return [...document.querySelectorAll('#inferload-line a')].map(link => [link.textContent, link.href])"
# Of the elements in the middle of the line and of its first link: the line lets clicks through to the page.
LINE_TAKES_CLICKS = """
const line = document.getElementById('inferload-line');
return [line, line.querySelector('a')].map(node => {
  const {left, top, width, height} = node.getBoundingClientRect();
  return node.contains(document.elementFromPoint(left + width / 2, top + height / 2));
});
"""
DOWNLOADS = """
const done = arguments[0];
const links = [...document.querySelectorAll('.MuiContainer-root a[href]')].filter(link => link.textContent.startsWith('Download'));
const text = async link => [link.textContent, await fetch(link.href).then(answer => answer.ok ? answer.text() : null)];
Promise.all(links.map(text)).then(done);
"""


def test_a_run_of_two_workers_is_watched_beside_locusts_tabs(
    open_page: OpenPage, simulator: Callable[..., Simulator], tmp_path: Path
) -> None:
    server = simulator(*PACE, "--served-model-name", SCRIPT)
    page = open_page("--host", server.url, "--set", "workload.output_tokens=20", "--processes", "2")
    (earlier,) = page.until(lambda: page.browser.find_elements(By.ID, "inferload-runs"), "the link of the start form")
    assert earlier.get_attribute("href") == f"{page.url}inferload/runs"
    assert page.browser.execute_script(LINE_LINKS) == []

    def watched() -> None:
        view = page.browser.find_element(By.ID, "inferload-live").text
        assert "Simulator" in view
        assert SCRIPT in view
        assert_locusts_tabs_work(page)
        page.open_tab()
        assert_under_way_in_the_list(page)

    def repeated() -> None:
        assert dict(page.until(lambda: links_of_line_to(page, "run-2"), "the links of the line")) == {
            "report": f"{page.url}inferload/runs/run-2/report.html",
            "runs": f"{page.url}inferload/runs",
        }
        assert page.browser.execute_script(LINE_TAKES_CLICKS) == [False, True]

    live_page.walk_on(page, tmp_path, live_page.walk(page, tmp_path, "chat", watched=watched), repeated)
    assert "owned" not in page.browser.title
    first, second = tmp_path / "run", tmp_path / "run-2"
    manifests = [json.loads((path / "run.json").read_text()) for path in (first, second)]
    assert manifests[0]["seed"] != manifests[1]["seed"]
    texts = [manifest["scenario"]["text"].replace(f"seed: {manifest['seed']}", "") for manifest in manifests]
    assert texts[0] == texts[1]
    page.open_runs()
    assert_listed(page, [second, first])
    assert_fits_a_phone(page.browser)


def links_of_line_to(page: LivePage, run: str) -> list[list[str]]:
    """Return texts and addresses of the links in the line, once the first is to this run; empty before."""
    links: list[list[str]] = page.browser.execute_script(LINE_LINKS)
    return links if links and f"/{run}/" in links[0][1] else []


def assert_locusts_tabs_work(page: LivePage) -> None:
    """Statistics, charts, failures, ratio, downloads and log of a run with turns."""
    page.press("Statistics")
    page.until(lambda: not page.browser.find_elements(By.ID, "inferload-live"), "the end of the view")
    page.until(lambda: {"TURN", "TTFT", "ITL"} <= page.statistics().keys(), "the rows of the turns")
    page.press("Charts")
    page.until(lambda: len(page.browser.find_elements(By.TAG_NAME, "canvas")) == 3, "Locust's charts")
    page.press("Failures")
    page.until(lambda: "# Failures" in body(page), "the table of failures")
    page.press("Current Ratio")
    page.until(lambda: "100.0% ChatUser" in body(page), "the ratio")
    page.press("Logs")
    page.until(lambda: "run directory: " in body(page), "the log")
    page.press("Download Data")
    page.until(lambda: "Download Report" in body(page), "the downloads")
    texts = dict(page.browser.execute_async_script(DOWNLOADS))
    assert texts["Download requests CSV"].startswith("Type,Name,Request Count,")
    assert "\nTURN,chat," in texts["Download requests CSV"].replace("\r", "")
    assert texts["Download failures CSV"].startswith("Method,Name,Error,")
    assert texts["Download exceptions CSV"].startswith("Count,Message,")
    assert "<html" in texts["Download Report"]


def body(page: LivePage) -> str:
    return page.browser.find_element(By.TAG_NAME, "body").text


def test_own_tasks_are_watched(open_page: OpenPage, simulator: Callable[..., Simulator], tmp_path: Path) -> None:
    locustfile = tmp_path / "mine.py"
    locustfile.write_text(TASKS)
    page = open_page("--host", simulator(*PACE).url, "--gate", "p95(ttft_ms) < 90000", locustfile=locustfile)
    page.choose("locustfile")
    page.begin(10)
    page.open_tab()
    page.until(lambda: int(page.table("Other requests").get("GET /v1/models", {}).get("Sent", 0)), "other requests")
    page.until(lambda: page.table("By class").keys() == {"All (measure)", "ask", "talk"}, "turns of both classes")
    page.steer("Set users", il_level="12")
    page.until(lambda: page.load_mark() == "users changed by hand: 10 -> 12", "the mark")
    page.until(lambda: live_page.has_turns_of_all_classes(page) and page.all_drawn(), "lines in all charts")
    assert page.limits_above("TTFT, ms") == "↑ limit 90,000"
    assert page.key() == ["Phase or step", "▲ Change of the load", "Limit of SLO or gate (↑ above the axis)"]
    assert page.browser.execute_script(CLASSES_BEFORE_CHARTS)
    assert screens.findings(page.browser, screens.WIDTHS[:1], screens.LOCUST_ALONE) == {}
    page.steer("Stop run")
    summary = live_page.ended(page, tmp_path / "run")
    live_page.assert_figures(page, summary)
    live_page.assert_filtered(page, "talk", summary)


def assert_under_way_in_the_list(page: LivePage) -> None:
    page.open_runs()
    assert "under way" in page.browser.find_element(By.TAG_NAME, "main").text
    page.browser.back()
    page.until(page.badge, "the live view")


def assert_listed(page: LivePage, run_dirs: list[Path]) -> None:
    """Compare the figures of the list with the summaries."""
    rows = page.until(lambda: page.browser.execute_script(LIST), "the list")
    for path, row in zip(run_dirs, rows, strict=True):
        summary = locust_process.summary_of(path)
        latency, turns = summary["latency"], summary["turns"]["by_phase"]["all"]
        shown = {name: text.strip("()").removesuffix(" ~") for name, text in row.items()}
        assert shown == {
            "TTFT p50, ms": short(latency["ttft_ms"]["p50"]),
            "TTFT p95, ms": short(latency["ttft_ms"]["p95"]),
            "TTFT p99, ms": short(latency["ttft_ms"]["p99"]),
            "ITL p50, ms": short(latency["itl_ms"]["p50"]),
            "ITL p99, ms": short(latency["itl_ms"]["p99"]),
            "output tok/s": short(summary["rates"]["output_tok_per_s"]),
            "failed turns": str(turns["failed"]),
        }


def assert_fits_a_phone(browser: Browser) -> None:
    """The open page needs no horizontal scrolling with 1280 and with 390 pixels."""
    assert browser.execute_script(OVERFLOW) == 0
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        assert browser.execute_script("return innerWidth") == 390
        assert browser.execute_script(OVERFLOW) == 0
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_steered_open_loop_that_fails_is_shown_as_failed(
    open_page: OpenPage, simulator: Callable[..., Simulator], tmp_path: Path
) -> None:
    server = simulator("--ttft-ms", "5", "--itl-ms", "1")
    settings = ("workload.turns=1", "workload.output_tokens=20", "gates=[]")
    page = open_page(
        "--host", server.url, "--scenario", "chat-open", *(word for text in settings for word in ("--set", text))
    )
    page.until(lambda: page.load_words().startswith("chat-open: "), "the load of the scenario in the form")
    page.submit()
    page.until(lambda: page.header("Users") == "2", "the load")
    page.open_tab()
    page.steer("Set rate", il_level="8")
    page.until(lambda: page.load_mark() == "rate changed by hand: 2 -> 8 sessions/s", "the mark")
    page.until(lambda: (page.column("offered_sessions_per_s")[-1] or 0) > 4, "the higher rate")
    page.steer("Ramp", il_ramp_to="100", il_ramp_over="10m")
    page.steer("Hold")
    page.until(lambda: page.load_mark().startswith("ramp held by hand at 8"), "the hold")
    page.until(lambda: (page.badge() or [""])[0] in ("running", "doubtful"), "a run without failures")
    server.chaos(kind="status", status=503, count=100_000)
    page.until(lambda: (page.badge() or [""])[0] == "failing", "the failing run")
    assert "http_5xx" in page.browser.execute_script(REASONS)[0]
    failures = "Failed turns, /s"
    page.until(lambda: "http_5xx" in page.labels().get(failures, ""), "the chart of failures")
    assert screens.findings(page.browser, screens.WIDTHS[:1], screens.LOCUST_ALONE) == {}
    page.steer("Stop run")
    summary = live_page.ended(page, tmp_path / "run")
    assert summary["outcome"]["state"] == "failed"
    live_page.assert_figures(page, summary)
    page.press("Failures")
    failed = summary["turns"]["by_phase"]["all"]["failed"]
    page.until(lambda: page.browser.execute_script(FAILURES) == failed, "the failures")
