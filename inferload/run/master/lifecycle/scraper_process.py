"""Scraper process of a run, controlled by the master."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gevent

from inferload.base.clock import NS_PER_S, Anchor, now_ns
from inferload.base.run_options import API_KEY_VARIABLE, REDACTED_HEADERS
from inferload.client.connection.target import Target
from inferload.run.process.greenlets import logged_wait
from inferload.run.process.settings import ProcessSettings
from inferload.servers import scrapes_file

logger = logging.getLogger(__name__)

_FIRST_S = 10.0
_STALL_S = 30.0  # without a line of a process that makes the last scrape and joins the parts
_LAST_LINES_S = 10.0  # to read the last lines of a process that has ended, on a busy machine


class Scraping:
    """Process that scrapes the metrics pages into a run directory until `stop`. `latest`: newest line of each target."""

    def __init__(
        self, folder: Path, urls: tuple[str, ...], interval_s: float, own: ProcessSettings, anchor: Anchor
    ) -> None:
        self.latest: dict[str, dict[str, Any]] = {}
        self.write_error: str | None = None  # the first write of a part that failed
        self._folder = folder
        self._heard_ns = now_ns()  # instant of the last line
        command = [
            sys.executable,
            "-Pm",  # -P: a folder "inferload" in the working directory is not the package
            "inferload.servers.scraper",
            "--out",
            str(folder),
            "--interval-s",
            f"{interval_s:g}",
            "--anchor",  # of the run, for its time stamps
            f"{anchor.wall_ns}:{anchor.mono_ns}",
        ]
        for url in urls:
            command += ["--target", url]
        for url in urls:
            if not own.may_send_to(Target.of_page(url)):
                command += ["--no-key", url]
        command += own.tls.words
        environment = dict(os.environ)
        environment.pop(API_KEY_VARIABLE, None)
        if own.credentials.api_key is not None:
            environment[API_KEY_VARIABLE] = own.credentials.api_key
        environment[REDACTED_HEADERS] = "\n".join(f"{name}: {value}" for name, value in own.headers)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            bufsize=1,
            process_group=0,  # a signal to the process group must not end the scrapes before the drain
        )
        self._reader = gevent.spawn(self._read)

    def wait_for_first(self, targets: int) -> None:
        """Wait until every target was scraped, so that the first values of counters precede the load."""
        with gevent.Timeout(_FIRST_S, False):
            while len(self.latest) < targets:
                gevent.sleep(0.02)
        if len(self.latest) < targets:
            logger.warning(
                "%d of %d metrics pages: no values before the load began", targets - len(self.latest), targets
            )

    def stop(self) -> None:
        """Make a last scrape, write the last part and end the process; kill it if it stalls."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            logger.warning("the metrics scraper had ended by itself")
        self._heard_ns = now_ns()
        with logged_wait(logger, lambda: f"waiting until the scrapes in {self._folder} are written"):
            while self._process.poll() is None and now_ns() - self._heard_ns < _STALL_S * NS_PER_S:
                gevent.sleep(0.02)
        if self._process.poll() is None:
            logger.warning("the metrics scraper made no progress for %g s and was killed", _STALL_S)
            self._process.kill()
            self._process.wait()
        scrapes_file.clear_up(self._folder)
        self._reader.join(timeout=_LAST_LINES_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard_ns = now_ns()
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if "write_error" in document:
                self.write_error = self.write_error or str(document["write_error"])
            elif document:
                self.latest[document.get("target", "")] = document
