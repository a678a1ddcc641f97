"""Formulas of server figures over the metrics of a page.

A formula reads a `Window`, which is two scrapes of a run, each second of it, or the last lines of a live scraper. The values are
arrays of the window's shape, without dimensions if it has one value. Unknown is NaN, so formulas are plain arithmetic.
"""

from itertools import chain
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from inferload.figures.pages import metric_names as names

Floats = npt.NDArray[np.float64]
Statistic = Literal["mean", "max"]
# What is made of the series of a metric: their whole (see `server_metrics.parts`), or the highest or lowest of them.
Over = Literal["sum", "highest", "lowest"]

MS_PER_S = 1e3
UNKNOWN = np.array(np.nan)


class Reading(Struct, frozen=True):
    """A metric of a page, over its series. `label`: name and value that a series must have."""

    metric: str
    over: Over = "sum"
    label: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """Metric with its label, as on a page."""
        return self.metric if self.label is None else f'{self.metric}{{{self.label[0]}="{self.label[1]}"}}'


class Window(Protocol):
    """A server, or several together, between two instants or in each of several spans."""

    @property
    def part(self) -> float:
        """Share of the time of the others for which it was there."""

    @property
    def in_front(self) -> bool:
        """True for a page of what stands before engines and counts their requests once more."""

    @property
    def role_name(self) -> str | None:
        """Return `prefill` or `decode` for a server that shares each request with others (see `servers.roles`)."""

    def publishes(self, metric: str) -> bool:
        """Return True if the page has the metric."""

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        """Return mean or maximum over the scrapes."""

    def delta(self, reading: Reading) -> Floats:
        """Return the increase of a counter. Restarts of the server are bridged."""

    def per_s(self, reading: Reading) -> Floats:
        """Return the mean rate of a counter."""

    def restarts(self) -> Floats:
        """Return the number of restarts of the server."""


class Formula(Protocol):
    """Value of a figure over a window. `statistics`: those that it has; none if it is a single number."""

    statistics: ClassVar[tuple[Statistic, ...]]

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Readings that the value is made of."""

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        """Return the value; NaN if unknown."""


class _OfOne(Struct, frozen=True):
    """Value of one metric, read as `Reading` has it, multiplied by `scale`."""

    statistics: ClassVar[tuple[Statistic, ...]] = ()
    metric: str
    over: Over = "sum"
    label: tuple[str, str] | None = None
    scale: float = 1.0

    @property
    def reading(self) -> Reading:
        return Reading(self.metric, self.over, self.label)

    @property
    def readings(self) -> tuple[Reading, ...]:
        return (self.reading,)


class Gauge(_OfOne, frozen=True):
    """A gauge over the scrapes of a window."""

    statistics: ClassVar[tuple[Statistic, ...]] = ("mean", "max")

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        return np.asarray(window.gauge(self.reading, statistic) * self.scale)


class Count(_OfOne, frozen=True):
    """Increase of a counter."""

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        return np.asarray(window.delta(self.reading) * self.scale)


class Rate(_OfOne, frozen=True):
    """Increase of a counter per second."""

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        return np.asarray(window.per_s(self.reading) * self.scale)


class Ratio(Struct, frozen=True):
    """`plus` + `scale` x increase of a counter (with `label`) / increase of another; unknown without an increase of the latter."""

    statistics: ClassVar[tuple[Statistic, ...]] = ()
    part: str
    whole: str
    label: tuple[str, str] | None = None
    plus: float = 0.0
    scale: float = 1.0

    @property
    def readings(self) -> tuple[Reading, Reading]:
        return Reading(self.part, label=self.label), Reading(self.whole)

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        return np.asarray(self.plus + self.scale * _quotient(*map(window.delta, self.readings)))


class HistogramMean(Struct, frozen=True):
    """Mean in ms of a histogram of seconds; unknown without a sample in the window.

    `within`: histogram of a longer time of the same requests. A sum below 0 or above its sum is none of times: vLLM counts a
    request whose KV transfer failed with the time since the machine started as prefill, and the negative of it as queue.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = ("mean",)
    family: str
    within: str = ""

    @property
    def total_s(self) -> Reading:
        """Sum of the samples."""
        return Reading(f"{self.family}_sum")

    @property
    def count(self) -> Reading:
        """Number of samples."""
        return Reading(f"{self.family}_count")

    @property
    def readings(self) -> tuple[Reading, ...]:
        return (self.total_s, self.count)

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        total_s = window.delta(self.total_s)
        whole_s = window.delta(Reading(f"{self.within}_sum")) if self.within else UNKNOWN
        wrong = (total_s < 0) | (total_s > _ROUNDING * whole_s)
        return np.asarray(_quotient(np.where(wrong, np.nan, total_s), window.delta(self.count)) * MS_PER_S)


_ROUNDING = 1.1  # and requests that end between two scrapes of several servers


class HitRate(Struct, frozen=True):
    """Hits over tokens looked up; on a page without that counter, cached over prompt tokens, else the server's own gauge."""

    statistics: ClassVar[tuple[Statistic, ...]] = ()
    looked_up: ClassVar[Ratio] = Ratio(names.PREFIX_HITS, names.PREFIX_QUERIES)
    cached: ClassVar[Ratio] = Ratio(names.PROMPT_TOKENS_CACHED, names.PROMPT_TOKENS)
    gauge: ClassVar[Gauge] = Gauge(names.HIT_RATE, "highest")

    @property
    def alternatives(self) -> tuple[tuple[Reading, ...], ...]:
        """Readings of each source."""
        return self.looked_up.readings, self.cached.readings, self.gauge.readings

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(chain.from_iterable(self.alternatives))

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        source = self.source(window)
        if source is None:
            return window.delta(self.readings[0]) * np.nan
        formulas: dict[str, Formula] = {"queries": self.looked_up, "prompt tokens": self.cached, GAUGE: self.gauge}
        return formulas[source].value(window)

    def source(self, window: Window) -> str | None:
        """Return what the page has: `queries`, `prompt tokens` or `gauge`; None without any."""
        if window.publishes(names.PREFIX_QUERIES):
            return "queries"
        if all(window.publishes(reading.metric) for reading in self.cached.readings):
            return "prompt tokens"
        return GAUGE if window.publishes(names.HIT_RATE) else None


class HitShare(_OfOne, frozen=True):
    """Hits over the prompt tokens looked up; over all prompt tokens on a page without lookups, or with the device's cache off."""

    @property
    def alternatives(self) -> tuple[tuple[Reading, Reading], ...]:
        """Readings of each source."""
        return tuple((self.reading, of.readings[1]) for of in (HitRate.looked_up, HitRate.cached))

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(self.alternatives)))

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        of_queries, of_prompts = self.alternatives
        part, whole = of_queries if np.nansum(window.delta(of_queries[1])) > 0 else of_prompts
        return _quotient(window.delta(part), window.delta(whole))


GAUGE = "gauge"  # source of a hit rate that the server computed


class Energy(Struct, frozen=True):
    """Energy of the GPUs of a page in J; with `per_s` mean power by their counters alone.

    Only known over a phase (`servers.gpu_energy`): counters of exporters stand still for up to 30 s.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = ()
    per_s: bool = False

    @property
    def readings(self) -> tuple[Reading, ...]:
        counter = Reading(names.GPU_ENERGY)
        return (counter,) if self.per_s else (counter, Reading(names.GPU_POWER))

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        return window.gauge(self.readings[0], statistic) * np.nan


class Restarts(Struct, frozen=True):
    """Restarts of the server."""

    statistics: ClassVar[tuple[Statistic, ...]] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        return ()

    def value(self, window: Window, statistic: Statistic = "mean") -> Floats:
        return window.restarts()


def known(value: Floats) -> float | None:
    """Return a single value as a number; None if unknown."""
    return float(value) if np.isfinite(value) else None


def _quotient(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0))
