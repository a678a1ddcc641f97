"""Parsing of gates, by the grammar, which is imported with the first gate."""

from collections.abc import Callable

from inferload.base.on_use import OnUse
from inferload.figures.limits.gate import Gate

_GRAMMAR = OnUse[Callable[[str], Gate]](
    {
        "gate": "inferload.figures.limits.gate_grammar:parse",
        "compared": "inferload.figures.limits.gate_grammar:parse_compared",
    }
)


def parse_gate(text: str) -> Gate:
    """Parse a gate; GateError names the position of the error."""
    return _GRAMMAR["gate"](text)


def parse_compared(name: str) -> Gate:
    """Parse a figure that a comparison tests, as a gate; GateError if it is none of all turns of a run."""
    return _GRAMMAR["compared"](name)
