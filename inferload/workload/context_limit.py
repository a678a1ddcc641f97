"""What becomes of a conversation that has grown to its limit. Pure."""

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from inferload.content.messages import Message, Piece
from inferload.scenario.schema.chat import ContextLimit

Note = Literal["stopped", "truncated", "compacted"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is still sent: earlier messages and the question; None: nothing, the session ends."""

    said: tuple[Message, ...]
    question: Message | None
    note: Note | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The next request as it would be without a limit. `said`: questions and answers in turn."""

    head: tuple[Message, ...]
    said: tuple[Message, ...]
    question: Message
    output_tokens: int


def fit(limit: ContextLimit, sent: Sent, key: str) -> Fitted:
    """The next request, so that it and its answer keep the limit. `key`: tells its summary from others.

    Messages whose tokens are not known count as none. What does not fit even alone ends the session.
    """
    said, question = sent.said, sent.question
    room = limit.limit_tokens - sent.output_tokens - sum(map(_tokens, sent.head)) - _tokens(question)
    used = sum(map(_tokens, said))
    if used <= room:
        return Fitted(said, question)
    if limit.then == "compact" and said and limit.summary_tokens <= room:
        # In front of the question and not as a message of its own: many chat templates want user and assistant in turn.
        summary = Piece(f"summary/{key}", limit.summary_tokens)
        return Fitted((), replace(question, pieces=(summary, *question.pieces)), "compacted")
    if limit.then == "truncate" and room >= 0:
        while used > room:
            used -= sum(map(_tokens, said[:2]))
            said = said[2:]
        return Fitted(said, question, "truncated")
    return Fitted((), None, "stopped")


def _tokens(message: Message) -> int:
    return message.tokens or 0
