"""End of the process: whether it follows the run, who begins it, and the last scrape before it."""

import logging
from collections.abc import Callable
from enum import Enum
from typing import Any

import gevent

logger = logging.getLogger(__name__)


class EndState(Enum):
    """What the process does after the run under way, or now if there is none."""

    STAYS = "stays"  # other runs can follow
    AUTOQUITS = "autoquits"  # a while after the run of --autostart; Locust's own timer starts at the end of --run-time
    QUITS = "quits"  # after the only run of a headless process, and the scrape of its final metrics
    SIGNALLED = "signalled"  # quits without that scrape
    QUITTING = "quitting"  # Locust has begun to end it
    SIGNALLED_QUITTING = "signalled, quitting"  # without a scrape


class ProcessEnd:
    """End of a process with runs. `await_scrape` waits until the final metrics of a run were scraped."""

    def __init__(self, environment: Any, under_way: Callable[[], bool]) -> None:
        options = environment.parsed_options
        autoquits = options.autostart and options.autoquit >= 0
        self.headless = bool(options.headless)
        self.state = EndState.QUITS if self.headless else EndState.AUTOQUITS if autoquits else EndState.STAYS
        self.await_scrape: Callable[[], None] = lambda: None
        self._environment = environment
        self._under_way = under_way
        self._last_scrape: gevent.Greenlet | None = None

    @property
    def signalled(self) -> bool:
        """True once a signal has requested the end."""
        return self.state in (EndState.SIGNALLED, EndState.SIGNALLED_QUITTING)

    @property
    def quitting(self) -> bool:
        """True once Locust has begun to end the process."""
        return self.state in (EndState.QUITTING, EndState.SIGNALLED_QUITTING)

    @property
    def after_run(self) -> bool:
        """True if no other run follows the one under way."""
        return self.headless or self.signalled

    def signal(self) -> None:
        self.state = EndState.SIGNALLED_QUITTING if self.quitting else EndState.SIGNALLED

    def begin(self) -> None:
        """Note that Locust has begun to end the process."""
        self.state = EndState.SIGNALLED_QUITTING if self.signalled else EndState.QUITTING

    def run_over(self) -> None:
        """End the process after a run, or stay for the next one."""
        if self.state in (EndState.QUITS, EndState.SIGNALLED):
            self.await_last_scrape()
            self.quit()
        elif self.state is EndState.AUTOQUITS:
            self.state = EndState.STAYS
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
