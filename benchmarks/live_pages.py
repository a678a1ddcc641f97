"""Pages that show the live view during a benchmark: headless Chromium, or a client that sends the same requests."""

import http.client
import json
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.server import ServerError
from benchmarks.watched import process_tree

LIVE = "inferload/live"
# Requests of Locust's page with the tab "Inference", and their intervals in seconds.
POLLS = {LIVE: 1.0, "inferload/status": 1.0, "stats/requests": 2.0, "logs": 5.0}
_START_S = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",  # root in a container has no sandbox; only the local page is opened
    "--disable-gpu",
    "--disable-dev-shm-usage",  # a container's /dev/shm may be tiny
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,720",
)
_MOST_ENTRIES = 100_000  # of the page's list of its requests, which has 250 by default
_REQUESTS = """
return performance.getEntriesByType('resource').map(entry => ({
  at: (performance.timeOrigin + entry.startTime) / 1000, url: entry.name, bytes: entry.transferSize}))
"""


@dataclass(frozen=True, slots=True)
class Poll:
    """Request of a page: wall time of its begin, path without query, and bytes of the response with its header."""

    at_s: float
    path: str
    bytes: int


class NoPages:
    """No page is open."""

    def __enter__(self) -> "NoPages":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pages."""

    def open(self, port: int) -> None:
        """Open the pages when the web UI listens."""

    def cpu_s(self) -> float | None:
        """Return the CPU time of the pages so far; None if unknown."""
        return None

    def polls(self) -> list[Poll]:
        """Return the requests of all pages, after the run."""
        return []


class BrowserPages(NoPages):
    """Tab "Inference" in several browsers, each with its own profile."""

    def __init__(self, number: int, folder: Path) -> None:
        self._folder, self._number = folder, number
        self._browsers: list[Any] = []

    @staticmethod
    def missing() -> str | None:
        """Return the reason why no browser can be started; None if it can."""
        names = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
        return f"no {' and no '.join(names)}: make browser" if names else None

    def __enter__(self) -> "BrowserPages":
        try:
            for number in range(self._number):
                with _browser_errors("a browser did not start"):
                    self._browsers.append(self._started(self._folder / f"profile-{number}"))
        except BaseException:  # including Ctrl-C: no browser may outlive this process
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for browser in self._browsers:
            with suppress(ServerError), _browser_errors("a browser did not quit"):
                browser.quit()

    def _started(self, profile: Path) -> Any:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or ""))

    def open(self, port: int) -> None:
        _wait_for_web_ui(port)
        for browser in self._browsers:
            with _browser_errors("a browser did not open the page"):
                browser.get(f"http://127.0.0.1:{port}/?tab=inference")
                browser.execute_script(f"performance.setResourceTimingBufferSize({_MOST_ENTRIES})")

    def cpu_s(self) -> float | None:
        return sum(usage.cpu_s for browser in self._browsers for usage in process_tree(browser.service.process.pid))

    def polls(self) -> list[Poll]:
        with _browser_errors("a browser did not report its requests"):
            entries = [entry for browser in self._browsers for entry in browser.execute_script(_REQUESTS)]
        return [Poll(entry["at"], _path(entry["url"]), round(entry["bytes"])) for entry in entries]


@contextmanager
def _browser_errors(problem: str) -> Iterator[None]:
    """Raise ServerError for an error or a timeout of a browser."""
    from selenium.common.exceptions import WebDriverException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (WebDriverException, HTTPError, TimeoutError) as error:
        text = error.msg if isinstance(error, WebDriverException) else str(error)
        raise ServerError(f"{problem}: {(text or '').strip()}") from error


def _path(url: str) -> str:
    return url.partition("://")[2].partition("/")[2].partition("?")[0]


@dataclass(slots=True)
class _PolledPage:
    """One page of PollingPages: its connection, its polls, and the newest document of the run."""

    connection: http.client.HTTPConnection
    polls: list[Poll] = field(default_factory=list)
    query: dict[str, str] = field(default_factory=dict)
    document: dict[str, Any] | None = None  # of the newest poll with points of a run

    def poll(self, path: str) -> None:
        """Send a request, and continue from its points in the next one."""
        address = f"/{path}?{urlencode(self.query)}" if path == LIVE else f"/{path}"
        at_s = time.time()
        self.connection.request("GET", address, headers={"Accept": "application/json", "Accept-Encoding": "gzip"})
        answer = self.connection.getresponse()
        body = answer.read()
        header = sum(len(name) + len(value) + 4 for name, value in answer.getheaders())
        self.polls.append(Poll(at_s, path, header + len(body)))
        if path == LIVE:
            self._take(json.loads(body))

    def _take(self, document: dict[str, Any]) -> None:
        run = document["run"]
        if run is None:
            return
        if document["series"]["sequence"]:
            after = {"after": str(document["series"]["sequence"]), "marks": str(document["marks_to"])}
            self.query = {"run": run["id"], **after}
        if not run["over"] and document["rows"]:
            self.document = document


class PollingPages(NoPages):
    """Clients with the requests of the page at its intervals, without its drawing."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._pages: list[_PolledPage] = []
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def open(self, port: int) -> None:
        _wait_for_web_ui(port)
        for number in range(self._number):
            page = _PolledPage(http.client.HTTPConnection("127.0.0.1", port, timeout=20))
            self._pages.append(page)
            self._threads.append(threading.Thread(target=self._loop, args=(page, number / self._number)))
            self._threads[-1].start()

    def _loop(self, page: _PolledPage, offset_s: float) -> None:
        start_s = time.monotonic() + offset_s
        due = deque(sorted((start_s + 0.1 * k, path) for k, path in enumerate(POLLS)))
        while not self._closed.wait(max(0.0, due[0][0] - time.monotonic())):
            _, path = due.popleft()
            try:
                page.poll(path)
            except (OSError, http.client.HTTPException):  # the web UI has ended
                return
            due = deque(sorted([*due, (time.monotonic() + POLLS[path], path)]))

    def polls(self) -> list[Poll]:
        return [poll for page in self._pages for poll in page.polls]

    def document(self) -> dict[str, Any] | None:
        """Return the newest polled document of the run in progress."""
        return next((page.document for page in self._pages if page.document), None)


def _wait_for_web_ui(port: int) -> None:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise ServerError(f"no web UI on port {port} after {_START_S:.0f} s")
