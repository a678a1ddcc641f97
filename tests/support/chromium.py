"""A real Chromium, headless, driven by its WebDriver; what it asked of the network and what it complained about."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

Browser = webdriver.Chrome

_FLAGS = (
    "--headless",
    "--no-sandbox",  # it opens our own pages alone, and a container's root has no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",  # a container's /dev/shm may be tiny
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",
)


def program(*names: str) -> str:
    """The first of the programs that is installed; a test that needs one fails where there is none."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found is not None, (
        f"no {names[0]} on this machine; make browser, or: apt-get install chromium chromium-driver"
    )
    return found


def binary() -> str:
    """The browser."""
    return program("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def running(profile: Path, width: int = 1400, height: int = 900) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = binary()
    for flag in (*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(program("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


def complaints(browser: Browser) -> list[str]:
    """What its console has said since the last look, but for mere information."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requests(browser: Browser) -> list[str]:
    """Every address that it has asked for since the last look."""
    events: list[dict[str, Any]] = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
