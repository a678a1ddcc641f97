"""How a server served the load of a run: failed turns, and a load that it did not serve."""

from typing import Any

from inferload.base.numbers import percent
from inferload.results.documents.summary_document import Figures, Summary
from inferload.results.statistics.failed_turns import Failed
from inferload.results.verdict.outcome import ABORTED
from inferload.results.verdict.validity import invalid_by

_MOST_FAILED = 0.1  # share of the planned turns; with more, the load was not served


def fields_of(summary: Summary, part: Figures) -> dict[str, Any]:
    """Return the fields of a run on its served turns. `part`: the figures of the measure phase, or of a class of turns."""
    turns, sessions = part.turns, part.sessions
    # Sessions that the client could not start in time are no fault of the server: the verdict judges them.
    dropped = (sessions.dropped if sessions.at_limit is None else sessions.at_limit) or 0
    return {
        "ok_and_sent": (turns.ok, turns.sent),
        "dropped": dropped,
        "collapsed": _collapsed(summary, Failed.of_counts(turns.ok, turns.sent, dropped)),
        "counts_hold": "client" not in invalid_by(summary.verdict),
    }


def _collapsed(summary: Summary, failed: Failed) -> str:
    """Return how a server did not serve the load of the measure phase: its latencies are those of another load."""
    if any(reason.code == "overload" for reason in summary.verdict.deciding):
        return "overloaded"
    aborted = [gate.gate for gate in summary.verdict.gates if gate.gate.startswith(ABORTED)]
    return f"stopped by {aborted[0]}" if aborted else mostly_failed(failed)


def mostly_failed(turns: Failed | None) -> str:
    """Return that more than a tenth of the planned turns failed; empty if not, or if unknown."""
    most = turns is not None and turns.failed > _MOST_FAILED * turns.planned
    return f"over {percent(_MOST_FAILED)} of the turns failed" if most else ""
