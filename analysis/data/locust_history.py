"""Locust's history of a run: users, and requests other than turns, by second."""

import csv
import io
from collections.abc import Mapping

import numpy as np

from .frame import Floats, Frame, known
from .turn_frames import NS_PER_S

_NEEDED = {"Timestamp", "Type", "Name"}  # for the totals
OTHERS = {"other_rps": "Total Request Count", "other_failures": "Total Failure Count"}


def read(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return head and rows of a CSV file. Empty lines, and rows longer than the head, are left out; missing cells are empty."""
    try:
        head, *rows = filter(None, csv.reader(io.StringIO(text, newline="")))
    except (csv.Error, ValueError):  # ValueError: not even a head
        return [], []
    missing = [""] * len(head)
    return head, [dict(zip(head, row + missing, strict=False)) for row in rows if len(row) <= len(head)]


def number(row: Mapping[str, str], name: str) -> float:
    """Return a cell as a number; NaN if it is none."""
    try:
        return float(row.get(name, ""))
    except ValueError:
        return float("nan")


def users(text: str, start_wall_ns: int) -> Frame:
    """Return Locust's user count by second (t_s, users), and totals of other requests, if any; a truncated last line is ignored."""
    _, rows = read(text[: text.rfind("\n") + 1])
    stamps, counts = (
        np.array([number(row, name) for row in rows if row.get("Name") == "Aggregated"])
        for name in ("Timestamp", "User Count")
    )
    both = known(stamps) & known(counts)
    counted = Frame({"t_s": stamps[both] - start_wall_ns / NS_PER_S, "users": counts[both]})
    others = _others(rows)
    if not others:
        return counted
    totals = [others.get(stamp, np.full(len(OTHERS), np.nan)) for stamp in stamps[both].tolist()]
    return counted.with_columns({name: [each[column] for each in totals] for column, name in enumerate(OTHERS)})


def _others(rows: list[dict[str, str]]) -> dict[float, Floats]:
    """Return the running totals of requests other than turns, in the order of OTHERS, by time stamp."""
    latest = {  # of two snapshots in one second
        (row["Timestamp"], row["Type"], row["Name"]): [number(row, name) for name in ("Timestamp", *OTHERS.values())]
        for row in rows
        if row.keys() >= _NEEDED and row["Name"] != "Aggregated" and row["Type"] not in ("TURN", "TTFT", "ITL")
    }
    totals: dict[float, Floats] = {}
    for stamp, *counts in latest.values():
        if not np.isnan([stamp, *counts]).any():
            totals[stamp] = totals.get(stamp, np.zeros(len(OTHERS))) + counts
    return totals
