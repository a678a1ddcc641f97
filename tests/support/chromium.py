"""Headless Chromium through WebDriver, with its network requests and console messages."""

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
    "--no-sandbox",  # root in a container has no sandbox; only pages of this project are opened
    "--disable-gpu",
    "--disable-software-rasterizer",
    "--disable-dev-shm-usage",  # a container's /dev/shm may be tiny
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",
)

# Script for each new page: no frames of transitions, animations and a blinking cursor, each of which is drawn by the CPU. As a
# constructed style sheet it needs no permission of the page's policy.
_STILL = """
const still = new CSSStyleSheet();
const rules = ["transition: none", "animation: none", "caret-color: transparent"].map(rule => `${rule} !important`);
still.replaceSync(`*, *::before, *::after {${rules.join("; ")}}`);
document.adoptedStyleSheets = [still];
"""

# Script: width of the page (pixels), that of the screen if it needs no horizontal scrolling.
CONTENT_WIDTH = "return document.documentElement.scrollWidth"


def program(*names: str) -> str:
    """Return the path of the first installed program; fails if there is none."""
    path = next((path for name in names if (path := shutil.which(name))), None)
    assert path is not None, (
        f"no {names[0]} on this machine; make browser, or: apt-get install chromium chromium-driver"
    )
    return path


def binary() -> str:
    """Return the path of the browser."""
    return program("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """Start a browser with its own profile; quit it at the end of the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = binary()
    for flag in (*_FLAGS, "--window-size=1280,720", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_experimental_option("perfLoggingPrefs", {"enablePage": False})  # only `requests` reads them
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(program("chromedriver")))
    try:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _STILL})
        yield browser
    finally:
        browser.quit()


def resize(browser: Browser, width: int, height: int) -> None:
    """Set the size of the page, independent of the window's; that of a phone below 640 pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def show_as(browser: Browser, width: int, height: int, colours: str) -> None:
    """Set the size of the page, and its preferred colours."""
    resize(browser, width, height)
    preferred = {"name": "prefers-color-scheme", "value": colours}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preferred]})


def show_as_started(browser: Browser) -> None:
    """Undo `show_as`."""
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def is_drawn(browser: Browser) -> bool:
    """Return True if the open report has drawn all charts."""
    return bool(browser.execute_script("return document.documentElement.dataset.drawn === 'all'"))


@contextlib.contextmanager
def without_charts(browser: Browser) -> Iterator[None]:
    """Reports say that the browser cannot draw: charts take most of the CPU time."""
    script = {"source": "delete window.DecompressionStream"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def complaints(browser: Browser) -> list[str]:
    """Return warnings and errors on the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requests(browser: Browser) -> list[str]:
    """Return the URLs that pages requested since the last call; those of the browser's own first page may be late."""
    events: list[dict[str, Any]] = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("chrome:")]
