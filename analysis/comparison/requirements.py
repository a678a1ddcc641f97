"""Requirements: limits, as gates, that rule out the sides beyond them; those of `--require`, else the gates of all runs."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from inferload.base.errors import UsageError
from inferload.base.numbers import NOT_KNOWN, apart, number
from inferload.figures.limits.gate import Gate, GateError
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.results.documents.verdict_document import GateResult
from inferload.results.statistics.paired_runs import effect
from inferload.results.verdict import gates
from inferload.results.verdict.outcome import ABORTED

from .sides import Run, Side, mean_over_runs


@dataclass(frozen=True, slots=True)
class Checked:
    """A requirement on a side. `value`: mean over its runs; None: unknown, so that it does not hold.

    `low`, `high`: its 95 % interval, over the runs or, of a gate of a single run, within it; None without one. `runs`: of the mean.
    """

    label: str
    gate: Gate
    value: float | None
    low: float | None = None
    high: float | None = None
    runs: int = 1

    @property
    def holds(self) -> bool:
        return self.gate.holds(self.value)

    @property
    def is_uncertain(self) -> bool:
        """True if the interval contains the limit: another sample may decide otherwise."""
        return None not in (self.low, self.high) and self.gate.holds(self.low) != self.gate.holds(self.high)

    @property
    def text(self) -> str:
        if self.value is None:
            return f"{self.gate.text} ({NOT_KNOWN})"
        alone = ", one run" if self.runs == 1 else ""
        interval = alone if self.low is None else f", 95 % CI {number(self.low)} to {number(self.high)}"
        return f"{self.gate.text} ({apart(self.value, self.gate.limit)}{interval}{', uncertain' if self.is_uncertain else ''})"


def parse(texts: Iterable[str]) -> tuple[Gate, ...]:
    """Parse the options `--require`; UsageError for one that is no gate."""
    try:
        return tuple(map(parse_gate, texts))
    except GateError as error:
        raise UsageError(f"--require: {error}") from error


def of_runs(sides: Sequence[Side]) -> tuple[Gate, ...]:
    """Return the gates that all runs have, in their order; none if a run is of another client."""
    runs = [run for side in sides for run in side.runs]
    common = dict.fromkeys(_recorded(runs[0]))
    found = []
    for text in [text for text in common if all(text in _recorded(run) for run in runs)]:
        with suppress(GateError):  # a folder may come from another version
            found.append(parse_gate(text))
    return tuple(found)


def _recorded(run: Run) -> dict[str, GateResult]:
    """Return the results of the gates of a run by their text."""
    results = () if run.summary is None else run.summary.verdict.gates
    return {each.gate: each for each in results if not each.gate.startswith(ABORTED)}


def check(gate: Gate, side: Side) -> Checked:
    """Hold a requirement against the mean over the counted runs of a side."""
    values = [value(gate, run) for run in side.counted]
    mean = mean_over_runs(values)
    known = [each for each in values if each is not None and each > 0]
    if len(values) > 1 and len(known) == len(values):
        over_runs = effect([1.0] * len(known), known)
        return Checked(side.label, gate, mean, over_runs.low, over_runs.high, len(known))
    within = _recorded(side.counted[0]).get(gate.text) if len(values) == 1 else None
    if within is None:
        return Checked(side.label, gate, mean, runs=len(values))
    return Checked(side.label, gate, mean, within.low, within.high)


def value(gate: Gate, run: Run) -> float | None:
    """Return the value that a gate limits: a figure of the run, or recorded with the gate, or of the summary; None if unknown."""
    if gate.selector is None and name_of(gate) in run.figures:
        return run.value(name_of(gate))
    if (result := _recorded(run).get(gate.text)) is not None:
        return result.value
    return None if run.summary is None else gates.evaluate(gate, run.summary).value


def name_of(gate: Gate) -> str:
    """Return the name of the figure, as `p99(ttft_ms)`."""
    return gate.name if gate.statistic is None else f"{gate.statistic}({gate.name})"
