"""The web UI in a browser: what reports of other machines, and pages of other origins, get of it."""

from pathlib import Path

import chromium
import pytest
import synthetic_run as synthetic
from inferload.analysis.report import report
from live_page import LivePage, OpenPage

from inferload.base import rundir
from inferload.results.open_run import OpenRun

pytestmark = pytest.mark.browser

PNG_END = b"IEND\xaeB`\x82"  # the last bytes of a complete file
# Sets the title to what a script of a page gets of the web UI at `base`.
TRIES = """<!doctype html><title>waiting</title><a id="link" href="%(base)sinferload/runs">runs</a><script>
const got = [], base = "%(base)s";
const tried = (name, promise) => promise.then(() => got.push(name), () => {});
const text = (path, options) => fetch(base + path, options).then(answer => answer.text());
const element = (kind, path) => tried(kind, new Promise((resolve, reject) => {
  const made = document.body.appendChild(Object.assign(document.createElement(kind), {src: base + path}));
  Object.assign(made, {onload: resolve, onerror: reject});
}));
addEventListener("load", async () => {
  await Promise.all([
    ...["logs", "stats/requests", "inferload/status"].map(path => tried(path, text(path))),
    ...["stop", "stats/reset"].map(path => tried(path, text(path, {method: "POST"}))),
    element("script", "inferload/run_line.js"), element("img", "assets/favicon-light.png"),
  ]);
  try { localStorage.setItem("a", "b"); if (location.protocol !== "file:") got.push("storage"); } catch (error) { /* refused */ }
  document.title = "got:" + got.join(", ");
});
</script>
"""


def test_reports_and_pages_of_other_origins_reach_nothing(open_page: OpenPage, tmp_path: Path) -> None:
    report.make(OpenRun(synthetic.write(tmp_path / "good")))
    synthetic.write(tmp_path / "foreign")
    page = open_page("--host", "http://127.0.0.1:1")
    (tmp_path / "foreign" / rundir.REPORT_HTML).write_text(TRIES % {"base": page.url})
    draws_and_saves(page, tmp_path)
    other = tmp_path / "other.html"
    other.write_text(TRIES % {"base": page.url})
    for address in (f"{page.url}inferload/runs/foreign/report.html", other.as_uri()):
        page.browser.get(address)
        page.until(lambda: page.browser.title != "waiting", "the end of the script")
        assert page.browser.title == "got:"
        page.browser.find_element("id", "link").click()
        page.until(lambda: page.browser.title == "Runs", "the page of the link")
        chromium.complaints(page.browser)  # on the refused requests
        chromium.requests(page.browser)
    page.open()


def draws_and_saves(page: LivePage, folder: Path) -> None:
    """On a phone in dark colours, the web UI's report of a run draws its charts and saves one."""
    browser = page.browser
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    chromium.show_as(browser, 390, 844, "dark")
    browser.get(f"{page.url}inferload/runs/good/report.html")
    page.until(lambda: chromium.is_drawn(browser), "the charts")
    assert browser.execute_script(chromium.CONTENT_WIDTH) <= 390
    browser.find_element("id", "theme").click()
    button = browser.find_elements("css selector", "button.png")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    page.until(lambda: any(file.read_bytes().endswith(PNG_END) for file in folder.glob("*.png")), "the saved chart")
    chromium.show_as_started(browser)
    assert chromium.complaints(browser) == []
