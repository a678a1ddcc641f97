"""Time for which a process has been able to receive messages."""

from inferload.base.clock import NS_PER_S, now_ns

ROUND_S = 0.25
_STILL_S = 1.0  # after a round later than this, messages may wait that this process could not receive


class SilenceClock:
    """Time for which this process has polled without a pause. While it is stopped, silence of others proves nothing."""

    def __init__(self) -> None:
        self._round_ns = self._since_ns = now_ns()

    def listening_s(self) -> float:
        """Return the seconds since the last pause of more than about a second. Call it once a round."""
        at_ns = now_ns()
        if at_ns - self._round_ns > (ROUND_S + _STILL_S) * NS_PER_S:
            self._since_ns = at_ns
        self._round_ns = at_ns
        return (at_ns - self._since_ns) / NS_PER_S
