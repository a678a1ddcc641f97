"""Lines of the scraper as a window of server figures: the newest gauges, and counters over the last scrapes. No I/O."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from inferload.figures.pages import metric_names as names
from inferload.figures.servers.server_formulas import UNKNOWN, Reading, Statistic
from inferload.turns.sketch import Floats

# Values of a scrape by the name of their reading.
Values = Mapping[str, float]

_SHORTEST_S = 1.0  # between two scrapes; the wall clock can step back


class LiveWindow(Struct, frozen=True):
    """Scrapes of one server, oldest first, as (seconds, values). A scrape without an answer has no values.

    `seconds`: those that increases are of, if the scrapes may be further apart; None: those of the scrapes.
    """

    scrapes: Sequence[tuple[float, Values]]
    seconds: float | None = None
    part: float = 1.0

    @property
    def in_front(self) -> bool:
        """True for a page of what stands before engines."""
        return any(names.IN_FRONT in values for _, values in self.scrapes)

    @property
    def role_name(self) -> str | None:
        """Name of the server's role."""
        found = (role for _, values in self.scrapes for role in names.ROLES if names.ROLE + role in values)
        return next(found, None)

    def publishes(self, metric: str) -> bool:
        """Return True if the newest scrape has the metric, with a label or without."""
        newest = self.scrapes[-1][1] if self.scrapes else ()
        return metric in newest or any(name.startswith(f"{metric}{{") for name in newest)

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        """Return the newest value."""
        return np.asarray(self.scrapes[-1][1].get(reading.name, np.nan)) if self.scrapes else UNKNOWN

    def delta(self, reading: Reading) -> Floats:
        """Return the increase of a counter; unknown if the newest scrape lacks it, or after a restart."""
        increase, lasted_s = self._increase(reading)
        share = 1.0 if self.seconds is None or lasted_s <= self.seconds else self.seconds / lasted_s
        return np.asarray(increase * share)

    def per_s(self, reading: Reading) -> Floats:
        """Return the mean rate of a counter."""
        increase, lasted_s = self._increase(reading)
        return np.asarray(increase / max(_SHORTEST_S, lasted_s))

    def restarts(self) -> Floats:
        """Return that restarts are unknown: only figures over a whole phase count them."""
        return UNKNOWN

    def _increase(self, reading: Reading) -> tuple[float, float]:
        """Return the increase of a counter, and the seconds in which it increased; both NaN if unknown."""
        name = reading.name
        found = [(at_s, values[name]) for at_s, values in self.scrapes if name in values]
        if len(found) < 2 or name not in self.scrapes[-1][1] or found[-1][1] < found[0][1]:
            return math.nan, math.nan
        return found[-1][1] - found[0][1], found[-1][0] - found[0][0]
