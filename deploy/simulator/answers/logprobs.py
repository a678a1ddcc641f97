"""Synthetic log probabilities, deterministic per answer: the chosen token first, alternatives below it. Pure."""

import zlib
from collections.abc import Iterable
from typing import Any

from ..protocol.script import Script, TokenPiece
from ..protocol.text import VOCABULARY


def _ranked(script: Script, index: int, piece: TokenPiece, alternatives: int) -> list[tuple[str, float]]:
    """Return the token at an index and its alternatives, with log probabilities."""
    digest = zlib.crc32(f"{script.answer.start}/{script.answer.stride}/{index}".encode())
    value = -(digest % 1000) / 700
    ranked = [(piece.text or piece.token, round(value, 4))]
    for rank in range(1, alternatives):
        alternative = " " + VOCABULARY[(digest + 37 * rank) & 4095]
        ranked.append((alternative, round(value - 0.5 * rank - (digest % 13) / 10, 4)))
    return ranked


def chat_logprobs(script: Script, first: int, pieces: Iterable[TokenPiece], alternatives: int) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    content = []
    for index, piece in enumerate(pieces, first):
        ranked = _ranked(script, index, piece, max(1, alternatives))
        entries = [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in ranked]
        content.append({**entries[0], "top_logprobs": entries[:alternatives]})
    return {"content": content}


def text_logprobs(
    script: Script, first: int, pieces: Iterable[TokenPiece], alternatives: int, offset: int
) -> dict[str, Any]:
    """`logprobs` of a text completion's choice. `offset` is the number of characters before the first token."""
    offsets, values, tokens, tops = [], [], [], []
    for index, piece in enumerate(pieces, first):
        ranked = _ranked(script, index, piece, max(1, alternatives))
        offsets.append(offset)
        offset += len(piece.text)
        tokens.append(ranked[0][0])
        values.append(ranked[0][1])
        tops.append(dict(ranked))
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}
