"""Tables beside the charts: turns by class, gates with their values so far, and the badge with its reasons. No I/O.

During a run they come from the workers' reports, with the formulas of the summary; after it from summary.json itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from inferload.base.escaping import escaped
from inferload.figures.client_figures import DELAY
from inferload.figures.limits import gate_grammar
from inferload.figures.rate_figures import OF_POWER
from inferload.figures.servers import server_figures
from inferload.results import ci, run_gates, summary
from inferload.results.documents.figures_document import Figures
from inferload.results.documents.summary_document import Client, RequestName, Results, Summary
from inferload.results.documents.verdict_document import GateResult
from inferload.results.verdict import gates as gating
from inferload.results.verdict import validity
from inferload.results.verdict.failures import count_text, counts_by_name
from inferload.run.live.panels import class_row
from inferload.turns.client_health import HealthSet
from inferload.turns.record import Phase
from inferload.turns.tally import TallySet

MOST_ROWS = 40  # classes, and names of other requests
MOST_REASONS = 8
_TEXT = 240  # characters of a reason or note
_LATER = "known after the run"
_NOT_YET = "evaluated in the measure phase"


class SoFar(Struct, frozen=True):
    """Counts of a run in progress. `phase`: the one whose figures are displayed; `window_s`: its duration so far."""

    tallies: TallySet
    health: HealthSet
    phase: Phase
    window_s: float
    gates: Sequence[str] = ()

    def results(self) -> Results:
        """Return the results that are known during a run."""
        total, by_class = self.tallies.total(self.phase), self.tallies.by_class(self.phase)
        delay: dict[str, Any] = {DELAY.field: summary.block_of(self.health.total(self.phase).delay_ms)}
        return Results.of_part(
            summary.figures_of(total, self.window_s),
            client=Client(**delay),
            by_class={name: summary.figures_of(by_class[name], self.window_s) for name in list(by_class)[:MOST_ROWS]},
        )


def class_rows(results: Results) -> list[dict[str, Any]]:
    """Return a row for each class of a run, and a first one, named null, for all together."""
    parts: list[tuple[str | None, Figures]] = [(None, results), *results.by_class.items()]
    return [class_row(name, part) for name, part in parts[: MOST_ROWS + 1]]


def other_rows(by_name: Sequence[RequestName]) -> list[dict[str, Any]]:
    """Return a row for each request other than a turn, of own tasks and other users."""
    names = ("type", "name", "sent", "failed", "p50_ms", "p95_ms")
    return [
        {name: getattr(row, name) for name in names}
        | {"first_error": _clipped(None if row.first_error is None else row.first_error.text)}
        for row in by_name[:MOST_ROWS]
    ]


def gates_so_far(counts: SoFar, results: Results) -> list[dict[str, Any]]:
    """Return the gates with their values so far; `passed` is null if a value is not known during the run."""
    return [_gate(text, counts, results) for text in counts.gates]


def _gate(text: str, counts: SoFar, results: Results) -> dict[str, Any]:
    gate = gate_grammar.parse(text)
    later = gate.name in server_figures.BY_KEY or gate.name in OF_POWER or gate.of_request
    if counts.phase != "measure" or later:
        return _gate_row(gate.text, None, None, _LATER if counts.phase == "measure" else _NOT_YET)
    measured, health = counts.tallies.total(counts.phase, gate.class_name), counts.health.total(counts.phase)
    result = gating.evaluate(gate, results, run_gates.sketch_quantile(measured, health))
    return _gate_row(gate.text, result.value, None if result.value is None else result.passed, result.note)


def gates_of(gates: Sequence[GateResult]) -> list[dict[str, Any]]:
    return [_gate_row(gate.gate, gate.value, gate.passed, gate.note) for gate in gates if gate.passed or gate.failed]


def _gate_row(text: str, value: float | None, passed: bool | None, note: str | None) -> dict[str, Any]:
    return {"gate": text, "value": value, "passed": passed, "note": _clipped(note)}


def badge_so_far(
    counts: SoFar,
    gates: Sequence[Mapping[str, Any]],
    lost: Sequence[str],
    troubles: Sequence[str] = (),
    *,
    measurement: validity.SoFar | None = None,
) -> dict[str, Any]:
    """Return the badge of a run in progress: `failing` if a gate fails, or turns fail without gates.

    `doubtful`: load is missing, the measurement would not be valid, or turns or other requests failed although no gate fails.
    `troubles`: first messages of failed turns, failures of other requests and exceptions of tasks.
    """
    total = counts.tallies.total()
    broken = [gate["gate"] for gate in gates if gate["passed"] is False]
    failing = [f"gate fails so far: {text}" for text in broken]
    if total.failed:
        text = f"{count_text(total.failed, total.ok)}: {counts_by_name(total.by_failure)}"
        failing = [text, *failing] if not gates else [*failing, text]
    failing += troubles
    doubts = [f"worker {name} lost: its part of the load is missing" for name in lost]
    if measurement is not None:
        doubts += [f"would be {reason.level}: {reason.code}: {reason.text}" for reason in measurement.reasons]
    if total.sessions_dropped:
        limit = f", {total.sessions_at_limit} of them at max_in_flight" if total.sessions_at_limit else ""
        doubts.append(
            f"{total.sessions_dropped} of {total.sessions_planned} planned sessions dropped{limit}: overloaded"
        )
    bad = bool(broken) or bool(failing and not gates)
    state = "failing" if bad else "doubtful" if doubts or failing else "running"
    return {"state": state, "headline": None, "reasons": _reasons([*failing, *doubts])}


def badge_of(summary: Summary) -> dict[str, Any]:
    outcome, reasons = summary.outcome, _reasons(ci.explanation(summary, MOST_REASONS))
    return {"state": outcome.state, "headline": _clipped(outcome.headline), "reasons": reasons}


def _reasons(texts: Sequence[str]) -> list[str]:
    return [str(_clipped(text)) for text in texts[:MOST_REASONS]]


def _clipped(text: object) -> str | None:
    if text is None:
        return None
    line = escaped(str(text))
    return line if len(line) <= _TEXT else f"{line[: _TEXT - 1]}…"
