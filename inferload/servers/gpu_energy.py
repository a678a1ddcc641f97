"""Mean power of GPUs over a window, from the pages of exporters. No I/O.

A counter of energy is read between its updates in the window: exporters refresh it at intervals of their own (DCGM's every 30 s
unless started with `-c`), so that at an end of the window it has the value of an earlier time. A restart of the exporter does not
restart the counter, which is the driver's. A GPU whose counter is missing, stands still or had too few updates has the mean of
its power gauge, unless that has gaps.
"""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from inferload.base.clock import NS_PER_S
from inferload.figures.pages import metric_names as names
from inferload.figures.servers.server_formulas import Floats
from inferload.servers import parts
from inferload.servers.window import ServerWindow

COUNTERS, GAUGES = "counters", "power gauges"
_MJ_PER_J = 1e3
_LEAST_SHARE = 0.5  # of the window, between the first and the last update of a counter

Gpu = frozenset[tuple[str, str]]  # labels that tell it from others


class Power(Struct, frozen=True):
    """Mean power of GPUs, known if that of each is. `source`: what it is from."""

    watts: float | None = None
    source: str | None = None
    gpus: int = 1

    @property
    def counted_w(self) -> float | None:
        """Power by counters alone."""
        return self.watts if self.source == COUNTERS else None

    def joules(self, seconds: float) -> float | None:
        """Energy over a time with this power."""
        return None if self.watts is None else self.watts * seconds


def by_gpu(window: ServerWindow) -> dict[Gpu, Power]:
    """Return the mean power of each GPU of a page; empty for other pages.

    A GPU that no label tells from those of other machines has the target of its page among its labels.
    """
    found: dict[Gpu, dict[str, Floats]] = {}
    for metric in (names.GPU_USE, names.GPU_POWER, names.GPU_ENERGY):
        series = window.server.series(metric)
        for gpu, members in parts.boards(metric, [each.key for each in series]).items():
            of = frozenset((name.lower(), value) for name, value in gpu)
            of = of if parts.is_of_all_machines(gpu) else of | {("target", window.server.target)}
            found.setdefault(of, {})[metric] = np.fmax.reduce([series[member].values for member in members])
    return {gpu: _power(window, values) for gpu, values in found.items()}


def together(powers: Iterable[Power]) -> Power:
    """Return the power of several GPUs."""
    every = list(powers)
    watts = [power.watts for power in every if power.watts is not None]
    if not every or len(watts) < len(every):
        return Power(gpus=len(every))
    return Power(sum(watts), " and ".join(sorted({str(power.source) for power in every})), len(every))


def _power(window: ServerWindow, values: dict[str, Floats]) -> Power:
    if names.GPU_ENERGY in values and (counted := _counted_w(window, values[names.GPU_ENERGY])) is not None:
        return Power(counted, COUNTERS)
    return Power(_gauge_w(window, values[names.GPU_POWER]), GAUGES) if names.GPU_POWER in values else Power()


def _counted_w(window: ServerWindow, energy_mj: Floats) -> float | None:
    """Return the power between the first and the last update of a counter; steps over a reset are left out."""
    known = np.flatnonzero(~np.isnan(energy_mj))
    near = np.diff(window.server.wall_ns[known]) <= window.gap_limit_s * NS_PER_S  # else it may have been long before
    updates = known[1:][near & (np.diff(energy_mj[known]) != 0)]
    updates = updates[np.isin(updates, window.scrapes)]
    steps_j = np.diff(energy_mj[updates]) / _MJ_PER_J
    steps_s = np.diff(window.server.wall_ns[updates]) / NS_PER_S
    grown = steps_j > 0
    covered_s = float(steps_s[grown].sum())
    if covered_s <= 0 or covered_s < _LEAST_SHARE * window.lasts_s:
        return None
    return float(steps_j[grown].sum()) / covered_s


def _gauge_w(window: ServerWindow, power_w: Floats) -> float | None:
    """Return the mean of a gauge over the scrapes; None if it was not read for too long a part of the window."""
    scrapes = window.scrapes[~np.isnan(power_w[window.scrapes])]
    gap_s = window.longest_s(window.server.wall_ns[scrapes])
    return float(power_w[scrapes].mean()) if gap_s is not None and gap_s <= window.gap_limit_s else None
