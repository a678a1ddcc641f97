"""End of the process: whether it follows the run, who begins it, and the last scrape before it."""

import logging
from collections.abc import Callable
from typing import Any

import gevent

logger = logging.getLogger(__name__)


class ProcessEnd:
    """End of a process with runs. `await_scrape` waits until the final metrics of a run were scraped.

    `signalled`: a signal has requested the end. `quitting`: Locust has begun to end the process.
    """

    def __init__(self, environment: Any, under_way: Callable[[], bool]) -> None:
        options = environment.parsed_options
        self.headless = bool(options.headless)
        self.signalled = self.quitting = False
        # A while after the first run of --autostart; Locust's own timer starts at the end of --run-time.
        self._autoquits = bool(options.autostart and options.autoquit >= 0)
        self.await_scrape: Callable[[], None] = lambda: None
        self._environment = environment
        self._under_way = under_way
        self._last_scrape: gevent.Greenlet | None = None

    @property
    def after_run(self) -> bool:
        """True if no other run follows the one under way."""
        return self.headless or self.signalled

    def run_over(self) -> None:
        """End the process after a run, or stay for the next one."""
        if self.quitting:
            return
        if self.after_run:
            self.await_last_scrape()
            self.quit()
        elif self._autoquits:
            self._autoquits = False
            gevent.spawn_later(self._environment.parsed_options.autoquit, self._quit_if_idle)

    def await_last_scrape(self) -> None:
        """Wait for the last scrape, unless the end of the process was requested or does not follow the run."""
        if self.headless and not self.signalled:
            if self._last_scrape is None:
                self._last_scrape = gevent.spawn(self.await_scrape)
            self._last_scrape.join()

    def quit(self) -> None:
        """End the process, with its web UI."""
        if self._last_scrape is not None:
            self._last_scrape.kill(block=False)  # after a signal
        self._environment.runner.quit()
        web_ui = self._environment.web_ui
        if web_ui is not None:
            web_ui.stop()

    def _quit_if_idle(self) -> None:
        if not self._under_way():
            logger.info("--autoquit: shutting down")
            self.quit()
