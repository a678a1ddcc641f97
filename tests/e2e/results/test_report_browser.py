"""The report's page in a real browser: charts are drawn and saved within its content security policy."""

import copy
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import chromium
import pytest
import run_kinds
import screens
import synthetic_run as synthetic
from chromium import Browser
from inferload.analysis.report import report
from locust_page import LocustPage
from small_study import STUDY

from inferload import cli
from inferload.results.open_run import OpenRun

pytestmark = pytest.mark.browser

PNG_END = b"IEND\xaeB`\x82"  # the last bytes of a complete file
CHARTS = ["over-time", "spectrum", "where-from", "prompts", "itl-heat", "lanes"]
DRAWN = "return [...document.querySelectorAll('.plot')].filter(plot => plot.layout).map(plot => plot.dataset.picture)"
OPEN = "return [...document.querySelectorAll('details[open]')].map(group => group.id || group.parentElement.id)"
GROUPS = ["load-and-latency", "server", "client-side", "raw"]
OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true; })"
ALL_DRAWN = "return [...document.querySelectorAll('.plot')].every(plot => plot.layout)"
SIZES = "return [...document.querySelectorAll('.plot')].map(plot => [plot.clientWidth, plot.clientHeight])"


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> LocustPage:
    """The report of a synthetic run, its charts drawn."""
    made = report.make(OpenRun(synthetic.write(tmp_path_factory.mktemp("runs") / "run")))
    chromium.complaints(browser)
    chromium.requests(browser)
    opened = LocustPage(browser, made.html.as_uri())
    browser.get(opened.url)
    opened.until(lambda: chromium.is_drawn(browser), "the charts")
    assert browser.execute_script(chromium.CONTENT_WIDTH) <= 1280
    return opened


def test_all_is_open_and_drawn_on_paper(page: LocustPage) -> None:
    browser = page.browser
    assert (browser.execute_script(OPEN), browser.execute_script(DRAWN)) == ([], CHARTS[:1])
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")  # a browser prints when its listeners return
    assert (browser.execute_script(OPEN), browser.execute_script(DRAWN)) == ([*GROUPS, "definitions"], CHARTS)
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(OPEN) == []


def test_a_group_opens_by_a_click_or_a_link_and_is_drawn_then(page: LocustPage) -> None:
    browser = page.browser
    browser.refresh()
    page.until(lambda: chromium.is_drawn(browser), "the charts")
    assert browser.execute_script(DRAWN) == CHARTS[:1]
    browser.find_element("css selector", "#load-and-latency > summary").click()
    page.until(lambda: browser.execute_script(DRAWN) == CHARTS, "the charts of the group")
    browser.execute_script("location.hash = '#servers'")
    page.until(lambda: browser.execute_script(OPEN) == GROUPS[:2], "the group of the linked section")
    page.until(lambda: chromium.is_drawn(browser), "the charts")
    assert browser.execute_script(chromium.CONTENT_WIDTH) <= 1280


def test_the_page_draws_its_charts_and_needs_nothing_but_itself(page: LocustPage) -> None:
    assert set(others_requested(page)) == {page.url}
    plots = page.browser.find_elements("css selector", ".plot")
    assert [plot.get_attribute("data-picture") for plot in plots] == CHARTS
    drawn = plots[0].get_attribute("innerHTML")
    # 2 + 2 + 2 + 1 + 4 + 2 + 1 lines, in seven panels; a gap in the scrapes does not add a line.
    assert len(re.findall(r'class="trace scatter ', drawn)) == 14
    assert len(set(re.findall(r'class="subplot (xy\d*)"', drawn))) == 7
    assert chromium.complaints(page.browser) == []


def others_requested(page: LocustPage) -> list[str]:
    """Return the URLs requested since the last call, without those of data in the page."""
    return [url for url in chromium.requests(page.browser) if not url.startswith(("data:", "blob:"))]


def test_every_chart_saves_itself_as_png(page: LocustPage, tmp_path: Path) -> None:
    browser = page.browser
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    buttons = browser.find_elements("css selector", "button.png")
    assert len(buttons) == len(CHARTS)
    for chart, button, (width, height) in zip(CHARTS, buttons, browser.execute_script(SIZES), strict=True):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        page.until(lambda: any(file.read_bytes().endswith(PNG_END) for file in tmp_path.glob("*.png")), chart)
        (file,) = tmp_path.glob("*.png")
        assert file.stem.endswith(f"-{chart}")
        saved_width, saved_height, lines = png(file.read_bytes())
        assert (saved_width, saved_height) == (2 * width, 2 * (height + 26))  # pixel ratio 2, with the title
        assert len(lines) > 40  # distinct lines: the image is not empty
        file.unlink()
    assert chromium.complaints(browser) == []
    assert others_requested(page) == []


def test_a_linked_definition_unfolds(page: LocustPage) -> None:
    browser = page.browser
    (definition,) = browser.find_elements("css selector", "#def-ttft_ms")
    assert not definition.is_displayed()
    link = browser.find_elements("css selector", "#latency a.term[href='#def-ttft_ms']")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)  # not under the verdict
    link.click()
    page.until(definition.is_displayed, "the definition")


def test_a_comparison_with_long_names_fits_each_screen(browser: Browser, tmp_path: Path) -> None:
    runs = [
        synthetic.write(tmp_path / f"20261130T091227Z-chat-a100-simulator-{name}", slower_by(factor))
        for name, factor in (("fast", 1.0), ("slow-without-prefix", 60.83))
    ]
    assert cli.main(["compare", *map(str, runs), "--write", str(tmp_path)]) == 0
    page = LocustPage(browser, (tmp_path / "comparison.html").as_uri())
    browser.get(page.url)
    page.until(lambda: chromium.is_drawn(browser), "the chart")
    assert screens.findings(browser) == {}
    assert "61 times as high" in browser.find_element("css selector", ".verdict span").text


@pytest.mark.parametrize(
    "kind", ["search", *(pytest.param(kind, marks=pytest.mark.soak) for kind in run_kinds.KINDS if kind != "search")]
)
def test_charts_of_every_kind_fit_each_screen(browser: Browser, tmp_path: Path, kind: str) -> None:
    assert_charts_fit(browser, run_kinds.KINDS[kind](tmp_path / "run"))


@pytest.mark.soak
@pytest.mark.usefixtures("forked_programs")
def test_pages_of_a_study_of_its_part_and_of_an_ab_fit_each_screen(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(STUDY)
    assert cli.main(["study", str(file), "--into", str(tmp_path / "study")]) == 0
    sides = ["fast=--ttft-ms 20 --itl-ms 10", "slow=--ttft-ms 25 --itl-ms 10"]
    words = ["--scenario", "smoke", "--clock", "virtual", "--pairs", "3", "--duration", "5s"]
    assert cli.main(["ab", *sides, *words, "--into", str(tmp_path / "ab")]) == 0
    for page in ("study/index.html", "study/only/index.html", "ab/comparison/comparison.html"):
        assert_charts_fit(browser, tmp_path / page)


def assert_charts_fit(browser: Browser, path: Path) -> None:
    """Open a page on a phone, and open its groups; then measure it at each width."""
    page = LocustPage(browser, path.as_uri())
    chromium.complaints(browser)
    chromium.show_as(browser, screens.WIDTHS[0], screens.HEIGHT, "light")
    try:
        browser.get(page.url)
        page.until(lambda: chromium.is_drawn(browser), "the charts that can be seen")
        browser.execute_script(OPEN_ALL)
        page.until(lambda: browser.execute_script(ALL_DRAWN) and chromium.is_drawn(browser), "all charts")
        assert screens.findings(browser) == {}, path.name
    finally:
        chromium.show_as_started(browser)
    assert chromium.complaints(browser) == []


def slower_by(factor: float) -> dict[str, Any]:
    summary = copy.deepcopy(synthetic.SUMMARY)
    summary["latency"]["ttft_ms"]["mean"] *= factor
    return summary


def png(data: bytes) -> tuple[int, int, set[bytes]]:
    """Return width, height and the distinct filtered lines of an RGB or RGBA image."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert depth == 8
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    pixels = zlib.decompress(packed)
    stride = width * {2: 3, 6: 4}[colour] + 1
    assert len(pixels) == stride * height
    return width, height, {pixels[row * stride : (row + 1) * stride] for row in range(height)}
