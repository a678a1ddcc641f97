"""Cold and warm runs of a scenario with two cache arms: they are compared with each other, and never counted together."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from inferload.base.errors import UsageError

from ..data.figures import ALL, DEFAULT_PRIMARY, figure
from .compare import Comparison, compare
from .sides import ARMS, Side


def by_arm(sides: Sequence[Side]) -> list[list[Side]]:
    """Return the sides once for each cache arm, with the runs of this arm only; unchanged if each side has a single arm.

    Runs of an arm that the first side or all others lack are left out, and named. UsageError for a side that has no other runs.
    """
    if all(len(_arms(side)) == 1 for side in sides):
        return [list(sides)]
    of_others = [_arms(side) for side in sides[1:]] or [_arms(sides[0])]
    common = _arms(sides[0]).intersection(set().union(*of_others))
    for side in sides:
        if not common & _arms(side):
            raise UsageError(
                f"{side.label}: only {' and '.join(sorted(_arms(side)))} runs, and none of {sides[0].label} to compare them with"
            )
    return [[_of_arm(side, arm, common) for side in sides if arm in _arms(side)] for arm in ARMS if arm in common]


def between_arms(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Compare the warm runs of each side with its cold ones, if it has both (`compare_arms`)."""
    return compare_arms([[comparison.baseline, comparison.candidate] for comparison in comparisons])


def compare_arms(parts: Sequence[Sequence[Side]]) -> list[Comparison]:
    """Compare the warm runs of each side with its cold ones, if it has both. `parts`: the lists of `by_arm`."""
    of_label: dict[str, dict[str, Side]] = {}
    for side in (side for part in parts for side in part if side.part_of):
        of_label.setdefault(side.part_of, {})[side.runs[0].arm] = side
    cold, warm = ARMS
    primary = figure(DEFAULT_PRIMARY)
    return [compare(arms[cold], arms[warm], primary, ALL) for arms in of_label.values() if len(arms) == len(ARMS)]


def _arms(side: Side) -> set[str]:
    return {run.arm for run in side.runs}


def _of_arm(side: Side, arm: str, common: Collection[str]) -> Side:
    """Return the part of a side with one arm. `common`: arms that are compared; runs of others are named."""
    others = [run.label for run in side.runs if run.arm not in common]
    named = (f"no run of this cache arm on the other side: {', '.join(others)}",) if others else ()
    runs = tuple(run for run in side.runs if run.arm == arm)
    return replace(side, label=f"{side.label}, {arm}", runs=runs, left_out=(*side.left_out, *named), part_of=side.label)
