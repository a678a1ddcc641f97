"""Buffer of text that may start a stop string, one character shorter than the longest stop string.

As in vLLM's `v1/engine/detokenizer.py`, token ids are sent immediately and their text later; the last token flushes the
buffer.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ..protocol.script import TokenPiece


class StopBuffer:
    """Delay of the text of an answer by `size` characters."""

    __slots__ = ("_buffer", "_length", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer: deque[TokenPiece] = deque()
        self._length = 0  # buffered characters

    def pass_on(self, pieces: Sequence[TokenPiece], last: bool = False) -> Sequence[TokenPiece]:
        """Add sampled tokens. Return the tokens whose text may be sent; all of them after the last token."""
        if not self._size:
            return pieces
        buffer = self._buffer
        buffer.extend(pieces)
        self._length += sum(len(piece.text) for piece in pieces)
        excess = self._length - (0 if last else self._size)
        sent: list[TokenPiece] = []
        while buffer and (last or len(buffer[0].text) <= excess):
            sent.append(buffer.popleft())
            excess -= len(sent[-1].text)
        if buffer and excess > 0:
            sent.append(replace(buffer[0], text=buffer[0].text[:excess]))
            buffer[0] = replace(buffer[0], text=buffer[0].text[excess:])
        self._length -= sum(len(piece.text) for piece in sent)
        return sent
