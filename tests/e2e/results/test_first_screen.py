"""First screen of each kind of page in a real browser: what a reader needs first is visible without scrolling."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import chromium
import pytest
import run_kinds
from chromium import Browser

pytestmark = pytest.mark.browser

FACTS = {"target", "model", "engine", "started", "load"}
FIGURES = {"TTFT p95, ms", "ITL p95, ms", "Failed"}
ALL = {"outcome", *FACTS, *FIGURES, "cause"}
WITHOUT_FIGURES = ALL - FIGURES  # a killed run has no summary
Screen = tuple[int, int, str]  # width, height, colours
SCREENS: list[Screen] = [(1280, 720, "light"), (390, 844, "dark")]
KINDS = tuple(run_kinds.KINDS)
SIMULATED = {"passed", "search", "several runs", "long texts"}

# Bottom of each visible element of the first screen by name; a text that is not drawn has no height.
BOTTOMS = """
return Object.fromEntries([...document.querySelectorAll('[data-first]')].map((node) => {
  const box = node.getBoundingClientRect();
  return [node.dataset.first, node.innerText.trim() && box.height ? box.bottom + window.scrollY : null];
}));
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return run_kinds.pages(tmp_path_factory.mktemp("pages"))


@dataclass(frozen=True)
class Shown:
    """A page on a screen. `bottoms`: of the elements of the first screen; `badges`: words beside the verdict."""

    bottoms: dict[str, float | None]
    width: int
    badges: list[str]


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
        [badge.text for badge in browser.find_elements("css selector", ".verdict .badge")],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("screen", SCREENS)
def test_what_a_reader_needs_first_is_on_the_first_screen(
    show: Callable[[str, Screen], Shown], kind: str, screen: Screen
) -> None:
    page, (width, height, _) = show(kind, screen), screen
    expected = {"several runs": {"outcome"}, "killed": WITHOUT_FIGURES}.get(kind, ALL)
    assert {name: bottom for name in expected if (bottom := page.bottoms.get(name)) is None or bottom > height} == {}
    assert page.width <= width


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_a_simulated_server_says_so_at_its_top(show: Callable[[str, Screen], Shown], kind: str) -> None:
    assert show(kind, SCREENS[-1]).badges == (["simulator"] if kind in SIMULATED else [])


@pytest.mark.parametrize("kind", sorted(SIMULATED - {"long texts"}))
def test_a_page_of_a_simulated_server_names_what_it_stands_for(pages: dict[str, Path], kind: str) -> None:
    text = pages[kind].read_text()
    assert f"stands for {run_kinds.SIMULATED[0]['stands_for']}" in text
