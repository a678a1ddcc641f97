"""What a prompt's tokens are known by, block by block: two prompts that share a hash share all tokens up to there.

Each hash covers a block and the hash before it, as a server's prefix cache does. Blocks are of 16 tokens, so that whatever
multiple of 16 a server's blocks are can be told from them.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

HASHED_TOKENS = 16
_WIDTH = HASHED_TOKENS * array("i").itemsize


class BlockHasher:
    """Takes a row of tokens piece by piece; `hashes` are those of its full blocks so far."""

    __slots__ = ("_before", "_rest", "hashes")

    def __init__(self) -> None:
        self.hashes = array("q")
        self._before = b""
        self._rest = b""  # tokens that fill no block yet

    def feed(self, tokens: Iterable[int]) -> None:
        """Take the row's next tokens."""
        ids = self._rest + array("i", tokens).tobytes()
        whole = len(ids) - len(ids) % _WIDTH
        before = self._before
        for at in range(0, whole, _WIDTH):
            before = blake2b(before + ids[at : at + _WIDTH], digest_size=8).digest()
            self.hashes.frombytes(before)
        self._before, self._rest = before, ids[whole:]


def block_hashes(tokens: Iterable[int]) -> "array[int]":
    """array('q'): a hash for each full block of the tokens, the same in any process and on any machine of one byte order."""
    hasher = BlockHasher()
    hasher.feed(tokens)
    return hasher.hashes
