"""Users of a run: started and stopped by Locust's own functions, which the controller replaces on the runner."""

from collections.abc import Callable
from typing import Any

import gevent

from inferload.locust_adapters import runners, web_page


class LocustUsers:
    """Locust's users. `classes`: those selected by a LoadTestShape; None: all."""

    def __init__(self, environment: Any, start: Callable[..., None], stop: Callable[..., None]) -> None:
        """Replace the runner's start and stop by the given functions."""
        self.classes: Any = None
        self._environment = environment
        self._start, self.stop = runners.take_over(environment.runner, start, stop)
        self._steered_start: gevent.Greenlet | None = None

    @property
    def in_shape(self) -> bool:
        """True in the greenlet of a LoadTestShape."""
        return gevent.getcurrent() is self._environment.runner.shape_greenlet

    def start(self, users: int, spawn_rate: float, *, wait: bool = False) -> None:
        """Start or stop users up to a number. It may block; a newer start can begin meanwhile."""
        self._start(users, spawn_rate, wait=wait, user_classes=self.classes)

    def steer(self, users: int, spawn_rate: float) -> None:
        """Start or stop users up to a number in the background, instead of a start that is still in progress."""
        self.end_starts_by_hand()
        self._steered_start = gevent.spawn(self.start, users, spawn_rate)

    def end_starts_by_hand(self) -> None:
        """End starts by `steer` and by Locust's page that are still in progress."""
        self.end_steered_start()
        web_page.end_start_of_page(self._environment.web_ui)

    def end_steered_start(self) -> None:
        """End a start by `steer` that is still in progress."""
        start, self._steered_start = self._steered_start, None
        if start is not None and start is not gevent.getcurrent():  # a listener can begin another start
            start.kill(block=False)
