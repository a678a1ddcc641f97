"""Locust's history of a run: users, and requests other than turns, by second."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby

import numpy as np

from .frame import Frame, known
from .turn_frames import NS_PER_S

OTHERS = {"other_rps": "Total Request Count", "other_failures": "Total Failure Count"}
_UNKNOWN = np.full(len(OTHERS), np.nan)


def read(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file. Empty lines, and rows longer than the head, are left out; missing cells are empty."""
    lines = filter(None, csv.reader(io.StringIO(text, newline="")))
    with suppress(csv.Error):
        head = next(lines, [])
        missing = [""] * len(head)
        yield from (dict(zip(head, row + missing, strict=False)) for row in lines if len(row) <= len(head))


def number(row: Mapping[str, str], name: str) -> float:
    """Return a cell as a number; NaN if it is none."""
    try:
        return float(row.get(name, ""))
    except ValueError:
        return float("nan")


def users(text: str, start_wall_ns: int) -> Frame:
    """Return Locust's user count by second (t_s, users), and totals of other requests, if any; a truncated last line is ignored."""
    counts: list[tuple[float, float]] = []
    others: dict[float, np.ndarray] = {}
    for _, group in groupby(read(text[: text.rfind("\n") + 1]), lambda row: row.get("Timestamp")):
        rows = list(group)
        of_all = [row for row in rows if row.get("Name") == "Aggregated"]
        counts += [(number(row, "Timestamp"), number(row, "User Count")) for row in of_all]
        if (totals := _others(rows)) is not None:
            others[number(rows[0], "Timestamp")] = totals
    stamps, of_users = np.reshape(counts, (-1, 2)).T
    both = known(stamps) & known(of_users)
    counted = Frame({"t_s": stamps[both] - start_wall_ns / NS_PER_S, "users": of_users[both]})
    columns = np.reshape([others.get(stamp, _UNKNOWN) for stamp in stamps[both].tolist()], (-1, len(OTHERS))).T
    return counted.with_columns(dict(zip(OTHERS, columns, strict=True))) if others else counted


def _others(rows: Iterable[Mapping[str, str]]) -> np.ndarray | None:
    """Return the totals of requests other than turns, in the order of OTHERS, at one time stamp; None without any."""
    latest = {  # of two snapshots in one second
        (row["Type"], row["Name"]): [number(row, name) for name in OTHERS.values()]
        for row in rows
        if row.keys() >= {"Type", "Name"} and row["Name"] != "Aggregated" and row["Type"] not in ("TURN", "TTFT", "ITL")
    }
    complete = [counts for counts in latest.values() if not np.isnan(counts).any()]
    return np.sum(complete, axis=0) if complete else None
