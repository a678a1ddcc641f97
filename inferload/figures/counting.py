"""Counting of ended turns into tallies, many at a time: a batch costs a fraction of its turns one by one."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from inferload.base.clock import NS_PER_MS
from inferload.figures.limits.slo import Judged, Slo
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import STALL_MS, TURN_FIGURES
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PhaseWindow, TurnRecord
from inferload.turns.sketch import Bools, Ints
from inferload.turns.tally import Key, Pause, Tally, TallySet, add_counts


class KeyedTurns(Struct, frozen=True):
    """Turns of one key that ended together. `columns`: of the same turns, in the same order."""

    key: Key
    records: Sequence[TurnRecord]
    columns: TurnBatch


def keyed(records: Iterable[TurnRecord]) -> list[KeyedTurns]:
    """Return the turns by their key, in the order of its first turn."""
    by_key: dict[Key, list[TurnRecord]] = {}
    for record in records:
        by_key.setdefault((record.phase, record.class_name, record.step), []).append(record)
    return [KeyedTurns(key, members, TurnBatch.of_records(members)) for key, members in by_key.items()]


def count_turns(
    tallies: TallySet,
    ended: Iterable[KeyedTurns],
    windows: Sequence[PhaseWindow],
    slos: Mapping[str, Slo | None],
    pauses: Sequence[Pause] = (),
) -> None:
    """Count ended turns, and their events in each window. `slos`: by class; `pauses`: times in which this client was blocked."""
    for group in ended:
        members, turns, tally = group.records, group.columns, tallies.at(*group.key)
        class_name = group.key[1]
        _count_ends(tally, members, turns)
        well = turns if turns.ok.all() else TurnBatch.of_records([record for record in members if record.ok])
        for figure in TURN_FIGURES:
            if len(values := figure.values(well)[0]):
                tally.sketch(figure.key).gather(values)
        _count_stalls(tally, well, pauses)
        slo = slos[class_name]
        judged = None if slo is None else slo.judge(turns)
        if judged is not None:
            _count_judged(tally, judged)
        for record, begun_ns in zip(members, turns.begun_ns.tolist(), strict=True):
            if record.opens_session:
                _count_session(tallies, record, begun_ns, windows)
        for window in windows:
            _count_window(tallies, class_name, turns, window, judged)


def count_delays(health: HealthSet, records: Iterable[TurnRecord], reads_unstamped: Iterable[int]) -> None:
    """Count the reads of turns, and the client delay of each stamped read."""
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


def _count_ends(tally: Tally, records: Sequence[TurnRecord], turns: TurnBatch) -> None:
    """Count how the turns ended, and their tokens."""
    unfinished = int(turns.unfinished.sum())
    tally.ok += int(turns.ok.sum())
    tally.cancelled += int(turns.cancelled.sum())
    tally.unfinished += unfinished
    tally.requests += sum(record.attempts for record in records)
    tally.retried += sum(record.retries for record in records)
    tally.failed += int((~turns.ok).sum()) - unfinished
    failures = [record.failure.value for record in records if record.failure is not None and record.finished]
    add_counts(tally.by_failure, Counter(failures))
    reasons = [record.finish_reason for record in records if record.ok and record.finish_reason is not None]
    add_counts(tally.by_finish_reason, Counter(reasons))
    add_counts(tally.by_status, Counter([record.status for record in records if record.status is not None]))
    add_counts(tally.by_remark, Counter([remark.value for record in records for remark in record.remarks]))
    output, prompts = turns.numbers["output_tokens"], turns.numbers["input_tokens"]
    texts = turns.numbers["texts"]
    tally.whole += int(texts.known.sum())
    tally.texts += int(texts.values.sum())
    tally.output_tokens += int(output.values.sum())
    tally.output_tokens_from += int(output.known.sum())
    whole = (turns.ok & ~turns.cancelled & output.known).tolist()
    limited = [
        (tokens, record.max_tokens)
        for record, tokens, answered in zip(records, output.values.tolist(), whole, strict=True)
        if answered and record.max_tokens is not None
    ]
    tally.answer_tokens += sum(tokens for tokens, _ in limited)
    tally.answer_limit_tokens += sum(limit for _, limit in limited)
    tally.input_tokens += int(prompts.values.sum())
    tally.input_tokens_from += int(prompts.known.sum())
    cached = [record.cached_tokens for record in records if record.cached_tokens is not None]
    tally.cached_tokens += sum(cached)
    tally.cached_tokens_from += len(cached)
    tally.events += len(turns.at_ns)
    sent, closed = turns.numbers["sent_ns"], turns.numbers["closed_ns"]
    tally.turn_ns += int((closed.values - sent.values)[sent.known].sum())


def _count_stalls(tally: Tally, turns: TurnBatch, pauses: Sequence[Pause]) -> None:
    """Count stalls. A gap in which this client was blocked for at least half of the time is a client stall."""
    gaps_ms, turn = turns.gaps_ms
    stalls = np.flatnonzero(gaps_ms > STALL_MS)
    if not len(stalls):
        return
    rows, sent_ns = turn[stalls], turns.numbers["sent_ns"].values
    ends = np.flatnonzero(turns.turn[1:] == turns.turn[:-1])[stalls] + 1  # the events that end them
    starts_ns, ends_ns = (sent_ns[rows] + turns.at_ns[events] for events in (ends - 1, ends))
    gaps_ns = zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)
    client = [2 * _overlap_ns(start_ns, end_ns, pauses) >= end_ns - start_ns for start_ns, end_ns in gaps_ns]
    of_client = np.array(client, dtype=np.bool_)
    tally.turns_with_client_stall += len(np.unique(rows[of_client]))
    tally.turns_with_stall += len(np.unique(rows[~of_client]))
    own = gaps_ms[stalls[~of_client]]
    if len(own):
        tally.stalled(float(own.max()))


def _overlap_ns(start_ns: int, end_ns: int, pauses: Sequence[Pause]) -> int:
    """Return the part of an interval that is inside pauses."""
    return sum(max(0, min(end_ns, until_ns) - max(start_ns, from_ns)) for from_ns, until_ns in pauses)


def _count_judged(tally: Tally, judged: Judged) -> None:
    """Count the limits of the SLO that turns missed."""
    tally.slo_judged += int(judged.known.sum())
    tally.slo_met += int(judged.met.sum())
    missed = {name: int(late.sum()) for name, late in judged.missed.items()}
    add_counts(tally.slo_missed, {name: count for name, count in missed.items() if count})


def _count_session(tallies: TallySet, record: TurnRecord, begun_ns: int, windows: Sequence[PhaseWindow]) -> None:
    """Count the session of a first turn in the window in which it was planned, if it also began in that phase."""
    planned = next((window for window in windows if window.holds(record.planned_ns)), None)
    begun = next((window for window in windows if window.holds(begun_ns)), None)
    if planned is not None and begun is not None and planned.phase == begun.phase:
        tallies.at(planned.phase, record.class_name, planned.step).window_sessions += 1


def _count_window(
    tallies: TallySet, class_name: str, turns: TurnBatch, window: PhaseWindow, judged: Judged | None
) -> None:
    """Count turns in a window. `judged`: None without an SLO."""
    if not touched(turns, window).any():
        return
    tally, counts = tallies.at(window.phase, class_name, window.step), within(turns, window)
    prompts = turns.numbers["input_tokens"]
    tally.window_events += int(counts.events.sum())
    tally.window_events_uncounted += int(counts.events[counts.uncounted].sum())
    tally.window_output_tokens += int(counts.output_tokens.sum())
    tally.window_ended_counted += int((counts.ended_ok & ~counts.ended_uncounted).sum())
    tally.window_ended_tokens += int(counts.ended_tokens.sum())
    tally.window_edge_tokens += int(counts.edge_tokens.sum())
    tally.window_firsts += int(counts.first_output.sum())
    tally.window_firsts_uncounted += int((counts.first_output & ~prompts.known).sum())
    tally.window_input_tokens += int(prompts.values[counts.first_output].sum())
    tally.window_in_flight_ns += int(counts.in_flight_ns.sum())
    tally.window_turns += int(counts.ended_ok.sum())
    tally.window_texts += int(turns.numbers["texts"].values[counts.ended_ok].sum())
    if judged is not None:
        tally.window_slo_judged += int((counts.ended_ok & judged.known).sum())
        tally.window_slo_met += int((counts.ended_ok & judged.met).sum())


_END_NS = np.iinfo(np.int64).max


class WindowCounts(Struct, frozen=True):
    """Counts of each turn of a batch in a half-open window. Counts of adjacent windows add up to those of the turn."""

    events: Ints
    output_tokens: Ints  # of these events
    uncounted: Bools  # there are such events, and their tokens were not counted
    first_output: Bools  # the first output event is in the window; without a stream: the end of the answer
    in_flight_ns: Ints
    ended_ok: Bools  # the turn ended well, and its end is in the window
    ended_tokens: Ints  # all output tokens of such a turn
    ended_uncounted: Bools  # these were not counted
    edge_tokens: Ints  # |output_tokens - ended_tokens| of a turn that crosses an end of the window, or failed


def touched(turns: TurnBatch, window: PhaseWindow) -> Bools:
    """Return the turns that have an instant in common with a window."""
    return (turns.numbers["closed_ns"].values >= window.start_ns) & (turns.begun_ns < _end_ns(window))


def within(turns: TurnBatch, window: PhaseWindow) -> WindowCounts:
    """Count each turn in a window. A turn that was not sent has no counts."""
    start_ns, end_ns = window.start_ns, _end_ns(window)
    sent, first, last, closed = (turns.numbers[name] for name in ("sent_ns", "first_ns", "last_ns", "closed_ns"))
    first_ns = np.where(first.known, first.values, last.values)
    low, high = _events_between(turns, start_ns, end_ns)
    here = (high - low) * sent.known
    tokens, uncounted = _tokens_between(turns, low, high)
    ended_ok = turns.ok & sent.known & (start_ns <= closed.values) & (closed.values < end_ns)
    of_turn, unknown = _tokens(turns)
    ended_tokens = of_turn * ended_ok
    whole = ended_ok & (here > 0) & (here == turns.events)
    return WindowCounts(
        events=here,
        output_tokens=tokens,
        uncounted=uncounted,
        first_output=sent.known & last.known & (start_ns <= first_ns) & (first_ns < end_ns),
        in_flight_ns=(np.minimum(closed.values, end_ns) - np.maximum(sent.values, start_ns)).clip(min=0) * sent.known,
        ended_ok=ended_ok,
        ended_tokens=ended_tokens,
        ended_uncounted=ended_ok & unknown,
        edge_tokens=np.where(whole, 0, np.abs(tokens - ended_tokens)),
    )


def _end_ns(window: PhaseWindow) -> int:
    return int(_END_NS) if window.end_ns is None else window.end_ns


def _events_between(turns: TurnBatch, start_ns: int, end_ns: int) -> tuple[Ints, Ints]:
    """Return the range of the events of each turn inside a window, from 0. Only turns across its ends are searched."""
    low, high = np.zeros(len(turns), dtype=np.int64), turns.events.copy()
    rows = np.flatnonzero(turns.events)
    sent_ns = turns.numbers["sent_ns"].values[rows]
    first_ns = sent_ns + turns.at_ns[turns.starts[rows]]
    last_ns = sent_ns + turns.at_ns[turns.starts[rows] + turns.events[rows] - 1]
    for row in rows[(first_ns < start_ns) | (last_ns >= end_ns)].tolist():
        begin, sent = turns.starts[row], turns.numbers["sent_ns"].values[row]
        offsets = turns.at_ns[begin : begin + turns.events[row]]
        low[row] = np.searchsorted(offsets, start_ns - sent)
        high[row] = max(low[row], np.searchsorted(offsets, end_ns - sent))
    return low, high


def _tokens_between(turns: TurnBatch, low: Ints, high: Ints) -> tuple[Ints, Bools]:
    """Tokens of events low to high - 1, as counted or the turn's shared evenly in whole numbers, and whether they are unknown."""
    output, events = turns.numbers["output_tokens"], np.maximum(turns.events, 1)
    tokens = output.values * high // events - output.values * low // events
    if turns.counted.any():
        upto = np.concatenate([[0], np.cumsum(turns.tokens)])
        tokens = np.where(turns.counted, upto[turns.starts + high] - upto[turns.starts + low], tokens)
    return np.where(high > low, tokens, 0), (high > low) & ~turns.counted & ~output.known


def _tokens(turns: TurnBatch) -> tuple[Ints, Bools]:
    """Output tokens of the whole turn, and whether they are unknown: the server's total, else the sum over its events."""
    output = turns.numbers["output_tokens"]
    if output.known.all():
        return output.values, ~output.known
    of_events = np.bincount(turns.turn, weights=turns.tokens, minlength=len(turns)).astype(np.int64)
    known = output.known | turns.counted | (turns.events == 0)
    return np.where(output.known, output.values, of_events), ~known
