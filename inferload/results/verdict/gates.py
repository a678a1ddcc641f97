"""Results of gates, evaluated on a summary."""

from collections.abc import Callable, Sequence

from inferload.base.numbers import number
from inferload.figures import client_figures, rate_figures, turn_figures
from inferload.figures.limits.gate import Gate
from inferload.figures.limits.gate_grammar import MEASURE_NAMES, OF_STREAMS
from inferload.figures.servers import server_figures
from inferload.figures.servers.server_figures import Server
from inferload.results.documents.figures_document import NO_SAMPLES, Distribution, Figures, TurnCounts
from inferload.results.documents.summary_document import OtherRequests, Results
from inferload.results.documents.verdict_document import GatePolicy, GateResult
from inferload.results.statistics.intervals import Interval
from inferload.results.summary_notes import notes_on_energy, notes_on_tokens
from inferload.results.verdict import gate_decision
from inferload.servers.replicas import left_out

# (measure, q) -> quantile of the sample at the nearest rank; None without a sample.
Quantile = Callable[[str, float], float | None]
# (measure, q, None for its mean) -> confidence interval; None if it cannot be computed.
Intervals = Callable[[str, float | None], Interval | None]


def evaluate(
    gate: Gate,
    results: Results,
    quantile: Quantile | None = None,
    intervals: Intervals | None = None,
    policy: GatePolicy = "warn",
) -> GateResult:
    """Evaluate a gate on the results of a run.

    `quantile`: source of percentiles that the results do not list. `intervals`: source of the intervals of means and
    percentiles; counts, ratios and rates have none. Both are of the gate's class.
    """
    value, note = _value(gate, results, quantile)
    interval = None
    if value is not None and intervals is not None and gate.name in MEASURE_NAMES:
        interval = intervals(gate.name, gate.q) if gate.q is not None or gate.statistic == "mean" else None
    decision = gate_decision.decide(gate, value, interval, None if interval is None else _block(gate, results).max)
    if value is not None and interval is not None and decision.answer == "inconclusive":
        note = gate_decision.missing(gate, value, interval, results)
    decided = policy if decision.answer == "inconclusive" and policy != "warn" else decision.answer
    return GateResult(
        gate=gate.text,
        value=value,
        passed=gate.holds(value) if decided == "inconclusive" else decided == "pass",
        answer=decision.answer,
        ground=decision.ground,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        effective_n=None if interval is None else interval.effective,
        note=decision.note or note,
    )


def _value(gate: Gate, results: Results, quantile: Quantile | None) -> tuple[float | None, str | None]:
    """Return the value, None if unknown, and a note."""
    if gate.name in server_figures.BY_KEY:
        return _server_value(gate, results.servers)
    if gate.of_request:
        return _request_value(gate, results.other_requests)
    part = _part(gate, results)
    if part is None:
        classes = ", ".join(results.by_class) or "none"
        return None, f"no turn of class {gate.selector} was planned in the measure phase; classes with turns: {classes}"
    if gate.statistic is None:
        client = client_figures.BY_KEY.get(gate.name)
        value = part.rates.get(gate.name) if client is None else results.client.number(client)
        of_power = notes_on_energy(results) if value is not None and gate.name in rate_figures.OF_POWER else []
        note = "; ".join(filter(None, (_partly_reported(gate.name, part.turns), *of_power))) or None
    else:
        block = _block(gate, results)
        value = block.statistic(gate.statistic)
        if value is None and gate.q is not None and quantile is not None:
            value = quantile(gate.name, gate.q)
        few = [] if gate.q is None else filter(None, [_few_samples(gate.q, block.count)])
        note = "; ".join([*few, *notes_on_tokens(gate.name, results.turns)]) or None
    if value is not None:
        return value, note
    return None, f"{gate.name} is not known{_why_unknown(gate.name, part, results)}"


def _part(gate: Gate, results: Results) -> Figures | None:
    """Return the class that a gate names, or all; None without turns of the class."""
    return results if gate.selector is None else results.by_class.get(gate.selector)


def _block(gate: Gate, results: Results) -> Distribution:
    """Return the samples of a gate's measure."""
    if gate.name in client_figures.BY_KEY:
        return results.client.samples(client_figures.BY_KEY[gate.name])
    part = _part(gate, results)
    return NO_SAMPLES if part is None else part.latency_of(gate.name)


def _partly_reported(name: str, turns: TurnCounts) -> str | None:
    """Return a note on a token rate that leaves out turns without a usage."""
    counted = _reported(name, turns)
    if not counted or counted == turns.ended:
        return None
    return f"of the {counted:,} of {turns.ended:,} turns that reported a usage"


def _reported(name: str, turns: TurnCounts) -> int | None:
    """Return the number of turns that reported the tokens of a figure; None if it needs none."""
    by_need = {"output_tokens": turns.output_tokens_from, "input_tokens": turns.input_tokens_from}
    return by_need.get(_needs(name) or "")


def _why_unknown(name: str, part: Figures, results: Results) -> str:
    """Return why a class or a run has no value of a figure; "" if the turns do not tell."""
    if _needs(name) == "canary":
        return ": no canary was answered; give the scenario a canary"
    if part.turns.ok == 0:
        return ": no turn succeeded"
    if name in OF_STREAMS and not part.turns.streamed:
        return ": its answers are no streams; use e2e_ms"
    if name == rate_figures.FAIRNESS.key and len(results.by_class) < 2:
        return ": it needs several classes with turns"
    if name in rate_figures.OF_POWER and (results.energy is None or results.energy.joules is None):
        return f": {(results.energy and results.energy.why) or 'no page of a GPU exporter was scraped'}"
    needs = _needs(name)
    if needs is not None and _reported(name, part.turns) == 0:
        return f": no turn reported its {needs.replace('_', ' ')} (usage)"
    if needs == "slo":
        none_good = part.rates.get(rate_figures.GOODPUT.key) == 0
        return ": no turn met the SLO" if none_good else ": there is no SLO, or turns lack a figure that it limits"
    return "".join(f": {note}" for note in notes_on_tokens(name, results.turns)[:1])


def _needs(name: str) -> rate_figures.Needs | None:
    """Return what a figure is computed from that a run may lack."""
    if name in turn_figures.BY_KEY:
        return "output_tokens" if "output_tokens" in turn_figures.BY_KEY[name].columns else None
    return rate_figures.BY_KEY[name].needs if name in rate_figures.BY_KEY else None


def _server_value(gate: Gate, servers: Sequence[Server]) -> tuple[float | None, str | None]:
    """Return the worst value of all servers; None if one of them was not measured."""
    by_target = server_figures.values(gate.name, gate.statistic, servers)
    if not by_target:
        return None, f"{gate.name} was not measured: no metrics page reported it"
    known = {target: value for target, value in by_target.items() if value is not None}
    if missing := [target for target in by_target if target not in known]:
        return None, f"{gate.name} was not measured at {_why_missing(gate.name, missing, servers)}"
    worst = max(known, key=lambda target: gate.badness(known[target]))
    return known[worst], f"the worst of {len(known)} servers: {worst}" if len(known) > 1 else None


def _why_missing(name: str, missing: Sequence[str], servers: Sequence[Server]) -> str:
    """Return targets without a value, and the reason: several servers, the kind of page, then gaps between scrapes."""
    if several := [entry for entry in servers if entry.target in missing and entry.replicas > 1]:
        return "; ".join(left_out(entry.target, entry.replicas) for entry in several)
    lacking = {entry.target: server_figures.BY_KEY[name].lacking(entry.kind) for entry in servers}
    if lacks := [f"{target}: {text}" for target in missing if (text := lacking[target]) is not None]:
        return "; ".join(lacks)
    gaps_s = {entry.target: entry.too_long_gap_s for entry in servers}
    silent = {target: gap_s for target in missing if (gap_s := gaps_s[target]) is not None}
    if not silent:
        return f"{', '.join(missing)}: its metrics page has no value of it for the window"
    gap = number(max(silent.values()))
    return f"{', '.join(silent)}: its metrics page was not scraped for {gap} s of the measure phase"


def _request_value(gate: Gate, requests: OtherRequests) -> tuple[float | None, str | None]:
    """Return the failed ratio of a request other than a turn, over the whole run."""
    for row in requests.by_name:
        if row.text == gate.selector and row.sent and row.failed is not None:
            return row.failed / row.sent, None
    return None, f"no request {gate.selector} was sent"


def _few_samples(q: float, count: int) -> str | None:
    """Return a note on a percentile with fewer than 10 samples beyond it; below it, if it is under the median."""
    beyond = min(q, 1 - q)
    if round(count * beyond, 6) >= 10:
        return None
    return f"of {count} samples, fewer than 10 beyond it; {round(10 / beyond):,} samples give 10"
