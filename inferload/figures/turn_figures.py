"""Measures of a turn: the table. Each row has the one formula of its measure, over a batch of turns.

A new measure is a new row; every file, page and interface that lists measures reads this table.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from inferload.base.clock import NS_PER_MS
from inferload.figures.figure import PEERS, Better, Figure
from inferload.figures.turn_batch import TurnBatch, gaps_by_turn_ms
from inferload.turns.record import TurnRecord
from inferload.turns.sketch import Bools, Floats, Ints

STALL_MS = 250.0  # a longer gap between two output events is a stall

# Values of a measure, and the row of the turn of each, in ascending order for a measure with one value per turn.
Valued = tuple[Floats, Ints]


class TurnFigure(Figure, frozen=True, eq=False, kw_only=True):
    """Measure of a turn. `values`: its formula. `columns`: of the turn files that the formula reads, beside `failure`.

    `by_event`: a turn has several values, one for each gap, event or token; a headline of this kind has one for each gap. `ends`:
    the instant to which a value belongs in a timeline. `tail`: its percentile beside the median, in live figures. `compared`:
    statistics that comparisons of runs test. `brief`: also where only a few fit: tiles, steps, breakdowns, progress lines.
    `of_turn`: shown with a single turn, in the table of the slowest turns and in spans.
    """

    values: Callable[[TurnBatch], Valued]
    columns: tuple[str, ...]
    ends: str = "closed_ns"
    by_event: bool = False
    tail: str = "p95"
    compared: tuple[str, ...] = ()
    brief: bool = False
    of_turn: bool = False
    better: Better = "lower"

    @property
    def exported(self) -> str:
        """Name of its histogram for Prometheus, which wants seconds, such as `inferload_ttft_seconds`."""
        return f"inferload_{self.key.removesuffix('_ms')}_seconds"

    def of(self, record: TurnRecord) -> Floats:
        """Return the values of one turn. For many turns, a batch costs a fraction of it."""
        return self.values(TurnBatch.of_records([record]))[0]


def _where(has: Bools, values: Floats) -> Valued:
    """Select the turns that have a value."""
    return values[has], has.nonzero()[0]


def _span(start: str, end: str, *, of_whole: bool = False) -> dict[str, Any]:
    """Formula of a time between two instants. `of_whole`: of a whole answer, which a cancelled turn does not have."""

    def values(turns: TurnBatch) -> Valued:
        span_ms, known = turns.span_ms(start, end)
        return _where(known & ~turns.cancelled if of_whole else known, span_ms)

    columns = (start, end, "finish_reason") if of_whole else (start, end)
    return {"values": values, "columns": columns, "ends": end, "unit": "ms"}


def _reported(name: str) -> dict[str, Any]:
    """Formula of a time that the server reported: its value, if it is finite."""

    def values(turns: TurnBatch) -> Valued:
        reported = turns.server_times[name]
        return _where(np.isfinite(reported), reported)

    return {"values": values, "columns": (name,), "unit": "ms"}


def _duration(name: str) -> dict[str, Any]:
    """Formula of a duration that the client recorded."""

    def values(turns: TurnBatch) -> Valued:
        duration = turns.numbers[name]
        return _where(duration.known, duration.values / NS_PER_MS)

    return {"values": values, "columns": (name,), "ends": "sent_ns", "unit": "ms"}


def _token_gaps(turns: TurnBatch) -> Valued:
    """Gaps shared among tokens.

    If the tokens of each event are known or estimated, a gap is shared among the tokens of the event that ends it, and the
    time to an event without tokens counts for the next event with tokens. Otherwise every event has
    k = streamed tokens / events tokens: each sample is gap / k, and samples are spread evenly over the events.
    """
    streamed = turns.streamed.values
    if not turns.counted.any() and np.array_equal(turns.events, streamed):  # one token per event
        return turns.gaps_ms
    by_event = turns.counted & turns.numbers["hidden_tokens"].known
    counted = by_event[turns.turn]
    known, of_known = _shared_as_reported(turns.at_ns[counted], turns.turn[counted], turns.tokens[counted])
    shared = ~turns.counted & (streamed > 0)
    even, number = _shared_evenly(turns.at_ns[shared[turns.turn]], turns.events[shared], streamed[shared])
    return np.concatenate([known, even]), np.concatenate([of_known, np.flatnonzero(shared)[number]])


def _shared_as_reported(at_ns: Ints, turn: Ints, tokens: Ints) -> Valued:
    carries = tokens > 0
    at_ns, turn, tokens = at_ns[carries], turn[carries], tokens[carries]
    gaps, turn_of_gap = gaps_by_turn_ms(at_ns, turn)
    each = tokens[1:][turn[1:] == turn[:-1]]
    return np.repeat(gaps / each, each), np.repeat(turn_of_gap, each)


def _shared_evenly(at_ns: Ints, events: Ints, streamed: Ints) -> Valued:
    turn = np.repeat(np.arange(len(events)), events)
    gaps, turn_of_gap = gaps_by_turn_ms(at_ns, turn)
    number = np.arange(1, len(turn) + 1) - (np.cumsum(events) - events)[turn]  # of the event in its turn, from 1
    upto = number * streamed[turn] // events[turn]
    each = (upto[1:] - upto[:-1])[turn[1:] == turn[:-1]]
    return np.repeat(gaps * (events / streamed)[turn_of_gap], each), np.repeat(turn_of_gap, each)


def _tpot(turns: TurnBatch) -> Valued:
    span_ms, answered = turns.span_ms("first_ns", "last_ns")
    streamed = turns.streamed
    has_events = turns.events > 0
    of_first: Floats = streamed.values / np.maximum(turns.events, 1)
    reported = turns.counted & has_events
    of_first[reported] = turns.tokens[turns.starts[reported]]
    after = streamed.values - of_first
    has = answered & streamed.known & has_events & ~turns.cancelled & (after > 0)
    return span_ms[has] / after[has], np.flatnonzero(has)


def _called(vllm: str, guidellm: str, aiperf: str, genai_bench: str) -> Mapping[str, str]:
    names = zip(PEERS, (vllm, guidellm, aiperf, genai_bench), strict=True)
    return MappingProxyType({peer: name for peer, name in names if name != "-"})


TURN_FIGURES: tuple[TurnFigure, ...] = (
    TurnFigure(
        key="lag_ms",
        title="Lag",
        text="sent - planned: delay of the request behind its plan, connection set-up included",
        called=_called("client queue time", "request dispatch delay", "credit drop latency (in part)", "-"),
        of_turn=True,
        **_span("planned_ns", "sent_ns"),
    ),
    TurnFigure(
        key="connect_ms",
        title="Connect",
        text="DNS + TCP + TLS of a turn that opened a connection; a turn on a reused connection has none",
        called=_called("- (part of its TTFT)", "-", "http_req_connection_overhead", "- (part of its TTFT)"),
        **_duration("connect_ns"),
    ),
    TurnFigure(
        key="round_trip_ms",
        title="Round trip",
        text="smallest network round trip of the connection before the turn was sent (TCP_INFO): each TTFT has one of it at "
        "least. The other end is the next proxy, if there is one",
        **_duration("round_trip_ns"),
    ),
    TurnFigure(
        key="upload_ms",
        title="Upload",
        text="written - sent: until the whole request was handed to the kernel",
        called=_called("-", "-", "http_req_sending", "-"),
        **_span("sent_ns", "written_ns"),
    ),
    TurnFigure(
        key="ttft_ms",
        title="TTFT",
        text="time to first token: first - sent, where `first` is the first event that carries output (content, reasoning or a "
        "tool call)",
        called=_called("- (see first_event_ms)", "TTFT", "Time to First Token", "TTFT"),
        headline=True,
        brief=True,
        of_turn=True,
        compared=("mean", "p50", "p95", "p99"),
        panel="TTFT, ms",
        **_span("sent_ns", "first_ns"),
    ),
    TurnFigure(
        key="first_event_ms",
        title="First event",
        text="first_event - sent: the first event of any kind, also one that contains only the role; without a stream the first "
        "byte of the answer",
        called=_called("TTFT", "-", "-", "-"),
        **_span("sent_ns", "first_event_ns"),
    ),
    TurnFigure(
        key="ttft_planned_ms",
        title="TTFT from plan",
        text="first - planned: TTFT from the planned instant, so that delays of the client are included",
        **_span("planned_ns", "first_ns"),
    ),
    TurnFigure(
        key="ttfo_ms",
        title="TTFO",
        text="time to first visible output: first_visible - sent; reasoning is not visible",
        called=_called("-", "Time to First Output Token", "Time to First Output Token", "-"),
        **_span("sent_ns", "first_visible_ns"),
    ),
    TurnFigure(
        key="itl_ms",
        title="ITL",
        unit="ms",
        text="inter-token latency: the gap between two consecutive output events of a turn, one sample for each gap. A gap over "
        f"{STALL_MS:.0f} ms is a stall",
        called=_called("ITL", "- (its ITL is a mean for each request)", "Inter Chunk Latency", "-"),
        headline=True,
        brief=True,
        compared=("p99",),
        tail="p99",
        panel="ITL, ms",
        values=lambda turns: turns.gaps_ms,
        columns=("event_ns",),
        ends="event_ns",
        by_event=True,
    ),
    TurnFigure(
        key="itl_token_ms",
        title="ITL by token",
        unit="ms",
        text="the same gap shared evenly among the tokens of the event that ends it, one sample for each token: for comparison "
        "with and without speculative decoding. Tokens of an event are those of a running count, else by its text, else a mean",
        values=_token_gaps,
        columns=("event_ns", "event_tokens", "output_tokens", "hidden_tokens"),
        ends="event_ns",
        by_event=True,
    ),
    TurnFigure(
        key="tpot_ms",
        title="TPOT",
        unit="ms",
        text="time per output token, one for each turn: (last - first) / (streamed tokens - tokens in the first event). "
        "Streamed tokens are output_tokens - hidden_tokens; a turn without one after its first event, or with an unknown number, "
        "has none",
        called=_called("TPOT", "ITL (its TPOT includes TTFT)", "Inter Token Latency", "TPOT"),
        headline=True,
        compared=("mean",),
        ends="last_ns",
        values=_tpot,
        columns=("first_ns", "last_ns", "finish_reason", "output_tokens", "hidden_tokens", "event_ns", "event_tokens"),
    ),
    TurnFigure(
        key="e2e_ms",
        title="E2E",
        text="last - sent: until the last event that carried output; without a stream until the last byte of the answer",
        called=_called("E2EL", "Request Latency", "Request Latency", "E2E Latency"),
        headline=True,
        compared=("mean",),
        of_turn=True,
        **_span("sent_ns", "last_ns", of_whole=True),
    ),
    TurnFigure(
        key="e2e_planned_ms",
        title="E2E from plan",
        text="last - planned: E2E from the planned instant",
        called=_called("E2EL including client queue", "request scheduled latency", "effective latency", "-"),
        of_turn=True,
        **_span("planned_ns", "last_ns", of_whole=True),
    ),
    TurnFigure(
        key="server_queue_ms",
        title="Server queue",
        text="time until the turn was first scheduled, reported by the server",
        **_reported("server_queue_ms"),
    ),
    TurnFigure(
        key="server_ttft_ms",
        title="Server TTFT without queue",
        text="time to the first token without the queue, reported by the server",
        **_reported("server_ttft_ms"),
    ),
    TurnFigure(
        key="server_generation_ms",
        title="Server generation",
        text="time from the first token to the last, reported by the server",
        **_reported("server_generation_ms"),
    ),
)

BY_KEY: Mapping[str, TurnFigure] = MappingProxyType({figure.key: figure for figure in TURN_FIGURES})
# Measures that a definition, a rule or a default elsewhere is about.
TTFT, ITL, TPOT, E2E = (BY_KEY[key] for key in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"))
LAG, CONNECT, UPLOAD = (BY_KEY[key] for key in ("lag_ms", "connect_ms", "upload_ms"))
TTFT_PLANNED, E2E_PLANNED = BY_KEY["ttft_planned_ms"], BY_KEY["e2e_planned_ms"]
ROUND_TRIP, FIRST_EVENT, ITL_TOKEN = (BY_KEY[key] for key in ("round_trip_ms", "first_event_ms", "itl_token_ms"))
PER_TURN = tuple(figure.key for figure in TURN_FIGURES if not figure.by_event)
HEADLINES = tuple(figure for figure in TURN_FIGURES if figure.headline)
BRIEF = tuple(figure for figure in TURN_FIGURES if figure.brief)
OF_TURN = tuple(figure for figure in TURN_FIGURES if figure.of_turn)
# Measures of a stream, which other answers do not have.
_STREAMED = {"first_ns", "first_visible_ns", "event_ns", "server_queue_ms", "server_ttft_ms", "server_generation_ms"}
OF_STREAM = tuple(figure.key for figure in TURN_FIGURES if _STREAMED & {*figure.columns})


def brief_of(has: Callable[[TurnFigure], bool]) -> tuple[TurnFigure, ...]:
    """Return the brief measures of some turns: E2E alone if only that `has` values, as of answers without a stream."""
    return (E2E,) if has(E2E) and not any(map(has, BRIEF)) else BRIEF
