"""Length of a prompt as the server counts it, held against the plan. No I/O."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from inferload.workload.content.chat_template import ChatTemplate
from inferload.workload.content.messages import Message, Piece
from inferload.workload.content.script import Ask
from inferload.workload.content.tool_text import json_tokens

# Beyond both limits the prompts are others than planned, and the run ends before its load.
WRONG_RATIO, WRONG_TOKENS = 2.0, 256
# Beyond both limits the difference is a remark.
REMARKABLE_SHARE, REMARKABLE_TOKENS = 0.2, 64

Finding = Literal["as planned", "other length", "wrong length", "no plan", "no usage", "no answer", "refused"]
# Why the length of a planned prompt has no count; "": the turn was answered.
Unchecked = Literal["", "no answer", "refused"]

_BOTH = "has {counted} prompt tokens by the server, {planned} by the plan"
_UNCHECKED = "the length of its prompt ({planned} planned) is not checked"


# Findings with other words than _BOTH.
_OTHERS: dict[Finding, str] = {
    "no usage": f"has no usage: {_UNCHECKED}",
    "no answer": f"had no answer: {_UNCHECKED}",
    "refused": "is refused in full ({planned} prompt tokens by the plan), and a short one is taken: its length is not checked",
}


class PromptLength(Struct, frozen=True):
    """Tokens of the prompt of one first turn: planned, and counted by the server. None: unknown.

    `unchecked`: why it has no count, although it was sent in full.
    """

    target: str  # URL
    model: str
    class_name: str
    planned: int | None
    counted: int | None
    unchecked: Unchecked = ""

    @property
    def finding(self) -> Finding:
        """Finding on the turn; without an answer there is none on a length that is not planned."""
        if self.unchecked == "refused" or (self.unchecked and self.planned is not None):
            return self.unchecked
        return finding(self.planned, self.counted)

    @property
    def noted(self) -> bool:
        """True if the finding is a remark in the log and the results."""
        return self.finding not in ("as planned", "no plan")

    def in_words(self) -> str:
        """Return the finding as one line, with both numbers."""
        turn = f"{self.target}: the first turn of class {self.class_name} to model {self.model}"
        text = _OTHERS.get(self.finding, _BOTH)
        return f"{turn} {text.format(planned=_tokens(self.planned), counted=_tokens(self.counted))}"

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the entry of `run.json`."""
        names = ("target", "model", "class_name", "planned", "counted", "finding")
        return {name: getattr(self, name) for name in names}


def finding(planned: int | None, counted: int | None) -> Finding:
    """Return how a count of a prompt fits its plan. A count of 0 is none: no prompt is empty."""
    if planned is None:
        return "no plan"
    if not counted:
        return "no usage"
    apart = abs(counted - planned)
    if apart > WRONG_TOKENS and (counted > WRONG_RATIO * planned or counted * WRONG_RATIO < planned):
        return "wrong length"
    return "other length" if apart > REMARKABLE_TOKENS and apart > REMARKABLE_SHARE * planned else "as planned"


def counted_tokens(input_tokens: int | None, cached_tokens: int | None) -> int | None:
    """Return the prompt tokens that a server counts.

    Some servers leave cached tokens out of the prompt: it then seems to be shorter than its cached part.
    """
    if input_tokens is not None and cached_tokens is not None and cached_tokens > input_tokens:
        return input_tokens + cached_tokens
    return input_tokens


def templated(planned: int | None, messages: Sequence[Message], template: ChatTemplate) -> int | None:
    """Return the planned tokens with those of the chat template, as far as it was measured."""
    if planned is None or template.exactness == "unknown":
        return planned
    around = sum(
        len(template.before(message.role, first=number == 0)) + len(template.behind(message.role))
        for number, message in enumerate(messages)
    )
    return planned + around + len(template.tail)


def remedy(ask: Ask, length: PromptLength, exact: bool) -> str:
    """Return what to change about a wrong length. `exact`: the server's tokenizer gave exact lengths of generated text."""
    pieces = [piece for message in ask.messages for piece in message.pieces]
    literal = sum(len(piece.literal) for piece in pieces if piece.literal is not None)
    short = (length.planned or 0) - (length.counted or 0)
    if ask.tools and ask.tool_choice == "none" and 2 * abs(short - json_tokens(ask.tools)) < short:
        cause = "the server seems to leave the tools out, which the request forbids to call (tool_choice: none)"
    elif _mostly_literal(pieces):
        per_token = literal / max(1, (length.counted or 0) - _generated(pieces))
        cause = f"set chars_per_token of its data (about {per_token:.1f} by this answer), or the tokenizer of the model"
    elif exact:
        cause = "its /tokenize counts otherwise than the model: name the model, or the server behind the gateway"
    else:
        cause = "the plan is an estimate: give --host a server with /tokenize, or look for text that it adds to prompts"
    return f"{cause}; --set request.wrong_length=warn sends the load all the same"


def is_literal(ask: Ask) -> bool:
    """Return whether most of the planned text is given, so that its tokens are estimated by its characters."""
    return _mostly_literal([piece for message in ask.messages for piece in message.pieces])


def _mostly_literal(pieces: Sequence[Piece]) -> bool:
    literal = sum(piece.tokens or 0 for piece in pieces if piece.literal is not None)
    return literal > _generated(pieces)


def _generated(pieces: Sequence[Piece]) -> int:
    return sum(piece.tokens or 0 for piece in pieces if piece.literal is None)


def _tokens(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"
