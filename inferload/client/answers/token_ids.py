"""Token ids of one turn as reported by the server, decoded and hashed in slices, since long prompts have 100,000 tokens."""

from array import array
from collections.abc import Iterable

import msgspec

from inferload.client.answers.number_bounds import TokenId
from inferload.measure.block_hashes import BlockHasher

_SLICE_BYTES, _SLICE_TOKENS = 4_000, 1_000  # about 0.1 ms

_decode = msgspec.json.Decoder(list[TokenId]).decode


class TokenIds:
    """Block hashes of the ids of a prompt (JSON) and an answer: add them, then call `step` until nothing is left."""

    __slots__ = ("_answer", "_at", "_done", "_hasher", "_prompt")

    def __init__(self) -> None:
        self._prompt: bytes | None = None
        self._at = 0  # position of the next slice in the JSON text
        self._answer = array("i")
        self._done = 0  # tokens of the answer that are hashed
        self._hasher = BlockHasher()

    def prompt(self, ids: bytes) -> None:
        """Set the prompt's ids, a JSON list; further calls and other values are ignored."""
        if self._prompt is None and ids.startswith(b"["):
            self._prompt = ids.strip(b" \t\r\n[]")

    def answer(self, ids: Iterable[int]) -> None:
        """Add ids of the answer."""
        self._answer.extend(ids)

    def step(self) -> bool:
        """Hash one slice of the ids; return True if nothing is left. Raise one of UNDECODABLE for an invalid id."""
        if self._prompt is None:
            return True
        if self._at < len(self._prompt):
            cut = self._prompt.find(b",", self._at + _SLICE_BYTES)
            end = len(self._prompt) if cut < 0 else cut
            self._hasher.feed(_decode(b"[" + self._prompt[self._at : end] + b"]"))
            self._at = end + 1
            if self._at >= len(self._prompt):
                self._prompt, self._at = b"", 0
        else:
            end = max(self._done, min(len(self._answer) - 1, self._done + _SLICE_TOKENS))
            self._hasher.feed(self._answer[self._done : end])
            self._done = end
        return self._at >= len(self._prompt) and self._done >= len(self._answer) - 1

    def hashes(self) -> "array[int] | None":
        """Return the block hashes of prompt and answer without its last token, as in the server's cache; None without a prompt."""
        while not self.step():
            pass
        return None if self._prompt is None else self._hasher.hashes
