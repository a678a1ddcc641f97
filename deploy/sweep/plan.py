"""Order of a sweep's runs, and the smallest change that they can detect. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from inferload.base.numbers import percent, plural
from inferload.results.statistics import paired_runs

from ..variants.variant import check_name, label
from .definition import Sweep


@dataclass(frozen=True, slots=True)
class ServerStart:
    """Server start and the runs on it: those of one pair, or of all pairs (`restart: once`)."""

    number: int
    variant: str
    runs: tuple["PlannedRun", ...]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Run of a sweep. `pair` counts from 0; the runs of a pair have the same seed."""

    scenario: str
    variant: str
    pair: int
    seed: int

    @property
    def folder(self) -> str:
        """Path in the folder of the sweep. The folder of a variant is one side of a comparison."""
        return f"{self.scenario}/{check_name(label(self.variant))}/{self.pair:03d}"


def starts(sweep: Sweep, scenarios: Sequence[str]) -> list[ServerStart]:
    """Plan all starts in order. `scenarios`: names of the scenarios, in the order of their runs on a start.

    The order of the variants within a pair is random, so that drift over time affects all variants equally.
    """
    random = Random(f"{sweep.seed}/sweep")
    seeds = [random.randrange(1, 2**31) for _ in range(sweep.pairs)]
    server_starts: list[ServerStart] = []

    def planned_runs(variant: str, pair: int) -> tuple[PlannedRun, ...]:
        return tuple(PlannedRun(scenario, variant, pair, seeds[pair]) for scenario in scenarios)

    if sweep.restart == "once":
        order = list(sweep.all_variants)
        random.shuffle(order)
        for variant in order:
            runs = tuple(run for pair in range(sweep.pairs) for run in planned_runs(variant, pair))
            server_starts.append(ServerStart(len(server_starts), variant, runs))
        return server_starts
    for pair in range(sweep.pairs):
        order = list(sweep.all_variants)
        random.shuffle(order)
        server_starts += [
            ServerStart(len(server_starts) + position, variant, planned_runs(variant, pair))
            for position, variant in enumerate(order)
        ]
    return server_starts


def outlook(sweep: Sweep) -> str:
    """Describe the change that the sweep can detect."""
    size = paired_runs.detectable_by_both(sweep.sd_log, sweep.pairs)
    if sweep.pairs < 3 or size is None:
        return f"{plural(sweep.pairs, 'pair')} of runs show differences without a verdict; a verdict needs 6 or more"
    text = (
        f"{sweep.pairs} pairs detect a change of {percent(size)} with a power of {paired_runs.POWER:g}, "
        f"if pairs scatter by {percent(sweep.sd_log)} (assumed: sd_log)"
    )
    if sweep.pairs < paired_runs.FEWEST_FLIPS:
        text += "; the sign-flip test cannot reject with fewer than 6"
    if sweep.restart == "once":
        text += "; one start per variant: verdicts hold for these server starts"
    return text
