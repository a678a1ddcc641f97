"""Every picture of a run, in the page's order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..diagnosis.seen import slo
from ..frames import RunFrames
from . import cachehits, heat, lanes, load, overtime, prompts, spectrum, wherefrom
from .lanes import Lanes
from .picture import Picture


@dataclass(frozen=True, slots=True)
class Pictures:
    """What could be drawn. `lanes`: the turns of the minutes that the page holds."""

    drawn: tuple[Picture, ...]
    lanes: Lanes | None

    def of(self, key: str) -> Picture | None:
        """The picture of that key."""
        return next((picture for picture in self.drawn if picture.key == key), None)


def pictures(run: RunFrames, timeline: pd.DataFrame, parts: pd.DataFrame, minute: int | None = None) -> Pictures:
    """All that the run has data for. `parts`: the table of `reconcile.parts`."""
    summary: Mapping[str, Any] = run.summary or {}
    limits = slo(run.manifest)
    held = lanes.lanes(run, minute)
    steps: Sequence[Mapping[str, Any]] = summary.get("steps") or ()
    drawn = (
        overtime.picture(timeline, tuple(run.servers), run.phases, run.marks),
        spectrum.picture(run, limits),
        wherefrom.picture(parts),
        prompts.picture(run),
        heat.picture(run, run.phases),
        load.picture(steps, limits),
        cachehits.picture(summary),
        None if held is None else lanes.picture(held),
    )
    return Pictures(tuple(picture for picture in drawn if picture is not None), held)
