"""Decision on turns that were not served: more of them than on the baseline, or a load that only the candidate did not serve.

Wrong canary answers of either side decide, too: a comparison with a broken server has no other result.
"""

from dataclasses import asdict, dataclass
from typing import Any

from inferload.results.statistics import not_served
from inferload.results.statistics.not_served import NotServed
from inferload.turns.states import NOT_SERVED_WORD

from .sides import Side

TITLE = f"Turns {NOT_SERVED_WORD}"
LOAD = "did not serve the load"


@dataclass(frozen=True, slots=True)
class NotServedTurns:
    """Turns not served of both sides, None if unknown or not comparable. `p`: None if no more than can be tested.

    `collapsed`: the candidate did not serve its load, and the baseline did. `wrong`: canary answers that fail a side.
    """

    baseline: NotServed | None = None
    candidate: NotServed | None = None
    p: float | None = None
    collapsed: bool = False
    wrong: tuple[str, ...] = ()

    @property
    def more(self) -> bool:
        """True if more turns of the candidate were not served."""
        return not_served.is_more(self.p)

    @property
    def known(self) -> bool:
        return self.baseline is not None and self.candidate is not None

    @property
    def regressed(self) -> bool:
        """True if the candidate is broken, however fast its other turns are."""
        return self.more or self.collapsed or bool(self.wrong)

    @property
    def regressions(self) -> tuple[str, ...]:
        """Return what became worse, in words."""
        return (*([TITLE] if self.more else []), *([LOAD] if self.collapsed else []), *self.wrong)

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        return {**asdict(self), "more": self.more}


UNKNOWN = NotServedTurns()


def compare(baseline: Side, candidate: Side) -> NotServedTurns:
    """Compare the turns not served of all runs of both sides whose counts are those of the server."""
    before, after = baseline.not_served, candidate.not_served
    p = None if before is None or after is None else not_served.p_more(before, after)
    wrong = tuple(f"{side.label}: {side.wrong}" for side in (baseline, candidate) if side.wrong)
    return NotServedTurns(before, after, p, _only_second(baseline, candidate), wrong)


def collapse_text(side: Side, other: Side, *, of_one_load: bool) -> str:
    """Return how a side did not serve its load, with the number of runs; empty if all its runs served it."""
    if not side.collapsed:
        return ""
    label = f"{side.label} {LOAD}" if has_collapsed(side, other, of_one_load=of_one_load) else side.label
    return f"{label}: {side.collapsed}"


def has_collapsed(side: Side, other: Side, *, of_one_load: bool) -> bool:
    """Return True if a side did not serve its load, and the other one did not either, or differs from it beyond chance."""
    alone = of_one_load and not other.has_collapsed
    return _only_second(other, side) if alone else side.has_collapsed


def _only_second(first: Side, second: Side) -> bool:
    """Return True if the second side did not serve its load and the first one did, beyond chance.

    A share of turns beyond the limit is no difference by itself, as equal sides near it are on either side of it: the turns must
    differ too, unless those of the first side are unknown. Overloaded and stopped runs are compared by their number.
    """
    if not second.has_collapsed or first.has_collapsed:
        return False
    before, after = first.not_served, second.not_served
    if not_served.more_runs(first.runs_given_up, second.runs_given_up):
        return True
    if before is None or after is None:
        return any(run.collapsed and not run.given_up for run in second.served)
    return not_served.is_more(not_served.p_more(before, after))
