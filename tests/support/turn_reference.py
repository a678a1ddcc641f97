"""Measures, SLO results and counts of single turns in plain Python, independent of inferload's formulas over columns."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import ceil, isfinite

import numpy as np

from inferload.figures.counting import count_turns, keyed
from inferload.figures.limits.slo import Slo
from inferload.turns.record import PhaseWindow, TurnRecord
from inferload.turns.states import FAILED, UNFINISHED
from inferload.turns.tally import Pause, Tally, TallySet

MS = 1_000_000
STALL_MS = 250
Values = Callable[[TurnRecord], list[float]]


def count_turn(
    tallies: TallySet, record: TurnRecord, windows: Sequence[PhaseWindow], slo: Slo | None, pauses: Sequence[Pause] = ()
) -> None:
    """Count a batch of one turn."""
    count_turns(tallies, keyed([record]), windows, {record.class_name: slo}, pauses)


def count_all(
    tallies: TallySet, records: Sequence[TurnRecord], windows: Sequence[PhaseWindow], slo: Slo | None
) -> None:
    """Count turns as one batch."""
    count_turns(tallies, keyed(records), windows, {record.class_name: slo for record in records})


def span(start_ns: int | None, end_ns: int | None) -> list[float]:
    return [] if start_ns is None or end_ns is None else [(end_ns - start_ns) / MS]


def gaps(record: TurnRecord) -> list[float]:
    return [(later - earlier) / MS for earlier, later in pairwise(record.event_ns or ())]


def streamed(record: TurnRecord) -> int | None:
    known = record.output_tokens is not None and record.hidden_tokens is not None
    return (record.output_tokens or 0) - (record.hidden_tokens or 0) if known else None


def token_gaps(record: TurnRecord) -> list[float]:
    at_ns = list(record.event_ns or ())
    if record.event_tokens is not None and record.hidden_tokens is not None:
        carrying = [(at, tokens) for at, tokens in zip(at_ns, record.event_tokens, strict=True) if tokens]
        shared = [((b - a) / MS / tokens, tokens) for (a, _), (b, tokens) in pairwise(carrying)]
    elif record.event_tokens is not None:
        return []
    else:
        n, total = len(at_ns), streamed(record) or 0
        if not total:
            return []
        upto = [total * (k + 1) // n for k in range(n)]
        shared = [(gap * (n / total), upto[k + 1] - upto[k]) for k, gap in enumerate(gaps(record))]
    return [value for value, tokens in shared for _ in range(tokens)]


def tpot(record: TurnRecord) -> list[float]:
    tokens = streamed(record)
    if record.cancelled or not record.event_ns or tokens is None or None in (record.first_ns, record.last_ns):
        return []
    of_first = record.event_tokens[0] if record.event_tokens else tokens / len(record.event_ns)
    if tokens - of_first <= 0:
        return []
    return [value / (tokens - of_first) for value in span(record.first_ns, record.last_ns)]


def _reported(value: float | None) -> list[float]:
    return [value] if value is not None and isfinite(value) else []


VALUES: dict[str, Values] = {
    "lag_ms": lambda r: span(r.planned_ns, r.sent_ns),
    "connect_ms": lambda r: span(0, r.connect_ns),
    "round_trip_ms": lambda r: span(0, r.round_trip_ns),
    "upload_ms": lambda r: span(r.sent_ns, r.written_ns),
    "ttft_ms": lambda r: span(r.sent_ns, r.first_ns),
    "first_event_ms": lambda r: span(r.sent_ns, r.first_event_ns),
    "ttft_planned_ms": lambda r: span(r.planned_ns, r.first_ns),
    "ttfo_ms": lambda r: span(r.sent_ns, r.first_visible_ns),
    "itl_ms": gaps,
    "itl_token_ms": token_gaps,
    "tpot_ms": tpot,
    "e2e_ms": lambda r: [] if r.cancelled else span(r.sent_ns, r.last_ns),
    "e2e_planned_ms": lambda r: [] if r.cancelled else span(r.planned_ns, r.last_ns),
    "server_queue_ms": lambda r: _reported(r.server_queue_ms),
    "server_ttft_ms": lambda r: _reported(r.server_ttft_ms),
    "server_generation_ms": lambda r: _reported(r.server_generation_ms),
}


def missed(slo: Slo, record: TurnRecord) -> tuple[str, ...] | None:
    """Return the limits that a turn missed; None: it missed no other, and one needs tokens that are unknown."""
    if not record.ok:
        return (FAILED.key if record.finished else UNFINISHED.key,)
    start_ns = record.planned_ns if slo.from_plan else record.sent_ns
    first_ns = record.closed_ns if record.cancelled and record.first_ns is None else record.first_ns
    last_ns = record.closed_ns if record.cancelled else record.last_ns
    late, unknown, limits = [], False, slo.limits
    for name, end_ns in (("ttft_ms", first_ns), ("e2e_ms", last_ns)):
        if name in limits and not any(value <= limits[name] for value in span(start_ns, end_ns)):
            late.append(name)
    if "tpot_ms" in limits and not record.cancelled and len(record.event_ns or ()) > 1:
        unknown = streamed(record) is None
        if any(value > limits["tpot_ms"] for value in tpot(record)):
            late.append("tpot_ms")
    ordered = sorted(gaps(record))
    if "itl_ms" in limits and ordered and ordered[ceil(0.99 * len(ordered)) - 1] > limits["itl_ms"]:
        late.append("itl_ms")
    return None if unknown and not late else tuple(sorted(late))


def met(slo: Slo, record: TurnRecord) -> bool | None:
    """Return if a turn met the SLO; None: not known."""
    limits = missed(slo, record)
    return None if limits is None else not limits


def begun_ns(record: TurnRecord) -> int:
    if record.sent_ns is None:
        return record.planned_ns
    return max(record.planned_ns, record.sent_ns - (record.connect_ns or 0))


def shares(record: TurnRecord, window: PhaseWindow) -> bool:
    """Return if a turn has an instant in common with a window."""
    return record.closed_ns >= window.start_ns and (window.end_ns is None or begun_ns(record) < window.end_ns)


def tokens_of(record: TurnRecord, low: int, high: int) -> int | None:
    """Return the tokens of events low to high - 1; None: not counted."""
    if low == high:
        return 0
    if record.event_tokens is not None:
        return sum(record.event_tokens[low:high])
    if record.output_tokens is None:
        return None
    n = len(record.event_ns or ())
    return record.output_tokens * high // n - record.output_tokens * low // n


def events_in(record: TurnRecord, window: PhaseWindow) -> tuple[int, int]:
    """Return the range of the events in a window."""
    if record.sent_ns is None:
        return 0, 0
    at_ns = [record.sent_ns + offset for offset in record.event_ns or ()]
    low = bisect_left(at_ns, window.start_ns)
    return low, len(at_ns) if window.end_ns is None else max(low, bisect_left(at_ns, window.end_ns))


def counted(
    records: Iterable[TurnRecord], windows: Sequence[PhaseWindow], slo: Slo | None, pauses: Sequence[Pause]
) -> TallySet:
    """Return the tallies of turns, counted one by one."""
    tallies = TallySet()
    for record in records:
        tally = tallies.at(record.phase, record.class_name, record.step)
        _count_end(tally, record)
        if record.ok:
            for name, values in VALUES.items():
                for value in values(record):
                    tally.sketch(name).add_many(np.array([value]))
            _count_stalls(tally, record, pauses)
        limits = None if slo is None else missed(slo, record)
        if limits is not None:
            tally.slo_judged += 1
            tally.slo_met += not limits
            for name in limits:
                tally.slo_missed[name] = tally.slo_missed.get(name, 0) + 1
        _count_session(tallies, record, windows)
        for window in windows:
            if shares(record, window):
                at = tallies.at(window.phase, record.class_name, window.step)
                if record.sent_ns is not None:
                    _count_in_window(at, record, window, None if limits is None else not limits)
    return tallies


def _count_end(tally: Tally, record: TurnRecord) -> None:
    tally.ok += record.ok
    tally.cancelled += record.cancelled
    tally.unfinished += not record.finished
    tally.requests += record.attempts
    tally.retried += record.attempts - 1 if record.attempts else 0
    if record.failure is not None and record.finished:
        tally.failed += 1
        tally.by_failure[record.failure.value] = tally.by_failure.get(record.failure.value, 0) + 1
    if record.ok and record.finish_reason is not None:
        tally.by_finish_reason[record.finish_reason] = tally.by_finish_reason.get(record.finish_reason, 0) + 1
    if record.status is not None:
        tally.by_status[record.status] = tally.by_status.get(record.status, 0) + 1
    for remark in record.remarks:
        tally.by_remark[remark.value] = tally.by_remark.get(remark.value, 0) + 1
    for name in ("output_tokens", "input_tokens", "cached_tokens"):
        number = getattr(record, name)
        setattr(tally, name, getattr(tally, name) + (number or 0))
        setattr(tally, f"{name}_from", getattr(tally, f"{name}_from") + (number is not None))
    if record.ok and not record.cancelled and None not in (record.output_tokens, record.max_tokens):
        tally.answer_tokens += record.output_tokens or 0
        tally.answer_limit_tokens += record.max_tokens or 0
    tally.events += len(record.event_ns or ())
    tally.turn_ns += 0 if record.sent_ns is None else record.closed_ns - record.sent_ns


def _count_stalls(tally: Tally, record: TurnRecord, pauses: Sequence[Pause]) -> None:
    own, of_client = 0.0, False
    for number, gap in enumerate(gaps(record)):
        if gap <= STALL_MS:
            continue
        assert record.sent_ns is not None
        assert record.event_ns is not None
        start_ns, end_ns = record.sent_ns + record.event_ns[number], record.sent_ns + record.event_ns[number + 1]
        blocked = sum(max(0, min(end_ns, until) - max(start_ns, since)) for since, until in pauses)
        if 2 * blocked >= end_ns - start_ns:
            of_client = True
        else:
            own = max(own, gap)
    tally.turns_with_client_stall += of_client
    tally.turns_with_stall += own > 0
    if own:
        tally.longest_stall_ms = max(own, tally.longest_stall_ms or 0.0)


def _count_session(tallies: TallySet, record: TurnRecord, windows: Sequence[PhaseWindow]) -> None:
    if record.turn_index or record.session_id.partition("/")[2] not in ("", "#1"):
        return
    planned = [window for window in windows if window.holds(record.planned_ns)]
    begun = [window for window in windows if window.holds(begun_ns(record))]
    if planned and begun and planned[0].phase == begun[0].phase:
        tallies.at(planned[0].phase, record.class_name, planned[0].step).window_sessions += 1


def _count_in_window(tally: Tally, record: TurnRecord, window: PhaseWindow, slo_met: bool | None) -> None:
    low, high = events_in(record, window)
    streamed = tokens_of(record, low, high)
    tally.window_events += high - low
    tally.window_events_uncounted += high - low if streamed is None else 0
    tally.window_output_tokens += streamed or 0
    ended = record.ok and window.holds(record.closed_ns)
    total = record.output_tokens
    if total is None:
        total = tokens_of(record, 0, len(record.event_ns or ()))
    tally.window_ended_counted += ended and total is not None
    tally.window_ended_tokens += (total or 0) if ended else 0
    if not (ended and 0 < high - low == len(record.event_ns or ())):
        tally.window_edge_tokens += abs((streamed or 0) - ((total or 0) if ended else 0))
    if record.first_ns is not None and window.holds(record.first_ns):
        tally.window_firsts += 1
        tally.window_firsts_uncounted += record.input_tokens is None
        tally.window_input_tokens += record.input_tokens or 0
    assert record.sent_ns is not None
    end_ns = record.closed_ns if window.end_ns is None else min(record.closed_ns, window.end_ns)
    tally.window_in_flight_ns += max(0, end_ns - max(record.sent_ns, window.start_ns))
    tally.window_turns += ended
    if ended and slo_met is not None:
        tally.window_slo_judged += 1
        tally.window_slo_met += slo_met
