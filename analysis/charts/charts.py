"""Every picture of a run, in the page's order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..data.frames import RunFrames
from ..data.partial_run import Notes
from ..diagnosis.client_view import slo
from . import cache_hits, heat, lanes, latency_breakdown, load, over_time, prompts, spectrum
from .chart import Picture
from .lanes import Lanes


@dataclass(frozen=True, slots=True)
class Pictures:
    """What could be drawn. `lanes`: the turns of the minutes that the page holds."""

    drawn: tuple[Picture, ...]
    lanes: Lanes | None

    def of(self, key: str) -> Picture | None:
        """The picture of that key."""
        return next((picture for picture in self.drawn if picture.key == key), None)


def pictures(
    run: RunFrames, timeline: pd.DataFrame, parts: pd.DataFrame, notes: Notes, minute: int | None = None
) -> Pictures:
    """All that the run has data for. `parts`: the table of `breakdown.parts`. What a damaged run cannot carry goes to `notes`."""
    summary: Mapping[str, Any] = run.summary or {}
    limits = notes.unless_damaged("the SLO", lambda: slo(run.manifest)) or {}
    held = notes.unless_damaged("the turns of one minute", lambda: lanes.lanes(run, minute))
    steps: Sequence[Mapping[str, Any]] = summary.get("steps") or ()
    makers: tuple[tuple[str, Callable[[], Picture | None]], ...] = (
        ("the picture over time", lambda: over_time.picture(timeline, tuple(run.servers), run.phases, run.marks)),
        ("the latency spectrum", lambda: spectrum.picture(run, limits)),
        ("the picture of where the time goes", lambda: latency_breakdown.picture(parts)),
        ("the picture of prompts", lambda: prompts.picture(run)),
        ("the picture of inter-token latency", lambda: heat.picture(run, run.phases)),
        ("the picture of steps", lambda: load.picture([load.of_steps(steps)], limits)),
        ("the picture of cache hits", lambda: cache_hits.picture(summary)),
        ("the turns of one minute", lambda: None if held is None else lanes.picture(held)),
    )
    drawn = [notes.unless_damaged(what, make) for what, make in makers]
    return Pictures(tuple(picture for picture in drawn if picture is not None), held)
