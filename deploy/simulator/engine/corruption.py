"""Corrupted answers of a server under load. No I/O, no clock."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from ..protocol.completion_request import CompletionRequest
from ..protocol.script import CONTENT, Script, TokenPiece, call_pieces
from .chaos import Faults

KINDS = ("empty", "cut", "swapped", "garbled", "repeated")


def shares(text: str) -> dict[str, float]:
    """Parse shares of the answers by kind of corruption: KIND=SHARE,..."""
    try:
        known = {kind: float(share) for kind, share in (part.split("=") for part in text.split(","))}
    except ValueError:
        known = {"": 0.0}
    if known.keys() - {*KINDS} or not all(0 <= share <= 1 for share in known.values()) or sum(known.values()) > 1:
        raise argparse.ArgumentTypeError(f"{text!r}: not shares of {', '.join(KINDS)}, such as swapped=0.01,empty=0.01")
    return known


class Corruption:
    """Draws the answers to corrupt. `swapped`: the latest answer to another prompt with the same limit."""

    def __init__(self, by_kind: Mapping[str, float], seed: int) -> None:
        self._kinds = {**by_kind, "": max(0.0, 1 - sum(by_kind.values()))}
        self._random = Random(f"{seed}/corruption")
        self._latest: dict[int, CompletionRequest] = {}  # by limit

    def apply(self, completion: CompletionRequest, *, loaded: bool) -> tuple[CompletionRequest, Faults | None]:
        """Return a completion, corrupted if it is drawn, with its fault. `loaded`: others are in flight; alone it is not drawn."""
        limit = completion.output_limit
        other = self._latest.get(limit)
        if other is None or other.tokens != completion.tokens:
            self._latest[limit] = completion
        (kind,) = self._random.choices([*self._kinds], [*self._kinds.values()]) if loaded else ("",)
        if kind == "swapped" and other is not None:
            script, tokens, ends = other.script, other.output_tokens, other.ends_itself
            return replace(completion, script=script, output_tokens=tokens, ends_itself=ends), None
        if kind == "cut":
            return completion, {"cut": {"after_events": completion.output_tokens // 2}}
        if kind == "empty":
            return replace(completion, script=_of_pieces(completion), output_tokens=1, ends_itself=True), None
        if kind in ("garbled", "repeated"):
            word = completion.script.answer.word(0) if kind == "repeated" else "\ufffd"
            piece = TokenPiece(CONTENT, f" {word}", word)
            return replace(completion, script=_of_pieces(completion, *[piece] * completion.output_tokens)), None
        return completion, None


def _of_pieces(completion: CompletionRequest, *pieces: TokenPiece) -> Script:
    return Script(completion.script.answer, 0, 0, (*pieces, *call_pieces(())))
