"""Grammar of the conditions that stop a run, as `failed_ratio > 0.5 for 5s`."""

import re

from msgspec import Struct

from inferload.figures import client_figures
from inferload.figures.limits.gate import Gate, GateError
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.figures.rate_figures import OF_POWER
from inferload.figures.servers import server_figures

LONGEST_S = 600
_EXAMPLE = "write it as failed_ratio > 0.5 for 5s"
_FORM = re.compile(r"(?P<gate>.*\S)\s+for\s+(?P<count>\d{1,9})(?P<unit>[sm])\s*")
_SECONDS = {"s": 1, "m": 60}


class AbortCondition(Struct, frozen=True):
    """Condition that stops the run once the gate's comparison is true over the last `span_s` seconds."""

    text: str
    gate: Gate
    span_s: int


def parse(text: str) -> AbortCondition:
    """Parse a condition; GateError names the position of the error."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise GateError(text, len(text.rstrip()), f"a time such as `for 5s` is missing at the end; {_EXAMPLE}")
    span_s = int(match["count"]) * _SECONDS[match["unit"]]
    if not 1 <= span_s <= LONGEST_S:
        raise GateError(text, match.start("count"), f"{span_s} s is out of range; use 1s to {LONGEST_S}s")
    gate = parse_gate(match["gate"])
    if gate.name in OF_POWER or gate.name in client_figures.BY_KEY or gate.name in server_figures.BY_KEY:
        raise GateError(text, 0, f"{gate.name} is not known during a run; use a gate instead")
    if gate.selector is not None:
        raise GateError(text, text.index("{"), f"a condition applies to all turns; remove {{{gate.selector}}}")
    return AbortCondition(text.strip(), gate, span_s)
