"""Random identifiers, of which a run on a virtual clock makes the same at each repetition."""

from random import Random, SystemRandom

# Assign another source here to replace that of all identifiers.
source: Random = SystemRandom()


def token_hex(size: int) -> str:
    """Return `size` random bytes as hexadecimal digits."""
    return token_bytes(size).hex()


def token_bytes(size: int) -> bytes:
    """Return random bytes. Secrets must not come from here: see the module `secrets`."""
    return source.getrandbits(8 * size).to_bytes(size, "big")
