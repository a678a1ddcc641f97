"""vLLM's log: throughput lines (every ten seconds) and the lines on hits and speculation after them.

Rates and acceptance are means since the previous line; request counts and KV-cache usage are instantaneous; hit rates are of the
last 1,000 requests of the engine. Prompt throughput counts computed tokens only, and before vLLM 0.16 cached ones as well. The
log has neither year nor time zone: the year nearest to the run and the zone of this machine are assumed.

Lines of the V0 engine (`vllm/engine/metrics.py` of 0.8.4) have waiting requests as Pending, and a hit rate of blocks since its
start in a line of its own. Its draft acceptance counts tokens behind a rejected one as well, so it is not read. A field of a
known line that is not read is named.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal

import numpy as np

from inferload.base.errors import UsageError, explained
from inferload.base.numbers import percent
from inferload.figures.figure import Figure, Head
from inferload.figures.servers import server_blocks
from inferload.figures.servers import server_figures as figures
from inferload.figures.table import Cell, Table
from inferload.turns.sketch import Floats

from .frame import Frame, known

_STAMP = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_NUMBER = r"(-?\d+(?:\.\d+)?|nan)"


@dataclass(frozen=True, slots=True)
class LogField:
    """A figure in a line of the log. `engines`: how those of several engines are combined; `mean`: since the previous line."""

    figure: Figure
    pattern: str
    engines: Literal["sum", "max", "mean"] = "sum"
    mean: bool = False

    @property
    def factor(self) -> float:
        """Factor of the number in the line: shares are percentages there."""
        return 0.01 if self.figure.form == "share" else 1.0


EXTERNAL_HIT_RATE = Figure(
    key="external_cache_hit_rate",
    title="external prefix cache hit rate",
    unit="",
    form="share",
    text="prompt tokens found in a cache outside the engine / tokens looked up there",
)
LOG_FIGURES = (EXTERNAL_HIT_RATE,)  # that only a log has


_THROUGHPUT = (
    LogField(figures.COMPUTED_RATE, rf"Avg prompt throughput: {_NUMBER} tokens/s", mean=True),
    LogField(figures.GENERATION_RATE, rf"Avg generation throughput: {_NUMBER} tokens/s", mean=True),
    LogField(figures.RUNNING, rf"Running: {_NUMBER} reqs"),
    LogField(figures.WAITING, rf"(?:Waiting|Pending): {_NUMBER} reqs"),
    LogField(server_blocks.WAITING_DEFERRED, rf"Deferred: {_NUMBER} reqs"),
    LogField(figures.PREEMPTIONS, rf"Preemptions: {_NUMBER}"),
    LogField(figures.KV_CACHE_USAGE, rf"KV cache usage: {_NUMBER}%", "max"),
    LogField(figures.HIT_RATE, rf"(?<!External )(?<!external )[Pp]refix cache hit rate: (?:GPU: )?{_NUMBER}%", "mean"),
    LogField(EXTERNAL_HIT_RATE, rf"External prefix cache hit rate: {_NUMBER}%", "mean"),
    LogField(figures.MM_HIT_RATE, rf"MM cache hit rate: {_NUMBER}%", "mean"),
)
_SPECULATION = (
    LogField(server_blocks.ACCEPTANCE_LENGTH, rf"Mean acceptance length: {_NUMBER}", "mean", mean=True),
    LogField(server_blocks.ACCEPTED_RATE, rf"Accepted throughput: {_NUMBER} tokens/s", mean=True),
    LogField(server_blocks.DRAFTED_RATE, rf"Drafted throughput: {_NUMBER} tokens/s", mean=True),
    LogField(server_blocks.ACCEPTED_TOKENS, rf"Accepted: {_NUMBER} tokens"),
    LogField(server_blocks.DRAFTED_TOKENS, rf"Drafted: {_NUMBER} tokens"),
    LogField(server_blocks.ACCEPTANCE_RATE, rf"(?:[Aa]vg )?Draft acceptance rate: {_NUMBER}%", "mean", mean=True),
)
_V0_PROMPT = LogField(figures.PROMPT_RATE, rf"Avg prompt throughput: {_NUMBER} tokens/s", mean=True)
FIELDS = (_V0_PROMPT, *_THROUGHPUT, *_SPECULATION)
# Fields by the mark of a line, the first that fits; the first two begin an entry, the others add to the last one.
_V0_MARK, _MARK = "Pending: ", "Avg prompt throughput"
_LINES: Mapping[str, Sequence[LogField]] = {
    _V0_MARK: (_V0_PROMPT, *_THROUGHPUT[1:]),
    _MARK: _THROUGHPUT,
    "refix cache hit rate: GPU": _THROUGHPUT,
    "SpecDecoding metrics": _SPECULATION,
    "Speculative metrics": (),  # of V0
    "DiffusionDecoding metrics": (),
}
_POSITIONS = re.compile(r"Per-position acceptance rate: ([0-9., ]+?)(?=, [A-Z]|$)")
_NAMED = re.compile(rf"([A-Z][\w -]*): {_NUMBER}")

_LONGEST_S = 60.0  # longest time that the means of a line cover
_INTERVAL_S = 10.0  # time between throughput lines, assumed before the first line and after a gap


@dataclass(frozen=True, slots=True)
class LogLine:
    """A throughput line with those that belong to it. `day`: (month, day, hour, minute, second). `unread`: names of fields."""

    day: tuple[int, int, int, int, int]
    figures: dict[str, float]
    per_position: tuple[float, ...] = ()
    unread: tuple[str, ...] = ()


def parse(text: str) -> list[LogLine]:
    """Parse the throughput lines of a log; other lines and impossible dates are ignored."""
    lines: list[LogLine] = []
    for row in text.splitlines():
        mark = next((mark for mark in _LINES if mark in row), None)
        stamp = _STAMP.search(row)
        if mark in (_V0_MARK, _MARK):
            if stamp is not None and (day := _instant(stamp)) is not None:
                lines.append(_read(LogLine(day, {}), row, _LINES[mark]))
        elif mark is not None and lines:
            lines[-1] = _read(lines[-1], row, _LINES[mark])
    return lines


def _instant(stamp: re.Match[str]) -> tuple[int, int, int, int, int] | None:
    month, day, hour, minute, second = map(int, stamp.groups())
    try:
        datetime(2000, month, day, hour, minute, second)  # a leap year
    except ValueError:
        return None
    return month, day, hour, minute, second


def _read(line: LogLine, row: str, fields: Sequence[LogField]) -> LogLine:
    """Return a line with the fields of a further row of the log."""
    positions = _POSITIONS.search(row.strip())
    shares = tuple(float(part) for part in positions[1].split(",") if part.strip()) if positions else line.per_position
    rest, found = _POSITIONS.sub("", row.strip()), {}
    for each in fields:
        if match := re.search(each.pattern, rest):
            found[each.figure.key] = float(match[1]) * each.factor
            rest = rest[: match.start()] + rest[match.end() :]
    return LogLine(line.day, line.figures | found, shares, (*line.unread, *(name for name, _ in _NAMED.findall(rest))))


@dataclass(frozen=True, slots=True)
class VllmLog:
    """A log on the clock of the run: a row per time (`t_s` in s since the start), engines aggregated."""

    name: str
    rows: Frame
    per_position: tuple[tuple[float, tuple[float, ...]], ...]  # (t_s, acceptance by position)
    unread: tuple[str, ...]  # names of fields


def read(path: Path, start_wall_ns: int, length_s: float) -> VllmLog:
    """Read the log of a server; UsageError if it is unreadable or has no throughput line within the run."""
    with explained(f"--server-log {path}", "name the file with vLLM's output"):
        lines = parse(path.read_text(encoding="utf-8", errors="replace"))
    if not lines:
        raise UsageError(
            f"--server-log {path}: no line with 'Avg prompt throughput'; is it vLLM's log, with --log-stats on?"
        )
    log = on_run_clock(path.name, lines, start_wall_ns)
    low_s, high_s = -_LONGEST_S, length_s + _LONGEST_S
    inside = (log.rows["t_s"] >= low_s) & (log.rows["t_s"] <= high_s)
    if not inside.any():
        first, last = (datetime(2000, *lines[at].day).strftime("%m-%d %H:%M:%S") for at in (0, -1))
        start = datetime.fromtimestamp(start_wall_ns / 1e9).strftime("%m-%d %H:%M:%S")
        raise UsageError(
            f"--server-log {path}: its lines from {first} to {last} are outside the run, which started at {start} in this "
            "machine's zone; name the log of the run, or set TZ to the zone of the server"
        )
    per_position = tuple((t_s, acceptance) for t_s, acceptance in log.per_position if low_s <= t_s <= high_s)
    return VllmLog(log.name, log.rows[inside], per_position, log.unread)


def on_run_clock(name: str, lines: Iterable[LogLine], start_wall_ns: int) -> VllmLog:
    engines: dict[float, list[dict[str, float]]] = {}
    positions = []
    unread: dict[str, None] = {}
    for line in lines:
        unread |= dict.fromkeys(line.unread)
        t_s = _wall_s(line.day, start_wall_ns / 1e9) - start_wall_ns / 1e9
        engines.setdefault(t_s, []).append(line.figures)
        if line.per_position:
            positions.append((t_s, line.per_position))
    rows = {"t_s": sorted(engines)} | {
        field.figure.key: [_together(field, engines[t_s]) for t_s in sorted(engines)]
        for field in FIELDS
        if any(field.figure.key in row for row in chain(*engines.values()))
    }
    return VllmLog(name, Frame(rows), tuple(positions), tuple(unread))


def _together(field: LogField, engines: Sequence[dict[str, float]]) -> float:
    """Return a figure of all engines; NaN if it is not known of any."""
    values = np.array([row.get(field.figure.key, np.nan) for row in engines])
    values = values[known(values)]
    return float(getattr(values, field.engines)()) if len(values) else float("nan")


def _wall_s(day: tuple[int, int, int, int, int], near_s: float) -> float:
    """Time in the year nearest to the run."""
    year = datetime.fromtimestamp(near_s).year
    times_s = []
    for candidate in range(year - 4, year + 5):  # one of them is a leap year
        with suppress(ValueError):  # 29 February
            times_s.append(datetime(candidate, *day).timestamp())
    return min(times_s, key=lambda at: abs(at - near_s))


def columns(log: VllmLog, seconds: int) -> dict[str, Floats]:
    """Return the columns of the timeline: means in all seconds since the previous line, other values in the second of the line."""
    names = [name for name in log.rows if name != "t_s"]
    means = {field.figure.key for field in FIELDS if field.mean}
    table = {name: np.full(seconds, np.nan) for name in names}
    before = np.nan
    for line, at_s in enumerate(log.rows["t_s"].tolist()):
        start_s = at_s - _INTERVAL_S if np.isnan(before) or at_s - before > _LONGEST_S else before
        span = slice(max(0, int(np.ceil(start_s))), max(0, int(np.ceil(at_s))))
        own = int(np.floor(at_s))
        for name in names:
            if name in means:
                table[name][span] = log.rows[name][line]
            elif 0 <= own < seconds:
                table[name][own] = log.rows[name][line]
        before = at_s
    return table


def table(log: VllmLog | None) -> Table | None:
    """Return mean, minimum and maximum over the lines of a log; None without a log."""
    if log is None:
        return None
    rows: list[Sequence[Cell]] = []

    def add(head: Head, values: Floats, is_share: bool) -> None:
        if len(values := values[known(values)]):
            shown = [float(value) for value in (values.mean(), values.min(), values.max())]
            rows.append((head, *(map(percent, shown) if is_share else shown), len(values)))

    for row in FIELDS:
        add(row.figure.head(), log.rows.numbers(row.figure.key), row.figure.form == "share")
    for index, shares in enumerate(zip_longest(*(shares for _, shares in log.per_position), fillvalue=np.nan)):
        add(Head(f"accepted at position {index}", "accepted at position"), np.array(shares), True)
    v0 = "hit rate of the V0 engine: of blocks, since its start; prompt tokens: with cached tokens."
    v1 = "hit rates: over the last 1,000 requests of the engine; "
    v1 += "prompt tokens: without cached tokens since vLLM 0.16, with them before."
    note = f"From {log.name}. Rates and acceptance: means since the previous line; "
    note += v0 if figures.PROMPT_RATE.key in log.rows else v1
    note += " Assumed time zone: that of this machine."
    note += f" Not read: {', '.join(log.unread)}." if log.unread else ""
    return Table("server-log", "Server log", ("", Head("mean of lines", "mean"), "min", "max", "lines"), rows, note)
