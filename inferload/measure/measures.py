"""Table of the measures of a turn: names, units, definitions and functions.

`python -m inferload.measure.measures` prints docs/measures.md.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.measure.clock import NS_PER_MS
from inferload.measure.record import TurnRecord

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STALL_MS = 250.0  # a longer gap between two output events is a stall
# A usage with fewer tokens per output event leaves tokens out, such as those of the reasoning: events carry one or more each.
LEAST_TOKENS_PER_EVENT = 0.25

# Start and end of each measure that is a span. Those of ANSWERS span a whole answer: a cancelled turn has none.
SPANS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "lag_ms": ("planned_ns", "sent_ns"),
        "upload_ms": ("sent_ns", "written_ns"),
        "ttft_ms": ("sent_ns", "first_ns"),
        "first_event_ms": ("sent_ns", "first_event_ns"),
        "ttft_planned_ms": ("planned_ns", "first_ns"),
        "ttfo_ms": ("sent_ns", "first_visible_ns"),
        "e2e_ms": ("sent_ns", "last_ns"),
        "e2e_planned_ms": ("planned_ns", "last_ns"),
    }
)
ANSWERS = frozenset({"e2e_ms", "e2e_planned_ms"})

PEERS = ("vllm bench serve", "GuideLLM", "AIPerf", "genai-bench")


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure: `per_turn` returns one value (None: the turn has none), or `per_event` several values of a turn."""

    name: str
    unit: str
    text: str
    per_turn: Callable[[TurnRecord], float | None] | None
    per_event: Callable[[TurnRecord], Floats] | None
    called: Mapping[str, str]  # name in each of PEERS; "-": no such measure


def span_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    """Milliseconds from one instant to another; None if one is unknown."""
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / NS_PER_MS


def _spanned(name: str) -> Callable[[TurnRecord], float | None]:
    """Return the function of a record that computes a measure of SPANS."""
    instants, answer = attrgetter(*SPANS[name]), name in ANSWERS

    def value(record: TurnRecord) -> float | None:
        return None if answer and record.cancelled else span_ms(*instants(record))

    return value


def gaps_ms(record: TurnRecord) -> Floats:
    """Gaps between consecutive output events, in ms."""
    if record.event_ns is None or len(record.event_ns) < 2:
        return _NONE
    return differences_ms(np.frombuffer(record.event_ns, dtype=np.int64))


def differences_ms(at_ns: Ints) -> Floats:
    """Milliseconds from each instant to the next."""
    return (at_ns[1:] - at_ns[:-1]) / NS_PER_MS


def token_gaps_ms(record: TurnRecord) -> Floats:
    """Gaps shared among tokens, a sample for each token after the first event; empty if tokens are unknown.

    If the server reported the tokens of each event, a gap is shared among the tokens of the event that ends it, and the
    time to an event without tokens counts for the next event with tokens. Otherwise every event has
    k = output_tokens / events tokens: each sample is gap / k, and samples are spread evenly over the events.
    """
    if record.event_ns is None or len(record.event_ns) < 2:
        return _NONE
    at_ns = np.frombuffer(record.event_ns, dtype=np.int64)
    if record.event_tokens is not None:
        turn = np.zeros(len(at_ns), dtype=np.int64)
        return shared_known_ms(at_ns, turn, np.frombuffer(record.event_tokens, dtype=np.int32))[0]
    if not record.output_tokens:
        return _NONE
    return shared_evenly_ms(at_ns, np.array([len(at_ns)]), np.array([record.output_tokens]))[0]


def gaps_by_turn_ms(at_ns: Ints, turn: Ints) -> tuple[Floats, Ints]:
    """Gaps within turns, and the turn of each. `at_ns`: output events of all turns; `turn`: number of the turn of each."""
    within = turn[1:] == turn[:-1]
    return differences_ms(at_ns)[within], turn[1:][within]


def shared_known_ms(at_ns: Ints, turn: Ints, tokens: npt.NDArray[np.integer[Any]]) -> tuple[Floats, Ints]:
    """`token_gaps_ms` of turns whose tokens per event are known, and the turn of each sample."""
    carries = tokens > 0
    at_ns, turn, tokens = at_ns[carries], turn[carries], tokens[carries]
    gaps, turn_of_gap = gaps_by_turn_ms(at_ns, turn)
    each = tokens[1:][turn[1:] == turn[:-1]]
    return np.repeat(gaps / each, each), np.repeat(turn_of_gap, each)


def shared_evenly_ms(at_ns: Ints, events: Ints, output_tokens: Ints) -> tuple[Floats, Ints]:
    """`token_gaps_ms` of turns whose sums of tokens are known, and the turn of each sample. `events`: of each turn."""
    turn = np.repeat(np.arange(len(events)), events)
    gaps, turn_of_gap = gaps_by_turn_ms(at_ns, turn)
    number = np.arange(1, len(turn) + 1) - (np.cumsum(events) - events)[turn]  # of the event in its turn, from 1
    upto = number * output_tokens[turn] // events[turn]
    each = np.where(_all_tokens(output_tokens / events)[turn[1:]], upto[1:] - upto[:-1], 0)[turn[1:] == turn[:-1]]
    return np.repeat(gaps * (events / output_tokens)[turn_of_gap], each), np.repeat(turn_of_gap, each)


def tpot_by_turn_ms(first_ns: Ints, last_ns: Ints, output_tokens: Ints, of_first: Floats) -> Floats:
    """`tpot_ms` of turns; NaN without a token after the first event. `of_first`: tokens of the first event of each."""
    after = output_tokens - of_first
    tpot: Floats = (last_ns - first_ns) / NS_PER_MS / np.where((after > 0) & _all_tokens(of_first), after, np.nan)
    return tpot


def _all_tokens(per_event: Floats) -> npt.NDArray[np.bool_]:
    """Return False for turns whose usage cannot be that of all tokens. `per_event`: tokens of an event of each turn."""
    return per_event >= LEAST_TOKENS_PER_EVENT


def tpot_ms(record: TurnRecord) -> float | None:
    """(last - first) / (output_tokens - tokens of the first event); None without a token after the first event.

    None for a cancelled turn, whose number of tokens is unknown.
    """
    if record.cancelled:
        return None
    first_ns, last_ns, tokens = record.first_ns, record.last_ns, record.output_tokens
    if first_ns is None or last_ns is None or tokens is None or not record.event_ns:
        return None
    of_first = record.event_tokens[0] if record.event_tokens else tokens / len(record.event_ns)
    value = float(tpot_by_turn_ms(*(np.array([number]) for number in (first_ns, last_ns, tokens, of_first)))[0])
    return None if math.isnan(value) else value


def delays_ms(record: TurnRecord) -> Floats:
    """Time from the kernel's receive timestamp to the read, for each chunk of the turn, in ms."""
    if not record.delay_ns:
        return _NONE
    return np.frombuffer(record.delay_ns, dtype=np.int64) / NS_PER_MS


def by_name(name: str) -> Measure:
    """Return the measure of a name; KeyError if there is none."""
    return _BY_NAME[name]


def _finite(value: float | None) -> float | None:
    """Return a value that the server reported; None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _called(vllm: str, guidellm: str, aiperf: str, genai_bench: str) -> Mapping[str, str]:
    return MappingProxyType(dict(zip(PEERS, (vllm, guidellm, aiperf, genai_bench), strict=True)))


def _frozen(values: list[float]) -> Floats:
    fixed = np.frombuffer(array("d", values).tobytes(), dtype=np.float64)
    assert not fixed.flags.writeable
    return fixed


_NONE = _frozen([])
_NOBODY = _called("-", "-", "-", "-")

MEASURES: tuple[Measure, ...] = (
    Measure(
        "lag_ms",
        "ms",
        "sent - planned: delay of the request behind its plan, connection set-up included",
        _spanned("lag_ms"),
        None,
        _called("client queue time", "request dispatch delay", "credit drop latency (in part)", "-"),
    ),
    Measure(
        "connect_ms",
        "ms",
        "DNS + TCP + TLS of a turn that opened a connection; a turn on a reused connection has none",
        lambda r: span_ms(0, r.connect_ns),
        None,
        _called("- (part of its TTFT)", "-", "http_req_connection_overhead", "- (part of its TTFT)"),
    ),
    Measure(
        "upload_ms",
        "ms",
        "written - sent: until the whole request was handed to the kernel",
        _spanned("upload_ms"),
        None,
        _called("-", "-", "http_req_sending", "-"),
    ),
    Measure(
        "ttft_ms",
        "ms",
        "time to first token: first - sent, where `first` is the first event that carries output (content, reasoning or a "
        "tool call)",
        _spanned("ttft_ms"),
        None,
        _called("- (see first_event_ms)", "TTFT", "Time to First Token", "TTFT"),
    ),
    Measure(
        "first_event_ms",
        "ms",
        "first_event - sent: the first event of any kind, also one that contains only the role",
        _spanned("first_event_ms"),
        None,
        _called("TTFT", "-", "-", "-"),
    ),
    Measure(
        "ttft_planned_ms",
        "ms",
        "first - planned: TTFT from the planned instant, so that delays of the client are included",
        _spanned("ttft_planned_ms"),
        None,
        _NOBODY,
    ),
    Measure(
        "ttfo_ms",
        "ms",
        "time to first visible output: first_visible - sent; reasoning is not visible",
        _spanned("ttfo_ms"),
        None,
        _called("-", "Time to First Output Token", "Time to First Output Token", "-"),
    ),
    Measure(
        "itl_ms",
        "ms",
        "inter-token latency: the gap between two consecutive output events of a turn, one sample for each gap. A gap over "
        f"{STALL_MS:.0f} ms is a stall",
        None,
        gaps_ms,
        _called("ITL", "- (its ITL is a mean for each request)", "Inter Chunk Latency", "-"),
    ),
    Measure(
        "itl_token_ms",
        "ms",
        "the same gap shared evenly among the tokens of the event that ends it, one sample for each token: for comparison "
        "with and without speculative decoding. If tokens per event are unknown, all events share output_tokens evenly",
        None,
        token_gaps_ms,
        _NOBODY,
    ),
    Measure(
        "tpot_ms",
        "ms",
        "time per output token, one for each turn: (last - first) / (output_tokens - tokens in the first event); a turn "
        "without a token after its first event, or with a usage of less than 0.25 tokens per event, has none",
        tpot_ms,
        None,
        _called("TPOT", "ITL (its TPOT includes TTFT)", "Inter Token Latency", "TPOT"),
    ),
    Measure(
        "e2e_ms",
        "ms",
        "last - sent: until the last event that carried output",
        _spanned("e2e_ms"),
        None,
        _called("E2EL", "Request Latency", "Request Latency", "E2E Latency"),
    ),
    Measure(
        "e2e_planned_ms",
        "ms",
        "last - planned: E2E from the planned instant",
        _spanned("e2e_planned_ms"),
        None,
        _called("E2EL including client queue", "request scheduled latency", "effective latency", "-"),
    ),
    Measure(
        "client_delay_ms",
        "ms",
        "delay of a chunk in the client: read time - the kernel's receive timestamp, one sample for each read, failed turns "
        "included; in summary.json it is `client.delay_ms`",
        None,
        delays_ms,
        _NOBODY,
    ),
    Measure(
        "server_queue_ms",
        "ms",
        "time until the turn was first scheduled, reported by the server",
        lambda r: _finite(r.server_queue_ms),
        None,
        _NOBODY,
    ),
    Measure(
        "server_ttft_ms",
        "ms",
        "time to the first token without the queue, reported by the server",
        lambda r: _finite(r.server_ttft_ms),
        None,
        _NOBODY,
    ),
    Measure(
        "server_generation_ms",
        "ms",
        "time from the first token to the last, reported by the server",
        lambda r: _finite(r.server_generation_ms),
        None,
        _NOBODY,
    ),
)

_BY_NAME: Mapping[str, Measure] = MappingProxyType({measure.name: measure for measure in MEASURES})

_HEAD = f"""# Measures

<!-- Generated: python -m inferload.measure.measures > docs/measures.md -->

All instants of a turn are on one monotonic clock: `planned`, `sent` (just before the first byte goes out on a connected
socket), `written`, `first_event`, `first` (first event that carries output), `first_visible`, `last` (last event that
carried output), `closed`. `planned` of a session's first turn is its arrival; of a later turn, the previous turn's
`closed` + think or tool time. A turn belongs to the phase of its `planned`.

* **Latencies include only successful turns.** Failed and unfinished turns are counted, but have no sample in a
  percentile: check `failed_ratio` as well.
* **A cancelled turn** (cancelled by its caller on purpose, `finish_reason` cancelled) counts as `ok`, and separately as
  `cancelled`. It has TTFT and gaps between events, but no E2E and no TPOT, which need the whole answer. Its tokens are known
  only if the server sends a running count (`request.continuous_usage`).
* **A missing value is never 0.** A turn without a value for a measure adds no sample; `count` is the number of samples.
* **Percentiles** are nearest-rank. A percentile with fewer than 10 samples beyond it (p99 of fewer than 1,000) is marked with
  ~. `intervals` has its 95 % interval, computed as if the samples were independent; null is an end that is not known.
  Percentiles are exact if all turn records are in the run directory and the run is not [too long](machines.md#long-runs)
  (`percentiles_from: records`); otherwise they come from sketches, within 0.25 % of the value.
* **Rates count events inside the window**, without regard to the phase in which a turn was planned: successful turns that
  ended in it, tokens whose event is in it. Achieved sessions were planned and started in the window. Tokens are the server's count
  (`usage`); tokens of each event are known if the server sends a running count, otherwise shared evenly.
* A stall is a gap over {STALL_MS:.0f} ms between two output events of a successful turn.
* **Goodput** is the rate of successful turns that ended in the window and met every limit of the scenario's `slo`. **SLO
  attainment** is the share of turns that met them among all turns planned in the window: failed, unfinished and dropped ones
  count as not met (a dropped session as one turn). In an open loop TTFT and E2E count from the planned instant; a turn too
  short for a TPOT cannot break that limit.

## Definitions, and names in other tools

"""


def document() -> str:
    """Return the text of docs/measures.md."""
    rows = [["measure", "unit", "definition", *PEERS], ["---"] * (3 + len(PEERS))]
    for measure in MEASURES:
        rows.append([f"`{measure.name}`", measure.unit, measure.text, *(measure.called[peer] for peer in PEERS)])
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(document(), end="")
