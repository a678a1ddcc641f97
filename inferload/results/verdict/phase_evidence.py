"""Evidence of each phase for the verdict, from tallies and health."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs
from msgspec.structs import replace

from inferload.base.clock import NS_PER_MS, NS_PER_S
from inferload.figures.rate_figures import EVENTS_PER_ARRIVAL, TURNS, streamed_tokens, tokens_per_event, typical_gap_ms
from inferload.figures.turn_figures import CONNECT, ITL, LAG, TTFT, UPLOAD
from inferload.results.documents.figures_document import steady
from inferload.results.readers import text, uses_of
from inferload.results.statistics.distributions import order_interval
from inferload.results.verdict.evidence import Evidence, RunFacts, Stamps
from inferload.results.verdict.validity import SoFar, judge_so_far
from inferload.turns.client_health import ClientHealth, HealthSet
from inferload.turns.record import PHASES, Phase
from inferload.turns.sketch import Sketch
from inferload.turns.tally import Tally, TallySet, count_faults

if TYPE_CHECKING:
    from inferload.results.summarise.counts import EndedWorker

SKETCHES = (ITL.key, TTFT.key, LAG.key, CONNECT.key, UPLOAD.key)  # of tallies, from which evidence follows
_CONNECT_TURNS = 2  # iterations of the event loop per connection: start of connecting, and notification of its greenlet
_UPLOAD_MS = 5.0  # a longer upload waited for the socket, and so for the event loop


def client_facts(health: HealthSet, workers: Sequence["EndedWorker"], left_out: tuple[str, ...]) -> RunFacts:
    """Return the facts that are known during a run too, of clients and workers. `left_out`: adaptations of Locust."""
    uncertainties_ns = [worker.uncertainty_ns for worker in workers if worker.uncertainty_ns is not None]
    return RunFacts(
        stamps=_stamps(health),
        workers=len(workers),
        lost_workers=sum(worker.lost or worker.left for worker in workers),
        report_gaps=sum(worker.missing_reports for worker in workers),
        clock_uncertainty_ms=max(uncertainties_ns) / NS_PER_MS if uncertainties_ns else None,
        adaptations_left_out=left_out,
        reader=text(uses_of(worker.readers for worker in workers)),
    )


def _stamps(health: HealthSet) -> Stamps | None:
    """Source of the reads' timestamps; None without a read."""
    if any(part.reads_stamped for _, part in health.items()):
        return "kernel"
    return "user" if any(part.reads_unstamped for _, part in health.items()) else None


def evidence_by_phase(
    tallies: TallySet, health: HealthSet, windows: Mapping[Phase, float], facts: RunFacts
) -> list[Evidence]:
    """Return the evidence of each phase with a window. `windows`: durations in seconds."""
    phases = []
    for phase in PHASES:
        if (window_s := windows.get(phase)) is not None:
            workers = list(health.by_worker(phase).values())
            evidence = evidence_of(phase, tallies.total(phase), workers, health.total(phase).delay_ms, window_s)
            if phase == "measure":
                evidence = replace(evidence, count_faults=tuple(count_faults(tallies)), **structs.asdict(facts))
            phases.append(evidence)
    return phases


def evidence_of(
    phase: Phase, tally: Tally, each: Sequence[ClientHealth], delay_ms: Sketch, window_s: float
) -> Evidence:
    """Return the evidence of a phase without facts. `each`: health by worker; `delay_ms`: client delays of all workers."""
    # If a thread reads, event loop lag delays only requests that are not sent in one piece.
    upload = tally.sketches.get(UPLOAD.key)
    parted = upload is not None and (upload.quantile(0.99) or 0.0) > _UPLOAD_MS
    stamped = sum(worker.reads_stamped for worker in each)
    reads = stamped + sum(worker.reads_unstamped for worker in each)
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
        connect_mean_ms=_connect_mean_ms(tally, _worst(worker.loop_lag_ms.quantile(0.99) for worker in each)),
        sessions_begun=tally.window_sessions,
        delay_p99_ms=_certain_p99(delay_ms),
        itl_ms=typical_gap_ms(tally.sketches[ITL.key]) if ITL.key in tally.sketches else None,
        events_per_arrival=EVENTS_PER_ARRIVAL.value(tally, window_s),
        tokens_per_event=tokens_per_event(tally),
        loop_lag_p99_ms=_worst(_certain_p99(worker.loop_lag_ms) for worker in each if not worker.reads_apart or parted),
        pause_max_ms=_worst(worker.longest_pause_ms for worker in each),
        cpu_share=_worst(worker.cpu_share for worker in each),
        steal_share=_worst(worker.steal_share for worker in each),
        gc_pause_max_ms=_worst(worker.gc_pause_ms.max for worker in each),
        stamped_share=stamped / reads if reads else None,
        clock_steps=sum(worker.clock_steps for worker in each),
        clock_stepped_s=sum(worker.clock_stepped_ns for worker in each) / NS_PER_S,
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


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


class MeasureSoFar:
    """Sums over the measure phase, kept report by report: to merge all sketches each second would delay the load of the process."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._delay_ms = Sketch()

    def add(self, delta: TallySet, health: HealthSet) -> None:
        """Add a report."""
        for (phase, _, _), tally in delta.items():
            if phase == "measure":
                self._tally.absorb_counts(tally, SKETCHES)
        for (_, phase), part in health.items():
            if phase == "measure":
                self._delay_ms.absorb(part.delay_ms)

    def verdict(self, health: HealthSet, window_s: float, facts: RunFacts) -> SoFar:
        """Return what the verdict would be now. `health`: sum of all reports; `window_s`: length of the phase so far."""
        workers = [part for (_, phase), part in health.items() if phase == "measure"]
        evidence = evidence_of("measure", self._tally, workers, self._delay_ms, window_s)
        return judge_so_far(replace(evidence, **structs.asdict(facts)))
