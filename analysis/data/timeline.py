"""`timeline.csv`: one row per second of a run, client and server on one clock. Unknown values are empty.

A row covers [t_s, t_s + 1) since the start of the run. TTFT is assigned to the second of the first token, ITL to that of the later
event, TPOT and E2E to that of the last token; successful turns only. `in_flight` is the count at the end of the second. Of a
server the row has each figure of `figures.servers.server_figures`: gauges are means over the scrapes of the second, rates are
linearly interpolated from counters, counts and what is made of them are increases from scrape to scrape. A killed run lacks turns
in flight, so its client columns end where they would be incomplete.
"""

import csv
import io
import math
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from inferload.base import rundir
from inferload.figures.servers.server_figure import is_shown
from inferload.figures.servers.server_figures import SERVER_FIGURES, page_block
from inferload.figures.servers.server_formulas import Energy, Reading, Statistic
from inferload.figures.turn_figures import HEADLINES
from inferload.servers.series import ServerSeries
from inferload.servers.window import ServerPage
from inferload.turns.sketch import Floats

from . import vllm_log
from .frame import Column, Frame, last_known
from .frames import UNFINISHED, RunFrames
from .locust_history import OTHERS
from .manifest import arrivals_of

CLIENT_COUNTS = ("turns_started", "turns_ended", "turns_failed", "in_flight")
QUANTILES = (("p50", 0.50), ("p95", 0.95))
SAMPLED = "latencies_from"  # column of a large run: the sessions whose turns the percentiles are of
LOG = "@log"  # suffix of columns from a server log
# Columns of what is known at the end of a turn.
_AT_END = (
    "turns_ended",
    "turns_failed",
    *(figure.key for figure in HEADLINES if figure.ends in ("last_ns", "closed_ns")),
)
_WHOLE = (*CLIENT_COUNTS, "users", "targets", *(row.key for row in SERVER_FIGURES if row.form == "count"))

# Gaps between scrapes over this multiple of the median, at least 1 s, are unknown.
_GAP_FACTOR = 2.5

_AT_ONCE = 4096  # rows of the file: their cells are objects


def build(frames: RunFrames) -> Frame:
    seconds = max(1, int(np.ceil(frames.end_s)))
    grid = np.arange(seconds, dtype=np.float64)
    at_s, users = frames.users["t_s"], {n: c for n, c in frames.users.items() if n != "t_s"}
    by_second = {name: _last_in_second(at_s, column, seconds) for name, column in users.items()}
    # In an open loop Locust's users are a factor of the rate. Plain Locust has no arrivals.
    counted, closed = by_second.pop("users"), arrivals_of(frames.manifest).get("kind", "closed") == "closed"
    columns: dict[str, Column] = {
        "t_s": np.arange(seconds),
        "wall_s": frames.start_wall_ns / 1e9 + grid,
        "phase": _phase_of(frames, grid),
        "users": counted if closed else np.full(seconds, np.nan),
        **_client(frames, seconds),
        **_targets(frames, grid + 1.0),
    }
    # Locust's workers report every three seconds; requests are counted at the report.
    others = {
        name: np.diff(np.nan_to_num(last_known(by_second.pop(name))), prepend=0.0) for name in OTHERS if name in users
    }
    columns |= {f"locust_{name}": column for name, column in by_second.items()} | others
    suffixes = server_suffixes(tuple(frames.servers))
    for target, server in frames.servers.items():
        own = _server(server, frames.since_start_s(server.wall_ns), seconds)
        columns |= {name + suffixes[target]: column for name, column in own.items()}
    if frames.sample is not None:
        columns[SAMPLED] = np.full(seconds, str(frames.sample), dtype=object)
    if frames.log is not None:
        columns |= {name + LOG: column for name, column in vllm_log.columns(frames.log, seconds).items()}
    return Frame(columns)


def write(table: Frame, path: Path) -> None:
    """Write the table atomically; counts without decimals, other values with four."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    for start in range(0, len(table), _AT_ONCE):
        cells = (_cells(name, column[start : start + _AT_ONCE]) for name, column in table.items())
        writer.writerows(zip(*cells, strict=True))
    rundir.write_text(path, text.getvalue())


def _cells(name: str, column: Column) -> list[Any]:
    if column.dtype != np.float64:
        return list(column)
    kind, digits = (int, 0) if name.partition("@")[0] in _WHOLE else (float, 4)
    return [None if math.isnan(value) else kind(value) for value in column.round(digits).tolist()]


def server_suffixes(targets: tuple[str, ...]) -> dict[str, str]:
    """Return the column suffix of each target: empty for a single one, else `@host:port`."""
    if len(targets) == 1:
        return {targets[0]: ""}
    return {target: "@" + (urlsplit(target).netloc + urlsplit(target).path or target) for target in targets}


def _targets(frames: RunFrames, at_s: Floats) -> dict[str, Floats]:
    """Return the number of servers at each instant, of a run in which it can change."""
    changes = [(mark.t_s, mark.targets) for mark in frames.marks if mark.targets is not None]
    if not changes:
        return {}
    counts = np.array([len(frames.manifest.targets), *(count for _, count in changes)], dtype=np.float64)
    return {"targets": counts[np.searchsorted([t_s for t_s, _ in changes], at_s)]}


def _phase_of(frames: RunFrames, grid: Floats) -> Column:
    """Phase at the middle of each second; empty without one."""
    phases = np.full(len(grid), "", dtype=object)
    for span in frames.phases:
        end_s = np.inf if span.end_s is None else span.end_s
        phases[(grid + 0.5 >= span.start_s) & (grid + 0.5 < end_s)] = span.phase
    return phases


def _client(frames: RunFrames, seconds: int) -> dict[str, Floats]:
    turns, events = frames.turns, frames.events
    if not len(frames.workers):
        names = (*CLIENT_COUNTS, "output_tok", *(f"{figure.key}_{q}" for figure in HEADLINES for q, _ in QUANTILES))
        return {name: np.full(seconds, np.nan) for name in names}
    columns = _counts(frames, seconds) | {"output_tok": _output_tokens(frames, seconds)}
    for figure in HEADLINES:
        if figure.by_event:
            at_s, values = events.at_s, events.gap_ms
        else:
            at_s, values = (turns[name][turns["ok"]] for name in (figure.ends.replace("_ns", "_s"), figure.key))
        columns_of = quantiles_by_second(at_s, values, tuple(q for _, q in QUANTILES), seconds)
        columns |= {f"{figure.key}_{label}": column for (label, _), column in zip(QUANTILES, columns_of, strict=True)}
    if (until_s := frames.turns_until_s) is not None:
        _cut(columns, until_s, float(np.fmax.reduce(frames.workers["longest_s"])))
    return columns


def _counts(frames: RunFrames, seconds: int) -> dict[str, Floats]:
    started, ended, failed, left = (np.zeros(seconds) for _ in range(4))
    for turns in frames.batches("sent_s", "closed_s", "failure", "ok"):
        sent, closed, ok = (turns[name] for name in ("sent_s", "closed_s", "ok"))
        finished = turns["failure"] != UNFINISHED
        started += _count(sent, seconds)
        ended += _count(closed[finished], seconds)
        failed += _count(closed[finished & ~ok], seconds)
        left += _count(closed[~np.isnan(sent)], seconds)
    return dict(zip(CLIENT_COUNTS, (started, ended, failed, np.cumsum(started - left)), strict=True))


def _output_tokens(frames: RunFrames, seconds: int) -> Floats:
    """Return the output tokens of all turns by second; NaN if none is known."""
    tokens, any_known = np.zeros(seconds), False
    for events in frames.event_batches():
        known = ~np.isnan(events.tokens)
        tokens += _count(events.at_s[known], seconds, events.tokens[known])
        any_known = any_known or bool(known.any())
    return tokens if any_known else np.full(seconds, np.nan)


def _cut(columns: dict[str, Floats], until_s: float, longest_s: float) -> None:
    """Clear values that lack unwritten turns: ends from the end of the records, other columns one turn earlier."""
    for name, column in columns.items():
        known_s = until_s if name.startswith(_AT_END) else until_s - longest_s
        column[max(0, int(known_s)) :] = np.nan


def _count(at_s: Floats, seconds: int, weights: Floats | None = None) -> Floats:
    """Count per second; NaN times are ignored."""
    second, inside = _seconds_of(at_s, seconds)
    chosen = None if weights is None else weights[inside]
    return np.bincount(second[inside], weights=chosen, minlength=seconds).astype(np.float64)


def _seconds_of(at_s: Floats, seconds: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    second = np.nan_to_num(at_s, nan=0.0)
    np.clip(np.floor(second, out=second), 0, seconds - 1, out=second)  # in place: there may be ten million events
    return second.astype(np.int64), ~np.isnan(at_s)


def quantiles_by_second(at_s: Floats, values: Floats, quantiles: tuple[float, ...], seconds: int) -> list[Floats]:
    """Nearest-rank quantiles of each second; NaN without samples."""
    index, inside = _seconds_of(at_s, seconds)
    inside &= ~np.isnan(values)
    index, values = index[inside], values[inside]
    if len(index) and (np.diff(index) < 0).any():
        order = np.argsort(index, kind="stable")
        index, values = index[order], values[order]
    counts = np.bincount(index, minlength=seconds)
    ends = np.cumsum(counts)
    results = [np.full(seconds, np.nan) for _ in quantiles]
    for second in np.flatnonzero(counts):
        count = int(counts[second])
        ranks = [max(1, int(np.ceil(q * count))) - 1 for q in quantiles]
        ordered = np.partition(values[ends[second] - count : ends[second]], ranks)
        for result, rank in zip(results, ranks, strict=True):
            result[second] = ordered[rank]
    return results


def _last_in_second(at_s: Floats, values: Floats, seconds: int) -> Floats:
    result = np.full(seconds, np.nan)
    second, inside = _seconds_of(at_s, seconds)
    inside &= ~np.isnan(values)
    result[second[inside]] = values[inside]  # in time order: the latest value remains
    return result


def _in_second(statistic: Statistic, at_s: Floats, values: Floats, seconds: int) -> Floats:
    """Return mean or maximum of the known values of each second; NaN without one."""
    second, _ = _seconds_of(at_s, seconds)
    known = ~np.isnan(values)
    counts = np.bincount(second[known], minlength=seconds)
    result = np.full(seconds, np.nan)
    if statistic == "max":
        np.fmax.at(result, second[known], values[known])
        return result
    sums = np.bincount(second[known], weights=values[known], minlength=seconds)
    return np.asarray(np.divide(sums, counts, out=result, where=counts > 0))


class SecondsWindow(ServerPage, frozen=True):
    """Each second of a run at a server, as a window of figures: gauges over its scrapes, counters at its bounds.

    Counters are unknown in gaps between scrapes. `at_s`: of the scrapes since the start of the run.
    """

    at_s: Floats
    seconds: int
    part: float = 1.0

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        """Return mean or maximum over the scrapes of each second."""
        values = self.server.read(reading)
        return self._unknown if values is None else _in_second(statistic, self.at_s, values, self.seconds)

    def per_s(self, reading: Reading) -> Floats:
        """Return the increase of a counter per second, linearly interpolated between scrapes."""
        grown = self._grown(reading)
        if grown is None:
            return self._unknown
        return np.diff(np.where(self._known(), np.interp(self._bounds_s, self.at_s, grown), np.nan))

    def delta(self, reading: Reading) -> Floats:
        """Return the increase of a counter within each second at scrapes, without interpolation."""
        grown = self._grown(reading)
        if grown is None:
            return self._unknown
        before = np.clip(np.searchsorted(self.at_s, self._bounds_s, side="right") - 1, 0, len(self.at_s) - 1)
        return np.diff(np.where(self._known(), grown[before], np.nan))

    def restarts(self) -> Floats:
        """Return the number of restarts that the scrapes of each second show; NaN in gaps."""
        known = self._known()
        return np.where(known[:-1] & known[1:], _count(self.at_s[self.server.restarted], self.seconds), np.nan)

    @property
    def _unknown(self) -> Floats:
        return np.full(self.seconds, np.nan)

    @property
    def _bounds_s(self) -> Floats:
        return np.arange(self.seconds + 1, dtype=np.float64)

    def _grown(self, reading: Reading) -> Floats | None:
        labels = dict([reading.label] if reading.label else ())
        return self.server.grown(reading.metric, **labels) if len(self.at_s) else None

    def _known(self) -> npt.NDArray[np.bool_]:
        """Return True for the bounds that are not in a gap between scrapes."""
        bounds_s = self._bounds_s
        if len(self.at_s) < 2:
            return np.zeros(len(bounds_s), dtype=np.bool_)
        gaps = np.diff(self.at_s)
        limit_s = max(1.0, _GAP_FACTOR * float(np.median(gaps)))
        after = np.searchsorted(self.at_s, bounds_s, side="left")
        inside = (bounds_s >= self.at_s[0]) & (bounds_s <= self.at_s[-1])
        return np.asarray(inside & (gaps[np.clip(after - 1, 0, len(gaps) - 1)] <= limit_s))


def _server(server: ServerSeries, at_s: Floats, seconds: int) -> dict[str, Floats]:
    """Return a column for each figure of the server's kind of page."""
    window, block = SecondsWindow(server, at_s, seconds), page_block(server.page, server.metrics)
    shown = (row for row in SERVER_FIGURES if is_shown(row, block) and not isinstance(row.formula, Energy))
    return {row.key: row.formula.value(window) for row in shown}
