"""A warm-up that ends by what happens in it: so many turns are over, or the TTFT has become steady."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from inferload.measure.clock import NS_PER_S, now_ns

if TYPE_CHECKING:
    from inferload.master.lifecycle.run import MasterRun

logger = logging.getLogger(__name__)

_LOOK_S = 0.1


def end_of(run: MasterRun, start_ns: int, lead_ns: int) -> int:
    """Wait until the warm-up is over, and `warmup_s` at most; when the measure phase is to begin, `lead_ns` from then."""
    phases = run.spec.scenario.phases
    latest_ns = start_ns + round(phases.warmup_s * NS_PER_S)
    while (left_ns := latest_ns - lead_ns - now_ns()) > 0 and not run.stop.is_set():
        why = _reached(run)
        if why is not None:
            logger.info("the warm-up is over: %s", why)
            run.marks.add("warmup_over", why)
            return now_ns() + lead_ns
        run.stop.wait(min(_LOOK_S, left_ns / NS_PER_S))
    if not run.stop.is_set():
        wanted = "TTFT was not steady" if phases.warmup_until else f"fewer than {phases.warmup_turns} turns were over"
        text = f"the warm-up ended with its {phases.warmup_s:g} s: {wanted}"
        logger.warning("%s", text)
        run.marks.add("warmup_over", text)
    return latest_ns


def _reached(run: MasterRun) -> str | None:
    phases = run.spec.scenario.phases
    if phases.warmup_turns is not None:
        over = sum(tally.ended for _, tally in run.totals.tallies.items())
        return f"{over} turns were over" if over >= phases.warmup_turns else None
    return f"TTFT is steady, {run.elapsed_s():.0f} s after the load began" if run.steadiness.now else None
