"""Several servers together, as one window of server figures. No I/O."""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from inferload.figures.server_formulas import UNKNOWN, Floats, Over, Reading, Statistic, Window, known


class ServersWindow(Struct, frozen=True):
    """Several servers together: counters add up, gauges as those of several engines; means of histograms are by request.

    `whole`: a value is unknown if that of one server is; else unknown values are left out.
    """

    servers: Sequence[Window]
    whole: bool = False

    def publishes(self, metric: str) -> bool:
        """Return True if a server has the metric."""
        return any(server.publishes(metric) for server in self.servers)

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        """Return the sum, maximum or minimum over the servers."""
        return self._combined(reading.over, (server.gauge(reading, statistic) for server in self.servers))

    def delta(self, reading: Reading) -> Floats:
        """Return the sum of the increases."""
        return self._combined("sum", (server.delta(reading) for server in self.servers))

    def per_s(self, reading: Reading) -> Floats:
        """Return the sum of the rates."""
        return self._combined("sum", (server.per_s(reading) for server in self.servers))

    def restarts(self) -> Floats:
        """Return the sum of the restarts."""
        return self._combined("sum", (server.restarts() for server in self.servers))

    def _combined(self, over: Over, values: Iterable[Floats]) -> Floats:
        each = [known(value) for value in values]
        found = [value for value in each if value is not None]
        if not found or (self.whole and None in each):
            return UNKNOWN
        return np.asarray(sum(found) if over == "sum" else max(found) if over == "highest" else min(found))
