"""Locust's history of a run: users, and requests other than turns, by second."""

import io

import pandas as pd

from .turn_frames import NS_PER_S

_HISTORY = ["Timestamp", "User Count", "Type", "Name", "Total Request Count", "Total Failure Count"]
OTHERS = {"other_rps": "Total Request Count", "other_failures": "Total Failure Count"}


def users(text: str, start_wall_ns: int) -> pd.DataFrame:
    """Return Locust's user count by second (t_s, users), and totals of other requests, if any; a truncated last line is ignored."""
    empty = pd.DataFrame({"t_s": pd.Series(dtype=float), "users": pd.Series(dtype=float)})
    whole = text[: text.rfind("\n") + 1]  # without a truncated last line
    try:
        history = pd.read_csv(io.StringIO(whole), usecols=_HISTORY.__contains__, on_bad_lines="skip")
    except ValueError:  # no columns
        return empty
    if not {"Timestamp", "User Count", "Name"} <= set(history):
        return empty
    others = _others(history, start_wall_ns)
    history = history[history["Name"] == "Aggregated"]
    stamps, counts = (pd.to_numeric(history[name], errors="coerce") for name in ("Timestamp", "User Count"))
    counted = pd.DataFrame({"t_s": stamps - start_wall_ns / NS_PER_S, "users": counts}).astype(float)
    counted = counted.dropna().reset_index(drop=True)
    return counted if others is None else counted.merge(others, on="t_s", how="left")


def _others(history: pd.DataFrame, start_wall_ns: int) -> pd.DataFrame | None:
    """Running totals of requests other than turns; None without any."""
    if set(_HISTORY) - set(history):
        return None
    rows = history[(history["Name"] != "Aggregated") & ~history["Type"].isin(["TURN", "TTFT", "ITL"])]
    rows = rows.drop_duplicates(["Timestamp", "Type", "Name"], keep="last")  # two snapshots in one second
    totals = rows[["Timestamp", *OTHERS.values()]].apply(pd.to_numeric, errors="coerce").dropna()
    totals = totals.groupby("Timestamp").sum()
    if totals.empty:
        return None
    frame = pd.DataFrame({"t_s": totals.index - start_wall_ns / NS_PER_S})
    return frame.assign(**{name: totals[column].to_numpy() for name, column in OTHERS.items()})
