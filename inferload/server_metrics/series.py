"""One server's scrapes as series on one grid of scrape instants, with restarts of the server seen and bridged."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.measure.arrow import pa, pc
from inferload.server_metrics import metric_names as names

Floats = npt.NDArray[np.float64]
Instants = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

TOO_LARGE = (
    1e18  # no counter and no gauge of a server reaches it; sums of smaller values over scrapes and series are finite
)

# Start times of one process differ between scrapes by rounding at most.
_SAME_START_S = 0.5


@dataclass(frozen=True, slots=True)
class Series:
    """One series of one metric. `values` has one entry per scrape of its server; NaN where it is not known.

    `unusable`: the scrapes at which the series was there, but its value was no finite number below 1e18; None where all were.
    """

    labels: Mapping[str, str]
    values: Floats
    unusable: Bools | None = None

    def fits(self, wanted: Mapping[str, str]) -> bool:
        """Whether every wanted label has the wanted value."""
        return all(self.labels.get(name) == value for name, value in wanted.items())


@dataclass(frozen=True, slots=True)
class ServerSeries:
    """What one target's pages said. Metrics carry vLLM 0.32's names; `restarted[i]`: it restarted since scrape i - 1."""

    target: str
    wall_ns: Instants
    metrics: Mapping[str, tuple[Series, ...]]
    restarted: Bools
    _grown: dict[Any, Floats | None] = field(
        default_factory=dict, repr=False, compare=False
    )  # asked for window by window

    def series(self, metric: str, **labels: str) -> tuple[Series, ...]:
        """All series of a metric whose labels fit; empty where the server does not publish it."""
        return tuple(series for series in self.metrics.get(metric, ()) if series.fits(labels))

    def summed(self, metric: str, **labels: str) -> Floats | None:
        """The sum over engines and all else, per scrape; None where there never was a series.

        NaN where no series was there, or where one of them was unusable.
        """
        found = self.series(metric, **labels)
        if not found:
            return None
        stacked = np.stack([series.values for series in found])
        return _usable(np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0)), found)

    def highest(self, metric: str, **labels: str) -> Floats | None:
        """The highest over engines, per scrape, NaN as in `summed`; None where the metric is not published."""
        found = self.series(metric, **labels)
        return _usable(np.fmax.reduce([series.values for series in found]), found) if found else None

    @property
    def samples_unusable(self) -> int:
        """How many values of all series were no finite numbers below 1e18."""
        every = (series.unusable for several in self.metrics.values() for series in several)
        return sum(int(unusable.sum()) for unusable in every if unusable is not None)

    def grown(self, metric: str, **labels: str) -> Floats | None:
        """How far a counter has come since the first scrape, restarts bridged, over engines.

        None if not published, or if one of its series never had a usable value.
        What a server counted between its last scrape and its death is lost: the growth is then a lower bound.
        """
        key = (metric, *sorted(labels.items()))
        if key not in self._grown:
            every = self.series(metric, **labels)
            known = bool(every) and not any(np.isnan(series.values).all() for series in every)
            self._grown[key] = (
                np.sum([growth(series.values, self.restarted) for series in every], axis=0) if known else None
            )
        return self._grown[key]


def _usable(values: Floats, of: Iterable[Series]) -> Floats:
    """The values of several series together, NaN where one of them was unusable."""
    for series in of:
        if series.unusable is not None:
            values[series.unusable] = np.nan
    return values


def growth(values: Floats, restarted: Bools) -> Floats:
    """Growth of one counter since the first scrape, at each scrape.

    After a restart, or where the counter fell, it counts from 0. A series that appears later than the first scrape was
    not counted before, so all that it shows is growth.
    """
    steps = np.zeros(len(values))
    present = np.flatnonzero(~np.isnan(values))
    if len(present) == 0:
        return steps
    seen = values[present]
    steps[present[0]] = seen[0] if present[0] > 0 else 0.0
    restarts = np.cumsum(restarted)[present]
    fresh = (np.diff(restarts) > 0) | (np.diff(seen) < 0)
    steps[present[1:]] = np.where(fresh, seen[1:], np.diff(seen))
    return np.cumsum(steps)


def names_on_pages(metrics: Iterable[str]) -> frozenset[str]:
    """Every name, old ones included, under which servers publish these metrics of today."""
    wanted = set(metrics)
    families = {names.split_suffix(metric) for metric in wanted}
    old = {was + suffix for was, now in names.RENAMED.items() for family, suffix in families if now == family}
    return frozenset(wanted | old)


def by_target(table: pa.Table, metrics: Iterable[str] | None = None) -> dict[str, ServerSeries]:
    """Each target's series from a table of scrapes (columns wall_ns, target, metric, labels, value), targets sorted.

    `metrics`: only these (and what tells of restarts); the instants of all scrapes are kept in any case.
    """
    found: dict[str, ServerSeries] = {}
    for target in sorted(value for value in pc.unique(table["target"]).to_pylist() if value is not None):
        of_target = table.filter(pc.equal(table["target"].cast(pa.string()), target))
        instants = np.unique(of_target["wall_ns"].to_numpy()).astype(np.int64)
        if metrics is not None:
            kept = names_on_pages([*metrics, names.PROCESS_START])
            of_target = of_target.filter(pc.is_in(of_target["metric"].cast(pa.string()), pa.array(sorted(kept))))
        found[target] = _server(target, instants, of_target)
    return found


def _server(target: str, instants: Instants, table: pa.Table) -> ServerSeries:
    by_metric: dict[str, list[Series]] = {}
    for (metric, labels), (values, unusable) in _on_grid(instants, table).items():
        by_metric.setdefault(metric, []).append(Series(json.loads(labels), values, unusable))
    meaning = names.current_names(by_metric)
    metrics = {now: tuple(by_metric[was]) for was, now in meaning.items() if now is not None}
    return ServerSeries(target, instants, metrics, _restarts(len(instants), metrics))


def _on_grid(instants: Instants, table: pa.Table) -> dict[tuple[str, str], tuple[Floats, Bools | None]]:
    """Values per (metric, labels) at each instant, NaN where there is no usable one, and where one was unusable."""
    metric, labels = (_encoded(table[column]) for column in ("metric", "labels"))
    codes = metric[0] * max(1, len(labels[1])) + labels[0]
    places = np.searchsorted(instants, table["wall_ns"].to_numpy())
    values = table["value"].to_numpy()
    usable = np.abs(values) < TOO_LARGE  # NaN is not
    values = np.where(usable, values, np.nan)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0]) if len(order) else np.array([], dtype=np.int64)
    grids: dict[tuple[str, str], tuple[Floats, Bools | None]] = {}
    for rows in np.split(order, starts[1:]) if len(order) else ():
        grid = np.full(len(instants), np.nan)
        grid[places[rows]] = values[rows]
        number_metric, number_labels = divmod(int(codes[rows[0]]), max(1, len(labels[1])))
        unusable = None
        if not usable[rows].all():
            unusable = np.zeros(len(instants), dtype=np.bool_)
            unusable[places[rows[~usable[rows]]]] = True
        grids[metric[1][number_metric], labels[1][number_labels]] = grid, unusable
    return grids


def _encoded(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    words = column.combine_chunks()
    if not pa.types.is_dictionary(words.type):
        words = words.dictionary_encode()
    return words.indices.to_numpy(zero_copy_only=False).astype(np.int64), words.dictionary.to_pylist()


def _restarts(scrapes: int, metrics: Mapping[str, tuple[Series, ...]]) -> Bools:
    """At which scrapes the server was another one than at the scrape before: a counter fell, or its start time moved."""
    restarted = np.zeros(scrapes, dtype=np.bool_)
    for metric, all_series in metrics.items():
        starts = metric == names.PROCESS_START
        if not starts and not metric.endswith(("_total", "_count")):
            continue
        for series in all_series:
            present = np.flatnonzero(~np.isnan(series.values))
            change = np.diff(series.values[present])
            restarted[present[1:][np.abs(change) > _SAME_START_S if starts else change < 0]] = True
    return restarted
