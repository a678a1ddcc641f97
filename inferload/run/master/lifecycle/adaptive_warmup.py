"""Adaptive warm-up: it ends after a number of turns, or when TTFT is steady."""

import logging

from gevent.event import Event
from msgspec import Struct

from inferload.base.clock import NS_PER_S, now_ns
from inferload.results.statistics.steady_state import Steadiness
from inferload.run.master.lifecycle.marks import Marks
from inferload.scenario.scenario import Phases
from inferload.turns.tally import TallySet

logger = logging.getLogger(__name__)

_POLL_S = 0.1


class AdaptiveWarmup(Struct, frozen=True):
    """Condition that ends the warm-up of a run. `tallies` and `steadiness` are updated by the workers' reports."""

    phases: Phases
    tallies: TallySet
    steadiness: Steadiness
    marks: Marks
    stop: Event

    def wait(self, start_ns: int, lead_ns: int) -> int:
        """Wait for the end of the warm-up, at most `warmup_s`. Return the start of the measure phase, at least `lead_ns` later."""
        latest_ns = start_ns + round(self.phases.warmup_s * NS_PER_S)
        while (left_ns := latest_ns - lead_ns - now_ns()) > 0 and not self.stop.is_set():
            reason = self._reached(start_ns)
            if reason is not None:
                logger.info("the warm-up is over: %s", reason)
                self.marks.add("warmup_over", reason)
                return now_ns() + lead_ns
            self.stop.wait(min(_POLL_S, left_ns / NS_PER_S))
        if not self.stop.is_set():
            self._mark_limit()
        return latest_ns

    def _reached(self, start_ns: int) -> str | None:
        """Return a text if the condition holds."""
        if self.phases.warmup_turns is not None:
            over = sum(tally.ended for _, tally in self.tallies.items())
            return f"{over} turns were over" if over >= self.phases.warmup_turns else None
        if not self.steadiness.now:
            return None
        return f"TTFT is steady, {(now_ns() - start_ns) / NS_PER_S:.0f} s after the load began"

    def _mark_limit(self) -> None:
        phases = self.phases
        state = "TTFT was not steady" if phases.warmup_until else f"fewer than {phases.warmup_turns} turns were over"
        text = f"the warm-up ended with its {phases.warmup_s:g} s: {state}"
        logger.warning("%s", text)
        self.marks.add("warmup_over", text)
