"""Series of a live document: new points only, or the whole run at a bounded size. No I/O."""

from typing import Any

from inferload.run.live.live_recorder import FAILED
from inferload.run.live.panels import CLIENT, LOAD, SERVER
from inferload.run.live.series import Series, Values

HISTORY = 120  # buckets of a whole run, each with minimum, mean and maximum
NEWEST = 120  # points at full resolution beside them


def series_document(
    series: Series, after: int | None = None, class_name: str | None = None, target: str | None = None
) -> dict[str, Any]:
    """Return the points after a sequence number. None, or a number that is too old: the whole run.

    The whole run is `history`, in at most HISTORY buckets, and the newest points; without older points `history` is null. Client
    columns are of `class_name`, server columns of `target`; None: of all. A column without a known value is absent.
    """
    names = _columns(series, class_name, target)
    points = None if after is None else series.after(after, names)
    whole, history = points is None, None
    if points is None:
        points = series.newest(NEWEST, names)
        if (before := series.sequence - len(points.t_s)) > 0:
            past = series.history(before, HISTORY, names)
            history = {
                "t": past.t_s,
                "low": _named(past.low, names),
                "mean": _named(past.mean, names),
                "high": _named(past.high, names),
            }
    return {
        "sequence": series.sequence,
        "whole": whole,
        "history": history,
        "points": {"t": points.t_s, "columns": _named(points.columns, names)},
    }


def _columns(series: Series, class_name: str | None, target: str | None) -> dict[str, str]:
    """Return the names of a document's columns by the names in the series."""
    of_class = "" if class_name is None else f"@class:{class_name}"
    of_target = "" if target is None else f"@target:{target}"
    names = {f"{name}{of_class}": name for name in CLIENT}
    names |= {name: name for name in LOAD}
    names |= {f"{name}{of_target}": name for name in SERVER}
    return names | {name: name for name in series.columns if name.startswith(FAILED)}


def _named(columns: dict[str, Values], names: dict[str, str]) -> dict[str, Values]:
    return {names[name]: values for name, values in columns.items() if any(value is not None for value in values)}
