"""Evidence of each phase for the verdict, from tallies and health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from inferload.base.clock import NS_PER_MS, NS_PER_S
from inferload.figures.rate_figures import EVENTS_PER_ARRIVAL, TURNS, streamed_tokens, typical_gap_ms
from inferload.figures.turn_figures import CONNECT, ITL, LAG, TTFT, UPLOAD
from inferload.results.documents.summary_document import steady
from inferload.results.statistics.intervals import order_interval
from inferload.results.statistics.overload import Growth
from inferload.results.verdict.evidence import Evidence, ScrapeGap, Stamps
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PHASES, Phase
from inferload.turns.sketch import Sketch
from inferload.turns.tally import Tally, TallySet, count_faults

_CONNECT_TURNS = 2  # iterations of the event loop per connection: start of connecting, and notification of its greenlet
_UPLOAD_MS = 5.0  # a longer upload waited for the socket, and so for the event loop


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts besides tallies and health: fields of `Evidence`, of the measure phase, whenever they happened. None: not known."""

    stamps: Stamps | None
    workers: int = 1
    lost_workers: int = 0
    report_gaps: int = 0  # missing reports of workers
    clock_uncertainty_ms: float | None = None  # of the worst worker
    server_restarts: int | None = None
    scrape_gap: ScrapeGap | None = None  # of the worst server; servers that never answered excluded
    warm_cache_share: float | None = None
    server_itl_ms: float | None = None  # mean of all servers, by request
    server_in_flight_mean: float | None = None  # running + waiting of all targets, over the measure window
    lost_records: int = 0  # turns that were counted and whose records are missing
    lost_records_why: str = ""  # the worker, the path and the error of the first loss
    write_errors: tuple[str, ...] = ()  # of the run's other files
    adaptations_left_out: tuple[str, ...] = ()  # of Locust, without which figures can be wrong: name and consequence
    reader: str = ""  # the readers of the sockets, in words
    growth: Growth | None = None  # of the turns in flight in an open loop of constant rate; of steps the worst one


def evidence_by_phase(
    tallies: TallySet, health: HealthSet, windows: Mapping[Phase, float], facts: RunFacts
) -> list[Evidence]:
    """Return the evidence of each phase with a window. `windows`: durations in seconds."""
    phases = []
    for phase in PHASES:
        window_s = windows.get(phase)
        if window_s is not None:
            evidence = _of_phase(phase, tallies.total(phase), health, window_s)
            if phase == "measure":
                known = {fact.name: getattr(facts, fact.name) for fact in fields(facts)}
                evidence = replace(evidence, count_faults=tuple(count_faults(tallies)), **known)
            phases.append(evidence)
    return phases


def _of_phase(phase: Phase, tally: Tally, health: HealthSet, window_s: float) -> Evidence:
    all_workers, each = health.total(phase), list(health.by_worker(phase).values())
    # If a thread reads, event loop lag delays only requests that are not sent in one piece.
    upload = tally.sketches.get(UPLOAD.key)
    parted = upload is not None and (upload.quantile(0.99) or 0.0) > _UPLOAD_MS
    return Evidence(
        phase=phase,
        workers=len(each),
        turns_begun=tally.turns_begun,
        turns_finished=tally.ok + tally.failed,
        turns_unfinished=tally.unfinished,
        sessions_planned=tally.sessions_planned,
        sessions_dropped=tally.sessions_dropped,
        sessions_at_limit=tally.sessions_at_limit,
        sessions_postponed=tally.sessions_postponed,
        turns_delayed=tally.turns_delayed,
        delayed_mean_ms=tally.delayed_ns / NS_PER_MS / tally.turns_begun if tally.turns_begun else 0.0,
        connect_mean_ms=_connect_mean_ms(tally, _worst([worker.loop_lag_ms.quantile(0.99) for worker in each])),
        sessions_begun=tally.window_sessions,
        delay_p99_ms=_certain_p99(all_workers.delay_ms),
        itl_ms=typical_gap_ms(tally.sketches[ITL.key]) if ITL.key in tally.sketches else None,
        events_per_arrival=EVENTS_PER_ARRIVAL.value(tally, window_s),
        ttft_ms=_typical(tally.sketches.get(TTFT.key)),
        loop_lag_p99_ms=_worst(
            [_certain_p99(worker.loop_lag_ms) for worker in each if not worker.reads_apart or parted]
        ),
        pause_max_ms=_worst([worker.longest_pause_ms for worker in each]),
        cpu_share=_worst([worker.cpu_share for worker in each]),
        steal_share=_worst([worker.steal_share for worker in each]),
        gc_pause_max_ms=_worst([worker.gc_pause_ms.max for worker in each]),
        stamped_share=all_workers.stamped_share,
        clock_steps=all_workers.clock_steps,
        clock_stepped_s=all_workers.clock_stepped_ns / NS_PER_S,
        window_s=window_s,
        lag_mean_ms=tally.sketches[LAG.key].mean if LAG.key in tally.sketches else None,
        turn_mean_s=tally.turn_ns / NS_PER_S / tally.ended if tally.ended else None,
        in_flight_mean=tally.window_in_flight_ns / NS_PER_S / window_s if window_s else None,
        streamed_tokens=streamed_tokens(tally),
        tokens_per_turn=tally.window_ended_tokens / tally.window_ended_counted if tally.window_ended_counted else None,
        edge_tokens=tally.window_edge_tokens,
        turns_per_s=TURNS.value(tally, window_s),
        rate_times_time=tally.turn_ns / NS_PER_S / window_s if window_s else None,
    )


def _connect_mean_ms(tally: Tally, loop_lag_ms: float | None) -> float:
    """Mean connect time over all turns, without the lag of the event loop."""
    connect, lag = tally.sketches.get(CONNECT.key), tally.sketches.get(LAG.key)
    if connect is None or lag is None or connect.mean is None:
        return 0.0
    own_ms = _CONNECT_TURNS * (loop_lag_ms or 0.0)
    return max(0.0, connect.mean - own_ms) * connect.count / lag.count


def _certain_p99(sketch: Sketch) -> float | None:
    """Return the p99; of too few samples the lower end of its 95 % interval, None for fewer than three.

    A blocked event loop has few samples, and nearly all of them are late: the interval proves this, one late sample does not.
    """
    if steady(sketch.count, 0.99):
        return sketch.quantile(0.99)
    low, _ = order_interval(sketch.count, 0.99)
    return sketch.quantile(low / sketch.count) if low is not None and low < sketch.count else None


def _typical(sketch: Sketch | None) -> float | None:
    """Return the median; the mean if more than half of the values are 0."""
    return None if sketch is None else sketch.quantile(0.5) or sketch.mean


def _worst(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
