"""Order of a sweep's runs, and the smallest change that they can detect. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferload.base.numbers import plural
from inferload.campaign import pairs
from inferload.campaign.sweep.definition import Sweep
from inferload.deploy.variants.variant import check_name, label


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
    """Plan all starts in order. `scenarios`: names of the scenarios, in the order of their runs on a start."""
    drawn = pairs.drawn(f"{sweep.seed}/sweep", sweep.pairs, sweep.all_variants)

    def planned_runs(variant: str, pair: pairs.Pair) -> tuple[PlannedRun, ...]:
        return tuple(PlannedRun(scenario, variant, pair.number, pair.seed) for scenario in scenarios)

    if sweep.restart == "once":
        groups = [
            (variant, tuple(run for pair in drawn for run in planned_runs(variant, pair))) for variant in drawn[0].order
        ]
    else:
        groups = [(variant, planned_runs(variant, pair)) for pair in drawn for variant in pair.order]
    return [ServerStart(number, variant, runs) for number, (variant, runs) in enumerate(groups)]


def servers_text(sweep: Sweep, starts: Sequence[ServerStart]) -> str:
    """Describe the servers of the runs, such as `4 starts of simulator`."""
    if sweep.engine == "running":
        return plural(len(starts), "running server")
    return f"{plural(len(starts), 'start')} of {sweep.engine}"


def outlook(sweep: Sweep) -> str:
    """Describe the change that the sweep can detect."""
    once = "one start per variant: verdicts hold for these server starts" if sweep.restart == "once" else ""
    return pairs.outlook(sweep.pairs, sweep.sd_log, once)
