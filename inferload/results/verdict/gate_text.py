"""Results of gates in words."""

from collections.abc import Sequence

from inferload.base.numbers import number, percent
from inferload.figures.limits.gate import GateError
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.results.documents.verdict_document import GateResult

ONE_SIDED = 0.025  # error probability of one gate that its interval decides


def value_text(gate: GateResult, value: float | None) -> str:
    """Return the value of a gate, or an end of its interval, with the unit; `not known` without one."""
    try:
        return parse_gate(gate.gate).shown(value)
    except GateError:  # a condition of abort_on, or a figure of another version
        return number(value)


def gate_mark(gate: GateResult) -> str:
    """Return the result of a gate; an inconclusive one has the result that the value alone gives."""
    mark = "passed" if gate.passed else "FAILED" if gate.failed else "not evaluated"
    mark = f"inconclusive, {mark}" if gate.answer == "inconclusive" else mark
    return f"{mark}, simulated" if gate.simulated else mark


def interval_and_note(gate: GateResult) -> str:
    """Return the interval of a gate's value and its note; empty without them."""
    interval = interval_text(gate)
    return "; ".join(filter(None, [f"95 %: {interval}" if interval else "", gate.note]))


def interval_text(gate: GateResult) -> str:
    """Return the 95 % interval of a gate's value; empty if it has none or does not matter, or if both ends are open."""
    low, high = gate.low, gate.high
    if gate.ground == "distance" or (low is None and high is None):
        return ""
    known = f"over {value_text(gate, low)}" if high is None else f"under {value_text(gate, high)}"
    return known if None in (low, high) else f"{number(low)} to {value_text(gate, high)}"


def error_text(gates: Sequence[GateResult]) -> str:
    """Return the error probability of the gates that their interval decided; empty without any."""
    count = sum(gate.ground == "interval" and gate.answer != "inconclusive" for gate in gates)
    if not count:
        return ""
    family = f", one of these {count} in at most {percent(min(1, count * ONE_SIDED))}" if count > 1 else ""
    return f"A gate decided by its interval is wrong in at most {percent(ONE_SIDED)} of such runs{family}."


def gate_line(gate: GateResult) -> str:
    """Return a gate with its value, interval and note."""
    line = f"{gate.gate}: is {value_text(gate, gate.value)}"
    return f"{line} ({details})" if (details := interval_and_note(gate)) else line
