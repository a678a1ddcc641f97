"""Figures of comparisons: names, direction, titles and units."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferload.results.summary import steady
from inferload.server_metrics import gate_metrics
from inferload.verdict import gates

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run. `name`: as in a gate, `p95(ttft_ms)` or `turns_per_s`."""

    name: str
    title: str
    better: Better
    unit: str

    def change_is_good(self, ratio: float) -> bool:
        """Return True if the ratio candidate / baseline is an improvement."""
        return ratio > 1 if self.better == "higher" else ratio < 1


TTFT = Figure("mean(ttft_ms)", "Mean TTFT", "lower", "ms")
TPOT = Figure("mean(tpot_ms)", "Mean TPOT", "lower", "ms")
OUTPUT = Figure("output_tok_per_s", "Output", "higher", "tok/s")
GOODPUT = Figure("goodput_turns_per_s", "Goodput", "higher", "turns/s")
# Columns of a table of configurations.
TABLE = (
    Figure("turns_per_s", "Requests", "higher", "req/s"),
    OUTPUT,
    Figure("total_tok_per_s", "Input + output", "higher", "tok/s"),
    TTFT,
    TPOT,
    Figure("mean(e2e_ms)", "Mean E2E", "lower", "ms"),
)
TAILS = (
    Figure("p50(ttft_ms)", "TTFT, median", "lower", "ms"),
    Figure("p95(ttft_ms)", "TTFT, p95", "lower", "ms"),
    Figure("p99(ttft_ms)", "TTFT, p99", "lower", "ms"),
    Figure("p99(itl_ms)", "ITL, p99", "lower", "ms"),
    GOODPUT,
)
ALL = (*TABLE, *TAILS)
GOALS = (TTFT, TPOT, OUTPUT, GOODPUT)  # of which a comparison names the best side
# Figures that depend on the SLO.
SLO_FIGURES = (GOODPUT.name, "slo_attainment")
DEFAULT_PRIMARY = TTFT.name


def figure(name: str) -> Figure:
    """Return the figure of a name, of a table here or a term of gates; GateError if it is neither."""
    known = next((figure for figure in ALL if figure.name == name), None)
    if known is not None:
        return known
    term = gates.parse(f"{name} < 0")
    if term.selector is not None or term.name in gate_metrics.BY_NAME:
        raise gates.GateError(name, 0, "comparisons use figures of all turns; use mean(ttft_ms) or turns_per_s")
    rate = term.statistic is None and term.name in gates.RATE_NAMES
    unit = "ms" if term.statistic is not None else ""
    return Figure(name, name, "higher" if rate else "lower", unit)


def value_of(name: str, summary: Mapping[str, Any]) -> float | None:
    """Return a figure of summary.json; None if unknown."""
    if name == "total_tok_per_s":
        rates = summary.get("rates") or {}
        parts = [rates.get("input_tok_per_s"), rates.get("output_tok_per_s")]
        return None if None in parts else float(sum(part for part in parts if part is not None))
    try:
        return gates.evaluate(gates.parse(f"{name} < 0"), summary).value
    except (KeyError, TypeError):
        return None


def steady_value_of(name: str, summary: Mapping[str, Any]) -> float | None:
    """Return a figure as `value_of`, but None for a percentile with fewer than 10 samples beyond it."""
    term = gates.parse(f"{name} < 0")
    count = ((summary.get("latency") or {}).get(term.name) or {}).get("count") or 0
    return None if term.q is not None and not steady(count, term.q) else value_of(name, summary)
