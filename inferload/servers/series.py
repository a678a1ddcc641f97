"""Scrapes of one server as series on one grid of scrape instants. Restarts of the server are detected and bridged."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from msgspec import Struct

from inferload.base.arrow import pa
from inferload.base.clock import NS_PER_S
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import Meaning, PageKind
from inferload.figures.pages.page_names import names_on_pages, page_meanings
from inferload.figures.servers.server_formulas import Floats, Reading
from inferload.servers import parts, replicas, roles
from inferload.servers.exposition import Labels
from inferload.servers.roles import Role
from inferload.servers.scrape_store import Bools, Grid, Instants, Recent, ScrapeStore

# Metrics with one part per engine: a page with several parts of one of them combines several engines.
_PER_ENGINE = (
    names.RUNNING, names.WAITING, names.KV_CACHE_USAGE, names.PREFIX_QUERIES, names.PROMPT_TOKENS,
    names.GENERATION_TOKENS
)  # fmt: skip

_ENDED = 2.5  # longest times between two samples of a series, after which it is over

_Series = Recent[tuple[str, str], tuple["MetricSeries", ...]]  # by target and metric
_OnPage = Sequence[tuple[str, Meaning]]  # a page's names of a metric
_Growths = Recent[tuple[str, Labels], Floats | None]  # by metric and labels


class MetricSeries(Struct, frozen=True):
    """One series of one metric. `values`: one entry per scrape of its server; NaN if unknown.

    `unusable`: scrapes with a value that is not a finite number below 1e18; None: no such scrape.
    """

    labels: Mapping[str, str]
    values: Floats
    unusable: Bools | None = None

    @property
    def key(self) -> Labels:
        """Labels in the form of a parsed page."""
        return tuple(sorted(self.labels.items()))

    @property
    def newest(self) -> int | None:
        """Its newest value, rounded; None without any."""
        known = self.values[~np.isnan(self.values)]
        return round(float(known[-1])) if len(known) else None

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Return True if the series has these labels, and possibly others."""
        return all(self.labels.get(name) == value for name, value in labels.items())


@dataclass(frozen=True)
class ServerSeries:
    """Scrapes of one target. Metrics have vLLM 0.32's names; `restarted[i]`: it restarted since scrape i - 1.

    `page`: kind of its page; None: not known, and it has `unknown_series`. `replicas`: servers behind the address; with several
    there are no metrics, since successive scrapes are of different servers. `role`: None if it is not known.
    """

    target: str
    wall_ns: Instants
    metrics: Mapping[str, tuple[MetricSeries, ...]]
    restarted: Bools
    page: PageKind | None = None
    unknown_series: int | None = None
    replicas: int = 1
    role: Role | None = None
    # Latest results of `grown`.
    _grown: _Growths = field(
        default_factory=lambda: Recent(lambda grown: 0 if grown is None else len(grown), 1 << 16),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    def series(self, metric: str, /, **labels: str) -> tuple[MetricSeries, ...]:
        """Return the series of a metric with these labels; empty if the server does not publish it."""
        return tuple(series for series in self.metrics.get(metric, ()) if series.fits(labels))

    def summed(self, metric: str, /, **labels: str) -> Floats | None:
        """Return the sum over all parts, per scrape; None without a series. Copies and totals are not added (see `parts`).

        NaN if a scrape has no series, or an unusable value.
        """
        every = self.series(metric, **labels)
        keys, values = [series.key for series in every], [series.values for series in every]
        return _usable(parts.summed(metric, keys, values), every) if every else None

    def highest(self, metric: str, /, **labels: str) -> Floats | None:
        """Return the maximum over all series, per scrape, NaN as in `summed`; None without a series."""
        every = self.series(metric, **labels)
        return _usable(np.fmax.reduce([series.values for series in every]), every) if every else None

    def lowest(self, metric: str, /, **labels: str) -> Floats | None:
        """Return the minimum over all series, per scrape, NaN as in `summed`; None without a series."""
        every = self.series(metric, **labels)
        return _usable(np.fmin.reduce([series.values for series in every]), every) if every else None

    def newest(self, metric: str) -> int | None:
        """Return the newest value of a gauge, the lowest over its series; None: not reported."""
        return min((value for series in self.series(metric) if (value := series.newest) is not None), default=None)

    def read(self, reading: Reading, /, **labels: str) -> Floats | None:
        """Return a reading per scrape, of the series with these labels; None without a series."""
        of = {"sum": self.summed, "highest": self.highest, "lowest": self.lowest}[reading.over]
        return of(reading.metric, **labels, **dict([reading.label] if reading.label else ()))

    def engines(self, *metrics: str) -> tuple[dict[str, str], ...]:
        """Return selectors of the engines of the first of these gauges that names the most; one without labels without any."""
        named = (parts.engines(metric, [series.key for series in self.series(metric)]) for metric in metrics)
        return max(named, key=len)

    @property
    def in_front(self) -> bool:
        """True for a page of what stands before engines."""
        return self.page is not None and self.page.in_front

    @property
    def role_name(self) -> str | None:
        """Name of its role."""
        return None if self.role is None else self.role.name

    @property
    def interval_s(self) -> float:
        """Median time between two scrapes; 0 with fewer than two."""
        return float(np.median(np.diff(self.wall_ns))) / NS_PER_S if len(self.wall_ns) > 1 else 0.0

    @property
    def lag_s(self) -> float:
        """Median time between samples with times of their own, or their median age if longer, 60 s at most; 0 without these."""
        ages_s = self.of_scrapes(names.SAMPLE_AGE)
        return min(60.0, max(self.interval_s, float(np.median(ages_s)))) if len(ages_s) > 1 else 0.0

    def of_scrapes(self, metric: str) -> Floats:
        """Return what the scraper noted at scrapes; empty without any."""
        values = self.summed(metric)
        return np.array([], dtype=np.float64) if values is None else values[~np.isnan(values)]

    @property
    def samples_unusable(self) -> int:
        """Number of values, over all series, that are not finite numbers below 1e18, or were on lines that could not be read."""
        every = (series.unusable for several in self.metrics.values() for series in several)
        return sum(int(unusable.sum()) for unusable in every if unusable is not None)

    def resets(self, series: MetricSeries) -> Bools:
        """Return the mask of scrapes after a restart of the process of a series, besides decreases of the series itself.

        Counters can pass their old values between two scrapes, so a restart counts for all series of its process: those
        that a changed start time applies to; without a start time, all series of the page of a single engine.
        """
        starts = self._starts
        if starts:
            gaps = [gap for labels, gaps in starts if len(starts) == 1 or series.fits(labels) for gap in gaps]
            return _mask(len(self.wall_ns), gaps)
        return self.restarted if self._of_one_engine else _mask(len(self.wall_ns), ())

    @cached_property
    def _starts(self) -> Sequence[tuple[Mapping[str, str], Sequence["_Gap"]]]:
        """Labels of each start time, with the gaps in which it changed."""
        return [(start.labels, _changes(start)) for start in self.series(names.PROCESS_START)]

    @cached_property
    def _of_one_engine(self) -> bool:
        return all(self._parts(metric) < 2 for metric in _PER_ENGINE)

    def _growth(self, copies: Sequence[MetricSeries]) -> parts.Growth:
        values, restarted = copies[0].values, self.resets(copies[0])
        if len(copies) > 1:
            values, restarted = _one_counter(copies, np.logical_or.reduce([self.resets(series) for series in copies]))
        present = np.flatnonzero(~np.isnan(values))
        return parts.Growth(int(present[0]) if len(present) else None, growth(values, restarted))

    def _parts(self, metric: str) -> int:
        every = parts.without_names(series.key for series in self.series(metric))
        return sum(len(whole.parts) for whole in parts.wholes(metric, every))

    def grown(self, metric: str, /, **labels: str) -> Floats | None:
        """Return the growth of a counter since the first scrape, over all parts, with restarts of each series bridged.

        None if not published, or if a part has no usable value. Counts between a server's last scrape and its restart are
        lost, so the growth is a lower bound.
        """
        return self._grown.get((metric, tuple(sorted(labels.items()))), lambda: self._growths(metric, labels))

    def _growths(self, metric: str, labels: Mapping[str, str]) -> Floats | None:
        every = self.series(metric, **labels)
        keys = [series.key for series in every]
        return parts.grown(metric, keys, lambda part: self._growth([every[n] for n in part])) if every else None


def _usable(values: Floats, of: Iterable[MetricSeries]) -> Floats:
    """Set combined values to NaN at scrapes with an unusable value."""
    for series in of:
        if series.unusable is not None:
            values[series.unusable] = np.nan
    return values


def _one_counter(copies: Sequence[MetricSeries], restarted: Bools) -> tuple[Floats, Bools]:
    """Return the values of one counter with copies, and the mask of scrapes after a restart: its highest value since the last one.

    Copies may lag or be absent. One that decreases shows a restart as soon as no copy has the earlier value.
    """
    best = np.fmax.reduce([series.values for series in copies])
    decreased = {last for series in copies for _, last in _decreases(series)}
    values, mask = best.copy(), restarted.copy()
    begin = 0
    for at in sorted({*np.flatnonzero(restarted).tolist(), *decreased, len(best)}):
        values[begin:at] = np.fmax.accumulate(best[begin:at])
        before = values[at - 1] if at > begin else np.nan
        if at < len(best) and (restarted[at] or best[at] < before):
            mask[at], begin = True, at
    return values, mask


def growth(values: Floats, restarted: Bools) -> Floats:
    """Return the growth of one counter since the first scrape, at each scrape.

    After a restart or a decrease the counter starts at 0. The first value of a series that appears after the first scrape is
    growth. A decrease below 0 is none of a counter: sums of times of vLLM have it at a failed KV transfer.
    """
    steps = np.zeros(len(values))
    present = np.flatnonzero(~np.isnan(values))
    if len(present) == 0:
        return steps
    known = values[present]
    steps[present[0]] = known[0] if present[0] > 0 else 0.0
    restarts = np.cumsum(restarted)[present]
    fresh = (np.diff(restarts) > 0) | ((np.diff(known) < 0) & (known[1:] >= 0))
    steps[present[1:]] = np.where(fresh, known[1:], np.diff(known))
    return np.cumsum(steps)


def by_target(
    tables: Iterable[pa.Table],
    metrics: Iterable[str] | None = None,
    without: tuple[str, ...] = (),
    known: Mapping[str, Role] = MappingProxyType({}),
) -> dict[str, ServerSeries]:
    """Return each target's series from tables of scrapes (columns wall_ns, target, metric, labels, value), targets sorted.

    `metrics`: names to read, besides those that show restarts and replicas; None: all. `without`: suffixes of names to skip
    (buckets of histograms are most of a page). `known`: roles of the run, by target; those of the others are what their pages,
    counters and names say. The instants of all scrapes are included. ValueError for malformed labels.
    """
    read = None if metrics is None else names_on_pages([*metrics, *replicas.READ, *roles.READ]) | set(names.OF_SCRAPES)
    store = ScrapeStore(lambda metric: (read is None or metric in read) and not metric.endswith(without))
    for table in tables:
        store.add(table)
    store.flush()
    recent = _Series(lambda several: sum(len(series.values) for series in several))
    servers = {target: _server(store, target, recent) for target in store.targets()}
    found = {target: role for target, role in roles.of(servers, known).items() if role is not None}
    return servers | {target: replace(servers[target], role=role) for target, role in found.items()}


class _StoredMetrics(Mapping[str, tuple[MetricSeries, ...]]):
    """Metrics of one target, which are read when they are used. `on_page`: the page's names of each."""

    def __init__(self, store: ScrapeStore, target: str, on_page: Mapping[str, _OnPage], recent: _Series) -> None:
        self._store, self._target, self._on_page, self._recent = store, target, on_page, recent

    def __getitem__(self, metric: str) -> tuple[MetricSeries, ...]:
        names_of = self._on_page[metric]
        return self._recent.get((self._target, metric), lambda: tuple(self._read(names_of)))

    def __contains__(self, metric: object) -> bool:
        return metric in self._on_page

    def __iter__(self) -> Iterator[str]:
        return iter(self._on_page)

    def __len__(self) -> int:
        return len(self._on_page)

    @cached_property
    def instants(self) -> Instants:
        """Times of the scrapes. If samples have their own, those to which all token counters reach that have not ended."""
        every = self._store.instants(self._target)
        reached: list[np.int64] = []
        for metric in (names.PROMPT_TOKENS, names.GENERATION_TOKENS) if names.SAMPLE_AGE in self._on_page else ():
            for name, _meaning in self._on_page.get(metric, ()):
                for _labels, (values, _unusable) in self._store.grids(self._target, name):
                    at_ns = every[~np.isnan(values)]
                    if len(at_ns) > 1 and every[-1] - at_ns[-1] <= _ENDED * np.diff(at_ns).max():
                        reached.append(at_ns[-1])
        return every[: int(np.searchsorted(every, min(reached, default=every[-1]), side="right"))]

    @cached_property
    def _of_scrapes(self) -> tuple[bool, Bools]:
        """Return whether samples have times of their own, and the mask of scrapes with lines that could not be read."""
        instants = self._store.instants(self._target)
        unread = np.zeros(len(instants), dtype=np.bool_)
        for _labels, (lines, _unusable) in self._store.grids(self._target, names.SCRAPE_UNREAD):
            unread = ~np.isnan(lines)
        return names.SAMPLE_AGE in self._on_page, unread

    def _read(self, names_of: _OnPage) -> Iterator[MetricSeries]:
        for name, meaning in names_of:
            for labels, (values, unusable) in self._store.grids(self._target, name):
                meant = meaning.labels(tuple(labels.items()))
                if meant is not None:
                    yield MetricSeries(dict(meant), *self._completed(meaning.metric, values * meaning.scale, unusable))

    def _completed(self, metric: str, values: Floats, unusable: Bools | None) -> Grid:
        """Complete a series at the times of other samples, and mark its values on lines that could not be read."""
        timed, unread = self._of_scrapes
        if timed and metric not in names.OF_SCRAPES:
            values = _between(values, self._store.instants(self._target), metric.endswith(parts.COUNTERS))
            values[unusable if unusable is not None else []] = np.nan
        elif unread.any() and (lost := unread & np.isnan(values) & _inside(values)).any():
            unusable = lost if unusable is None else unusable | lost
        scrapes = len(self.instants)
        return values[:scrapes], None if unusable is None else unusable[:scrapes]


def _inside(values: Floats) -> Bools:
    """Return the mask of scrapes from the first value to the last."""
    known = ~np.isnan(values)
    return np.asarray(np.logical_or.accumulate(known) & np.logical_or.accumulate(known[::-1])[::-1])


def _between(values: Floats, at_ns: Instants, counter: bool) -> Floats:
    """Return a series at the times of all samples of its page: a counter grows evenly between two of its own, a gauge stays.

    A gauge also stays after its last sample, for the longest time between two.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < 2:
        return values
    before = known[np.clip(np.searchsorted(known, np.arange(len(values)), side="right") - 1, 0, None)]
    if counter:
        after = known[np.clip(np.searchsorted(known, np.arange(len(values))), None, len(known) - 1)]
        even = np.interp(at_ns - at_ns[0], at_ns[known] - at_ns[0], values[known])
        return np.where(_inside(values), np.where(values[after] >= values[before], even, values[before]), np.nan)
    stays = at_ns - at_ns[before] <= np.diff(at_ns[known]).max()
    return np.where((np.arange(len(values)) >= known[0]) & (_inside(values) | stays), values[before], np.nan)


def _server(store: ScrapeStore, target: str, recent: _Series) -> ServerSeries:
    page = store.kind(target)
    named: dict[str, list[tuple[str, Meaning]]] = {}
    for name, meanings in page_meanings(store.metrics(target), page).items():
        for meaning in meanings:
            named.setdefault(meaning.metric, []).append((name, meaning))
    metrics = _StoredMetrics(store, target, named, recent)
    instants = metrics.instants
    restarted = _restarts(len(instants), metrics)
    count = _replicas(instants, metrics, restarted)
    unknown = store.unknown(target) or None
    if count > 1:
        return ServerSeries(target, instants, {}, np.zeros_like(restarted), page, replicas=count)
    return ServerSeries(target, instants, metrics, restarted, page, unknown)


def _replicas(instants: Instants, metrics: Mapping[str, tuple[MetricSeries, ...]], restarted: Bools) -> int:
    """Return the number of servers that the scrapes are of."""
    read = [(metric, series.key, series.values) for metric in replicas.READ for series in metrics.get(metric, ())]
    if not restarted.any() and not any(np.isnan(values).any() for _, _, values in read):
        return 1  # nothing changed back
    seen = replicas.Replicas()
    for scrape, at_ns in enumerate(instants):
        known = [(metric, labels, float(values[scrape])) for metric, labels, values in read]
        seen.add(int(at_ns) / NS_PER_S, (each for each in known if not math.isnan(each[2])))
    return seen.count


def _restarts(scrapes: int, metrics: Mapping[str, tuple[MetricSeries, ...]]) -> Bools:
    """Return the mask of scrapes after a restart: a counter decreased, or the start time changed."""
    gaps = [gap for start in metrics.get(names.PROCESS_START, ()) for gap in _changes(start)]
    counters = (several for metric, several in metrics.items() if metric.endswith(("_total", "_count")))
    return _mask(scrapes, [*gaps, *(gap for several in counters for series in several for gap in _decreases(series))])


# Gap between two values of a series in which its process restarted: the first and last scrape that can be the next one.
_Gap = tuple[int, int]


def _changes(start: MetricSeries) -> list[_Gap]:
    """Return the gaps in which a start time changed."""
    return _gaps(start, lambda change: np.abs(change) > replicas.SAME_START_S)


def _decreases(counter: MetricSeries) -> list[_Gap]:
    """Return the gaps in which a counter decreased."""
    return _gaps(counter, lambda change: change < 0)


def _gaps(series: MetricSeries, restarted: Callable[[Floats], Bools]) -> list[_Gap]:
    present = np.flatnonzero(~np.isnan(series.values))
    after = np.flatnonzero(restarted(np.diff(series.values[present])))
    return [(int(present[index]) + 1, int(present[index + 1])) for index in after]


def _mask(scrapes: int, gaps: Iterable[_Gap]) -> Bools:
    """Return the mask of the scrapes after the fewest restarts that explain all gaps.

    After a restart counters may be absent until their first use. Gaps with a common scrape are therefore one restart,
    before the first scrape in all of them.
    """
    restarts: list[_Gap] = []  # the common scrapes of the gaps of each restart
    for first, last in sorted(gaps, key=lambda gap: gap[1]):
        if restarts and first <= restarts[-1][1]:
            restarts[-1] = (max(first, restarts[-1][0]), restarts[-1][1])
        else:
            restarts.append((first, last))
    mask = np.zeros(scrapes, dtype=np.bool_)
    for first, _ in restarts:
        mask[first] = True
    return mask
