"""The documentation as a web site, opened from the disk: its structure, its search in both languages, and its width."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import chromium
import pytest
import screens
from chromium import Browser
from markdown_it import MarkdownIt
from paths import ROOT
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = [pytest.mark.browser, pytest.mark.soak]  # `make site`, which checks the links, is a step of CI

STRUCTURE = ("ul", "ol", "li", "table", "pre", "h1", "h2", "h3", "h4", "strong")
SEARCHES = [("index", "preemption", "Simulator"), ("zh/index", "瓶颈", "哪个配置更好"), ("zh/index", "卸载", "卸载")]
# With wide tables, long code, pictures and both languages.
PAGES = ("index", "zh/index", "zh/start/run", "reference/summary", "reference/cli", "how-to/compare", "studies/index")
PAGES += ("studies/agents-simulator", "zh/studies/index")
# The theme alone makes code that scrolls reachable by the keyboard, only where there is a pointer: a headless browser has none.
CODE = "pre > code"
# Script: texts of the results, which are in a shadow tree.
RESULTS = """
const trees = [...document.querySelectorAll("*")].map(part => part.shadowRoot).filter(tree => tree);
const inside = trees.flatMap(tree => [...tree.querySelectorAll("a")]);
return inside.map(link => link.textContent).join()
"""


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # of which dataclasses ask
    spec.loader.exec_module(module)
    return module


BUILD = builder()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert BUILD.main(folder / "site", folder / "work") == 0
    return folder / "site"


def counts(html: str) -> dict[str, int]:
    return {tag: len(re.findall(f"<{tag}[ >]", html)) for tag in STRUCTURE}


def test_every_page_has_the_lists_tables_and_headings_that_github_shows(site: Path) -> None:
    github = MarkdownIt("gfm-like", {"linkify": False})
    for language in BUILD.LANGUAGES:
        for source, place in language.sources().items():
            text = (site / language.folder / place).with_suffix(".html").read_text(encoding="utf-8")
            article = re.search("<article.*?</article>", text, re.DOTALL)
            assert article is not None
            assert counts(article[0]) == counts(github.render(source.read_text(encoding="utf-8"))), place


@pytest.mark.parametrize("wrong", ["a.png", "b.html", "c.html#none", "https://elsewhere.example/script.js"])
def test_links_that_lead_nowhere_are_found(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "c.html").write_text(f'<h1 id="top">C</h1><a href="#top">C</a><img src="{wrong}">')
    assert len(list(BUILD.faults(tmp_path))) == 1


@pytest.mark.parametrize(("page", "words", "found"), SEARCHES)
def test_the_search_works_from_the_disk(site: Path, browser: Browser, page: str, words: str, found: str) -> None:
    chromium.resize(browser, 1440, 900)
    browser.get(f"file://{site}/{page}.html")
    wait = WebDriverWait(browser, 60)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".md-search__button"))[0].click()
    wait.until(
        lambda _: browser.execute_script("return document.activeElement.shadowRoot?.activeElement?.tagName") == "INPUT"
    )
    browser.switch_to.active_element.send_keys(words)
    wait.until(lambda _: found in browser.execute_script(RESULTS))
    for width in screens.WIDTHS:  # without axe-core's findings: the colours and lists of the box are the theme's
        assert screens.faults(browser, width) == []
    chromium.show_as_started(browser)


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_each_screen(site: Path, browser: Browser, page: str, colours: str) -> None:
    browser.get(f"file://{site}/{page}.html")
    assert screens.findings(browser, besides=CODE, colours=colours) == {}


def test_each_language_leads_to_the_other(site: Path, browser: Browser) -> None:
    for page, other in (("start/run", "zh/index.html"), ("zh/start/run", "index.html")):
        browser.get(f"file://{site}/{page}.html")
        links = browser.execute_script(
            "return [...document.querySelectorAll('.md-select__link')].map(link => link.href)"
        )
        assert f"file://{site}/{other}" in links
