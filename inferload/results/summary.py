"""summary.json: document of a run's results, from tallies, health and verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.figures import gate_grammar
from inferload.figures.client_figures import BY_KEY as OF_CLIENT
from inferload.figures.client_figures import CLIENT_FIGURES
from inferload.figures.rate_figures import rates
from inferload.figures.turn_figures import TURN_FIGURES
from inferload.figures.turn_values import BatchSums
from inferload.results.statistics.intervals import (
    Interval,
    mean_interval,
    mean_of_sums,
    order_interval,
    quantile_interval,
    quantile_of_counts,
)
from inferload.results.statistics.overload import Growth
from inferload.results.summary_notes import notes, remarks_block
from inferload.results.verdict import gates as gating
from inferload.results.verdict.evidence import Stamps
from inferload.results.verdict.validity import Verdict
from inferload.turns.client_health import ClientHealth, HealthSet
from inferload.turns.record import PHASES, Phase
from inferload.turns.sketch import Sketch, rank
from inferload.turns.tally import Tally, TallySet

FORMAT = 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
BEYOND = 10  # samples beyond a percentile; with fewer, it is marked and has an interval
_LATENCIES = tuple(figure.key for figure in TURN_FIGURES)
# Counts of turns of a class, a step or the whole.
_OF_PART = {
    *("sent", "ok", "cancelled", "failed", "unfinished", "by_failure", "by_finish_reason"),
    *("output_tokens_from", "input_tokens_from"),
}

Floats = npt.NDArray[np.float64]
# (measure, class, None for all) -> all values of the measure phase.
Values = Callable[[str, str | None], Floats]
# The same in batches by time, for the intervals of gates.
Batches = Callable[[str, str | None], Sequence[Floats]]
# (measure, class, limit) -> sums over these batches, of a run with too many values.
Sums = Callable[[str, str | None, float], BatchSums]
_Latency = Mapping[str, dict[str, Any]]  # by measure: block of its values


@dataclass(frozen=True, slots=True)
class SummaryInput:
    """Input of a summary. `windows`: duration of each phase in seconds. `exact`: all values; None: not known, or too many.

    `exact` is used only if it has as many values of each measure as the tallies; otherwise turn records are missing, and
    percentiles come from the sketches.
    """

    run: dict[str, Any]
    tallies: TallySet
    health: HealthSet
    windows: Mapping[Phase, float]
    verdict: Verdict
    stamps: Stamps | None
    reader: str | None = None  # native, python or mixed
    servers: Sequence[dict[str, Any]] = ()
    gates: Sequence[str] = ()
    inconclusive: gating.Policy = "warn"
    other_requests: Mapping[str, Any] = field(default_factory=lambda: {"sent": 0, "failed": 0})  # other than turns
    exceptions: Mapping[str, Any] = field(default_factory=lambda: {"count": 0, "first": None})  # of tasks
    users: Mapping[str, int] = field(default_factory=dict)  # of Locust, by class
    batches: Batches | None = None  # of the measure phase; None: turn records are missing, or there are too many
    sums: Sums | None = None  # of a run with too many
    exact: Values | None = None
    step_windows: Mapping[int, float] = field(default_factory=dict)
    step_levels: Sequence[Mapping[str, Any]] = ()  # planned load of each step
    first_errors: Sequence[Mapping[str, Any]] = ()  # of each kind of failure, in any phase
    remarks: Mapping[str, Any] = field(default_factory=dict)  # first example of each, in any phase
    stopped_answering: Sequence[Mapping[str, Any]] | None = None  # None: turn records are missing
    growth: Growth | None = None  # of the turns in flight in an open loop
    step_growth: Mapping[int, Growth] = field(default_factory=dict)
    overload_not_judged: str | None = None  # reason why an open loop has no growth
    slo_of: Callable[[str], Mapping[str, float]] = lambda _class: {}  # limits of one turn, by class
    aborted: gating.GateResult | None = None  # the condition of `abort_on` that stopped the run


def build(data: SummaryInput) -> dict[str, Any]:
    """Return the document. Figures are of the measure phase unless named otherwise; None: unknown."""
    measured = data.tallies.total("measure")
    window_s = data.windows.get("measure")
    exact = _exact(data)
    summary: dict[str, Any] = {
        "format": FORMAT,
        "run": data.run,
        "verdict": {},
        "window_s": window_s,
        "percentiles_from": "records" if None in exact else "sketches",
        **_part(measured, window_s, exact.get(None), _common_limits(data)),
        "other_requests": dict(data.other_requests),
        "exceptions": dict(data.exceptions),
        "users": {"by_class": dict(data.users)},
        "client": _client(data.health, data.stamps, data.reader),
        "servers": list(data.servers),
        "by_class": _by_class(data, exact),
        "steps": _steps(data),
    }
    phases = {phase: _turns(data.tallies.total(phase)) for phase in PHASES}
    summary["turns"]["by_phase"] = phases | {"all": _turns(data.tallies.total())}
    stopped = data.stopped_answering
    summary["turns"]["first_errors"] = list(data.first_errors)
    summary["stopped_answering"] = None if stopped is None else list(stopped)
    summary["growth"] = None if data.growth is None else asdict(data.growth)
    summary["overload_not_judged"] = data.overload_not_judged
    summary["turns"]["remarks"] = remarks_block(measured, data.remarks)
    summary["notes"] = notes(summary, measured, data.tallies.by_class("measure"))
    summary["verdict"] = _verdict(data, summary, exact)
    return summary


def block_of(sketch: Sketch | None) -> dict[str, Any]:
    """Count, mean, nearest-rank percentiles and extremes; `intervals` of percentiles with fewer than 10 samples beyond."""
    if sketch is None or sketch.count == 0:
        return _block(0, None, lambda q: None, None, None)
    return _block(sketch.count, sketch.mean, sketch.quantile, sketch.min, sketch.max)


def exact_block(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return `block_of` from all values, without the error of a sketch."""
    n = len(values)
    if n == 0:
        return block_of(None)
    ordered = np.sort(values)
    return _block(
        n, float(values.mean()), lambda q: float(ordered[rank(q, n) - 1]), float(ordered[0]), float(ordered[-1])
    )


def steady(count: int, q: float) -> bool:
    """Return True if at least BEYOND samples are beyond a percentile: n (1 - q) >= 10."""
    return round(count * (1 - q), 6) >= BEYOND


def is_marked(block: Mapping[str, Any], name: str) -> bool:
    """Return True if a block's percentile has fewer than BEYOND samples beyond it, and is printed with a mark."""
    q = QUANTILES.get(name)
    return q is not None and block.get(name) is not None and not steady(block["count"], q)


def _block(
    count: int, mean: float | None, quantile: Callable[[float], float | None], low: float | None, high: float | None
) -> dict[str, Any]:
    block: dict[str, Any] = {"count": count, "mean": _tidy(mean)}
    block |= {name: _tidy(quantile(q)) for name, q in QUANTILES.items()}
    block |= {"min": _tidy(low), "max": _tidy(high)}
    few = {name: q for name, q in QUANTILES.items() if is_marked(block, name)}
    return block | {"intervals": {name: _interval_of(quantile, count, q) for name, q in few.items()}} if few else block


def _interval_of(quantile: Callable[[float], float | None], count: int, q: float) -> list[float | None]:
    """Distribution-free 95 % interval of a percentile, [low, high]; None for an end beyond all samples."""
    return [None if at is None else _tidy(quantile(at / count)) for at in order_interval(count, q)]


def _tidy(value: float | None) -> float | None:
    """Round to 1e-6, a nanosecond of a millisecond: further digits are rounding errors."""
    return None if value is None else round(value, 6)


def _exact(data: SummaryInput) -> dict[str | None, _Latency]:
    """Return the exact latencies of each class, and of all (None), if there are as many values as the tallies counted.

    Measure by measure, so that the values of one are in memory at a time.
    """
    if data.exact is None:
        return {}
    tallies: dict[str | None, Tally] = {None: data.tallies.total("measure")}
    tallies.update(data.tallies.by_class("measure"))
    exact: dict[str | None, dict[str, Any]] = {of: {} for of in tallies}
    for name in _LATENCIES:
        for of, blocks in exact.items():
            blocks[name] = exact_block(data.exact(name, of))
    return {of: blocks for of, blocks in exact.items() if _complete(blocks, tallies[of])}


def _complete(exact: _Latency, tally: Tally) -> bool:
    counted = {name: tally.sketches[name].count if name in tally.sketches else 0 for name in _LATENCIES}
    return all(exact[name]["count"] == count for name, count in counted.items())


def figures_of(tally: Tally, window_s: float) -> dict[str, Any]:
    """Return turns, rates and latencies of a tally, from its counts and sketches."""
    return _part(tally, window_s, None)


def _part(
    tally: Tally,
    window_s: float | None,
    exact: _Latency | None,
    limits: Mapping[str, float | None] = MappingProxyType({}),
) -> dict[str, Any]:
    """Figures of the measure phase, or of one step or class of it. `limits`: of its SLO."""
    counted = tally.window_events - tally.window_events_uncounted
    return {
        "sessions": sessions(tally),
        "turns": {name: count for name, count in _turns(tally).items() if name in _OF_PART},
        "stalls": {
            "turns_with_stall": tally.turns_with_stall,
            "longest_ms": _tidy(tally.longest_stall_ms),
            "turns_with_client_stall": tally.turns_with_client_stall,
        },
        "tokens_per_event": {"mean": tally.window_output_tokens / counted if counted else None},
        "rates": rates(tally, window_s),
        "slo": _slo(tally, limits),
        "latency": {name: block_of(tally.sketches.get(name)) for name in _LATENCIES} if exact is None else dict(exact),
    }


def sessions(tally: Tally) -> dict[str, int]:
    """Counts of sessions."""
    return {
        "planned": tally.sessions_planned,
        "dropped": tally.sessions_dropped,
        "at_limit": tally.sessions_at_limit,
        "started": tally.sessions_started,
        "completed": tally.sessions_completed,
    }


def _turns(tally: Tally) -> dict[str, Any]:
    return {
        "sent": tally.turns_begun,
        "ok": tally.ok,
        "cancelled": tally.cancelled,
        "failed": tally.failed,
        "unfinished": tally.unfinished,
        "by_failure": dict(sorted(tally.by_failure.items())),
        "by_status": {str(status): count for status, count in sorted(tally.by_status.items())},
        "by_finish_reason": dict(sorted(tally.by_finish_reason.items())),
        "output_tokens": tally.output_tokens if tally.output_tokens_from else None,
        "output_tokens_from": tally.output_tokens_from,
        "input_tokens": tally.input_tokens if tally.input_tokens_from else None,
        "input_tokens_from": tally.input_tokens_from,
        "cached_tokens": tally.cached_tokens if tally.cached_tokens_from else None,
    }


def _slo(tally: Tally, limits: Mapping[str, float | None]) -> dict[str, Any] | None:
    """Return `slo`: how many turns missed each limit; None without an SLO, or if the result of a turn is unknown."""
    if not tally.slo_judged or tally.slo_judged != tally.ended:
        return None
    missed = dict(tally.slo_missed) | ({"dropped": tally.sessions_dropped} if tally.sessions_dropped else {})
    turns = tally.ended + tally.sessions_dropped
    return {"limits": dict(limits), "turns": turns, "met": tally.slo_met, "missed": dict(sorted(missed.items()))}


def _common_limits(data: SummaryInput) -> dict[str, float | None]:
    """Return the limits of the classes' SLOs; None for one that differs between them."""
    of_classes = [data.slo_of(name) for name in data.tallies.by_class("measure")]
    names = dict.fromkeys(name for limits in of_classes for name in limits)
    values = {name: {limits.get(name) for limits in of_classes} for name in names}
    return {name: next(iter(each)) if len(each) == 1 else None for name, each in values.items()}


def _client(health: HealthSet, stamps: Stamps | None, reader: str | None) -> dict[str, Any]:
    total = health.total("measure")
    workers = health.by_worker("measure").values()
    figures = {
        figure.field: _tidy(figure.worst(workers)) if figure.sketch is None else block_of(figure.sketch(total))
        for figure in CLIENT_FIGURES
    }
    return figures | {"stamps": stamps, "reader": reader}


def _by_class(data: SummaryInput, exact: Mapping[str | None, _Latency]) -> dict[str, Any]:
    by_class = data.tallies.by_class("measure")
    return {
        name: _part(tally, data.windows.get("measure"), exact.get(name), data.slo_of(name))
        for name, tally in by_class.items()
    }


def _steps(data: SummaryInput) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            **(data.step_levels[step] if step < len(data.step_levels) else {}),
            "window_s": data.step_windows.get(step),
            "growth": asdict(data.step_growth[step]) if step in data.step_growth else None,
            **_part(tally, data.step_windows.get(step), None),
        }
        for step, tally in data.tallies.by_step("measure").items()
    ]


def sketch_quantile(
    measured: Tally, health: ClientHealth, exact: Callable[[str], Floats] | None = None
) -> gating.Quantile:
    """Return the source of a gate's percentiles: `exact` values if possible, else sketches; None without a sample."""

    def quantile(name: str, q: float) -> float | None:
        values = exact(name) if exact is not None and name in _LATENCIES else ()
        if len(values):
            at = rank(q, len(values)) - 1
            return float(np.partition(values, at)[at])
        of_client = OF_CLIENT[name].sketch if name in OF_CLIENT else None
        sketch = measured.sketches.get(name) if of_client is None else of_client(health)
        return None if sketch is None else sketch.quantile(q)

    return quantile


def _intervals(batches: Batches, class_name: str | None) -> gating.Intervals:
    def interval(name: str, q: float | None) -> Interval | None:
        values = batches(name, class_name)
        return mean_interval(values) if q is None else quantile_interval(values, q)

    return interval


def _intervals_of_sums(sums_of: Sums, class_name: str | None, measured: Tally) -> gating.Intervals:
    """Return intervals as `_intervals`, with the values at their ends from sketches, widened by the error of these."""

    def interval(name: str, q: float | None) -> Interval | None:
        sketch = measured.sketches.get(name)
        limit = None if sketch is None else sketch.quantile(0.5 if q is None else q)
        if sketch is None or limit is None:
            return None
        sums = sums_of(name, class_name, limit)
        count = float(sums.counts.sum())
        if not count:
            return None
        if q is not None:
            found = quantile_of_counts(sums.below, sums.counts, q, lambda at: sketch.quantile(at / sketch.count) or 0.0)
            return found.widened(sketch.relative_error)
        mean = float(sums.sums.sum()) / count
        return mean_of_sums(sums.sums, sums.counts, mean, max(0.0, sums.squares / count - mean**2))

    return interval


def _evaluated(
    text: str, data: SummaryInput, summary: dict[str, Any], exact: Mapping[str | None, _Latency]
) -> gating.GateResult:
    """Result of a gate, from the turns of its class. `exact`: exact latencies by class."""
    gate = gate_grammar.parse(text)
    name, measured, all_values = gate.class_name, data.tallies.total("measure"), data.exact
    if name is not None:
        measured = data.tallies.by_class("measure").get(name, Tally())
    values = None if name not in exact or all_values is None else (lambda measure: all_values(measure, name))
    quantile = sketch_quantile(measured, data.health.total("measure"), values)
    intervals = None if data.batches is None else _intervals(data.batches, name)
    if data.sums is not None:
        intervals = _intervals_of_sums(data.sums, name, measured)
    return gating.evaluate(gate, summary, quantile, intervals, data.inconclusive)


def _verdict(data: SummaryInput, summary: dict[str, Any], exact: Mapping[str | None, _Latency]) -> dict[str, Any]:
    """`verdict` block. Gates decide if the run passes; without gates, failed turns, other requests and tasks do."""
    results = [_evaluated(text, data, summary, exact) for text in data.gates]
    results += [] if data.aborted is None else [data.aborted]
    failures = data.tallies.total().failed + data.other_requests["failed"] + data.exceptions["count"]
    passed = all(result.passed for result in results) if results else failures == 0
    return {
        "measurement": data.verdict.measurement,
        "by_phase": dict(data.verdict.by_phase),
        "reasons": [reason.to_dict() for reason in data.verdict.reasons],
        "gates": [result.to_dict() for result in results],
        "passed": passed,
    }
