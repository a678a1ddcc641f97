"""Clocks of GPUs at the start and the end of the measure phase, from pages of GPU exporters."""

from collections.abc import Iterable

import numpy as np

from inferload.figures.pages import metric_names as names
from inferload.results.verdict.evidence import GpuClock
from inferload.servers.window import ServerWindow

_BUSY = 50.0  # per cent of GPU use: the clock of an idle GPU falls as well
_PARTS = 4  # of the window: the first and the last one are compared
_FEWEST = 3  # scrapes of a busy GPU in each


def fallen_most(windows: Iterable[ServerWindow]) -> GpuClock | None:
    """Return the clock that fell most, from the first to the last quarter of the window; None if none is known in both."""
    found = []
    for window in windows:
        scrapes = window.scrapes
        size = len(scrapes) // _PARTS
        uses = window.server.series(names.GPU_USE)
        for clock in window.server.series(names.GPU_SM_CLOCK) if size else ():
            use = next((each.values for each in uses if clock.fits(each.labels)), None)
            if use is None:
                continue
            parts = [part[use[part] >= _BUSY] for part in (scrapes[:size], scrapes[-size:])]
            values = [clock.values[part][np.isfinite(clock.values[part])] for part in parts]
            if min(map(len, values)) >= _FEWEST and (first := float(values[0].mean())) > 0:
                gpu = next((clock.labels[name] for name in ("gpu", "gpu_id") if name in clock.labels), "")
                found.append(GpuClock(window.server.target, gpu, first, float(values[1].mean())))
    return max(found, key=lambda each: each.fall, default=None)
