"""Latency breakdown: parts of a turn's time on the client, in the network and in the server.

The total of a turn is `last - planned`. Its parts:

    client_lag   planned to sent, without connect           upload     sent to written
    connect      DNS, TCP and TLS of a new connection       queue      arrival at the server to first scheduling
    prefill      first scheduling to first token            decode     first token to last token
    front_end    rest of written to last: HTTP, tokenizer, detokenizer, network

Queue, prefill and decode are known if the server reports its times with each turn (`--enable-per-request-metrics`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from inferload.figures.server_figures import DECODE, PREFILL, QUEUE
from inferload.figures.turn_figures import CONNECT, E2E, E2E_PLANNED, LAG, UPLOAD
from inferload.turns.record import SERVER_TIMES

Floats = npt.NDArray[np.float64]

TITLES = {
    "client_lag_ms": "client lag",
    CONNECT.key: "connect",
    UPLOAD.key: "upload",
    "front_end_ms": "front end, network",
    QUEUE.key: "queue",
    PREFILL.key: "prefill",
    DECODE.key: "decode",
}
PARTS = tuple(TITLES)
SERVER_PARTS = (QUEUE.key, PREFILL.key, DECODE.key)


def parts(turns: pd.DataFrame) -> pd.DataFrame:
    """Return one row per successful turn of the measure phase: `turn_id`, `target`, `total_ms`, each of PARTS, `server_ms`.

    `server_ms` is written to last. Front end, queue, prefill and decode are NaN without server times; lag + connect + upload +
    server = total in any case. A negative front end is kept: the server then reports more time than the turn took.
    """
    columns = ("turn_id", "target", "total_ms", *PARTS, "server_ms")
    if not len(turns):
        return pd.DataFrame({name: pd.Series(dtype=object if name in columns[:2] else float) for name in columns})
    included = turns["failure"].isna() & turns[E2E.key].notna()
    if "phase" in turns:
        included &= turns["phase"] == "measure"
    chosen = turns[included]

    def column(name: str) -> Floats:
        missing = pd.Series(np.nan, index=chosen.index)
        return np.asarray(chosen.get(name, missing), dtype=np.float64)

    connect, upload = (np.nan_to_num(column(name)) for name in (CONNECT.key, UPLOAD.key))
    own = [column(name) for name in SERVER_TIMES]
    server = column(E2E.key) - upload
    return pd.DataFrame(
        {
            "turn_id": chosen.get("turn_id", pd.Series("", index=chosen.index)).astype(object).to_numpy(),
            "target": chosen.get("target", pd.Series("", index=chosen.index)).astype(object).to_numpy(),
            "total_ms": column(E2E_PLANNED.key),
            "client_lag_ms": column(LAG.key) - connect,
            CONNECT.key: connect,
            UPLOAD.key: upload,
            "front_end_ms": server - own[0] - own[1] - own[2],
            **dict(zip(SERVER_PARTS, own, strict=True)),
            "server_ms": server,
        },
        columns=list(columns),
    )


@dataclass(frozen=True, slots=True)
class Band:
    """Turns between two quantiles of their total; means in ms. A server part is None if a turn lacks it."""

    label: str
    turns: int
    total_ms: float
    means: dict[str, float | None]


BANDS = (("fastest half", 0.0, 0.5), ("p50 to p90", 0.5, 0.9), ("p90 to p99", 0.9, 0.99), ("slowest 1 %", 0.99, 1.0))


def bands(table: pd.DataFrame) -> tuple[Band, ...]:
    """Return the mean parts of all turns, then of each non-empty band. Means add up to the total, medians do not."""
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
