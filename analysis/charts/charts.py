"""Charts of a run, in the order of the page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..data.frames import RunFrames
from ..data.manifest import slo_of
from ..data.partial_run import Notes
from . import cache_hits, heat, lanes, latency_breakdown, load, over_time, prompts, spectrum
from .chart import Picture
from .lanes import Lanes


@dataclass(frozen=True, slots=True)
class Pictures:
    """Charts of a run. `lanes`: turns of the minutes that the page contains."""

    drawn: tuple[Picture, ...]
    lanes: Lanes | None

    def of(self, key: str) -> Picture | None:
        """Return the chart of a key."""
        return next((picture for picture in self.drawn if picture.key == key), None)


def pictures(
    run: RunFrames, timeline: pd.DataFrame, parts: pd.DataFrame, notes: Notes, minute: int | None = None
) -> Pictures:
    """Return the charts for which the run has data. `parts`: from `breakdown.parts`; `notes`: collects unreadable data."""
    summary: Mapping[str, Any] = run.summary or {}
    limits = notes.unless_damaged("the SLO", lambda: slo_of(run.manifest)) or {}
    minutes = notes.unless_damaged("the turns of one minute", lambda: lanes.lanes(run, minute))
    steps: Sequence[Mapping[str, Any]] = summary.get("steps") or ()
    makers: tuple[tuple[str, Callable[[], Picture | None]], ...] = (
        ("the timeline", lambda: over_time.picture(timeline, tuple(run.servers), run.phases, run.marks)),
        ("the latency spectrum", lambda: spectrum.picture(run, limits)),
        ("the latency breakdown", lambda: latency_breakdown.picture(parts)),
        ("the chart of TTFT by prompt", lambda: prompts.picture(run)),
        ("the chart of inter-token latency", lambda: heat.picture(run, run.phases)),
        ("the chart of steps", lambda: load.picture([load.of_steps(steps)], limits)),
        ("the chart of prefix-cache hits", lambda: cache_hits.picture(summary)),
        ("the turns of one minute", lambda: None if minutes is None else lanes.picture(minutes)),
    )
    drawn = [notes.unless_damaged(name, make) for name, make in makers]
    return Pictures(tuple(picture for picture in drawn if picture is not None), minutes)
