"""How many tokens a literal text is thought to cost: by the characters of a token, assumed or measured on a server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferload.content.data import Found
from inferload.content.prompts import Tokenize
from inferload.numbers import number, percent

# English prose on the tokenizers of today's models: a guess that is stated wherever it is used.
CHARS_PER_TOKEN = 4.0

SAMPLES = 32
SAMPLE_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Counting:
    """How texts are counted. `error`: mean error of one text's count, relative; None: not measured."""

    how: Literal["exact", "measured", "given", "assumed"]
    chars_per_token: float = CHARS_PER_TOKEN
    error: float | None = None

    def tokens(self, chars: int) -> int:
        """Tokens of a text of so many characters; at least one of a text that is not empty."""
        return max(1, round(chars / self.chars_per_token)) if chars else 0

    def in_words(self) -> str:
        """For people: how, and how well."""
        per_token = f"{number(self.chars_per_token)} characters a token"
        return {
            "exact": "counted by the tokenizer that the scenario names",
            "measured": f"estimated at {per_token}, as measured on the server"
            + ("" if self.error is None else f" (a text's count is off by {percent(self.error)} on average)"),
            "given": f"estimated at {per_token}, as the scenario says",
            "assumed": f"estimated at {per_token}, assumed: the server's tokenizer was not asked",
        }[self.how]


def counting(given: float | None, found: Found) -> Counting:
    """The scenario's characters per token, else those measured on the server, else the guess."""
    if given is not None:
        return Counting("given", given)
    if found.chars_per_token is not None:
        return Counting("measured", found.chars_per_token, found.error)
    return Counting("assumed")


def measure(samples: Sequence[str], tokenize: Tokenize) -> tuple[float, float] | None:
    """(characters per token, mean relative error of one text's count) of some texts; None where they hold nothing."""
    texts = [text[:SAMPLE_CHARS] for text in samples[:SAMPLES] if text]
    tokens = [len(tokenize(text)) for text in texts]
    chars = sum(map(len, texts))
    if not chars or not sum(tokens):
        return None
    per_token = chars / sum(tokens)
    off = sum(abs(len(text) / per_token - count) for text, count in zip(texts, tokens, strict=True))
    return per_token, off / sum(tokens)
