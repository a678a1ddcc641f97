"""Chained hashes of token blocks: two prompts with an equal hash have all tokens up to that block in common.

Each hash covers a block and the hash before it, as in a server's prefix cache. Blocks of 16 tokens suit every server whose
block size is a multiple of 16.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

HASHED_TOKENS = 16
_WIDTH = HASHED_TOKENS * array("i").itemsize


class BlockHasher:
    """Incremental hasher of tokens. `hashes`: one per full block so far, equal on all machines of one byte order."""

    __slots__ = ("_before", "_rest", "hashes")

    def __init__(self) -> None:
        self.hashes = array("q")
        self._before = b""
        self._rest = b""  # tokens of an incomplete block

    def feed(self, tokens: Iterable[int]) -> None:
        """Add the next tokens."""
        ids = self._rest + array("i", tokens).tobytes()
        whole = len(ids) - len(ids) % _WIDTH
        before = self._before
        for at in range(0, whole, _WIDTH):
            before = blake2b(before + ids[at : at + _WIDTH], digest_size=8).digest()
            self.hashes.frombytes(before)
        self._before, self._rest = before, ids[whole:]
