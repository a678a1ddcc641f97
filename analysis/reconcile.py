"""Where a turn's time went: client, network, and the server's own parts; and whether the two sides' books agree.

A turn's time is `last - planned`, what its caller felt. It is cut where both sides have an instant:

    client_lag   planned to sent, without connecting        upload     sent to written
    connect      DNS, TCP and TLS, where one was opened     queue      the server's own, to the first scheduling
    prefill      scheduling to the first token              decode     first token to the last
    front_end    what is left of written to last: HTTP, tokenizer, detokenizer, network

The server's parts are per turn where it sends its own times with each answer (`--enable-per-request-metrics`). Where it does
not, only their means are known, from its histograms between two scrapes at which it was idle: queue, prefill and decode
are counted when a request ends, so that any other span would hold halves of turns.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from inferload.measure import server_names as names
from inferload.measure.record import CANCELLED
from inferload.measure.servers import View
from inferload.measure.serverseries import ServerSeries

from .frames import RunFrames

Floats = npt.NDArray[np.float64]

PARTS = ("client_lag_ms", "connect_ms", "upload_ms", "front_end_ms", "queue_ms", "prefill_ms", "decode_ms")
SERVER_PARTS = ("queue_ms", "prefill_ms", "decode_ms")

# The server's clock and ours never start at the same instant; less than this is rounding.
SLACK_MS, SLACK_SHARE = 1.0, 0.01

_HISTOGRAMS = {"queue_ms": names.QUEUE, "prefill_ms": names.PREFILL, "decode_ms": names.DECODE}


def parts(frames: RunFrames, phase: str | None = "measure") -> pd.DataFrame:
    """One row per turn that ended well, cancelled ones left out: `turn_id`, `target`, `total_ms`, each of PARTS, `server_ms`.

    `server_ms` is written to last, all that is not the client's. Where a turn came without the server's own times, front
    end, queue, prefill and decode are NaN; the others always add up: lag + connect + upload + server = total. A front end
    below 0 is kept as it is: the server then claims more time than the turn took.
    """
    turns = frames.turns
    columns = ("turn_id", "target", "total_ms", *PARTS, "server_ms")
    if not len(turns):
        return pd.DataFrame({name: pd.Series(dtype=object if name in columns[:2] else float) for name in columns})
    wanted = turns["failure"].isna() & turns["e2e_ms"].notna()
    if phase is not None and "phase" in turns:
        wanted &= turns["phase"] == phase
    chosen = turns[wanted]

    def column(name: str) -> Floats:
        missing = pd.Series(np.nan, index=chosen.index)
        return np.asarray(chosen.get(name, missing), dtype=np.float64)

    connect, upload = (np.nan_to_num(column(name)) for name in ("connect_ms", "upload_ms"))
    own = [column(name) for name in ("server_queue_ms", "server_ttft_ms", "server_generation_ms")]
    server = column("e2e_ms") - upload
    return pd.DataFrame(
        {
            "turn_id": chosen.get("turn_id", pd.Series("", index=chosen.index)).astype(object).to_numpy(),
            "target": chosen.get("target", pd.Series("", index=chosen.index)).astype(object).to_numpy(),
            "total_ms": column("e2e_planned_ms"),
            "client_lag_ms": column("lag_ms") - connect,
            "connect_ms": connect,
            "upload_ms": upload,
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
    """Turns between two quantiles of their total; means in ms. Parts of the server None: not sent by all of these turns."""

    label: str
    turns: int
    total_ms: float
    means: dict[str, float | None]


BANDS = (("fastest half", 0.0, 0.5), ("p50 to p90", 0.5, 0.9), ("p90 to p99", 0.9, 0.99), ("slowest 1 %", 0.99, 1.0))


def bands(table: pd.DataFrame) -> tuple[Band, ...]:
    """Mean parts of all turns, then of the bands of BANDS that hold any. Means of one band add up, medians would not."""
    if not len(table):
        return ()
    ordered = table.sort_values("total_ms", ignore_index=True)
    found = [_band("all turns", ordered)]
    for label, low, high in BANDS:
        first, after = round(low * len(ordered)), round(high * len(ordered))
        if after > first:
            found.append(_band(label, ordered.iloc[first:after]))
    return tuple(found)


def _band(label: str, rows: pd.DataFrame) -> Band:
    means = {name: float(rows[name].mean()) if rows[name].notna().all() else None for name in (*PARTS, "server_ms")}
    return Band(label, len(rows), float(rows["total_ms"].mean()), means)


@dataclass(frozen=True, slots=True)
class IdleSpan:
    """One server between two scrapes at which it was idle. Times in ms, means of one request; None: not published."""

    target: str
    start_s: float
    end_s: float
    turns: int  # ours, in the span
    turns_whole: bool  # all of these ended well and were written, so that both sides counted the same
    requests: int | None
    server_means: dict[str, float | None]
    server_e2e_ms: float | None
    client_server_ms: float | None  # mean of written to last of our turns in the span
    input_tokens: tuple[int | None, int | None]  # ours, the server's
    output_tokens: tuple[int | None, int | None]
    waiting_mean: float | None
    queue_rate: float | None  # requests/s x mean queue time: what Little's law wants to be waiting
    preempted: bool


def idle_spans(frames: RunFrames) -> tuple[IdleSpan, ...]:
    """The narrowest idle to idle span around the measured turns of each server; a server without one is left out."""
    found = []
    for server in frames.servers.values():
        turns = _turns_of(frames, server)
        span = _span(frames, server, turns)
        if span is not None:
            found.append(_idle_span(frames, server, turns, *span))
    return tuple(found)


def _turns_of(frames: RunFrames, server: ServerSeries) -> pd.DataFrame:
    turns = frames.turns
    if len(frames.servers) == 1 or "target" not in turns:
        return turns
    return turns[turns["target"] == server.target]


def _span(frames: RunFrames, server: ServerSeries, turns: pd.DataFrame) -> tuple[int, int] | None:
    """Two scrapes, by index, at which neither the server nor we had anything in flight."""
    running, waiting = server.summed(names.RUNNING), server.summed(names.WAITING)
    if running is None or waiting is None or not len(turns):
        return None
    sent, closed = turns["sent_s"].to_numpy(), turns["closed_s"].to_numpy()
    went = ~np.isnan(sent)
    measured = went & (turns["phase"] == "measure").to_numpy() if "phase" in turns else went
    if not measured.any():
        return None
    at_s = frames.since_start_s(server.wall_ns)
    in_flight = np.searchsorted(np.sort(sent[went]), at_s) - np.searchsorted(np.sort(closed[went]), at_s)
    idle = (running + waiting == 0) & (in_flight == 0)
    before = np.flatnonzero(idle & (at_s <= sent[measured].min()))
    after = np.flatnonzero(idle & (at_s >= np.nanmax(closed[measured])))
    return (int(before[-1]), int(after[0])) if len(before) and len(after) else None


def _idle_span(frames: RunFrames, server: ServerSeries, turns: pd.DataFrame, first: int, last: int) -> IdleSpan:
    view = View(server, first, last, int(server.wall_ns[first]), int(server.wall_ns[last]))
    start_s, end_s = (float(at) for at in frames.since_start_s(server.wall_ns[[first, last]]))
    ours = turns[(turns["sent_s"] >= start_s) & (turns["sent_s"] <= end_s)]
    written = frames.turns_until_s is None
    whole = (
        written
        and bool(ours["failure"].isna().all())
        and not ("finish_reason" in ours and bool((ours["finish_reason"] == CANCELLED).any()))
    )
    means = {name: _mean_ms(view, family) for name, family in _HISTOGRAMS.items()}
    requests, queue_ms = view.delta(names.E2E + "_count"), means["queue_ms"]
    length_s = end_s - start_s
    return IdleSpan(
        target=server.target,
        start_s=start_s,
        end_s=end_s,
        turns=len(ours),
        turns_whole=whole,
        requests=_whole(requests),
        server_means=means,
        server_e2e_ms=_mean_ms(view, names.E2E),
        client_server_ms=float((ours["e2e_ms"] - ours["upload_ms"]).mean()) if whole and len(ours) else None,
        input_tokens=(_sum(ours, "input_tokens"), _whole(view.delta(names.PROMPT_TOKENS))),
        output_tokens=(_sum(ours, "output_tokens"), _whole(view.delta(names.GENERATION_TOKENS))),
        waiting_mean=view.gauge(server.summed(names.WAITING))["mean"],
        queue_rate=None if requests is None or queue_ms is None else requests / length_s * queue_ms / 1e3,
        preempted=bool(view.delta(names.PREEMPTIONS)),
    )


def _mean_ms(view: View, family: str) -> float | None:
    count, total = view.delta(family + "_count"), view.delta(family + "_sum")
    return total / count * 1e3 if count and total is not None else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _sum(turns: pd.DataFrame, name: str) -> int | None:
    """Over all turns; None where one of them was not counted."""
    return int(turns[name].sum()) if name in turns and len(turns) and turns[name].notna().all() else None
