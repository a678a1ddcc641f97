"""Scraper process of a run: it scrapes as its parent orders, and writes a line for each scrape.

The child process of a run reads lines with other pages, `[urls, those without key]`, on stdin. It ends on SIGTERM, or when stdin is
closed (the parent has ended): a last scrape, the last part, join of all parts. It ignores SIGINT: the parent decides.
"""

import json
import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from inferload.base.redaction import Redaction
from inferload.base.threads import native_lock
from inferload.servers.scrape_http import PageClient
from inferload.servers.scraper import ScrapeBuffer, ScrapeJob, called, line_of, scrape_all


class Lines:
    """Lines to a pipe that never wait: a stalled parent must not delay the scrapes. A line is dropped while one is half sent."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._rest = pipe, b""
        self._lock = native_lock()  # writes to the disk report from threads

    def send(self, line: str) -> None:
        """Send the rest of the line before, then this one."""
        with self._lock, suppress(OSError):  # a full pipe, or the parent has ended, which closes stdin, too
            self._write()
            self._rest = line.encode() + b"\n"
            self._write()

    def _write(self) -> None:
        while self._rest:
            self._rest = self._rest[os.write(self._pipe, self._rest) :]


class Parent:
    """Orders of the parent process. `woken`: pipe that gets a byte at SIGTERM."""

    def __init__(self, woken: int) -> None:
        self._woken = woken
        self._text = b""
        self._pages: list[list[str]] | None = None

    def ended(self, timeout_s: float) -> bool:
        """Wait for an order; return True after SIGTERM or the end of stdin."""
        ready, _, _ = select.select([0, self._woken], [], [], timeout_s)
        if 0 in ready:
            if not (read := os.read(0, 65536)):
                return True
            *lines, self._text = (self._text + read).split(b"\n")
            self._pages = json.loads(lines[-1]) if lines else self._pages
        return self._woken in ready

    def pages(self) -> list[list[str]] | None:
        """Return the pages of the newest order, and those without key; None if there is no new one."""
        pages, self._pages = self._pages, None
        return pages


def scrape_for_parent(
    job: ScrapeJob,
    redact: Redaction,
    apart: Callable[..., object] = called,
    make_clients: Callable[[Sequence[str], Sequence[str]], Sequence[PageClient]] = lambda urls, keyless: [],
) -> None:
    """Scrape until SIGTERM or the end of stdin.

    `redact`: also removes the parent's headers, which a server may echo. `apart`: makes calls that wait for the disk, while
    scrapes go on. `make_clients`: of URLs, and those of them without key.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    lines = Lines(1)
    buffer = ScrapeBuffer(
        on_scrape=lambda scrape: lines.send(line_of(scrape, job.roles)),
        on_write_error=lambda error: lines.send(json.dumps({"write_error": error}, ensure_ascii=False)),
        on_write=lambda: lines.send("{}"),
        redact=redact,
        apart=apart,
    )
    parent = Parent(woken)
    job = replace(job, changed=lambda: None if (pages := parent.pages()) is None else make_clients(*pages))
    scrape_all(job, buffer, parent.ended)
