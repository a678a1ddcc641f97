"""`timeline.csv`: one row per second of a run, client and server on one clock. Unknown values are empty.

A row covers [t_s, t_s + 1) since the start of the run. TTFT is assigned to the second of the first token, ITL to that of the later
event, TPOT and E2E to that of the last token; successful turns only. `in_flight` is the count at the end of the second. Server
gauges are means over the scrapes of the second; token rates are linearly interpolated from counters; counts (preemptions, hits,
queries) and cumulative counters are values at scrapes. A killed run lacks turns in flight, so its client columns end where they
would be incomplete.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pandas as pd

from inferload import rundir
from inferload.figures.turn_figures import HEADLINES, ITL
from inferload.server_metrics import metric_names as names
from inferload.server_metrics.series import ServerSeries

from . import vllm_log
from .frames import OTHERS, UNFINISHED, RunFrames

Floats = npt.NDArray[np.float64]

CLIENT_COUNTS = ("turns_started", "turns_ended", "turns_failed", "in_flight")
QUANTILES = (("p50", 0.50), ("p95", 0.95))
SERVER_COLUMNS = (
    "kv_cache_usage",
    "requests_running",
    "requests_waiting",
    "waiting_capacity",
    "waiting_deferred",
    "prefix_cache_hit_rate",
    "preemptions",
    "prompt_tok_per_s",
    "prompt_tok_computed_per_s",
    "generation_tok_per_s",
    "prompt_tokens_total",
    "generation_tokens_total",
    "draft_acceptance_rate",
    "mean_acceptance_length",
    "mm_cache_hit_rate",
)
GPU_COLUMNS = ("gpu_use", "gpu_memory_gib", "gpu_power_w", "gpu_sm_clock_mhz")
SAMPLED = "latencies_from"  # column of a large run: the sessions whose turns the percentiles are of
LOG = "@log"  # suffix of columns from a server log
# Columns of what is known at the end of a turn.
_AT_END = (
    "turns_ended",
    "turns_failed",
    *(figure.key for figure in HEADLINES if figure.ends in ("last_ns", "closed_ns")),
)
_WHOLE = (*CLIENT_COUNTS, "users", "preemptions", "prompt_tokens_total", "generation_tokens_total")

# Gaps between scrapes over this multiple of the median, at least 1 s, are unknown.
_GAP_FACTOR = 2.5


def build(frames: RunFrames) -> pd.DataFrame:
    """Build the table."""
    seconds = max(1, int(np.ceil(frames.end_s)))
    grid = np.arange(seconds, dtype=np.float64)
    table = pd.DataFrame({"t_s": np.arange(seconds), "wall_s": frames.start_wall_ns / 1e9 + grid})
    table["phase"] = _phase_of(frames, grid)
    table["users"] = _last_in_second(frames.users["t_s"].to_numpy(), frames.users["users"].to_numpy(), seconds)
    table = pd.concat([table, _client(frames, seconds), _locust(frames, seconds)], axis=1)
    for name in OTHERS:
        if name in frames.users:
            # Locust's workers report every three seconds; requests are counted at the report.
            totals = _last_in_second(frames.users["t_s"].to_numpy(), frames.users[name].to_numpy(), seconds)
            table[name] = np.diff(pd.Series(totals).ffill().fillna(0.0), prepend=0.0)
    suffixes = server_suffixes(tuple(frames.servers))
    for target, server in frames.servers.items():
        columns = _server(server, frames.since_start_s(server.wall_ns), seconds)
        table = pd.concat([table, columns.add_suffix(suffixes[target])], axis=1)
    if frames.sample is not None:
        table[SAMPLED] = str(frames.sample)
    if frames.log is not None:
        table = pd.concat([table, vllm_log.columns(frames.log, seconds).add_suffix(LOG)], axis=1)
    return table


def _locust(frames: RunFrames, seconds: int) -> pd.DataFrame:
    """Figures of plain Locust's CSV files."""
    at_s = frames.users["t_s"].to_numpy()
    names = [name for name in frames.users if name not in ("t_s", "users", *OTHERS)]
    return pd.DataFrame({f"locust_{n}": _last_in_second(at_s, frames.users[n].to_numpy(), seconds) for n in names})


def write(table: pd.DataFrame, path: Path) -> None:
    """Write the table atomically; counts without decimals, other values with four."""
    rounded = table.copy()
    for column in rounded.columns:
        if str(column).partition("@")[0] in _WHOLE:
            rounded[column] = rounded[column].round().astype("Int64")
        elif rounded[column].dtype == np.float64:
            rounded[column] = rounded[column].round(4)
    rundir.write_text(path, rounded.to_csv(index=False))


def is_gpu_exporter(server: ServerSeries) -> bool:
    """Return True for the metrics page of a GPU exporter."""
    return any(name in server.metrics for name in names.GPU) and names.RUNNING not in server.metrics


def server_suffixes(targets: tuple[str, ...]) -> dict[str, str]:
    """Return the column suffix of each target: empty for a single one, else `@host:port`."""
    if len(targets) == 1:
        return {targets[0]: ""}
    return {target: "@" + (urlsplit(target).netloc + urlsplit(target).path or target) for target in targets}


def _phase_of(frames: RunFrames, grid: Floats) -> list[str]:
    """Phase at the middle of each second; empty without one."""
    phases = [""] * len(grid)
    for span in frames.phases:
        end_s = np.inf if span.end_s is None else span.end_s
        for index in np.flatnonzero((grid + 0.5 >= span.start_s) & (grid + 0.5 < end_s)):
            phases[int(index)] = span.phase
    return phases


def _client(frames: RunFrames, seconds: int) -> pd.DataFrame:
    turns, events = frames.turns, frames.events
    if not len(frames.workers):
        names = (*CLIENT_COUNTS, "output_tok", *(f"{figure.key}_{q}" for figure in HEADLINES for q, _ in QUANTILES))
        return pd.DataFrame({name: np.full(seconds, np.nan) for name in names})
    columns = _counts(frames, seconds) | {"output_tok": _output_tokens(frames, seconds)}
    answered = turns[turns["ok"].to_numpy()]
    gaps = ~np.isnan(events.gap_ms)
    for figure in HEADLINES:
        at_s, values = (
            (events.at_s[gaps], events.gap_ms[gaps])
            if figure is ITL
            else (answered[figure.ends.replace("_ns", "_s")].to_numpy(), answered[figure.key].to_numpy())
        )
        columns_of = quantiles_by_second(at_s, values, tuple(q for _, q in QUANTILES), seconds)
        columns |= {f"{figure.key}_{label}": column for (label, _), column in zip(QUANTILES, columns_of, strict=True)}
    until_s = frames.turns_until_s
    if until_s is not None:
        _cut(columns, until_s, float(frames.workers["longest_s"].max()))
    return pd.DataFrame(columns)


def _counts(frames: RunFrames, seconds: int) -> dict[str, Floats]:
    """Return CLIENT_COUNTS of all turns."""
    started, ended, failed, left = (np.zeros(seconds) for _ in range(4))
    for turns in frames.batches("sent_s", "closed_s", "failure", "ok"):
        sent, closed = turns["sent_s"].to_numpy(), turns["closed_s"].to_numpy()
        finished, ok = (turns["failure"] != UNFINISHED).to_numpy(), turns["ok"].to_numpy()
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
    return np.bincount(second[inside], weights=None if weights is None else weights[inside], minlength=seconds).astype(
        np.float64
    )


def _seconds_of(at_s: Floats, seconds: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    inside = ~np.isnan(at_s)
    second = np.clip(np.floor(np.where(inside, at_s, 0.0)), 0, seconds - 1).astype(np.int64)
    return second, inside


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
        ordered = np.sort(values[ends[second] - count : ends[second]])
        for result, q in zip(results, quantiles, strict=True):
            result[second] = ordered[max(1, int(np.ceil(q * count))) - 1]
    return results


def _last_in_second(at_s: Floats, values: Floats, seconds: int) -> Floats:
    result = np.full(seconds, np.nan)
    second, inside = _seconds_of(at_s, seconds)
    inside &= ~np.isnan(values)
    result[second[inside]] = values[inside]  # in time order: the latest value remains
    return result


def _mean_in_second(at_s: Floats, values: Floats | None, seconds: int) -> Floats:
    if values is None:
        return np.full(seconds, np.nan)
    known = ~np.isnan(values)
    counts = _count(at_s[known], seconds)
    sums = _count(at_s[known], seconds, values[known])
    means: Floats = np.divide(sums, counts, out=np.full(seconds, np.nan), where=counts > 0)
    return means


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters of a server at the bounds of the seconds; NaN in gaps between scrapes."""

    server: ServerSeries
    at_s: Floats
    bounds_s: Floats

    def _known(self) -> npt.NDArray[np.bool_]:
        if len(self.at_s) < 2:
            return np.zeros(len(self.bounds_s), dtype=np.bool_)
        gaps = np.diff(self.at_s)
        limit_s = max(1.0, _GAP_FACTOR * float(np.median(gaps)))
        after = np.searchsorted(self.at_s, self.bounds_s, side="left")
        inside = (self.bounds_s >= self.at_s[0]) & (self.bounds_s <= self.at_s[-1])
        near = gaps[np.clip(after - 1, 0, len(gaps) - 1)] <= limit_s
        return np.asarray(inside & near)

    def rate(self, metric: str, **labels: str) -> Floats:
        """Increase per second, linearly interpolated between scrapes."""
        grown = self.server.grown(metric, **labels)
        if grown is None or not len(self.at_s):
            return np.full(len(self.bounds_s) - 1, np.nan)
        return np.diff(np.where(self._known(), np.interp(self.bounds_s, self.at_s, grown), np.nan))

    def step(self, metric: str) -> Floats:
        """Increase within each second at scrapes, without interpolation."""
        grown = self.server.grown(metric)
        if grown is None or not len(self.at_s):
            return np.full(len(self.bounds_s) - 1, np.nan)
        before = np.clip(np.searchsorted(self.at_s, self.bounds_s, side="right") - 1, 0, len(self.at_s) - 1)
        return np.diff(np.where(self._known(), grown[before], np.nan))


def _hit_rate(server: ServerSeries, counters: _Counters, at_s: Floats, seconds: int) -> Floats:
    """Hits over queries; without these counters cached over prompt tokens, else the gauge."""
    queries, hits = names.PREFIX_QUERIES, names.PREFIX_HITS
    if names.HIT_RATE in server.metrics and queries not in server.metrics:
        queries, hits = names.PROMPT_TOKENS, names.PROMPT_TOKENS_CACHED
        if not {queries, hits} <= server.metrics.keys():
            return _mean_in_second(at_s, server.highest(names.HIT_RATE), seconds)
    return _share(counters, hits, queries)


def _share(counters: _Counters, part: str, whole: str) -> Floats:
    """Ratio of the increases of two counters by second; NaN without an increase of the second."""
    of, growth = counters.step(whole), counters.step(part)
    shares: Floats = np.divide(growth, of, out=np.full(len(of), np.nan), where=np.nan_to_num(of) > 0)
    return shares


def _gpu(server: ServerSeries, at_s: Floats, seconds: int) -> pd.DataFrame:
    """Figures over all GPUs of an exporter: highest use, total memory and power, lowest clock."""
    use, memory, power = server.highest(names.GPU_USE), server.summed(names.GPU_MEMORY), server.summed(names.GPU_POWER)
    clocks = [series.values for series in server.series(names.GPU_SM_CLOCK)]
    columns = (
        None if use is None else use / 100,
        None if memory is None else memory / 1024,
        power,
        np.fmin.reduce(clocks) if clocks else None,
    )
    return pd.DataFrame(
        {name: _mean_in_second(at_s, values, seconds) for name, values in zip(GPU_COLUMNS, columns, strict=True)}
    )


def _server(server: ServerSeries, at_s: Floats, seconds: int) -> pd.DataFrame:
    if is_gpu_exporter(server):
        return _gpu(server, at_s, seconds)
    counters = _Counters(server, at_s, np.arange(seconds + 1, dtype=np.float64))
    by_reason = {why: server.summed(names.WAITING_BY_REASON, reason=why) for why in (names.CAPACITY, names.DEFERRED)}
    gauges = {
        "kv_cache_usage": server.highest(names.KV_CACHE_USAGE),
        "requests_running": server.summed(names.RUNNING),
        "requests_waiting": server.summed(names.WAITING),
        "waiting_capacity": by_reason[names.CAPACITY],
        "waiting_deferred": by_reason[names.DEFERRED],
    }
    columns = {name: _mean_in_second(at_s, values, seconds) for name, values in gauges.items()}
    columns["prefix_cache_hit_rate"] = _hit_rate(server, counters, at_s, seconds)
    columns["mm_cache_hit_rate"] = _share(counters, names.MM_HITS, names.MM_QUERIES)
    columns["draft_acceptance_rate"] = _share(counters, names.SPEC_ACCEPTED, names.SPEC_DRAFT_TOKENS)
    columns["mean_acceptance_length"] = 1 + _share(counters, names.SPEC_ACCEPTED, names.SPEC_DRAFTS)
    columns["preemptions"] = counters.step(names.PREEMPTIONS)
    columns["prompt_tok_per_s"] = counters.rate(names.PROMPT_TOKENS)
    columns["prompt_tok_computed_per_s"] = counters.rate(names.PROMPT_TOKENS_BY_SOURCE, source=names.LOCAL_COMPUTE)
    columns["generation_tok_per_s"] = counters.rate(names.GENERATION_TOKENS)
    for name, metric in (
        ("prompt_tokens_total", names.PROMPT_TOKENS),
        ("generation_tokens_total", names.GENERATION_TOKENS),
    ):
        values = server.summed(metric)
        columns[name] = np.full(seconds, np.nan) if values is None else _last_in_second(at_s, values, seconds)
    return pd.DataFrame(columns)[list(SERVER_COLUMNS)]
