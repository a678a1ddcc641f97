"""The runs of a sweep in their order, and the smallest change that they can find. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from inferload.numbers import percent, plural
from inferload.statistics import paired_runs

from ..variants.variant import check_name
from .definition import Sweep, label


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One start of a server, and the runs that are made on it: of one pair, or of all (`restart: once`)."""

    number: int
    variant: str
    runs: tuple["PlannedRun", ...]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run. `pair` counts from 0; both sides of a pair have its seed."""

    scenario: str
    variant: str
    pair: int
    seed: int

    @property
    def folder(self) -> str:
        """Where it is kept, below the sweep's own folder: a variant's folder is one side of a comparison."""
        return f"{self.scenario}/{check_name(label(self.variant))}/{self.pair:03d}"


def starts(sweep: Sweep, names: Mapping[str, str]) -> list[ServerStart]:
    """All starts in order; `names`: scenario as the file says it -> its own name.

    Within a pair the order of the variants is drawn, so that what drifts over the hours falls on all alike.
    """
    dice = Random(f"{sweep.seed}/sweep")
    seeds = [dice.randrange(1, 2**31) for _ in range(sweep.pairs)]
    found: list[ServerStart] = []

    def planned(variant: str, pair: int) -> tuple[PlannedRun, ...]:
        return tuple(PlannedRun(names[one], variant, pair, seeds[pair]) for one in sweep.scenarios)

    if sweep.restart == "once":
        order = list(sweep.everyone)
        dice.shuffle(order)
        for variant in order:
            runs = tuple(run for pair in range(sweep.pairs) for run in planned(variant, pair))
            found.append(ServerStart(len(found), variant, runs))
        return found
    for pair in range(sweep.pairs):
        order = list(sweep.everyone)
        dice.shuffle(order)
        found += [
            ServerStart(len(found) + place, variant, planned(variant, pair)) for place, variant in enumerate(order)
        ]
    return found


def outlook(sweep: Sweep) -> str:
    """What so many pairs can find, in words."""
    if sweep.restart == "once":
        return "one start a variant: differences are shown, and judged for these starts only"
    size = paired_runs.detectable(sweep.sd_log, sweep.pairs)
    if sweep.pairs < 3 or size is None:
        return f"{plural(sweep.pairs, 'pair')} of runs show a difference and carry no verdict; 6 or more do"
    words = (
        f"{sweep.pairs} pairs find a change of {percent(size)} with a power of {paired_runs.POWER:g}, if pairs scatter by "
        f"{percent(sweep.sd_log)} (assumed: sd_log)"
    )
    if sweep.pairs < 6:
        words += "; the sign-flip test cannot reject with fewer than 6"
    return words
