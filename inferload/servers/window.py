"""A server between two of its scrapes: gauges, increases and rates of its metrics over a window. No I/O.

Rates and counts are between the scrapes nearest to the window's two ends, and `window_s` is the time between those two.
They are None if one of these scrapes is too far from its end (`gap_limit_s`). Gauges are over the scrapes of the window.
Counters are summed over engines (see `parts`) and bridged over restarts.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from inferload.base.clock import NS_PER_S
from inferload.figures.pages import metric_names as names
from inferload.figures.servers.server_figures import ENGINE_GAUGES
from inferload.figures.servers.server_formulas import UNKNOWN, Floats, Reading, Statistic
from inferload.servers.scrape_store import Instants
from inferload.servers.series import ServerSeries

# Longest time without a scrape in a window whose figures are complete: the greater of both.
_GAP_S = 5.0
_GAP_INTERVALS = 2.5


def gap_limit_s(interval_s: float) -> float:
    """Return the longest time without a scrape that leaves the figures of a window complete."""
    return max(_GAP_S, _GAP_INTERVALS * interval_s)


def windows_of(
    servers: Mapping[str, ServerSeries],
    start_wall_ns: int,
    end_wall_ns: int,
    targets: Sequence[str] = (),
    interval_s: float | None = None,
    *,
    joined: Collection[str] = (),
    left: Collection[str] = (),
) -> list["ServerWindow"]:
    """Return the half-open window at each target.

    `targets`: configured targets; one that never answered has a window without values. `interval_s`: configured interval
    of the scrapes; None: their median interval. `joined`, `left`: the window of these targets is the part from their first, or
    to their last scrape; one that was not there in the window has none.
    """
    silent = {
        target: ServerSeries(target, np.array([], dtype=np.int64), {}, np.array([], dtype=np.bool_))
        for target in targets
    }
    windows = []
    for target, server in sorted((silent | dict(servers)).items()):
        start_ns, end_ns = start_wall_ns, end_wall_ns
        if target in joined and len(server.wall_ns):
            start_ns = max(start_ns, int(server.wall_ns[0]))
        if target in left and len(server.wall_ns):
            end_ns = min(end_ns, int(server.wall_ns[-1]))
        if start_ns < end_ns:
            window, passing = ServerWindow.of(server, start_ns, end_ns, interval_s), target in joined or target in left
            windows.append(replace(window, of_ns=(start_wall_ns, end_wall_ns) if passing else None))
    return windows


class ServerPage(Struct, frozen=True):
    """What of a server's metrics page is the same in every window."""

    server: ServerSeries

    @property
    def in_front(self) -> bool:
        """True for a page of what stands before engines."""
        return self.server.in_front

    @property
    def role_name(self) -> str | None:
        """Name of the server's role."""
        return self.server.role_name

    def publishes(self, metric: str) -> bool:
        """Return True if the page has the metric."""
        return metric in self.server.metrics


class ServerWindow(ServerPage, frozen=True, dict=True):
    """One server between two of its scrapes. `first`, `last`: their indices; None if the window does not have two.

    `interval_s`: configured interval of the scrapes; None: their median interval. `labels`: only of series with these.
    `of_ns`: ends of the window of all servers, of which it has a part, since it joined or left; None: it did not.
    """

    first: int | None
    last: int | None
    start_wall_ns: int
    end_wall_ns: int
    interval_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    of_ns: tuple[int, int] | None = None

    @classmethod
    def of(
        cls, server: ServerSeries, start_wall_ns: int, end_wall_ns: int, interval_s: float | None = None
    ) -> "ServerWindow":
        """Return the window between the scrapes nearest to the two ends."""
        interval_s = server.interval_s if interval_s is None else interval_s
        at_ns = server.wall_ns if len(server.wall_ns) else np.zeros(1)
        first, last = (int(np.argmin(np.abs(at_ns - end))) for end in (start_wall_ns, end_wall_ns))
        two = first < last
        return cls(server, first if two else None, last if two else None, start_wall_ns, end_wall_ns, interval_s)

    @property
    def seen_s(self) -> tuple[float, float] | None:
        """Its part of the window of all servers, in seconds since the start of that, if it joined or left."""
        if self.of_ns is None:
            return None
        return (self.start_wall_ns - self.of_ns[0]) / NS_PER_S, (self.end_wall_ns - self.of_ns[0]) / NS_PER_S

    @property
    def part(self) -> float:
        """Share of the window of all servers for which it was there."""
        whole = self.of_ns or (self.start_wall_ns, self.end_wall_ns)
        return (self.end_wall_ns - self.start_wall_ns) / max(1, whole[1] - whole[0])

    @cached_property
    def scraping_interval_s(self) -> float:
        """Configured interval of the scrapes, or their median interval; that of the samples if these are rarer, or older."""
        return max(self.server.interval_s if self.interval_s is None else self.interval_s, self.server.lag_s)

    @property
    def gap_limit_s(self) -> float:
        """Longest time without a scrape that leaves the figures complete."""
        return gap_limit_s(self.scraping_interval_s)

    @cached_property
    def scrapes(self) -> Instants:
        """Indices of the window's scrapes. The two at its ends may be outside it by at most an interval."""
        if self.first is None or self.last is None:
            return np.array([], dtype=np.int64)
        indices = np.arange(self.first, self.last + 1)
        at_ns = self.server.wall_ns[indices]
        outside_s = np.abs(at_ns - np.clip(at_ns, self.start_wall_ns, self.end_wall_ns)) / NS_PER_S
        return indices[outside_s <= self.scraping_interval_s]

    @cached_property
    def ends(self) -> tuple[int, int] | None:
        """Indices of the two scrapes; None if one is too far from its end of the window, or no scrape is in the window."""
        if self.first is None or self.last is None or not len(self.scrapes):
            return None
        at_ns = self.server.wall_ns[[self.first, self.last]]
        distance_s = np.abs(at_ns - np.array([self.start_wall_ns, self.end_wall_ns])) / NS_PER_S
        return (self.first, self.last) if distance_s.max() <= self.gap_limit_s else None

    @property
    def lasts_s(self) -> float:
        """Length of the window itself."""
        return (self.end_wall_ns - self.start_wall_ns) / NS_PER_S

    @property
    def window_s(self) -> float | None:
        """Time between the two scrapes."""
        if self.ends is None:
            return None
        first, last = self.ends
        return float(self.server.wall_ns[last] - self.server.wall_ns[first]) / NS_PER_S

    @property
    def longest_gap_s(self) -> float | None:
        """Longest time in the window without a scrape, its ends included; None without any scrape."""
        return self.longest_s(self.server.wall_ns)

    @property
    def longest_silence_s(self) -> float | None:
        """Longest time in the window until the page answered, which is later than the time of the scrape; None without any."""
        took_s = self.server.summed(names.SCRAPE_DURATION)
        if took_s is None:
            return self.longest_gap_s
        return self.longest_s(self.server.wall_ns + np.nan_to_num(took_s / 2 * NS_PER_S).astype(np.int64))

    def longest_s(self, at_ns: Instants) -> float | None:
        """Return the longest time of the window between these instants, its ends included; None without any."""
        if len(at_ns) == 0:
            return None
        inside = np.clip(at_ns, self.start_wall_ns, self.end_wall_ns)
        return float(np.max(np.diff(np.r_[self.start_wall_ns, inside, self.end_wall_ns]))) / NS_PER_S

    @property
    def has_gpus(self) -> bool:
        """True for a page of a GPU exporter."""
        return any(map(self.publishes, names.GPU_METRICS))

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        """Return mean or maximum over the window's scrapes."""
        values = self.server.read(reading, **self.labels)
        if values is None:
            return UNKNOWN
        inside = values[self.scrapes]
        inside = inside[~np.isnan(inside)]
        return np.asarray(inside.mean() if statistic == "mean" else inside.max()) if len(inside) else UNKNOWN

    def delta(self, reading: Reading) -> Floats:
        """Return the increase of a counter between the two scrapes."""
        labels = dict([reading.label] if reading.label else ())
        grown = self.server.grown(reading.metric, **labels, **self.labels)
        if grown is None or self.ends is None:
            return UNKNOWN
        first, last = self.ends
        return np.asarray(grown[last] - grown[first])

    def per_s(self, reading: Reading) -> Floats:
        """Return the mean rate of a counter between the two scrapes."""
        return UNKNOWN if self.window_s is None else np.asarray(self.delta(reading) / self.window_s)

    def restarts(self) -> Floats:
        """Return the number of restarts between the two scrapes; unknown behind an address with several servers."""
        if self.ends is None or self.server.replicas > 1:
            return UNKNOWN
        first, last = self.ends
        return np.asarray(np.count_nonzero(self.server.restarted[first + 1 : last + 1]), dtype=np.float64)

    def by_engine(self) -> list["ServerWindow"]:
        """Return the window of each engine that the gauges name; one without labels if they name none."""
        metrics = [reading.metric for row in ENGINE_GAUGES for reading in row.formula.readings]
        return [replace(self, labels=selector) for selector in self.server.engines(*metrics)]
