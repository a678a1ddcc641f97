"""Checks of planned turns against the context length of the server's model and the scenario's endpoint."""

from itertools import islice

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS, names_of
from inferload.workload.content.script import Ask, PlannedTurn, outline
from inferload.workload.sessions import Sessions

_SESSIONS = 200
_TURNS = 2_000  # the check ends after the session that reaches so many
_SESSIONS_PER_CLASS = 5
_SENDABLE_SESSIONS = 500


class TooLong(Struct, frozen=True):
    """Planned turn longer than the context of the model, without tools and chat template."""

    session: int
    class_name: str
    tokens: int  # of messages and answer
    exact: bool  # all its text is generated and no earlier answer is cancelled: its length is known

    def in_words(self, limit: int) -> str:
        """Return one line with the remedy."""
        return (
            f"workload: a turn of class {self.class_name} (session {self.session}) needs {self.tokens:,} tokens with its "
            f"answer, the model accepts {limit:,}; {_REMEDIES.get(self.class_name, _OTHERWISE)}, or serve a longer context"
        )


_OTHERWISE = "set fewer turns or smaller tokens"
_REMEDIES = {
    "agent": "set context_limit_tokens to less",
    "replay": "set max_context_tokens",
    "texts": "set smaller text_tokens",
}


def too_long(scenario: Scenario, sessions: Sessions, limit: int) -> TooLong | None:
    """Return the first turn longer than `limit` tokens among the first sessions, one of exact length if there is any, or None.

    Without forced lengths, turns that carry earlier answers are skipped, because the answers may be shorter. A text counts with
    its query, which a model that embeds them reads apart: such a length is not exact.
    """
    if any(value for key, value in scenario.request.extra_body.items() if key.startswith("truncat")):
        return None  # by the server
    turn_count, endpoint, longer = 0, ENDPOINTS[scenario.request.endpoint], None
    most = min(_SESSIONS, scenario.phases.sessions or _SESSIONS)
    for index in islice(sessions.indexes, most):
        cancelled = False
        for turn in outline(sessions.begin(index).script, index):
            turn_count += 1
            tokens, query = _tokens(turn, scenario.request.ignore_eos), 0
            if not endpoint.streamed:  # each text is a request
                lengths = [message.tokens or 0 for message in turn.ask.messages]
                query = lengths.pop(0) if endpoint.query else 0
                tokens = query + max(lengths, default=0)
            if tokens is not None and tokens > limit:
                pieces = [piece for message in turn.ask.messages for piece in message.pieces]
                exact = all(piece.literal is None for piece in pieces) and not cancelled and tokens - query > limit
                if exact or longer is None:
                    longer = TooLong(index, sessions.class_of(index), tokens, exact)
                if exact:
                    return longer
            cancelled = cancelled or turn.ask.cancel_after_s is not None
        if turn_count >= _TURNS:
            break
    return longer


def _tokens(turn: PlannedTurn, forced: bool) -> int | None:
    messages = turn.ask.messages
    if not forced and any(message.role == "assistant" for message in messages):
        return None
    lengths = [message.tokens for message in messages]
    if None in lengths:
        return None
    return sum(length or 0 for length in lengths) + (turn.ask.output_tokens or 0)


def check_sendable(scenario: Scenario, sessions: Sessions) -> None:
    """Raise UsageError if the first sessions send tools or images and the endpoint does not support them."""
    endpoint = scenario.request.endpoint
    if ENDPOINTS[endpoint].tools_and_images:
        return
    left = dict.fromkeys(sessions.classes, _SESSIONS_PER_CLASS)
    for index in islice(sessions.indexes, _SENDABLE_SESSIONS):
        name = sessions.class_of(index)
        if left[name]:
            left[name] -= 1
            turns = outline(sessions.begin(index).script, index)
            feature = next((feature for turn in turns if (feature := _beside_text(turn.ask))), None)
            if feature is not None:
                raise UsageError(
                    f"request.endpoint {endpoint}: does not support the {feature} of class {name}; use "
                    f"{names_of(lambda row: row.tools_and_images)[0]}"
                )
        if not any(left.values()):
            return


def _beside_text(ask: Ask) -> str | None:
    if ask.tools or any(message.tool_calls for message in ask.messages):
        return "tools"
    return "images" if any(message.images for message in ask.messages) else None
