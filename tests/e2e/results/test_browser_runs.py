"""Earlier runs in a real browser: report, list, rerun, comparison of two; on a screen of 1280 and of 390 pixels."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import chromium
import locust_process
import pytest
from chromium import Browser
from locust_page import LocustPage
from selenium.webdriver.common.by import By
from simulator_process import Simulator

from inferload.numbers import short

pytestmark = pytest.mark.browser

LINKS = "#inferload-line a"
ROWS = """
return [...document.querySelectorAll("#runs tbody tr")].map(row =>
  Object.fromEntries([...row.querySelectorAll("[data-name]")].map(cell => [cell.dataset.name, cell.innerText.trim()])))
"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with chromium.running(tmp_path / "profile", 1280, 720) as started:
        yield started


@pytest.fixture
def page(browser: Browser, simulator: Callable[..., Simulator], tmp_path: Path) -> Iterator[LocustPage]:
    """Locust's page of a process whose runs last until they are stopped."""
    port, url = locust_process.free_port(), simulator("--ttft-ms", "20", "--itl-ms", "5").url
    words = ["--host", url, "--scenario", "smoke", "--set", "phases.measure_s=300", "--set", "workload.turns=1"]
    words += ["--web-host", "127.0.0.1", "--web-port", str(port), "--run-dir", str(tmp_path / "runs" / "run")]
    process = locust_process.start(*words, cwd=tmp_path)
    process.wait_for_line("Starting web interface")
    page = LocustPage(browser, f"http://127.0.0.1:{port}/")
    yield page
    browser.get("about:blank")
    process.kill()


def links(page: LocustPage) -> dict[str, str]:
    anchors = page.browser.find_elements(By.CSS_SELECTOR, LINKS)
    return {anchor.text: str(anchor.get_attribute("href")) for anchor in anchors}


def stop(page: LocustPage, run_dir: Path) -> None:
    """Press Stop once turns have ended, and wait for the outcome."""
    page.until(lambda: "ITL" in page.statistics(), "the rows of the turns")
    page.press("Stop")
    page.until(lambda: str(run_dir) in page.line() and " in flight" not in page.line(), f"the end of {run_dir.name}")


def follow(page: LocustPage, label: str) -> None:
    """Click a link of the line at the foot, as a person does: the line itself lets clicks through."""
    link = next(link for link in page.browser.find_elements(By.CSS_SELECTOR, LINKS) if link.text == label)
    link.click()


def test_report_list_rerun_and_comparison(page: LocustPage, browser: Browser, tmp_path: Path) -> None:
    first, second = tmp_path / "runs" / "run", tmp_path / "runs" / "run-2"
    page.open()
    (earlier,) = page.until(lambda: browser.find_elements(By.ID, "inferload-runs"), "the link of the start form")
    assert earlier.get_attribute("href") == f"{page.url}inferload/runs"
    assert links(page) == {}
    page.submit()
    stop(page, first)
    assert links(page) == {
        "report": f"{page.url}inferload/runs/run/report.html",
        "runs": f"{page.url}inferload/runs",
    }
    follow(page, "report")
    headline = locust_process.summary_of(first)["outcome"]["headline"]
    page.until(lambda: browser.title.startswith(headline), "the report")
    assert browser.current_url.endswith("/runs/run/report.html")

    browser.back()
    page.until(lambda: links(page), "the line")
    follow(page, "runs")
    page.until(lambda: len(browser.execute_script(ROWS)) == 1, "the list of one run")
    browser.find_element(By.CSS_SELECTOR, "button[aria-label='rerun run with a new seed']").click()
    page.until(lambda: browser.current_url == page.url, "Locust's page")
    page.until(lambda: str(second) in page.line(), "the second run")
    page.until(lambda: page.header("Users") == "4", "the users of the second run")
    browser.get(f"{page.url}inferload/runs")
    assert "under way" in browser.find_element(By.TAG_NAME, "main").text
    browser.back()
    stop(page, second)
    manifests = [json.loads((path / "run.json").read_text()) for path in (first, second)]
    assert manifests[0]["seed"] != manifests[1]["seed"]
    texts = [manifest["scenario"]["text"].replace(f"seed: {manifest['seed']}", "") for manifest in manifests]
    assert texts[0] == texts[1]

    follow(page, "runs")
    rows = page.until(lambda: browser.execute_script(ROWS), "the list")
    for path, row in zip((second, first), rows, strict=True):
        summary = locust_process.summary_of(path)
        latency, turns = summary["latency"], summary["turns"]["by_phase"]["all"]
        shown = {name: text.strip("()").removesuffix(" ~") for name, text in row.items()}
        assert shown == {
            "TTFT p50, ms": short(latency["ttft_ms"]["p50"]),
            "TTFT p99, ms": short(latency["ttft_ms"]["p99"]),
            "ITL p50, ms": short(latency["itl_ms"]["p50"]),
            "ITL p99, ms": short(latency["itl_ms"]["p99"]),
            "output tok/s": short(summary["rates"]["output_tok_per_s"]),
            "failed turns": str(turns["failed"]),
        }
    assert browser.execute_script(OVERFLOW) == 0
    browser.save_screenshot(str(tmp_path / "runs-1280.png"))
    browser.set_window_size(500, 844)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    assert browser.execute_script("return innerWidth") == 390
    assert browser.execute_script(OVERFLOW) == 0
    browser.save_screenshot(str(tmp_path / "runs-390.png"))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.set_window_size(1280, 720)

    browser.find_element(By.CSS_SELECTOR, "input[aria-label='run as baseline']").click()
    browser.find_element(By.CSS_SELECTOR, "input[aria-label='run-2 as candidate']").click()
    browser.find_element(By.CSS_SELECTOR, "#compare button").click()
    page.until(lambda: browser.title == "smoke: comparison", "the comparison")
    text = browser.find_element(By.TAG_NAME, "main").text
    assert "run-2 against run" in text

    assert chromium.complaints(browser) == []
    hosts = {urlsplit(url).netloc for url in chromium.requests(browser) if url.startswith("http")}
    assert hosts == {urlsplit(page.url).netloc}
