"""Latency breakdown: parts of a turn's time on the client, in the network and in the server.

The total of a turn is `last - planned`. Its parts:

    client_lag   planned to sent, without connect           upload     sent to written
    connect      DNS, TCP and TLS of a new connection       queue      arrival at the server to first scheduling
    prefill      first scheduling to first token            decode     first token to last token
    front_end    rest of written to last: HTTP, tokenizer, detokenizer, network

Queue, prefill and decode are known if the server reports its times with each turn (vLLM: `--enable-per-request-metrics`).
llama.cpp's server reports prefill and decode only: front end and queue are then not known apart.
"""

from dataclasses import dataclass

import numpy as np

from inferload.figures.servers.server_figures import DECODE, PREFILL, QUEUE
from inferload.figures.turn_figures import CONNECT, E2E, E2E_PLANNED, LAG, UPLOAD
from inferload.turns.record import SERVER_TIMES
from inferload.turns.sketch import Bools

from .frame import Frame, known, mean

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


def parts(turns: Frame) -> Frame:
    """Return one row per successful turn of the measure phase: `turn_id`, `target`, `total_ms`, each of PARTS, `server_ms`.

    `server_ms` is written to last. Front end, queue, prefill and decode are NaN without server times; lag + connect + upload +
    server = total in any case. A negative front end is kept: the server then reports more time than the turn took.
    """
    included = ~known(turns["failure"]) & known(turns[E2E.key])
    if "phase" in turns:
        included &= turns["phase"] == "measure"
    chosen = turns[included]

    connect, upload = (np.nan_to_num(chosen.numbers(name)) for name in (CONNECT.key, UPLOAD.key))
    own = [chosen.numbers(name) for name in SERVER_TIMES]
    server = chosen.numbers(E2E.key) - upload
    return Frame(
        {
            **{name: chosen.texts(name, "") for name in ("turn_id", "target")},
            "total_ms": chosen.numbers(E2E_PLANNED.key),
            "client_lag_ms": chosen.numbers(LAG.key) - connect,
            CONNECT.key: connect,
            UPLOAD.key: upload,
            "front_end_ms": server - own[0] - own[1] - own[2],
            **dict(zip(SERVER_PARTS, own, strict=True)),
            "server_ms": server,
        }
    )


def divided(table: Frame) -> Bools:
    """Return True for each row of `parts` with all of the server's own times."""
    return timed(table) & known(table[QUEUE.key])


def timed(table: Frame) -> Bools:
    """Return True for each row of `parts` with the server's own prefill and decode."""
    return known(table[PREFILL.key] + table[DECODE.key])


@dataclass(frozen=True, slots=True)
class Band:
    """Turns between two quantiles of their total; means in ms. A server part is None if a turn lacks it."""

    label: str
    turns: int
    total_ms: float
    means: dict[str, float | None]


BANDS = (("fastest half", 0.0, 0.5), ("p50 to p90", 0.5, 0.9), ("p90 to p99", 0.9, 0.99), ("slowest 1 %", 0.99, 1.0))


def bands(table: Frame) -> tuple[Band, ...]:
    """Return the mean parts of all turns, then of each non-empty band. Means add up to the total, medians do not."""
    if not len(table):
        return ()
    ordered = table.sorted_by("total_ms")
    of_bands = ((label, ordered[round(low * len(table)) : round(high * len(table))]) for label, low, high in BANDS)
    return (_band("all turns", ordered), *(_band(label, rows) for label, rows in of_bands if len(rows)))


def _band(label: str, rows: Frame) -> Band:
    means = {name: mean(rows[name]) if known(rows[name]).all() else None for name in (*PARTS, "server_ms")}
    return Band(label, len(rows), mean(rows["total_ms"]), means)
