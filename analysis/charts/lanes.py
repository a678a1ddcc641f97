"""Gantt chart of the turns of one minute.

A turn occupies the lowest lane that is free at its planned start. The page contains about `MAX_TURNS` turns; its note gives the
number of omitted minutes, which `--minute` selects.
"""

import heapq
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from inferload.figures.turn_figures import E2E_PLANNED
from inferload.turns.states import FAILED, UNFINISHED

from ..data.frame import Column, Frame, known
from ..data.frames import RunFrames
from .chart import BLUE, GREY, ORANGE, RED, Picture, PlotlyDict, axis, layout, scatter

MINUTE_S = 60
MAX_TURNS = 30_000


# (name, start, end, colour); report.js draws the same segments.
SEGMENTS = (
    ("not sent", "planned", "sent", RED),
    ("waiting for the first token", "sent", "first", ORANGE),
    ("streaming", "first", "closed", BLUE),
)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Turns in planned order. Times in ms since the start of the run (-1: never); `minutes`: contained minutes."""

    columns: dict[str, list[Any]]
    minutes: tuple[int, ...]
    chosen: int
    left_out: int
    end_s: float  # of the run


def lanes(run: RunFrames, minute: int | None = None) -> Lanes | None:
    """Return the lanes of a run; None without turns. `minute`: shown first (default: that of the slowest turn)."""
    turns = run.turns
    if not len(turns) or "session_id" not in turns:
        return None
    table = turns[known(turns["planned_s"]) & known(turns["closed_s"])].sorted_by("planned_s")
    if not len(table):
        return None
    lane = packed(table["planned_s"], table["closed_s"])
    minutes = (table["planned_s"] // MINUTE_S).clip(min=0).astype(int)
    per_minute = np.bincount(minutes)
    valid = minute if minute is not None and 0 <= minute < len(per_minute) and per_minute[minute] else None
    chosen = int(minutes[_slowest(table)]) if valid is None else valid
    contained = _contained(per_minute, chosen)
    inside = np.isin(minutes, contained)
    rows = table[inside]
    columns: dict[str, list[Any]] = {name: _ms(rows[f"{name}_s"]) for name in ("planned", "sent", "first", "closed")}
    columns["lane"] = lane[inside].tolist()
    columns["name"] = [f"{a}/{b}" for a, b in zip(rows["session_id"], rows["turn_index"], strict=True)]
    columns["class"] = rows["class"].tolist()
    columns["input"], columns["output"] = (_whole(rows, f"{name}_tokens") for name in ("input", "output"))
    columns["failure"] = rows["failure"].tolist()
    return Lanes(columns, tuple(contained), chosen, int(np.count_nonzero(per_minute)) - len(contained), run.end_s)


def _slowest(table: Frame) -> int:
    """Return the row with the longest E2E from the plan: of the table of slowest turns, else of all turns."""
    measured = table["ok"] & (table["phase"] == "measure")
    e2e_ms = table[E2E_PLANNED.key]
    for values in (np.where(measured, e2e_ms, np.nan), e2e_ms):
        if not np.isnan(values).all():
            return int(np.nanargmax(values))
    return 0


def _contained(per_minute: np.ndarray[Any, Any], chosen: int) -> list[int]:
    """Select the chosen minute, and others evenly over the run, about `MAX_TURNS` turns."""
    present = [int(minute) for minute in np.flatnonzero(per_minute)]
    if per_minute.sum() <= MAX_TURNS:
        return present
    fits = max(0, int(MAX_TURNS // per_minute[present].mean()) - 1)
    even = {present[int(index)] for index in np.linspace(0, len(present) - 1, fits)}
    return sorted(even | {chosen})


def packed(start_s: np.ndarray[Any, Any], end_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Assign the lowest free lane to each span; spans are sorted by start."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = np.empty(len(start_s), dtype=np.int64)
    for row, (start, end) in enumerate(zip(start_s.tolist(), end_s.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        lanes[row] = lane
        heapq.heappush(busy, (end, lane))
    return lanes


def _ms(seconds: Column) -> list[int]:
    return [int(value) for value in np.nan_to_num((seconds * 1e3).round(), nan=-1).tolist()]


def _whole(rows: Frame, name: str) -> list[int | None]:
    return [None if isnan(value) else int(value) for value in rows[name].tolist()] if name in rows else []


def picture(minutes: Lanes) -> Picture:
    start, end = minutes.chosen * MINUTE_S * 1000, (minutes.chosen + 1) * MINUTE_S * 1000
    at = {name: np.array(minutes.columns[name]) for name in ("planned", "sent", "first", "closed", "lane")}
    inside = (at["planned"] < end) & (at["closed"] >= start)
    data = [_segments(at, inside, segment) for segment in SEGMENTS]
    failures = minutes.columns["failure"]
    unfinished = np.array([failure == UNFINISHED.key for failure in failures], dtype=np.bool_)
    failed = np.array([failure is not None for failure in failures], dtype=np.bool_) & ~unfinished
    for state, marked, look in ((FAILED, failed, ("x", RED)), (UNFINISHED, unfinished, ("circle-open", GREY))):
        if (shown := inside & marked).any():
            x, y = (at["closed"][shown] / 1e3).tolist(), at["lane"][shown].tolist()
            marker = {"symbol": look[0], "size": 7, "color": look[1]}
            data.append(scatter("markers", state.key, x, y, marker=marker, hoverinfo="skip"))
    times = axis("time since the start of the run, s", range=[start / 1e3, min(end / 1e3, minutes.end_s)])
    most = int(at["lane"][inside].max()) + 1 if inside.any() else 1
    rows = axis("lane", range=[most - 0.4, -0.6], showgrid=False, tickformat="d")
    note = "One bar per turn, planned start to end. A red cross marks a failed turn, a grey ring an unfinished one."
    if minutes.left_out:
        note += f" {minutes.left_out} minutes are not in this page; inferload report --minute N shows minute N."
    return Picture("lanes", "Turns of one minute", note, {"data": data, "layout": layout(440, times, rows)})


def _segments(at: dict[str, Any], inside: Any, segment: tuple[str, str, str, str]) -> PlotlyDict:
    """Return the segments of a kind as a line with gaps; a segment without an end ends with its turn."""
    name, start, end, colour = segment
    begin = at[start][inside]
    until = np.where(at[end][inside] < 0, at["closed"][inside], at[end][inside])
    lane = at["lane"][inside]
    drawn = (begin >= 0) & (until > begin)
    x: list[float | None] = []
    y: list[int | None] = []
    for low, high, row in zip(begin[drawn].tolist(), until[drawn].tolist(), lane[drawn].tolist(), strict=True):
        x += [low / 1e3, high / 1e3, None]
        y += [row, row, None]
    line = {"color": colour, "width": float(np.clip(240 / (lane.max(initial=0) + 1), 2, 12))}
    return scatter("lines", name, x, y, line=line, hoverinfo="skip")
