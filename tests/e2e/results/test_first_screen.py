"""First screen of each kind of page in a real browser: what a reader needs first is visible without scrolling."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import chromium
import pytest
import run_kinds
import screens
from chromium import Browser

pytestmark = pytest.mark.browser

FACTS = {"target", "model", "engine", "started", "load"}
FIGURES = {"TTFT p95, ms", "ITL p95, ms", "Failed"}
ALL = {"outcome", *FACTS, *FIGURES, "cause"}
NEEDED = {
    "several runs": {"outcome"},
    "killed": ALL - FIGURES,  # without a summary
    "own tasks": ALL - {"cause"},  # each failed request has its message
    "imported": ALL - {"cause"},
    "long texts": ALL - {"cause"},
}
# Texts of a first screen, in their order: state, then what happened.
SAID = {
    "passed": ("passed: 1 of 1 gate passed",),
    "overloaded": ("overloaded: 12 turns/s offered", "measurement invalid (unfinished_drain)", "Cause"),
    "dead server": (
        "failed: 40 of 44 turns failed", "Cause", "stopped answering at 8.4 s (6.4 s into the measure phase, 10:36:48 UTC)",
        "connect 37, cut 3", "first failure at 8.5 s", "last success at 8.3 s", "Connection refused",
    ),
    "own tasks": ("failed: 2 of 120 other requests failed",),
    "killed": ("The run is incomplete", "Diagnosis", "the records end at 12.0 s"),
}  # fmt: skip
Screen = tuple[int, int, str]  # width, height, colours
SCREENS: list[Screen] = [(1280, 720, "light"), (390, 844, "dark")]
KINDS = tuple(run_kinds.KINDS)
OFTEN = {"failed", "long texts", "search"}  # measured on each screen in `make test`
SIMULATED = {"passed", "search", "several runs", "long texts"}

# Bottom of each visible element of the first screen by name; a text that is not drawn has no height.
BOTTOMS = """
return Object.fromEntries([...document.querySelectorAll('[data-first]')].map((node) => {
  const box = node.getBoundingClientRect();
  return [node.dataset.first, node.innerText.trim() && box.height ? box.bottom + window.scrollY : null];
}));
"""

TEXT = "return [...document.querySelectorAll('.verdict, [data-first=cause]')].map((node) => node.innerText).join(' ')"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return run_kinds.pages(tmp_path_factory.mktemp("pages"))


@dataclass(frozen=True)
class Shown:
    """A page on a screen. `bottoms`: of the elements of the first screen; `badges`: words beside the verdict."""

    bottoms: dict[str, float | None]
    width: int
    text: str
    badges: list[str]


PLANTED = """
<!doctype html><html lang=en><meta name=viewport content="width=device-width"><title>planted</title>
<style>p, div { position: absolute; white-space: nowrap } .cut { width: 40px; overflow: hidden }</style><main><h1>planted</h1>
<p style="left: 20px; top: 100px">one text</p><p style="left: 30px; top: 104px">on another</p>
<p style="top: 200px" class=cut>a text cut by its box</p>
<p style="left: 380px; top: 300px">a text that leaves a narrow window</p>
<div style="top: 400px; width: 90px; overflow-x: auto">a text that can be scrolled into view</div>
<p style="top: 500px" class=cut title="all is said here">all is said here</p></main>
"""
CUT = {"cut: a text cut by its box (cut by its box)", "on each other: one text | on another"}


def test_planted_faults_are_found_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "planted.html"
    page.write_text(PLANTED)
    browser.get(page.as_uri())
    wide, narrow = set(screens.faults(browser, 1440)), set(screens.faults(browser, 390))
    assert wide == CUT
    assert "cut: a text that leaves a narrow window (beyond the window)" in narrow
    assert any(fault.startswith("the page is ") for fault in narrow - CUT)


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS]
)
def test_no_text_is_cut_or_lies_on_another(
    show: Callable[[str, Screen], Shown], browser: Browser, pages: dict[str, Path], kind: str
) -> None:
    show(kind, SCREENS[0])  # opens the page if it is not open
    assert browser.current_url == pages[kind].as_uri() or browser.get(pages[kind].as_uri()) is None
    assert screens.findings(browser) == {}


def test_an_overloaded_run_with_five_gates_takes_three_laptop_screens(browser: Browser, tmp_path: Path) -> None:
    page = run_kinds.overloaded_with_five_gates(tmp_path / "run")
    chromium.resize(browser, 1440, screens.HEIGHT)
    browser.get(page.as_uri())
    height = browser.execute_script("return document.documentElement.scrollHeight")
    assert height <= 3 * screens.HEIGHT
    assert browser.execute_script("return document.querySelectorAll('#gates tbody tr').length") == 5


@pytest.fixture(scope="module")
def show(browser: Browser, pages: dict[str, Path]) -> Iterator[Callable[[str, Screen], Shown]]:
    """A function that returns the page of a kind on a screen. It opens a page once, and lays it out for each screen."""
    # The charts are below the first screen. test_report_browser.py and test_access_browser.py draw them, on both screens.
    with chromium.without_charts(browser):
        opened = cache(lambda kind: {screen: shown(browser, pages[kind], screen) for screen in SCREENS})
        yield lambda kind, screen: opened(kind)[screen]
    chromium.show_as_started(browser)


def shown(browser: Browser, page: Path, screen: Screen) -> Shown:
    chromium.show_as(browser, *screen)
    if browser.current_url != page.as_uri():
        browser.get(page.as_uri())
    return Shown(
        browser.execute_script(BOTTOMS),
        browser.execute_script(chromium.CONTENT_WIDTH),
        browser.execute_script(TEXT),
        [badge.text for badge in browser.find_elements("css selector", ".verdict .badge")],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("screen", SCREENS)
def test_what_a_reader_needs_first_is_on_the_first_screen(
    show: Callable[[str, Screen], Shown], kind: str, screen: Screen
) -> None:
    page, (width, height, _) = show(kind, screen), screen
    expected = NEEDED.get(kind, ALL)
    assert {name: bottom for name in expected if (bottom := page.bottoms.get(name)) is None or bottom > height} == {}
    assert page.width <= width
    places = [page.text.find(said) for said in SAID.get(kind, ())]
    assert places == sorted(place for place in places if place >= 0), page.text
    assert kind != "passed" or "Cause" not in page.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_a_simulated_server_says_so_at_its_top(show: Callable[[str, Screen], Shown], kind: str) -> None:
    assert show(kind, SCREENS[-1]).badges == (["simulator"] if kind in SIMULATED else [])


@pytest.mark.parametrize("kind", sorted(SIMULATED - {"long texts"}))
def test_a_page_of_a_simulated_server_names_what_it_stands_for(pages: dict[str, Path], kind: str) -> None:
    text = pages[kind].read_text()
    assert f"stands for {run_kinds.SIMULATED[0]['stands_for']}" in text
