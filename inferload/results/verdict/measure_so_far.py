"""Verdict on the measure phase so far, from the workers' reports. No I/O."""

from __future__ import annotations

from dataclasses import replace

from inferload.results.verdict.phase_evidence import SKETCHES, RunFacts, evidence_of
from inferload.results.verdict.validity import SoFar, judge_so_far
from inferload.turns.client_health import HealthSet
from inferload.turns.sketch import Sketch
from inferload.turns.tally import Tally, TallySet


class MeasureSoFar:
    """Sums over the measure phase, kept report by report: to merge all sketches each second would delay the load of the process."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._delay_ms = Sketch()

    def add(self, delta: TallySet, health: HealthSet) -> None:
        """Add a report."""
        for (phase, _, _), tally in delta.items():
            if phase == "measure":
                self._tally.absorb_counts(tally)
                for name in SKETCHES:
                    if name in tally.sketches:
                        self._tally.sketch(name).absorb(tally.sketches[name])
        for (_, phase), part in health.items():
            if phase == "measure":
                self._delay_ms.absorb(part.delay_ms)

    def verdict(self, health: HealthSet, window_s: float, facts: RunFacts) -> SoFar:
        """Return what the verdict would be now. `health`: sum of all reports; `window_s`: length of the phase so far."""
        workers = [part for (_, phase), part in health.items() if phase == "measure"]
        evidence = evidence_of("measure", self._tally, workers, self._delay_ms, window_s)
        return judge_so_far(replace(evidence, **facts.known))
