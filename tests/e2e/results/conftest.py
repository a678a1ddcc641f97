"""A browser, of all tests of a process, and Locust's page in it."""

from collections.abc import Iterator
from pathlib import Path

import chromium
import live_page
import pytest
from chromium import Browser
from live_page import OpenPage


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium.running(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """A function that starts Locust with options and opens its page; see `live_page.pages`."""
    with live_page.pages(browser, tmp_path) as start:
        yield start
