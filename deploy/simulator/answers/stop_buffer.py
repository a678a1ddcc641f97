"""Text that a stream keeps back because a stop string may begin in it: as many characters as the longest has, less one.

As in vLLM's `v1/engine/detokenizer.py` tokens are told of when they come, and their text later; the last one brings all of it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ..protocol.script import Piece


class StopBuffer:
    """What is said of one answer, `most` characters behind its tokens."""

    __slots__ = ("_kept", "_length", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: deque[Piece] = deque()
        self._length = 0  # characters that are kept

    def pass_on(self, pieces: Sequence[Piece], last: bool = False) -> Sequence[Piece]:
        """What may be said when these tokens come, in their order; everything with the last of them."""
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
