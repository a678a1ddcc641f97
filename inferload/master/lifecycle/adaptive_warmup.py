"""Adaptive warm-up: it ends after a number of turns, or when TTFT is steady."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from inferload.measure.clock import NS_PER_S, now_ns

if TYPE_CHECKING:
    from inferload.master.lifecycle.master_run import MasterRun

logger = logging.getLogger(__name__)

_POLL_S = 0.1


def end_of(run: MasterRun, start_ns: int, lead_ns: int) -> int:
    """Wait for the end of the warm-up, at most `warmup_s`. Return the start of the measure phase, at least `lead_ns` later."""
    phases = run.spec.scenario.phases
    latest_ns = start_ns + round(phases.warmup_s * NS_PER_S)
    while (left_ns := latest_ns - lead_ns - now_ns()) > 0 and not run.stop.is_set():
        why = _reached(run)
        if why is not None:
            logger.info("the warm-up is over: %s", why)
            run.marks.add("warmup_over", why)
            return now_ns() + lead_ns
        run.stop.wait(min(_POLL_S, left_ns / NS_PER_S))
    if not run.stop.is_set():
        state = "TTFT was not steady" if phases.warmup_until else f"fewer than {phases.warmup_turns} turns were over"
        text = f"the warm-up ended with its {phases.warmup_s:g} s: {state}"
        logger.warning("%s", text)
        run.marks.add("warmup_over", text)
    return latest_ns


def _reached(run: MasterRun) -> str | None:
    phases = run.spec.scenario.phases
    if phases.warmup_turns is not None:
        over = sum(tally.ended for _, tally in run.totals.tallies.items())
        return f"{over} turns were over" if over >= phases.warmup_turns else None
    return f"TTFT is steady, {run.elapsed_s():.0f} s after the load began" if run.steadiness.now else None
