"""Limits of SLO and gates on latencies, for lines in charts. No I/O."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from inferload.figures.limits.gate import GateError
from inferload.figures.limits.gate_grammar import MEASURE_NAMES, parse
from inferload.figures.limits.slo import LIMITS, limit_text

IN_RANGE = 1.5  # a limit above so many times the highest value is marked at the edge: the values would be flat


class LatencyLimit(Struct, frozen=True):
    """Limit on a measure in ms, as displayed at its line: of an SLO, or of a gate."""

    measure: str
    limit_ms: float
    text: str
    is_gate: bool = False


def latency_limits(slos: Mapping[str, Mapping[str, float]], gates: Sequence[str]) -> list[LatencyLimit]:
    """Return the limits of SLOs by class ("" of all classes), and of gates on a latency; other texts are left out."""
    limits = [
        LatencyLimit(name, limit, f"SLO{f' of {of}' if of else ''}: {limit_text(name, limit)}")
        for of, slo in slos.items()
        for name, limit in slo.items()
        if name in LIMITS
    ]
    for text in gates:
        try:
            gate = parse(text)
        except GateError:  # a condition that stopped the run, or a summary of another version
            continue
        if gate.name in MEASURE_NAMES and gate.limit > 0:
            limits.append(LatencyLimit(gate.name, gate.limit, gate.text, is_gate=True))
    return limits
