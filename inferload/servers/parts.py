"""The whole of several series of one metric: which of them add up, which repeat each other, and which is their total.

Tensor-, pipeline-, expert- and context-parallel ranks work on the same requests: their series are copies of one value.
Data-parallel ranks, engines, models and all other labels are parts, which add up. A series that lacks a label of others, or has
"all", "total" or an empty text in its place, is their total. The whole is the greater of the total and the sum of the parts: each
may lack what the other has, such as a part that did not begin yet.

API processes of one engine each repeat its gauges, and each count their own requests. A device is what its own labels say, by
UUID, by the serial number of its board, or by host and number: an exporter repeats it for each pod and container that shares it.
Its instances (MIG, partitions) and the chips of a board are parts of its use and memory, and repeat its power and energy.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import PART
from inferload.figures.servers.server_formulas import Floats
from inferload.servers.exposition import Labels

# Labels that identify an engine, the first one of a series counts.
ENGINE_LABELS = ("engine", "engine_id", "dp_rank")

_KIND = "tp|pp|ep|cp|dcp|pcp|sp|tensor|pipeline|expert|context|sequence"
_COPY = re.compile(rf"([a-z]+_)*({_KIND})(_parallel)?_rank")
# of the process of a rank: like the rank; of a gauge beside the label of its engine: like the API processes of that. Others are
# parts, such as engines of workers. (Dynamo's worker_id beside dp_rank is of an engine.)
_PROCESS = re.compile(r"pid|(api_|uvicorn_)?(process|worker|server)_(id|pid|index|rank)|api_(process|server)")
_NUMBERED = ("engine", "engine_id")  # engines by their number in one server
COUNTERS = ("_total", "_count", "_sum", "_bucket")

# Labels of a device in lower case, of NVIDIA's and AMD's exporters and such as Prometheus adds. The first one that is there counts.
_DEVICE = ("uuid", "gpu_uuid", "device_uuid")
_BOARD = "serial_number"  # of one device or several
_HOST = ("hostname", "host", "node", "nodename", "kubernetes_node", "instance")
_NUMBER = ("gpu", "gpu_id", "gpu_index", "index", "minor_number", "device", "card", "pci_bus_id")
_INSTANCE = ("gpu_i_id", "gpu_instance_id", "gpu_partition_id", "partition_id")  # of its number in the device
_UNSET = ("", "n/a", "none", "unknown")

_TOTAL = ("", "all", "total")

Members = tuple[int, ...]  # positions of series that repeat one value


class Whole(Struct, frozen=True):
    """One whole: its parts, and the series of its total (empty: none)."""

    parts: tuple[Members, ...]
    total: Members = ()


def is_total(value: str) -> bool:
    """Return True if a label's value means the sum over the label."""
    return value.lower() in _TOTAL


@lru_cache(maxsize=4096)
def wholes(metric: str, series: tuple[Labels, ...]) -> tuple[Whole, ...]:
    """Return the wholes of the series of a metric, by their labels. They add up."""
    members: dict[frozenset[tuple[str, str]], list[int]] = {}
    for position, labels in enumerate(series):
        part = _device_of(metric, labels) if metric in names.GPU_METRICS else _part_of(metric, labels)
        members.setdefault(part, []).append(position)
    found = []
    alike = len({len(part) for part in members}) == 1  # none contains another
    for related in [[part] for part in members] if alike else _related(list(members)):
        parts = [part for part in related if not any(part < other for other in related)]
        least = [part for part in related if not any(other < part for other in related)]
        total = members[least[0]] if len(least) == 1 and least != parts else ()
        found.append(Whole(tuple(tuple(members[part]) for part in parts), tuple(total)))
    return tuple(found)


def _part_of(metric: str, labels: Labels) -> frozenset[tuple[str, str]]:
    """Return the labels that distinguish parts."""
    known = [(name, value) for name, value in labels if not is_total(value)]
    copies = {name for name, _value in known if _COPY.fullmatch(name)}
    of_engine = not metric.endswith(COUNTERS) and any(name in _NUMBERED for name, _value in known)
    if copies or of_engine:
        copies |= {name for name, _value in known if _PROCESS.fullmatch(name)}
    return frozenset((name, value) for name, value in known if name not in copies)


def _device_of(metric: str, labels: Labels) -> frozenset[tuple[str, str]]:
    """Return the labels that distinguish devices; all, if none of them names one."""
    known = {name.lower(): (name, value) for name, value in labels if value.lower() not in _UNSET}

    def first(*among: str) -> set[tuple[str, str]]:
        return {known[name] for name in [name for name in among if name in known][:1]}

    number, device = first(*_NUMBER), first(*_DEVICE)
    instance = {known[name] for name in _INSTANCE if name in known} | (set() if device else number)
    device = device or first(_BOARD) or (first(*_HOST) | number if number else set())
    of_board = device if metric in (names.GPU_POWER, names.GPU_ENERGY) else device | instance
    return frozenset(of_board if device else labels)


def boards(metric: str, series: Sequence[Labels]) -> dict[frozenset[tuple[str, str]], list[int]]:
    """Return the series of each GPU, whatever its instances and chips, by its number or what no other GPU has; no totals."""
    found: dict[frozenset[tuple[str, str]], list[int]] = {}
    for whole in wholes(metric, tuple(series)):
        for part in whole.parts:
            found.setdefault(_device_of(names.GPU_POWER, series[part[0]]), []).extend(part)
    return found


def is_of_all_machines(board: frozenset[tuple[str, str]]) -> bool:
    """Return True for the UUID or serial number of a GPU, which no other one has."""
    return {name.lower() for name, _value in board} <= {*_DEVICE, _BOARD} and bool(board)


def without_names(series: Iterable[Labels]) -> tuple[Labels, ...]:
    """Return the series of a metric as under one name: a page may have several, whose series add up."""
    return tuple(dict.fromkeys(tuple(label for label in labels if label[0] != PART) for labels in series))


def engines(metric: str, series: Sequence[Labels]) -> tuple[dict[str, str], ...]:
    """Return labels that select the engine of each part of a gauge: its engine's, and others if parts have the same of these."""
    every = without_names(series)
    of_parts = [dict(every[part[0]]) for whole in wholes(metric, every) for part in whole.parts]
    named = [
        next(((name, labels[name]) for name in ENGINE_LABELS if not is_total(labels.get(name, ""))), None)
        for labels in of_parts
    ]
    found = {frozenset([label] if label else []) for label in named}
    if len(found) < len(of_parts):
        whole = [_part_of(metric, tuple(labels.items())) for labels in of_parts]
        shared = frozenset.intersection(*whole)
        found = {(part - shared) | ({label} if label else set()) for part, label in zip(whole, named, strict=True)}
    ordered = sorted(sorted(part, key=lambda label: (label[0] not in ENGINE_LABELS, label)) for part in found)
    return tuple(map(dict, sorted(ordered, key=lambda part: [(len(value), value) for _name, value in part]))) or ({},)


def _related(parts: list[frozenset[tuple[str, str]]]) -> list[list[frozenset[tuple[str, str]]]]:
    """Group sets of labels of which one contains another, directly or by way of others."""
    groups: list[list[frozenset[tuple[str, str]]]] = []
    for part in parts:
        joined, rest = [part], []
        for group in groups:
            if any(part < other or other < part for other in group):
                joined = group + joined
            else:
                rest.append(group)
        groups = [*rest, joined]
    return groups


def summed(metric: str, series: Sequence[Labels], values: Sequence[Floats]) -> Floats:
    """Return the sum of the wholes of a metric at each scrape; NaN where no series has a value."""

    def highest(members: Members) -> Floats:
        best: Floats = np.fmax.reduce([values[member] for member in members])
        return best

    def of(whole: Whole) -> Floats:
        added = _sum([highest(part) for part in whole.parts])
        if whole.total:
            np.fmax(added, highest(whole.total), out=added)
        return added

    return _sum([of(whole) for whole in wholes(metric, tuple(series))])


def _sum(parts: Sequence[Floats]) -> Floats:
    stacked = np.stack(parts)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))


class Growth(Struct, frozen=True):
    """Growth of a counter since the first scrape, at each scrape. `first`: scrape of its first value; None: it has none."""

    first: int | None
    total: Floats


def grown(metric: str, series: Sequence[Labels], of: Callable[[Members], Growth]) -> Floats | None:
    """Return the growth of the sum of the wholes; None if a whole lacks a value in a part and in its total. `of`: of copies."""
    found: list[Floats] = []
    for whole in wholes(metric, tuple(series)):
        parts = [of(part) for part in whole.parts]
        views = [of(whole.total)] if whole.total else []
        if all(part.first is not None for part in parts):
            firsts = [part.first for part in parts if part.first is not None]
            views.append(Growth(min(firsts), np.sum([part.total for part in parts], axis=0)))
        agreed = _agreed(views)
        if agreed.first is None:
            return None
        found.append(agreed.total)
    total: Floats = np.sum(found, axis=0)
    return total


def _agreed(views: Sequence[Growth]) -> Growth:
    """Return the higher growth of two views of one count. A view that begins later goes on from the other."""
    known = sorted((view.first, position) for position, view in enumerate(views) if view.first is not None)
    if not known:
        return Growth(None, np.zeros(0))
    (begin, earliest), *others = known
    total = views[earliest].total.copy()
    for first, position in others:
        view = views[position].total
        since = view[first:] + (total[first] - view[first] if first > begin else 0.0)
        total[first:] = np.maximum(total[first:], since)
    return Growth(begin, total)
