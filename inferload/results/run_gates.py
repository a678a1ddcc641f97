"""Results of a run's gates, with values and intervals from turn records, else from sketches; imported if there are any."""

from collections.abc import Callable, Collection

import numpy as np

from inferload.figures.client_figures import BY_KEY as OF_CLIENT
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.figures.turn_figures import BY_KEY
from inferload.results.documents.summary_document import Results
from inferload.results.documents.verdict_document import GateResult
from inferload.results.statistics import intervals as statistics
from inferload.results.summary_input import Batches, SummaryInput, Sums
from inferload.results.verdict import gates
from inferload.turns.client_health import ClientHealth
from inferload.turns.sketch import Floats, rank
from inferload.turns.tally import Tally


def sketch_quantile(
    measured: Tally, health: ClientHealth, exact: Callable[[str], Floats] | None = None
) -> gates.Quantile:
    """Return the source of a gate's percentiles: `exact` values if possible, else sketches; None without a sample."""

    def quantile(name: str, q: float) -> float | None:
        values = exact(name) if exact is not None and name in BY_KEY else ()
        if len(values):
            at = rank(q, len(values)) - 1
            return float(np.partition(values, at)[at])
        of_client = OF_CLIENT[name].sketch if name in OF_CLIENT else None
        sketch = measured.sketches.get(name) if of_client is None else of_client(health)
        return None if sketch is None else sketch.quantile(q)

    return quantile


def _intervals(batches: Batches, class_name: str | None) -> gates.Intervals:
    def interval(name: str, q: float | None) -> statistics.Interval | None:
        values = batches(name, class_name)
        return statistics.mean_interval(values) if q is None else statistics.quantile_interval(values, q)

    return interval


def _intervals_of_sums(sums_of: Sums, class_name: str | None, measured: Tally) -> gates.Intervals:
    """Return intervals as `_intervals`, with the values at their ends from sketches, widened by the error of these."""

    def interval(name: str, q: float | None) -> statistics.Interval | None:
        sketch = measured.sketches.get(name)
        limit = None if sketch is None else sketch.quantile(0.5 if q is None else q)
        if sketch is None or limit is None:
            return None
        sums = sums_of(name, class_name, limit)
        count = float(sums.counts.sum())
        if not count:
            return None
        if q is not None:
            found = statistics.quantile_of_counts(
                sums.below, sums.counts, q, lambda at: sketch.quantile(at / sketch.count) or 0.0
            )
            return found.widened(sketch.relative_error)
        mean = float(sums.sums.sum()) / count
        return statistics.mean_of_sums(sums.sums, sums.counts, mean, max(0.0, sums.squares / count - mean**2))

    return interval


def evaluated(text: str, data: SummaryInput, results: Results, exact: Collection[str | None]) -> GateResult:
    """Return the result of a gate, from the turns of its class. `exact`: classes with exact latencies; None: all turns."""
    gate = parse_gate(text)
    if not results.window_s:
        return GateResult(gate=gate.text, passed=False, answer="not evaluated")
    name, counted, known, all_values = gate.class_name, data.counted, data.values, data.values.exact
    measured = counted.tallies.total("measure", name)
    values = None if name not in exact or all_values is None else (lambda measure: all_values(measure, name))
    quantile = sketch_quantile(measured, counted.health.total("measure"), values)
    intervals = None if known.batches is None else _intervals(known.batches, name)
    if known.sums is not None:
        intervals = _intervals_of_sums(known.sums, name, measured)
    return gates.evaluate(gate, results, quantile, intervals, data.gating.inconclusive)
