"""Several servers together, as one window of server figures. No I/O."""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from inferload.figures.servers.server_formulas import UNKNOWN, Floats, Over, Reading, Statistic, Window, known


class ServersWindow(Struct, frozen=True):
    """Several servers together: counters add up, gauges as those of several engines; means of histograms are by request.

    The engines behind a front end or router count its requests again, in parts. So counters are those of the pages in front, if
    they publish them; gauges are those of engines, if they publish them. Rates, and sums of means, count for the part of the time
    for which a server was there.

    `whole`: a value is unknown if that of one server is; else unknown values are left out.
    """

    servers: Sequence[Window]
    whole: bool = False
    part: float = 1.0

    def publishes(self, metric: str) -> bool:
        """Return True if a server has the metric."""
        return any(server.publishes(metric) for server in self.servers)

    @property
    def in_front(self) -> bool:
        """True if all pages are of what stands before engines."""
        return all(server.in_front for server in self.servers)

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        """Return the sum, maximum or minimum over the servers."""
        chosen = self._chosen(reading, in_front=False)
        adds = reading.over == "sum" and statistic == "mean"
        values = (server.gauge(reading, statistic) * (server.part if adds else 1.0) for server in chosen)
        return self._combined(reading.over, values)

    def delta(self, reading: Reading) -> Floats:
        """Return the sum of the increases."""
        return self._combined("sum", (server.delta(reading) for server in self._chosen(reading, in_front=True)))

    def per_s(self, reading: Reading) -> Floats:
        """Return the sum of the rates."""
        return self._combined(
            "sum", (server.per_s(reading) * server.part for server in self._chosen(reading, in_front=True))
        )

    def _chosen(self, reading: Reading, *, in_front: bool) -> Sequence[Window]:
        """Return the servers on this side if one of them publishes the metric, else those on the other side, if any."""
        chosen = [server for server in self.servers if server.in_front == in_front]
        others = [server for server in self.servers if server.in_front != in_front]
        return chosen if not others or any(server.publishes(reading.metric) for server in chosen) else others

    def restarts(self) -> Floats:
        """Return the sum of the restarts."""
        return self._combined("sum", (server.restarts() for server in self.servers))

    def _combined(self, over: Over, values: Iterable[Floats]) -> Floats:
        each = [known(value) for value in values]
        found = [value for value in each if value is not None]
        if not found or (self.whole and None in each):
            return UNKNOWN
        return np.asarray(sum(found) if over == "sum" else max(found) if over == "highest" else min(found))
