"""Failed turns of two sides: Fisher's exact test over their planned turns.

The test treats turns as independent. Failures that come together (a server that answers nothing for some seconds) are fewer
independent events than turns, so that equal sides with such failures differ more often than the level states. Pure maths;
scipy is imported by the functions, because it takes half a second.
"""

from dataclasses import dataclass

import numpy as np

LEVEL = 0.01  # two-sided, as all tests of a comparison
LEAST_MORE = 3  # turns beyond the share of the baseline; fewer are no finding, however few were planned


@dataclass(frozen=True, slots=True)
class Failed:
    """Failed turns of a side among its planned ones; both may be sums over runs."""

    failed: int
    planned: int

    @classmethod
    def of_counts(cls, ok: int, sent: int, dropped: int = 0) -> "Failed":
        """Turns that failed, did not end, or were planned and not sent (`dropped`)."""
        return cls(sent - ok + dropped, sent + dropped)


def p_more(baseline: Failed, candidate: Failed) -> float | None:
    """Two-sided p of Fisher's exact test; None if the candidate has not LEAST_MORE failed turns beyond the baseline's share."""
    if not baseline.planned or not candidate.planned:
        return None
    beyond = candidate.failed - candidate.planned * baseline.failed / baseline.planned
    if beyond < LEAST_MORE:
        return None
    from scipy import stats

    table = np.array([[side.failed, side.planned - side.failed] for side in (candidate, baseline)])
    return float(stats.fisher_exact(table).pvalue)


def more_failed(p: float | None) -> bool:
    """Return True if `p_more` says that more turns of the candidate failed."""
    return p is not None and p < LEVEL
