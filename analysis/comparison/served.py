"""How a server served the load of a run: turns not served, and a load that it did not serve."""

from typing import Any

from inferload.base.numbers import percent
from inferload.results.documents.figures_document import Figures
from inferload.results.documents.summary_document import Results
from inferload.results.statistics.not_served import NotServed, of_counts
from inferload.results.verdict.outcome import ABORTED, wrong_canaries
from inferload.results.verdict.validity import invalid_by
from inferload.turns.states import NOT_SERVED_WORD

_MOST = 0.1  # share of the planned turns; with more, the load was not served
_OVERLOADED, _STOPPED = "overloaded", "stopped by "


def fields_of(summary: Results, part: Figures) -> dict[str, Any]:
    """Return the fields of a run on its served turns. `part`: the figures of the measure phase, or of a class of turns."""
    turns, sessions = part.turns, part.sessions
    # Sessions that the client could not start in time are no fault of the server: the verdict judges them.
    dropped = (sessions.dropped if sessions.at_limit is None else sessions.at_limit) or 0
    return {
        "ok_and_sent": (turns.ok, turns.sent),
        "failed": turns.failed,
        "unfinished": turns.unfinished,
        "dropped": dropped,
        "collapsed": _collapsed(summary, of_counts((turns.ok, turns.sent), dropped, turns.failed, turns.unfinished)),
        "wrong": wrong_canaries(summary, summary.verdict.gates),
        "counts_hold": "client" not in invalid_by(summary.verdict),
    }


def _collapsed(summary: Results, turns: NotServed) -> str:
    """Return how a server did not serve the load of the measure phase: its latencies are those of another load."""
    if any(reason.code == "overload" for reason in summary.verdict.deciding):
        return _OVERLOADED
    aborted = [gate.gate for gate in summary.verdict.gates if gate.gate.startswith(ABORTED)]
    return f"{_STOPPED}{aborted[0]}" if aborted else mostly_not_served(turns)


def is_given_up(how: str) -> bool:
    """Return True if a run was overloaded or stopped. `how`: it did not serve its load; empty if it did."""
    return how.startswith((_OVERLOADED, _STOPPED))


def mostly_not_served(turns: NotServed | None) -> str:
    """Return that more than a tenth of the planned turns were not served; empty if they were, or if unknown."""
    most = turns is not None and turns.count > _MOST * turns.planned
    return f"over {percent(_MOST)} of the turns {NOT_SERVED_WORD}" if most else ""
