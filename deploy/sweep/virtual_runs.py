"""Runs of a sweep on a virtual clock."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from inferload.base import run_options, rundir
from inferload.base.virtual_orders import Order, Ordered
from inferload.campaign import runner
from inferload.campaign.journal import RunEnded
from inferload.campaign.virtual_runs import Performer

from ..servers.in_memory import facts_of, options_of
from .definition import Load, Sweep
from .journal import SweepJournal
from .plan import PlannedRun, ServerStart


@dataclass(frozen=True, slots=True)
class VirtualRuns:
    """Runs of the server starts of a sweep. `loads`: the scenarios by name."""

    sweep: Sweep
    folder: Path
    loads: Mapping[str, Load]
    journal: SweepJournal
    performer: Performer

    def perform(self, start: ServerStart, remaining: Sequence[PlannedRun]) -> Iterator[RunEnded]:
        """Make the remaining runs of a start, and yield the entry of each in the journal."""
        variant = self.sweep.variant(start.variant)
        order = Order(
            options=list(options_of(variant)),
            facts=facts_of(variant, self.sweep.prices.over(variant.prices)),
            seed=Random(f"{self.sweep.seed}/start/{start.number}").getrandbits(32),
            runs=[self._ordered(run, first=run is remaining[0]) for run in remaining],
        )
        for run, made in zip(remaining, self.performer.perform(order), strict=True):
            code, took_s = (None, 0.0) if made is None else (made.exit_code, made.took_s)
            entry = runner.ended(self.folder, run.folder, code, took_s)
            self.journal.write(entry)
            yield entry

    def _ordered(self, run: PlannedRun, *, first: bool) -> Ordered:
        folder = self.folder / run.folder
        rundir.set_aside(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        load = self.loads[run.scenario]
        values = {"clock": "virtual", "seed": str(run.seed), "no_report": True, "set": list(load.settings)}
        values["run_dir"] = str(folder.absolute())
        seconds = [] if self.sweep.measure_s is None else ["--run-time", f"{self.sweep.measure_s:g}"]
        return Ordered(
            argv=["--headless", "--scenario", load.source, *run_options.words(values), *seconds],
            log=str(folder.with_suffix(".log")),
            report=str(folder.absolute()) if self.sweep.reports else "",
            empties_cache=not first and not self.sweep.keep_cache,
        )
