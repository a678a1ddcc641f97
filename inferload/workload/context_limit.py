"""Limit of the context length of a conversation."""

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from inferload.scenario.schema.chat import ContextLimit
from inferload.workload.content.messages import Message, Piece

Note = Literal["stopped", "truncated", "compacted"]


@dataclass(frozen=True, slots=True)
class FittedRequest:
    """History and question within the limit. `question` None: the session ends."""

    history: tuple[Message, ...]
    question: Message | None
    note: Note | None = None


@dataclass(frozen=True, slots=True)
class NextRequest:
    """Next request without a limit. `history`: alternating questions and answers."""

    head: tuple[Message, ...]
    history: tuple[Message, ...]
    question: Message
    output_tokens: int


def fit(limit: ContextLimit, request: NextRequest, key: str) -> FittedRequest:
    """Fit the next request and its answer into the limit. `key`: identity of the summary.

    Messages of unknown length count as 0 tokens. A question that does not fit without history ends the session.
    """
    history, question = request.history, request.question
    room = limit.limit_tokens - request.output_tokens - sum(map(_tokens, request.head)) - _tokens(question)
    used = sum(map(_tokens, history))
    if used <= room:
        return FittedRequest(history, question)
    if limit.then == "compact" and history and limit.summary_tokens <= room:
        # Part of the question, because many chat templates require alternating user and assistant messages.
        summary = Piece(f"summary/{key}", limit.summary_tokens)
        return FittedRequest((), replace(question, pieces=(summary, *question.pieces)), "compacted")
    if limit.then == "truncate" and room >= 0:
        while used > room:
            used -= sum(map(_tokens, history[:2]))
            history = history[2:]
        return FittedRequest(history, question, "truncated")
    return FittedRequest((), None, "stopped")


def _tokens(message: Message) -> int:
    return message.tokens or 0
