"""Counts of many turns at once: the same as `TallySet.count_turn` and `HealthSet.count_delays` of each, at a fraction of the cost.

Nearly all turns are plain: answered in full, with all instants known. Their counts are vectorized; other turns are counted one
by one. tests/unit/measure/test_tally_batch.py compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from inferload.measure.client_health import HealthSet
from inferload.measure.clock import NS_PER_MS
from inferload.measure.measures import (
    SPANS,
    STALL_MS,
    Floats,
    Ints,
    gaps_by_turn_ms,
    gaps_ms,
    shared_evenly_ms,
    tpot_by_turn_ms,
)
from inferload.measure.record import CANCELLED, INSTANTS, SERVER_TIMES, PhaseWindow, TurnRecord
from inferload.measure.slo import Slo
from inferload.measure.tally import Key, Pause, Tally, TallySet, add_counts
from inferload.measure.window_counts import begun_ns, session_window, within

_instants = attrgetter(*INSTANTS, "output_tokens", "turn_index")


class _Plain(NamedTuple):
    """Plain turns of one key: an array for each field of `_instants`. `events`: number of output events of each turn."""

    planned: Ints
    sent: Ints
    written: Ints
    first_event: Ints
    first: Ints
    first_visible: Ints
    last: Ints
    closed: Ints
    output_tokens: Ints
    turn_index: Ints
    events: Ints
    flat: Ints  # offsets of all events
    begun: Ints  # start of sending
    records: Sequence[TurnRecord]

    @classmethod
    def of(cls, records: Sequence[TurnRecord]) -> _Plain:
        columns = np.array([_instants(record) for record in records], dtype=np.int64).T
        lists = [record.event_ns for record in records if record.event_ns is not None]
        flat = np.frombuffer(b"".join(lists), dtype=np.int64)
        events = np.array([len(event_ns) for event_ns in lists], dtype=np.int64)
        begun = np.array([begun_ns(record) for record in records], dtype=np.int64)
        return cls._make((*columns, events, flat, begun, records))


def count_turns(
    tallies: TallySet,
    records: Iterable[TurnRecord],
    windows: Sequence[PhaseWindow],
    slos: Mapping[str, Slo | None],
    pauses: Sequence[Pause] = (),
) -> None:
    """Count ended turns, as `TallySet.count_turn`. `slos`: limits by class."""
    by_key: dict[Key, list[TurnRecord]] = {}
    for record in records:
        if _is_plain(record):
            by_key.setdefault((record.phase, record.class_name, record.step), []).append(record)
        else:
            tallies.count_turn(record, windows, slos[record.class_name], pauses)
    for key, plain in by_key.items():
        turns, tally = _Plain.of(plain), tallies.at(*key)
        _count_ends(tally, turns)
        _count_spans(tally, turns)
        _count_events(tally, turns, pauses)
        slo = slos[key[1]]
        met = None if slo is None else _count_met(tally, slo, plain)
        for row in np.flatnonzero(turns.turn_index == 0).tolist():
            began_in = session_window(plain[row], windows)
            if began_in is not None:
                tallies.at(began_in.phase, key[1], began_in.step).window_sessions += 1
        for window in windows:
            _count_window(tallies, key[1], turns, window, met)


def count_delays(health: HealthSet, records: Iterable[TurnRecord], reads_unstamped: Iterable[int]) -> None:
    """Count the reads of many turns, and the client delay of each stamped read, as `HealthSet.count_delays`."""
    by_key: dict[tuple[str, str], list[tuple[TurnRecord, int]]] = {}
    for record, unstamped in zip(records, reads_unstamped, strict=True):
        by_key.setdefault((record.worker, record.phase), []).append((record, unstamped))
    for turns in by_key.values():
        first = turns[0][0]
        at = health.at(first.worker, first.phase)
        delays = np.frombuffer(b"".join([record.delay_ns for record, _ in turns if record.delay_ns]), dtype=np.int64)
        at.delay_ms.gather(delays / NS_PER_MS)
        at.reads_stamped += len(delays)
        at.reads_unstamped += sum(unstamped for _, unstamped in turns)


def _count_met(tally: Tally, slo: Slo, records: Sequence[TurnRecord]) -> list[bool | None]:
    """Count which limits the turns missed; return for each if it met all, None if that is unknown."""
    all_missed = [slo.missed(record) for record in records]
    for missed in all_missed:
        tally.count_missed(missed)
    return [None if missed is None else not missed for missed in all_missed]


def _is_plain(record: TurnRecord) -> bool:
    return (
        record.failure is None
        and bool(record.event_ns)
        and record.finish_reason != CANCELLED
        and record.event_tokens is None
        and not record.remarks
        and None not in _instants(record)
    )


def _count_ends(tally: Tally, turns: _Plain) -> None:
    records = turns.records
    tally.ok += len(records)
    add_counts(tally.by_status, Counter([record.status for record in records if record.status is not None]))
    reasons = [record.finish_reason for record in records if record.finish_reason is not None]
    add_counts(tally.by_finish_reason, Counter(reasons))
    tally.output_tokens += int(turns.output_tokens.sum())
    tally.output_tokens_from += len(records)
    limited = [(record.output_tokens or 0, record.max_tokens) for record in records if record.max_tokens is not None]
    tally.answer_tokens += sum(tokens for tokens, _ in limited)
    tally.answer_limit_tokens += sum(limit for _, limit in limited)
    prompts = [record.input_tokens for record in records if record.input_tokens is not None]
    tally.input_tokens += sum(prompts)
    tally.input_tokens_from += len(prompts)
    cached = [record.cached_tokens for record in records if record.cached_tokens is not None]
    tally.cached_tokens += sum(cached)
    tally.cached_tokens_from += len(cached)
    tally.events += len(turns.flat)
    tally.turn_ns += int((turns.closed - turns.sent).sum())


def _count_spans(tally: Tally, turns: _Plain) -> None:
    """Count the measures with one value per turn."""
    for name, instants in SPANS.items():
        start, end = (getattr(turns, instant.removesuffix("_ns")) for instant in instants)
        tally.sketch(name).gather((end - start) / NS_PER_MS)
    tpot = tpot_by_turn_ms(turns.first, turns.last, turns.output_tokens, turns.output_tokens / turns.events)
    _gather(tally, "tpot_ms", tpot[~np.isnan(tpot)])
    connects = [record.connect_ns for record in turns.records if record.connect_ns is not None]
    _gather(tally, "connect_ms", np.array(connects, dtype=np.float64) / NS_PER_MS)
    for name in SERVER_TIMES:
        reported = [value for value in map(attrgetter(name), turns.records) if value is not None and isfinite(value)]
        _gather(tally, name, np.array(reported, dtype=np.float64))


def _count_events(tally: Tally, turns: _Plain, pauses: Sequence[Pause]) -> None:
    """Count the measures with one value per gap between events."""
    gaps, turn = _gaps_ms(turns.flat, turns.events)
    if not len(gaps):
        return
    tally.sketch("itl_ms").gather(gaps)
    for row in np.unique(turn[gaps > STALL_MS]).tolist():
        tally.count_stalls(turns.records[row], gaps_ms(turns.records[row]), pauses)
    if np.array_equal(turns.events, turns.output_tokens):  # one token per event
        tally.sketch("itl_token_ms").gather(gaps)
        return
    reported = turns.output_tokens > 0
    at_ns = turns.flat[np.repeat(reported, turns.events)]
    _gather(tally, "itl_token_ms", shared_evenly_ms(at_ns, turns.events[reported], turns.output_tokens[reported])[0])


def gaps_of_many_ms(records: Iterable[TurnRecord]) -> Floats:
    """Gaps between consecutive output events, turn by turn."""
    lists = [record.event_ns for record in records if record.event_ns]
    return _gaps_ms(
        np.frombuffer(b"".join(lists), dtype=np.int64), np.array([len(event_ns) for event_ns in lists], dtype=np.int64)
    )[0]


def _gaps_ms(flat: Ints, events: Ints) -> tuple[Floats, Ints]:
    """Gaps within turns, and the turn of each. `events`: number of instants of each turn."""
    return gaps_by_turn_ms(flat, np.repeat(np.arange(len(events)), events))


def _gather(tally: Tally, name: str, values: Floats) -> None:
    if len(values):
        tally.sketch(name).gather(values)


def _count_window(
    tallies: TallySet,
    class_name: str,
    turns: _Plain,
    window: PhaseWindow,
    met: Sequence[bool | None] | None,
) -> None:
    """Count turns that are entirely in the window together, and the others by `within`.

    `met`: result for the SLO per turn; None without an SLO.
    """
    end_ns = np.iinfo(np.int64).max if window.end_ns is None else window.end_ns
    over = np.maximum(turns.closed, turns.last)
    inside = (window.start_ns <= turns.begun) & (over < end_ns)
    touched = ~inside & (turns.closed >= window.start_ns) & (turns.begun < end_ns)
    tally = tallies.at(window.phase, class_name, window.step) if inside.any() or touched.any() else None
    if tally is None:
        return
    for row in np.flatnonzero(touched).tolist():
        counts = within(turns.records[row], window)
        if counts is not None:
            tally.count_window(counts, None if met is None else met[row])
    if inside.any():
        tally.window_events += int(turns.events[inside].sum())
        tokens = int(turns.output_tokens[inside].sum())
        tally.window_output_tokens += tokens
        tally.window_ended_counted += int(inside.sum())
        tally.window_ended_tokens += tokens
        prompts = [turns.records[row].input_tokens for row in np.flatnonzero(inside).tolist()]
        tally.window_firsts += len(prompts)
        tally.window_firsts_uncounted += prompts.count(None)
        tally.window_input_tokens += sum(tokens for tokens in prompts if tokens is not None)
        tally.window_in_flight_ns += int((turns.closed - turns.sent)[inside].clip(min=0).sum())
        tally.window_turns += int(inside.sum())
        judged = (
            []
            if met is None
            else [result for row in np.flatnonzero(inside).tolist() if (result := met[row]) is not None]
        )
        tally.window_slo_judged += len(judged)
        tally.window_slo_met += sum(judged)
