"""Energy of the GPUs of a run as a whole, by exporter and by role, and their clocks at its start and end.

Both are of the measure phase, from pages of GPU exporters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import asdict, replace

from inferload.figures.pages import metric_names as names
from inferload.results.documents.summary_document import Energy, EnergyPart
from inferload.results.verdict.evidence import GpuClock
from inferload.servers import gpu_energy
from inferload.servers.gpu_energy import Gpu, Power
from inferload.servers.window import ServerWindow

Rates = Callable[[float | None], dict[str, float | None]]
_BUSY = 50.0  # per cent of GPU use: the clock of an idle GPU falls as well
_PARTS = 4  # of the window: the first and the last one are compared
_FEWEST = 3  # scrapes of a busy GPU in each


def energy_of(
    windows: Sequence[ServerWindow], window_s: float | None, rates: Rates, roles: Mapping[str, str]
) -> Energy | None:
    """Return the energy of the measure phase; None if no scraped page has GPUs. `rates`: its figures for a power in W.

    `roles`: of exporters, by target. The whole is unknown if a target never answered: it may have further GPUs.
    """
    pages = {window.server.target: found for window in windows if (found := _powers(window))}
    if not pages or window_s is None:
        return None

    def part(targets: Iterable[str]) -> EnergyPart:
        power = gpu_energy.together(_gpus([pages[target] for target in targets]).values())
        return EnergyPart(gpus=power.gpus, joules=power.joules(window_s), source=power.source, rates=rates(power.watts))

    whole, by_target = part(pages), {target: part([target]) for target in pages}
    why = None
    if silent := [each.server.target for each in windows if not len(each.server.wall_ns)]:
        whole = EnergyPart(gpus=whole.gpus, rates=rates(None))
        why = f"{silent[0]} never answered, and may have GPUs"
    elif whole.joules is None:
        unknown = next(target for target, each in by_target.items() if each.joules is None)
        why = (
            f"{unknown} has a GPU without a usable counter of energy and without a gauge of power over the whole window"
        )
    by_role = {
        role: part(target for target in pages if roles.get(target) == role)
        for role in sorted({roles[target] for target in pages if target in roles})
    }
    return Energy(**asdict(whole), why=why, by_target=by_target, by_role=by_role)


def _powers(window: ServerWindow) -> dict[Gpu, Power]:
    """Return the mean power of each GPU over the window of all servers, of which an exporter may have seen a part."""
    return {
        gpu: replace(power, watts=None if power.watts is None else power.watts * window.part)
        for gpu, power in gpu_energy.by_gpu(window).items()
    }


def _gpus(pages: Sequence[Mapping[Gpu, Power]]) -> dict[Gpu, Power]:
    """Return the GPUs of several pages, each once: with its power if a page knows it, by its counter if one does."""
    found: dict[Gpu, Power] = {}
    for page in pages:
        for gpu, power in page.items():
            found[gpu] = max(
                found.get(gpu, power), power, key=lambda each: (each.watts is not None, each.counted_w is not None)
            )
    return found


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
