"""Buffer of text that may be the start of a stop string: the length of the longest stop string less one.

As in vLLM's `v1/engine/detokenizer.py`, token ids are sent at once and their text later; the last token flushes the buffer.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ..protocol.script import Piece


class StopBuffer:
    """Text of one answer, delayed by `most` characters."""

    __slots__ = ("_kept", "_length", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: deque[Piece] = deque()
        self._length = 0  # characters that are kept

    def pass_on(self, pieces: Sequence[Piece], last: bool = False) -> Sequence[Piece]:
        """Return the pieces that may be sent once these tokens are sampled; all of them after the last token."""
        if not self._most:
            return pieces
        kept = self._kept
        kept.extend(pieces)
        self._length += sum(len(piece.text) for piece in pieces)
        over = self._length - (0 if last else self._most)
        said: list[Piece] = []
        while kept and (last or len(kept[0].text) <= over):
            said.append(kept.popleft())
            over -= len(said[-1].text)
        if kept and over > 0:
            said.append(replace(kept[0], text=kept[0].text[:over]))
            kept[0] = replace(kept[0], text=kept[0].text[over:])
        self._length -= sum(len(piece.text) for piece in said)
        return said
