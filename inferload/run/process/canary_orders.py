"""Canary requests in messages between master and workers, and their answers."""

from msgspec import Struct

from inferload.client.turn_record import TurnResult
from inferload.results.verdict.canary import Answer
from inferload.turns.record import Failure, Phase


class CanaryOrders(Struct, frozen=True):
    """What a worker sends: canaries for this share of the turns. `bodies`: by model and prompt."""

    share: float
    max_tokens: int
    bodies: dict[str, list[str]]


class EndedCanary(Struct, frozen=True):
    """An answer, with phase, class and step of the turn beside which it was asked for. `ns`: from sent to closed."""

    answer: Answer
    phase: Phase
    class_name: str
    step: int | None
    ns: int


def answer_of(result: TurnResult, prompt: int, model: str) -> Answer:
    """Return the answer to a prompt, its reasoning before its text."""
    record = result.record
    tokens, limit = record.output_tokens, record.max_tokens
    whole = tokens is None or limit is None or tokens >= limit
    # A connection that broke before a reply, as an idle one that the server closes, is no answer.
    failure = Failure.CONNECT if record.failure is Failure.CUT and record.status is None else record.failure
    text = result.reasoning + result.text
    return Answer(prompt, record.target, model, text, record.finish_reason, failure, whole)
