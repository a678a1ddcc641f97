"""Whether a server's model has room for what a scenario plans; looked at before any load. Pure."""

from dataclasses import dataclass

from inferload.content.script import PlannedTurn, outline
from inferload.scenario.scenario import Scenario
from inferload.workload.sessions import Sessions

_SESSIONS = 200
_TURNS = 2_000  # no further session is looked at once there are so many


@dataclass(frozen=True, slots=True)
class TooLong:
    """A planned turn that the model has no room for, by a count that leaves out tools and chat template."""

    session: int
    class_name: str
    tokens: int  # of its messages and its answer
    made_up: bool  # all its text is of known tokens: made-up words, and answers that nobody breaks off

    def in_words(self, limit: int) -> str:
        """One line, with what to do."""
        return (
            f"workload: a turn of class {self.class_name} (session {self.session}) needs {self.tokens:,} tokens with its "
            f"answer, the model takes {limit:,}; {_REMEDIES.get(self.class_name, _OTHERWISE)}, or serve a longer context"
        )


_OTHERWISE = "set fewer turns or smaller tokens"
_REMEDIES = {
    "agent": "set context_limit_tokens to less",
    "replay": "set max_context_tokens",
}


def too_long(scenario: Scenario, sessions: Sessions, limit: int) -> TooLong | None:
    """The first turn of the first sessions that is longer than `limit` tokens; None: none is, as far as can be known.

    Where answers end as the model ends them, turns that carry earlier answers are passed over: these may be shorter.
    """
    seen = 0
    most = min(_SESSIONS, scenario.phases.sessions or _SESSIONS)
    for index in range(most):
        cut = False
        for turn in outline(sessions.begin(index).script, index):
            seen += 1
            tokens = _tokens(turn, scenario.request.ignore_eos)
            if tokens is not None and tokens > limit:
                pieces = [piece for message in turn.ask.messages for piece in message.pieces]
                made_up = all(piece.literal is None for piece in pieces) and not cut
                return TooLong(index, sessions.class_of(index), tokens, made_up)
            cut = cut or turn.ask.cancel_after_s is not None
        if seen >= _TURNS:
            break
    return None


def _tokens(turn: PlannedTurn, forced: bool) -> int | None:
    messages = turn.ask.messages
    if not forced and any(message.role == "assistant" for message in messages):
        return None
    lengths = [message.tokens for message in messages]
    if None in lengths:
        return None
    return sum(length or 0 for length in lengths) + (turn.ask.output_tokens or 0)
