"""Estimated token counts of literal text, by characters per token: assumed, or measured on a server."""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from inferload.base.numbers import number, percent
from inferload.workload.content.data import DataFindings
from inferload.workload.content.prompts import Tokenize

# English prose on the tokenizers of current models: an assumption, stated wherever it is used.
CHARS_PER_TOKEN = 4.0

SAMPLES = 32
SAMPLE_CHARS = 4_000


class Counting(Struct, frozen=True):
    """Method of counting tokens. `error`: mean relative error of the count of one text; None: not measured."""

    how: Literal["exact", "measured", "given", "assumed"]
    chars_per_token: float = CHARS_PER_TOKEN
    error: float | None = None

    def tokens(self, chars: int) -> int:
        """Return the tokens of a text of so many characters, at least one unless it is empty."""
        return max(1, round(chars / self.chars_per_token)) if chars else 0

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        per_token = None if self.how == "exact" else round(self.chars_per_token, 4)
        return {"how": self.how, "chars_per_token": per_token, "error": self.error}

    def in_words(self) -> str:
        """Return the method and its error as text."""
        per_token = f"{number(self.chars_per_token)} characters per token"
        return {
            "exact": "counted by the scenario's tokenizer",
            "measured": f"estimated at {per_token}, measured on the server"
            + ("" if self.error is None else f" (mean error of a text's count: {percent(self.error)})"),
            "given": f"estimated at {per_token}, set in the scenario",
            "assumed": f"estimated at {per_token}, assumed: the server's tokenizer was not measured",
        }[self.how]


def counting(chars_per_token: float | None, findings: DataFindings) -> Counting:
    """Return the counting by the scenario's characters per token, else by the measured ones, else by the assumption."""
    if chars_per_token is not None:
        return Counting("given", chars_per_token)
    if findings.chars_per_token is not None:
        return Counting("measured", findings.chars_per_token, findings.error)
    return Counting("assumed")


def measure(samples: Sequence[str], tokenize: Tokenize) -> tuple[float, float] | None:
    """Return (characters per token, mean relative error of one text's count) of sample texts; None if all are empty."""
    texts = [text[:SAMPLE_CHARS] for text in samples[:SAMPLES] if text]
    tokens = [len(tokenize(text)) for text in texts]
    chars = sum(map(len, texts))
    if not chars or not sum(tokens):
        return None
    per_token = chars / sum(tokens)
    error = sum(abs(len(text) / per_token - count) for text, count in zip(texts, tokens, strict=True))
    return per_token, error / sum(tokens)
