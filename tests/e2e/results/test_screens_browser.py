"""Screens of the web UI at three widths: no text is cut or lies on another, and axe-core finds nothing serious."""

from collections.abc import Callable
from pathlib import Path

import live_page
import pytest
import screens
from live_page import LivePage, OpenPage
from simulator_process import Simulator

pytestmark = [pytest.mark.browser, pytest.mark.soak]  # quick forms: test_browser.py and test_live_browser.py

COLOURS = ("light", "dark")


def assert_fits(page: LivePage, name: str, *colours: str) -> None:
    for each in colours or ("light",):
        found = screens.findings(page.browser, besides=screens.LOCUST_ALONE, colours=each)
        assert found == {}, f"{name}, {each}"


def test_every_screen_of_the_web_ui_fits(
    open_page: OpenPage, simulator: Callable[..., Simulator], tmp_path: Path
) -> None:
    server = simulator("--ttft-ms", "60", "--itl-ms", "15")
    page = open_page("--host", server.url, "--set", "phases.warmup_s=1")
    page.choose("chat-open")
    page.fill(gates="p95(tttf_ms) < 900")
    page.submit()
    page.until(page.field_error, "the refused gate")
    page.browser.execute_script("document.querySelectorAll('.MuiAccordionSummary-root').forEach(each => each.click())")
    assert_fits(page, "start form with an error", *COLOURS)

    page.choose("chat")
    page.fill(gates="")
    page.begin(4)
    page.open_tab()
    page.until(page.all_drawn, "lines in all charts")
    assert_fits(page, "closed loop")
    page.steer("Stop run")
    live_page.ended(page, tmp_path / "run")
    page.browser.get(f"{page.url}inferload/runs/run/rerun")
    assert_fits(page, "confirmation of a rerun", *COLOURS)
    page.browser.get(f"{page.url}?again=run")
    page.until(page.note, "the values of the run")
    assert_fits(page, "again with changes")

    page.choose("mixed")
    page.fill(userCount="4", gates="p95(ttft_ms) < 900\nfailed_ratio < 0.01")
    page.submit()
    page.open_tab()
    page.until(lambda: page.table("By class").keys() == {"All (measure)", "agent", "chat"}, "both classes")
    assert_fits(page, "open loop", *COLOURS)
    server.chaos(kind="status", status=503, count=100_000)
    page.until(lambda: (page.badge() or [""])[0] == "failing", "the failing run")
    assert_fits(page, "failing run")
    page.steer("Stop run")
    live_page.ended(page, tmp_path / "run-2")
    assert_fits(page, "failed run")
    page.open_alone()
    page.until(lambda: page.table("Gates"), "the gates")
    assert_fits(page, "live view alone", *COLOURS)
    page.open_runs()
    assert_fits(page, "list of runs", *COLOURS)
    page.browser.get(f"{page.url}inferload/runs?figure=TTFT+p95%2C+ms&scenario=chat")
    assert_fits(page, "trend", *COLOURS)
