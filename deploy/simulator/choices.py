"""Several answers on one connection: what one request with n > 1, or with many prompts, gets."""

from .stream import Peer


class Shared:
    """The connection as each of so many answers sees it: it is over when the last of them is."""

    def __init__(self, peer: Peer, answers: int) -> None:
        self._peer = peer
        self._left = answers

    def write(self, data: bytes) -> bool:
        """Hand bytes to the kernel; False: it did not take all of them, the rest is kept."""
        return self._peer.write(data)

    def answered(self, close: bool) -> None:
        """One answer is over."""
        self._left -= 1
        if not self._left:
            self._peer.answered(close)

    def cut(self, reset: bool) -> None:
        """Close at once, in the middle of the answers."""
        self._peer.cut(reset)
