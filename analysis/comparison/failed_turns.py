"""Decision on failed turns: more of them than on the baseline, or a load that only the candidate did not serve."""

from dataclasses import dataclass
from typing import Any

from inferload.results.statistics import failed_turns
from inferload.results.statistics.failed_turns import Failed

from .sides import Side

TITLE = "Failed turns"
NOT_SERVED = "did not serve the load"


@dataclass(frozen=True, slots=True)
class FailedTurns:
    """Failed and planned turns of both sides, None if unknown or not comparable. `p`: None if no more failed than can be tested.

    `collapsed`: the candidate did not serve its load, and the baseline did.
    """

    baseline: Failed | None = None
    candidate: Failed | None = None
    p: float | None = None
    collapsed: bool = False

    @property
    def more(self) -> bool:
        """True if more turns of the candidate failed."""
        return failed_turns.more_failed(self.p)

    @property
    def known(self) -> bool:
        """True if the turns of both sides are known."""
        return self.baseline is not None and self.candidate is not None

    @property
    def regressed(self) -> bool:
        """True if the candidate is broken, however fast its other turns are."""
        return self.more or self.collapsed

    @property
    def regressions(self) -> tuple[str, ...]:
        """Return what became worse, in words."""
        return (*([TITLE] if self.more else []), *([NOT_SERVED] if self.collapsed else []))

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        counts = {"baseline": self.baseline, "candidate": self.candidate}
        return {
            **{
                name: None if side is None else {"failed": side.failed, "planned": side.planned}
                for name, side in counts.items()
            },
            "p": self.p,
            "more": self.more,
            "collapsed": self.collapsed,
        }


UNKNOWN = FailedTurns()


def compare(baseline: Side, candidate: Side) -> FailedTurns:
    """Compare the failed turns of all runs of both sides whose counts are those of the server."""
    before, after = baseline.failed_turns, candidate.failed_turns
    p = None if before is None or after is None else failed_turns.p_more(before, after)
    return FailedTurns(before, after, p, candidate.has_collapsed and not baseline.has_collapsed)
