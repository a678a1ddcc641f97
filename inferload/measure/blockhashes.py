"""What a prompt's tokens are known by, block by block: two prompts that share a hash share all tokens up to there.

Each hash covers a block and the hash before it, as a server's prefix cache does. Blocks are of 16 tokens, so that whatever
multiple of 16 a server's blocks are can be told from them.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

HASHED_TOKENS = 16


def block_hashes(tokens: Iterable[int]) -> "array[int]":
    """array('q'): a hash for each full block of the tokens, the same in any process and on any machine of one byte order."""
    ids = array("i", tokens).tobytes()
    width = HASHED_TOKENS * array("i").itemsize
    hashes = array("q")
    before = b""
    for at in range(0, len(ids) - width + 1, width):
        before = blake2b(before + ids[at : at + width], digest_size=8).digest()
        hashes.frombytes(before)
    return hashes
