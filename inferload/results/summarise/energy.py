"""Energy of the GPUs of a run, from pages of GPU exporters: as a whole, by exporter and by role."""

from collections.abc import Callable, Mapping, Sequence

from inferload.results.documents.summary_document import Energy, EnergyPart
from inferload.servers import gpu_energy
from inferload.servers.gpu_energy import Gpu, Power
from inferload.servers.window import ServerWindow

Rates = Callable[[float | None], dict[str, float | None]]


def energy_of(
    windows: Sequence[ServerWindow], window_s: float | None, rates: Rates, roles: Mapping[str, str]
) -> Energy | None:
    """Return the energy of the measure phase; None if no scraped page has GPUs. `rates`: its figures for a power in W.

    `roles`: of exporters, by target. The whole is unknown if a target never answered: it may have further GPUs.
    """
    pages = {window.server.target: found for window in windows if (found := gpu_energy.by_gpu(window))}
    if not pages or window_s is None:
        return None

    def part(*targets: str) -> EnergyPart:
        power = gpu_energy.together(_gpus([pages[target] for target in targets]).values())
        return EnergyPart(gpus=power.gpus, joules=power.joules(window_s), source=power.source, rates=rates(power.watts))

    whole, silent = part(*pages), [each.server.target for each in windows if not len(each.server.wall_ns)]
    why = None
    if silent:
        whole = EnergyPart(gpus=whole.gpus, rates=rates(None))
        why = f"{silent[0]} never answered, and may have GPUs"
    elif whole.joules is None:
        unknown = next(target for target in pages if part(target).joules is None)
        why = (
            f"{unknown} has a GPU without a usable counter of energy and without a gauge of power over the whole window"
        )
    return Energy(
        gpus=whole.gpus,
        joules=whole.joules,
        source=whole.source,
        rates=whole.rates,
        why=why,
        by_target={target: part(target) for target in pages},
        by_role={
            role: part(*(target for target in pages if roles.get(target) == role))
            for role in sorted({roles[target] for target in pages if target in roles})
        },
    )


def _gpus(pages: Sequence[Mapping[Gpu, Power]]) -> dict[Gpu, Power]:
    """Return the GPUs of several pages, each once: with its power if a page knows it, by its counter if one does."""
    found: dict[Gpu, Power] = {}
    for page in pages:
        for gpu, power in page.items():
            found[gpu] = max(found.get(gpu, power), power, key=lambda each: (each.watts is not None, each.counted))
    return found
