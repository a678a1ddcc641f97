"""The tokens of one turn as its server says them: read and hashed a slice at a time, since a long prompt has a hundred thousand."""

from array import array
from collections.abc import Iterable

import msgspec

from inferload.client.answers.number_bounds import TokenId
from inferload.measure.block_hashes import BlockHasher

_SLICE_BYTES, _SLICE_TOKENS = 4_000, 1_000  # a tenth of a millisecond or so

_decode = msgspec.json.Decoder(list[TokenId]).decode


class TokenIds:
    """Take the prompt's ids once, as JSON, and the answer's as they come; then `step` until nothing is left."""

    __slots__ = ("_answer", "_at", "_done", "_hasher", "_prompt")

    def __init__(self) -> None:
        self._prompt: bytes | None = None
        self._at = 0  # where in the JSON the next slice begins
        self._answer = array("i")
        self._done = 0  # tokens of the answer that are in the hasher
        self._hasher = BlockHasher()

    def prompt(self, ids: bytes) -> None:
        """The prompt's ids, a JSON list; only the first counts, and anything else does not."""
        if self._prompt is None and ids.startswith(b"["):
            self._prompt = ids.strip(b" \t\r\n[]")

    def answer(self, ids: Iterable[int]) -> None:
        """The next of the answer's ids."""
        self._answer.extend(ids)

    def step(self) -> bool:
        """Hash one slice of what has come; True when nothing is left. One of UNDECODABLE where an id is none."""
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
        """Of the row as the server's cache has it: prompt and answer but for its last token. None: no prompt's ids came."""
        while not self.step():
            pass
        return None if self._prompt is None else self._hasher.hashes
