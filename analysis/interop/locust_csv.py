"""Reader of runs of plain Locust (`--csv PREFIX`, and `--json-file PREFIX` if it is there), with or without scrapes.

Locust records requests and response times only. Their definition depends on the locustfile, so they are not TTFT, ITL or E2E.
"""

import csv
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from inferload.base.clock import NS_PER_S
from inferload.base.errors import UsageError, instead_of_file
from inferload.base.numbers import whole
from inferload.figures.figure import Head
from inferload.figures.servers.server_figures import KEPT_PREFIXES
from inferload.figures.table import Table
from inferload.results.documents.manifest_document import Manifest, ScenarioFile
from inferload.results.documents.summary_document import OtherRequests, RequestName
from inferload.results.tables.server_tables import servers_tables
from inferload.scenario.schema.load.arrivals import user_range
from inferload.servers import scrapes_file, window_figures
from inferload.servers.exposition import PromParser, page_text
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import ServerSeries, by_target
from inferload.servers.window import ServerWindow
from inferload.turns.sketch import Floats
from inferload.workload.plan.load_text import LoadText

from ..data import locust_history
from ..data.frame import Frame, known
from ..data.frames import RunFrames
from ..data.locust_history import number
from ..data.turn_frames import empty_turns, in_time_order

LIMITATION = (
    "Locust's CSV files only: without turns of inferload, TTFT, ITL and token figures are not known, and there is "
    "no verdict"
)
COLUMNS = {
    "requests_per_s": "Requests/s",
    "failures_per_s": "Failures/s",
    "response_ms_p50": "50%",
    "response_ms_p95": "95%",
}
_COUNTS, _TIMES = "requests by Locust", "response time by Locust"  # terms
_STATS = {
    Head("requests", _COUNTS): "Request Count",
    Head("failures", _COUNTS): "Failure Count",
    Head("mean, ms", _TIMES): "Average Response Time",
    **{Head(f"{name}, ms", _TIMES): column for name, column in (("p50", "50%"), ("p95", "95%"), ("p99", "99%"))},
    Head("max, ms", _TIMES): "Max Response Time",
    Head("requests/s", _COUNTS): "Requests/s",
}
_SENT, _FAILED = "Request Count", "Failure Count"
_WINDOW_S, _FEWEST = 10.0, 10  # of the percentiles in the history
_OF_FEW = "left out: of fewer than 10 requests in its last 10 s, where Locust falls back to longer times"


def prefix_of(path: Path) -> Path:
    """Return the prefix of the CSV files in a directory, or the path itself; UsageError for several or none."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*_stats_history.csv"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise UsageError(f"--locust-csv {path}: one *_stats_history.csv required, not {names}; name the prefix")
    return path / files[0].name.removesuffix("_stats_history.csv")


def load(path: Path, scrapes: Sequence[Path] = ()) -> RunFrames:
    """Read a Locust run; UsageError if its history is missing or empty."""
    prefix = prefix_of(path)
    history = _history(prefix)
    start_s, end_s = (number(history[row], "Timestamp") for row in (0, -1))
    start_wall_ns, end_ns = int(start_s) * NS_PER_S, int(end_s) * NS_PER_S
    scraped = read_pages(scrapes)
    servers = {
        name: server
        for name, server in scraped.items()
        if server.wall_ns[-1] >= start_wall_ns and server.wall_ns[0] <= end_ns
    }
    outside = "are outside the time of Locust's history and are left out"
    notes = [f"the scrapes of {server.target} {outside}" for name, server in scraped.items() if name not in servers]
    notes = notes if scraped else ["no server metrics (--scrape)"]
    of_locust = {"t_s": "Timestamp", "users": "User Count", **COLUMNS}
    columns = {name: np.array([number(row, column) for row in history]) for name, column in of_locust.items()}
    columns["t_s"] -= start_s
    few = _few_requests(columns["t_s"], np.array([number(row, "Total Request Count") for row in history]))
    for name in filter(lambda name: name.startswith("response_ms_"), COLUMNS):
        columns[name][(columns[name] == 0) | few] = np.nan  # Locust writes 0 if nothing ended in its last seconds
    if few.any():
        notes.append(f"percentiles of {int(few.sum())} of {len(few)} seconds of Locust's history are {_OF_FEW}")
    counts = columns["users"][known(columns["users"])].tolist()
    return RunFrames(
        path=prefix.parent,
        manifest=Manifest(
            scenario=ScenarioFile(name=prefix.name),
            started_at=datetime.fromtimestamp(start_wall_ns / 1e9, UTC).isoformat(),
            load=LoadText(user_range(counts), "", ()) if counts else None,
        ),
        others=requests(prefix),
        summary=None,
        start_wall_ns=start_wall_ns,
        phases=(),
        turns=empty_turns(),
        events=in_time_order([]),
        servers=servers,
        users=Frame(columns),
        notes=tuple(notes),
    )


def _few_requests(t_s: Floats, total: Floats) -> NDArray[np.bool_]:
    """Return whether fewer than _FEWEST requests ended in the _WINDOW_S before each second; False where their number is unknown."""
    before = np.maximum(np.searchsorted(t_s, t_s - _WINDOW_S, side="right") - 1, 0)
    ended = total - np.where(t_s[before] <= t_s - _WINDOW_S, total[before], 0.0)
    return ended < _FEWEST  # NaN is not


def _history(prefix: Path) -> list[dict[str, str]]:
    """Return the rows of all requests together, in the order of time."""
    path = prefix.with_name(prefix.name + "_stats_history.csv")
    try:
        head, history = _read(path)
    except FileNotFoundError as error:
        raise UsageError(f"--locust-csv {prefix}: no {path.name}; name the prefix of Locust's --csv") from error
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"--locust-csv {prefix}: {path.name} cannot be read ({error})") from error
    missing = [name for name in ("Timestamp", "User Count", "Name") if name not in head]
    if missing:
        raise UsageError(f"--locust-csv {prefix}: {path.name} lacks {', '.join(missing)}; is it Locust's?")
    together = [row for row in history if row["Name"] == "Aggregated" and not row.get("Type")]
    dated = [row for row in together if not np.isnan(number(row, "Timestamp"))]
    if not dated:
        raise UsageError(f"--locust-csv {prefix}: {path.name} has no row named Aggregated")
    return sorted(dated, key=lambda row: number(row, "Timestamp"))


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return head and rows of a file; ValueError if it has none."""
    text = path.read_text(encoding="utf-8-sig")
    head: list[str] = next(filter(None, csv.reader(text.splitlines())), [])
    if not head:
        raise ValueError("no columns")
    return head, list(locust_history.read(text))


def tables(path: Path, run: RunFrames) -> tuple[Table, ...]:
    """Return the tables of requests and of scraped servers that have rows. `run`: read from the same path."""
    end_wall_ns = run.start_wall_ns + round(float(run.users["t_s"].max()) * NS_PER_S)
    windows = [ServerWindow.of(server, run.start_wall_ns, end_wall_ns) for _, server in sorted(run.servers.items())]
    entries, group = window_figures.entries(windows), window_figures.together(windows)
    shown = (_requests(path), *(servers_tables(entries, group) if entries else []))
    return tuple(table for table in shown if table.rows)


def requests(prefix: Path) -> OtherRequests:
    """Return the requests of PREFIX.json or PREFIX_stats.csv; none without these files. Response times of no requests are None."""
    rows, _ = _stats(prefix)
    whole = next((row for row in rows if row["Name"] == "Aggregated" and not row.get("Type")), None)
    by_name = [
        RequestName(
            type=row.get("Type") or None,
            name=row["Name"],
            sent=_count(row, _SENT),
            failed=_count(row, _FAILED),
            p50_ms=_time_ms(row, "50%"),
            p95_ms=_time_ms(row, "95%"),
            p99_ms=_time_ms(row, "99%"),
        )
        for row in rows
        if row is not whole
    ]
    if whole is None:
        return OtherRequests(by_name=by_name)
    return OtherRequests(sent=_count(whole, _SENT), failed=_count(whole, _FAILED), by_name=by_name)


def _count(row: Mapping[str, str], key: str) -> int | None:
    return whole(_known(row, key))


def _stats(prefix: Path) -> tuple[list[dict[str, str]], bool]:
    """Return the rows of requests, and whether they have all: those of PREFIX.json. PREFIX_stats.csv may end a second earlier.

    A PREFIX.json of another time than the history is of another run, and not read.
    """
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError, UsageError):
        entries = json.loads(prefix.with_name(prefix.name + ".json").read_text(encoding="utf-8-sig"))
        first_s, last_s = (number(_history(prefix)[row], "Timestamp") for row in (0, -1))
        ends_s = max(entry["last_request_timestamp"] or 0 for entry in entries)
        if min(entry["start_time"] for entry in entries) <= last_s and ends_s >= first_s:
            rows = [_row(entry["method"] or "", entry["name"], [entry]) for entry in entries]
            return [*rows, _row("", "Aggregated", entries)], True
    try:
        _, rows = _read(prefix.with_name(prefix.name + "_stats.csv"))
    except (OSError, ValueError, csv.Error):
        return [], False
    return [row for row in rows if "Name" in row], False


def _row(method: str, name: str, entries: list[dict[str, Any]]) -> dict[str, str]:
    """Return entries of Locust's --json-file together, in the columns of its CSV."""
    sent, failed, total_ms = (
        sum(entry[key] for entry in entries) for key in ("num_requests", "num_failures", "total_response_time")
    )
    figures = {_SENT: sent, _FAILED: failed}
    counts = Counter[float]()
    for entry in entries:
        counts.update({float(ms): count for ms, count in entry["response_times"].items()})
    ordered = sorted(counts)
    ended = list(accumulate(counts[ms] for ms in ordered))
    if ended:
        figures |= {f"{q}%": ordered[bisect_left(ended, q / 100 * ended[-1])] for q in (50, 95, 99)}
        figures["Average Response Time"] = total_ms / ended[-1]
        figures["Max Response Time"] = max(entry["max_response_time"] for entry in entries)
    ends_s = max(entry["last_request_timestamp"] or 0 for entry in entries)
    if (span_s := ends_s - min(entry["start_time"] for entry in entries)) > 0:
        figures["Requests/s"] = sent / span_s
    return {"Type": method, "Name": name} | {key: str(value) for key, value in figures.items()}


def _requests(path: Path) -> Table:
    """Return the table of requests."""
    prefix = prefix_of(path)
    entries, whole = _stats(prefix)
    rows = [
        (
            " ".join(row[key] for key in ("Type", "Name") if row.get(key)),
            *((_known if head.term == _COUNTS else _time_ms)(row, column) for head, column in _STATS.items()),
        )
        for row in entries
    ]
    note = "Whole run, counted by Locust. Percentiles are rounded to two digits."
    if not whole:
        note += f" Its CSV files may end a second before the run; --json-file {prefix.name} has all requests."
    return Table("locust", "Requests by Locust", ("", *_STATS), rows, note)


def _time_ms(row: Mapping[str, str], column: str) -> float | None:
    """Return a response time; None without requests, for which Locust writes 0 or N/A."""
    count, value = _count(row, _SENT), _known(row, column)
    return None if count == 0 or (count is None and value == 0) else value


def _known(row: Mapping[str, str], column: str) -> float | None:
    value = number(row, column)
    return None if np.isnan(value) else value


def read_pages(paths: Sequence[Path]) -> dict[str, ServerSeries]:
    """Read scrapes by target: Parquet files or folders of `inferload scrape`, or saved /metrics pages dated by their file times."""
    return by_target(table for path in paths for table in _tables(path))


def _tables(path: Path) -> Iterator[pa.Table]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        remedy = instead_of_file(path, "name a file of scrapes or a saved page")
        raise UsageError(f"--scrape {path}: not found, or a folder without *.parquet; {remedy}")
    for file in files:
        if file.suffix != ".parquet":
            yield _page(file)
            continue
        try:
            yield from scrapes_file.tables(file)
        except scrapes_file.UNREADABLE as error:
            raise UsageError(f"--scrape {file}: not a complete Parquet file of scrapes ({error})") from error


def _page(path: Path) -> pa.Table:
    columns = ScrapeColumns()
    wall_ns = path.stat().st_mtime_ns
    try:
        for sample in PromParser(KEPT_PREFIXES).parse(page_text(path.read_bytes())):
            columns.append(sample.at_ns or wall_ns, path.stem, sample.metric, sample.labels, sample.value)
    except ValueError as error:
        raise UsageError(f"--scrape {path}: not a /metrics page ({error})") from error
    if not len(columns):
        raise UsageError(f"--scrape {path}: no metrics of an inference server; save its /metrics page")
    return columns.to_table()
