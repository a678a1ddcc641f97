"""Log probabilities that could be true: the chosen token first, others below it; the same for the same answer. Pure."""

import zlib
from collections.abc import Iterable
from typing import Any

from ..protocol.script import Piece, Script
from ..protocol.text import VOCABULARY


def _ranked(script: Script, index: int, piece: Piece, alternatives: int) -> list[tuple[str, float]]:
    """The token of that place and its rivals, with their log probabilities."""
    lot = zlib.crc32(f"{script.answer.start}/{script.answer.stride}/{index}".encode())
    value = -(lot % 1000) / 700
    ranked = [(piece.text or piece.token, round(value, 4))]
    for place in range(1, alternatives):
        rival = " " + VOCABULARY[(lot + 37 * place) & 4095]
        ranked.append((rival, round(value - 0.5 * place - (lot % 13) / 10, 4)))
    return ranked


def chat_logprobs(script: Script, first: int, pieces: Iterable[Piece], alternatives: int) -> dict[str, Any]:
    """As in a chat's choice."""
    content = []
    for index, piece in enumerate(pieces, first):
        ranked = _ranked(script, index, piece, max(1, alternatives))
        entries = [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in ranked]
        content.append({**entries[0], "top_logprobs": entries[:alternatives]})
    return {"content": content}


def text_logprobs(
    script: Script, first: int, pieces: Iterable[Piece], alternatives: int, offset: int
) -> dict[str, Any]:
    """As in a text completion's choice; `offset` is the number of characters before the first token."""
    offsets, values, tokens, tops = [], [], [], []
    for index, piece in enumerate(pieces, first):
        ranked = _ranked(script, index, piece, max(1, alternatives))
        offsets.append(offset)
        offset += len(piece.text)
        tokens.append(ranked[0][0])
        values.append(ranked[0][1])
        tops.append(dict(ranked))
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}
