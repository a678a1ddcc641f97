"""Runs of a sweep on a virtual clock, in this process."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from inferload.base import clock, rundir
from inferload.base.errors import UsageError
from inferload.campaign.journal import RunEnded
from inferload.scenario import overrides
from inferload.scenario.files import catalog

from ..virtual.run import VirtualRun
from ..virtual.server import VirtualStart
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

    def perform(self, start: ServerStart, remaining: list[PlannedRun]) -> Iterator[RunEnded]:
        """Make the remaining runs of a start, and yield the entry of each in the journal."""
        server: VirtualStart | None = None
        for run in remaining:
            began_ns, code, cause = clock.now_ns(), None, None
            try:
                if server is None:
                    variant = self.sweep.variant(start.variant)
                    seed = Random(f"{self.sweep.seed}/start/{start.number}").getrandbits(32)
                    server = VirtualStart(variant, self.sweep.prices.over(variant.prices), seed)
                elif not self.sweep.keep_cache:
                    server.empty_prefix_cache()
                code = self._run(run, server)
            except UsageError as error:
                cause = str(error)
            took_s = round((clock.now_ns() - began_ns) / clock.NS_PER_S, 3)
            entry = RunEnded(folder=run.folder, exit_code=code, took_s=took_s, cause=cause)
            self.journal.write(entry)
            yield entry

    def _run(self, run: PlannedRun, server: VirtualStart) -> int:
        """Make a run; return its exit code."""
        load, folder = self.loads[run.scenario], self.folder / run.folder
        rundir.set_aside(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        changes: dict[str, Any] = {"seed": run.seed}
        if self.sweep.measure_s not in (None, load.scenario.phases.measure_s):
            changes["phases.measure_s"] = self.sweep.measure_s
        settings = {setting.key: setting.value for setting in overrides.parse_settings(load.settings)}
        origin = str(catalog.resolve(load.source))
        scenario = load.scenario.changed(changes, load.source)
        code = VirtualRun(server, scenario, origin, settings | changes).perform(folder).outcome.exit_code
        if self.sweep.reports:
            subprocess.run([sys.executable, "-m", "inferload", "report", str(folder)], capture_output=True, check=False)
        return code
