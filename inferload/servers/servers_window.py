"""Several servers together, as one window of server figures. No I/O."""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferload.figures.pages import metric_names as names
from inferload.figures.servers.server_formulas import UNKNOWN, Floats, Over, Reading, Statistic, Window, known
from inferload.servers.roles import PREFILL, caching, without_prefill

_HITS = (names.PREFIX_HITS, names.PROMPT_TOKENS_CACHED, names.CACHED_BY_SOURCE, names.HIT_RATE)
_OF_CACHES = (names.PREFIX_QUERIES, *_HITS)
_OF_REQUESTS = (names.FINISHED, names.PROMPT_TOKENS, names.GENERATION_TOKENS, names.HTTP_REQUESTS)
_TIMES = (names.TTFT, names.QUEUE, names.PREFILL, names.DECODE, names.E2E)


class ServersWindow(Struct, frozen=True):
    """Several servers together: counters add up, gauges as those of several engines; means of histograms are by request.

    The engines behind a front end or router count its requests again, in parts. So counters are those of the pages in front, if
    they publish them; gauges are those of engines, if they publish them. Rates, and sums of means, count for the part of the time
    for which a server was there.

    Servers for prefill and decode share each request (see `roles`); the time to the first token at prefill is that of its answer.

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

    @property
    def role_name(self) -> str | None:
        """Name of the common role of all servers."""
        found = {server.role_name for server in self.servers}
        return found.pop() if len(found) == 1 else None

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        """Return the sum, maximum or minimum over the servers."""
        chosen = self._of_role(reading, self._chosen(reading, in_front=False))
        adds = reading.over == "sum" and statistic == "mean"
        values = (server.gauge(reading, statistic) * (server.part if adds else 1.0) for server in chosen)
        return self._combined(reading.over, values)

    def delta(self, reading: Reading) -> Floats:
        """Return the sum of the increases."""
        each = self._of_role(reading, self._chosen(reading, in_front=True))
        return self._combined("sum", (server.delta(_at(server, reading, each)) for server in each))

    def per_s(self, reading: Reading) -> Floats:
        """Return the sum of the rates."""
        each = self._of_role(reading, self._chosen(reading, in_front=True))
        return self._combined("sum", (server.per_s(_at(server, reading, each)) * server.part for server in each))

    def _chosen(self, reading: Reading, *, in_front: bool) -> Sequence[Window]:
        """Return the servers on this side if one of them publishes the metric, else those on the other side, if any."""
        chosen = [server for server in self.servers if server.in_front == in_front]
        others = [server for server in self.servers if server.in_front != in_front]
        return chosen if not others or any(server.publishes(reading.metric) for server in chosen) else others

    def _of_role(self, reading: Reading, servers: Sequence[Window]) -> Sequence[Window]:
        """Return the servers whose role counts a metric, if they publish it."""
        family, suffix = names.split_suffix(reading.metric)
        of_caches = reading.metric in _OF_CACHES
        if not of_caches and reading.metric not in _OF_REQUESTS and (family not in (*_TIMES, names.ITL) or not suffix):
            return servers
        if suffix == "_sum" and family in _TIMES:
            return [server for server in servers if server.role_name != PREFILL or _moves(server)] or servers
        chosen = caching(servers) if of_caches else without_prefill(servers)
        if of_caches and not any(map(_looked_up, chosen)):
            chosen = without_prefill(servers)
        return chosen if any(server.publishes(reading.metric) for server in chosen) else servers

    def restarts(self) -> Floats:
        """Return the sum of the restarts."""
        return self._combined("sum", (server.restarts() for server in self.servers))

    def _combined(self, over: Over, values: Iterable[Floats]) -> Floats:
        each = [known(value) for value in values]
        found = [value for value in each if value is not None]
        if not found or (self.whole and None in each):
            return UNKNOWN
        return np.asarray(sum(found) if over == "sum" else max(found) if over == "highest" else min(found))


def _at(server: Window, reading: Reading, group: Sequence[Window]) -> Reading:
    """Return the reading that counts at a server: the TTFT of a group contains the whole answer of prefill."""
    divided = server.role_name == PREFILL and any(other.role_name != PREFILL for other in group)
    return replace(reading, metric=f"{names.E2E}_sum") if divided and reading.metric == f"{names.TTFT}_sum" else reading


def _looked_up(server: Window) -> bool:
    """Return True if prompts came to a server."""
    return any(known(server.delta(Reading(metric))) for metric in (names.PREFIX_QUERIES, names.PROMPT_TOKENS))


def _moves(server: Window) -> bool:
    """Return True if a server counts the requests that it serves; Dynamo's mocker for prefill does not."""
    return bool(known(server.delta(Reading(f"{names.E2E}_count"))))
