"""Results of gates, evaluated on a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inferload.base.numbers import number
from inferload.figures import client_figures, rate_figures, server_figures, turn_figures
from inferload.figures.gate import Gate
from inferload.figures.gate_grammar import MEASURE_NAMES
from inferload.results.statistics.intervals import Interval
from inferload.results.verdict import gate_decision
from inferload.results.verdict.gate_decision import Answer, Ground

# (measure, q) -> quantile of the sample at the nearest rank; None without a sample.
Quantile = Callable[[str, float], float | None]
# (measure, q, None for its mean) -> confidence interval; None if it cannot be computed.
Intervals = Callable[[str, float | None], Interval | None]
# Result of a gate whose interval contains the limit. `warn`: a note, and the value decides.
Policy = Literal["warn", "pass", "fail"]


@dataclass(frozen=True, slots=True)
class GateResult:
    """Result of a gate. `value`: None if unknown, and the gate has not passed; `note`: the reason, or None.

    `interval`: of the value, None without one. `answer`: inconclusive if the interval contains the limit, or if the run is
    too short for the end that decides; `passed` decides. `ground`: what the answer rests on.
    """

    gate: str
    value: float | None
    passed: bool
    note: str | None = None
    interval: Interval | None = None
    answer: Answer = "fail"
    ground: Ground = "value"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        plain: dict[str, Any] = {
            "gate": self.gate,
            "value": self.value,
            "passed": self.passed,
            "answer": self.answer,
            "ground": self.ground,
        }
        if self.interval is not None:
            plain |= {"low": self.interval.low, "high": self.interval.high, "effective_n": self.interval.effective}
        return plain if self.note is None else plain | {"note": self.note}


def evaluate(
    gate: Gate,
    summary: Mapping[str, Any],
    quantile: Quantile | None = None,
    intervals: Intervals | None = None,
    policy: Policy = "warn",
) -> GateResult:
    """Evaluate a gate on a summary of the measure phase.

    `quantile`: source of percentiles that the summary does not list. `intervals`: source of the intervals of means and
    percentiles; counts, ratios and rates have none. Both are of the gate's class.
    """
    value, note = _value(gate, summary, quantile)
    interval = None
    if value is not None and intervals is not None and gate.name in MEASURE_NAMES:
        interval = intervals(gate.name, gate.q) if gate.q is not None or gate.statistic == "mean" else None
    decision = gate_decision.decide(gate, value, interval, None if interval is None else _largest(gate, summary))
    if value is not None and interval is not None and decision.answer == "inconclusive":
        note = gate_decision.missing(gate, value, interval, summary)
    decided = policy if decision.answer == "inconclusive" and policy != "warn" else decision.answer
    passed = gate.holds(value) if decided == "inconclusive" else decided == "pass"
    return GateResult(gate.text, value, passed, decision.note or note, interval, decision.answer, decision.ground)


def _value(gate: Gate, summary: Mapping[str, Any], quantile: Quantile | None) -> tuple[float | None, str | None]:
    """Return the value, None if unknown, and a note."""
    if gate.name in server_figures.BY_KEY:
        return _server_value(gate, summary.get("servers") or [])
    if gate.of_request:
        return _request_value(gate, summary.get("other_requests") or {})
    part = summary if gate.selector is None else (summary.get("by_class") or {}).get(gate.selector)
    if part is None:
        classes = ", ".join(summary.get("by_class") or {}) or "none"
        return None, f"no turn of class {gate.selector} was planned in the measure phase; classes with turns: {classes}"
    if gate.statistic is None:
        value, note = _plain_value(gate.name, part), _partly_reported(gate.name, part.get("turns") or {})
    else:
        block = _block(gate.name, part)
        value = _number(block.get(gate.statistic))
        if value is None and gate.q is not None and quantile is not None:
            value = _number(quantile(gate.name, gate.q))
        note = None if gate.q is None else _few_samples(gate.q, block.get("count"))
    return (value, note) if value is not None else (None, f"{gate.name} is not known{_why_unknown(gate.name, part)}")


def _partly_reported(name: str, turns: Mapping[str, Any]) -> str | None:
    """Return a note on a token rate that leaves out turns without a usage."""
    counted = turns.get(f"{_needs(name)}_from")
    if not counted:
        return None
    ended = turns["ok"] + turns["failed"] + turns["unfinished"]
    if counted == ended:
        return None
    return f"of the {counted:,} of {ended:,} turns that reported a usage"


def _why_unknown(name: str, part: Mapping[str, Any]) -> str:
    """Return why a class or a run has no value of a figure; "" if the turns do not tell."""
    turns = part.get("turns") or {}
    if turns.get("ok") == 0:
        return ": no turn succeeded"
    needs = _needs(name)
    if needs is not None and turns.get(f"{needs}_from") == 0:
        return f": no turn reported its {needs.replace('_', ' ')} (usage)"
    return ": there is no SLO, or turns lack a figure that it limits" if needs == "slo" else ""


def _needs(name: str) -> rate_figures.Needs | None:
    """Return what a figure is computed from that a run may lack."""
    if name in turn_figures.BY_KEY:
        return "output_tokens" if "output_tokens" in turn_figures.BY_KEY[name].columns else None
    return rate_figures.BY_KEY[name].needs if name in rate_figures.BY_KEY else None


def _server_value(gate: Gate, servers: Sequence[Mapping[str, Any]]) -> tuple[float | None, str | None]:
    """Return the worst value of all servers; None if one of them was not measured."""
    by_target = server_figures.values(gate.name, gate.statistic, servers)
    if not by_target:
        return None, f"{gate.name} was not measured: no metrics page reported it"
    known = {target: value for target, value in by_target.items() if value is not None}
    missing = [target for target in by_target if target not in known]
    if missing:
        return None, f"{gate.name} was not measured at {_why_missing(missing, servers)}"
    worst = max(known, key=lambda target: gate.badness(known[target]))
    return known[worst], f"the worst of {len(known)} servers: {worst}" if len(known) > 1 else None


def _why_missing(missing: Sequence[str], servers: Sequence[Mapping[str, Any]]) -> str:
    """Return targets without a value, and the reason: gaps between scrapes first."""
    gaps_s = {str(entry.get("target")): server_figures.too_long_gap_s(entry) for entry in servers}
    silent = {target: gap_s for target in missing if (gap_s := gaps_s[target]) is not None}
    if not silent:
        return f"{', '.join(missing)}: its metrics page has no value of it for the window"
    gap = number(max(silent.values()))
    return f"{', '.join(silent)}: its metrics page was not scraped for {gap} s of the measure phase"


def _request_value(gate: Gate, requests: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Return the failed ratio of a request other than a turn, over the whole run."""
    for row in requests.get("by_name") or []:
        if f"{row['type']} {row['name']}" == gate.selector and row["sent"]:
            return row["failed"] / row["sent"], None
    return None, f"no request {gate.selector} was sent"


def _few_samples(q: float, count: object) -> str | None:
    """Return a note on a percentile with fewer than 10 samples beyond it; below it, if it is under the median."""
    beyond = min(q, 1 - q)
    if not isinstance(count, int) or round(count * beyond, 6) >= 10:
        return None
    return f"of {count} samples, fewer than 10 beyond it; {round(10 / beyond):,} samples give 10"


def _plain_value(name: str, summary: Mapping[str, Any]) -> float | None:
    if name in client_figures.BY_KEY:
        return _number(summary["client"].get(client_figures.BY_KEY[name].field))
    return _number(summary["rates"].get(name))


def _block(name: str, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    if name in client_figures.BY_KEY:
        return summary["client"].get(client_figures.BY_KEY[name].field) or {}
    return summary["latency"].get(name) or {}


def _largest(gate: Gate, summary: Mapping[str, Any]) -> float | None:
    """Return the largest sample of the gate's measure."""
    return _number(
        _block(gate.name, summary if gate.selector is None else summary["by_class"][gate.selector]).get("max")
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
