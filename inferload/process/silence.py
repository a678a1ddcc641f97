"""Time for which a process has been able to hear the others."""

from inferload.measure.clock import NS_PER_S, now_ns

ROUND_S = 0.25
_STILL_S = 1.0  # a round as late as this: the process stood still, and messages may have come meanwhile


class SilenceClock:
    """Time for which this process has polled without a pause: silence of others while it stood still does not count."""

    def __init__(self) -> None:
        self._round_ns = self._since_ns = now_ns()

    def listening_s(self) -> float:
        """Return for how long there was a round at least every second; called once a round."""
        at_ns = now_ns()
        if at_ns - self._round_ns > (ROUND_S + _STILL_S) * NS_PER_S:
            self._since_ns = at_ns
        self._round_ns = at_ns
        return (at_ns - self._since_ns) / NS_PER_S
