"""States of turns and sessions: the table of their words, which all pages, files and gates use."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class State:
    """State that is counted. `key`: its word, in files, columns and labels. `text`: its definition."""

    key: str
    of: Literal["turns", "sessions"]
    text: str

    @property
    def title(self) -> str:
        """Word with what is counted, as `turns failed`."""
        return f"{self.of} {self.key}"


STATES = (
    State("sent", "turns", "turns that were begun: ok + failed + unfinished"),
    State("ok", "turns", "turns that completed without error, and turns cancelled by their caller"),
    State(
        "cancelled", "turns", "of turns ok: cancelled by their caller; these have TTFT and ITL, but no E2E and no TPOT"
    ),
    State("failed", "turns", "turns that ended with an error, by class of failure; unfinished ones are not among them"),
    State("unfinished", "turns", "turns in flight at the end of the drain: neither ok nor failed"),
    State(
        "retried", "turns", "requests sent again, because the server closed the idle connection that they were sent on"
    ),
    State("planned", "sessions", "sessions of the schedule by planned start: dropped + started"),
    State("dropped", "sessions", "sessions that could not start when they were due: none of their turns was sent"),
    State("started", "sessions", "sessions whose first turn was started"),
    State("completed", "sessions", "sessions whose last turn succeeded"),
)

BY_KEY: Mapping[str, State] = MappingProxyType({state.key: state for state in STATES})
OF_TURNS = tuple(state for state in STATES if state.of == "turns")
OF_SESSIONS = tuple(state for state in STATES if state.of == "sessions")
OK, CANCELLED, FAILED, UNFINISHED, DROPPED = (
    BY_KEY[key] for key in ("ok", "cancelled", "failed", "unfinished", "dropped")
)
ENDS = (OK, FAILED, UNFINISHED)  # of a turn that was sent: exactly one
# They miss the SLO whatever their latencies; a dropped session counts as one turn.
NOT_SERVED = (FAILED, UNFINISHED, DROPPED)
NOT_SERVED_WORD = "not served"
NOT_SERVED_TEXT = f"turns {FAILED.key} + turns {UNFINISHED.key} + sessions {DROPPED.key}, as one turn each"
