"""Latency breakdown: the parts of a turn's time on the client, on the network and in the server.

The total of a turn is `last - planned`. It is divided at instants that both sides know:

    client_lag   planned to sent, without connecting        upload     sent to written
    connect      DNS, TCP and TLS, if one was opened        queue      the server's own, to the first scheduling
    prefill      scheduling to the first token              decode     first token to the last
    front_end    the rest of written to last: HTTP, tokenizer, detokenizer, network

Queue, prefill and decode of a turn are known if the server sends its own times with each answer
(`--enable-per-request-metrics`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from inferload.measure.record import CANCELLED

from .frames import RunFrames

Floats = npt.NDArray[np.float64]

TITLES = {
    "client_lag_ms": "client lag",
    "connect_ms": "connect",
    "upload_ms": "upload",
    "front_end_ms": "front end, network",
    "queue_ms": "queue",
    "prefill_ms": "prefill",
    "decode_ms": "decode",
}
PARTS = tuple(TITLES)
SERVER_PARTS = ("queue_ms", "prefill_ms", "decode_ms")


def parts(frames: RunFrames, phase: str | None = "measure") -> pd.DataFrame:
    """Return a row for each turn that ended well and was not cancelled: `turn_id`, `target`, `total_ms`, PARTS, `server_ms`.

    `server_ms` is written to last: everything outside the client. Front end, queue, prefill and decode are NaN for a turn
    without the server's own times; lag + connect + upload + server = total holds for all turns. A front end below 0 is not
    clipped: the server then reports more time than the turn took.
    """
    turns = frames.turns
    columns = ("turn_id", "target", "total_ms", *PARTS, "server_ms")
    if not len(turns) or "sent_s" not in turns:
        return pd.DataFrame({name: pd.Series(dtype=object if name in columns[:2] else float) for name in columns})
    wanted = turns["failure"].isna() & turns["last_s"].notna() & turns["sent_s"].notna()
    if "finish_reason" in turns:
        wanted &= turns["finish_reason"] != CANCELLED
    if phase is not None and "phase" in turns:
        wanted &= turns["phase"] == phase
    chosen = turns[wanted]

    def column(name: str) -> Floats:
        missing = pd.Series(np.nan, index=chosen.index)
        return np.asarray(chosen.get(name, missing), dtype=np.float64)

    planned, sent, written, last = (column(f"{name}_s") * 1e3 for name in ("planned", "sent", "written", "last"))
    written = np.where(np.isnan(written), sent, written)
    connect = np.nan_to_num(column("connect_ns") / 1e6)
    own = [column(name) for name in ("server_queue_ms", "server_ttft_ms", "server_generation_ms")]
    server = last - written
    return pd.DataFrame(
        {
            "turn_id": chosen.get("turn_id", pd.Series("", index=chosen.index)).astype(object).to_numpy(),
            "target": chosen.get("target", pd.Series("", index=chosen.index)).astype(object).to_numpy(),
            "total_ms": last - planned,
            "client_lag_ms": sent - planned - connect,
            "connect_ms": connect,
            "upload_ms": written - sent,
            "front_end_ms": server - own[0] - own[1] - own[2],
            "queue_ms": own[0],
            "prefill_ms": own[1],
            "decode_ms": own[2],
            "server_ms": server,
        },
        columns=list(columns),
    )


@dataclass(frozen=True, slots=True)
class Band:
    """Turns between two quantiles of their total; means in ms. A part of the server is None if a turn lacks it."""

    label: str
    turns: int
    total_ms: float
    means: dict[str, float | None]


BANDS = (("fastest half", 0.0, 0.5), ("p50 to p90", 0.5, 0.9), ("p90 to p99", 0.9, 0.99), ("slowest 1 %", 0.99, 1.0))


def bands(table: pd.DataFrame) -> tuple[Band, ...]:
    """Return mean parts of all turns, then of each band of BANDS with turns. Means add up to the total, medians would not."""
    if not len(table):
        return ()
    ordered = table.sort_values("total_ms", ignore_index=True)
    means = [_band("all turns", ordered)]
    for label, low, high in BANDS:
        first, after = round(low * len(ordered)), round(high * len(ordered))
        if after > first:
            means.append(_band(label, ordered.iloc[first:after]))
    return tuple(means)


def _band(label: str, rows: pd.DataFrame) -> Band:
    means = {name: float(rows[name].mean()) if rows[name].notna().all() else None for name in (*PARTS, "server_ms")}
    return Band(label, len(rows), float(rows["total_ms"].mean()), means)
