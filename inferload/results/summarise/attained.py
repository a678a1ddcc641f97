"""Interval of the SLO attainment of each class of a run, from the turn records of the measure phase."""

from collections.abc import Mapping
from itertools import chain

import numpy as np
from msgspec.structs import replace

from inferload.base.arrow import pc
from inferload.figures.limits.slo import SLO_MEASURES, Slo
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_values import SLICES
from inferload.results.documents.figures_document import Figures
from inferload.results.statistics.intervals import share_of_counts
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.turns import Turns
from inferload.turns.sketch import Floats

_AT_ONCE = 4096  # turns
_OF_TURN = ("worker", "class", "phase", "failure", "planned_ns", "sent_ns", "closed_ns")
_COLUMNS = tuple(dict.fromkeys((*_OF_TURN, *chain(*(row.figure.columns for row in SLO_MEASURES)))))


def with_intervals(by_class: Mapping[str, Figures], run: Counts, turns: Turns | None) -> dict[str, Figures]:
    """Return the figures of classes with the interval of each attainment, if several classes have one.

    A class with dropped sessions, whose instants are not known, has none.
    """
    judged = {name: part.slo for name, part in by_class.items() if part.slo is not None}
    found = dict(by_class)
    if turns is None or len(judged) < 2:
        return found
    for (name, slo), met, counts in zip(judged.items(), *_by_slice(run, turns, [*judged]), strict=True):
        if (met.sum(), counts.sum()) == (slo.met, slo.turns):
            within = share_of_counts(met, counts)
            interval = [within.low, within.high] if within.low is not None else None
            found[name] = replace(found[name], slo=replace(slo, interval=interval))
    return found


def _by_slice(run: Counts, turns: Turns, names: list[str]) -> tuple[Floats, Floats]:
    """Return turns that met the SLO, and turns, of each class (row) in SLICES parts of the measure phase by planned instants."""
    scenario, shifts_ns = run.plan.scenario, turns.shifts_ns(run.workers.workers)
    slos = [Slo(scenario.slo_of(name).limits, from_plan=scenario.open_loop) for name in names]
    windows = [window for window in run.course.windows if window.phase == "measure"]
    start_ns, end_ns = windows[0].start_ns, max(window.end_ns or window.start_ns + 1 for window in windows)
    met, counts = np.zeros((len(names), SLICES)), np.zeros((len(names), SLICES))
    for table in turns.read(_COLUMNS):
        for part in table.filter(pc.equal(table["phase"], "measure")).to_batches(max_chunksize=_AT_ONCE):
            for row, name in enumerate(names):
                mine = part.filter(pc.equal(part["class"], name))
                shift_ns = np.array([shifts_ns[worker] for worker in mine["worker"].to_pylist()], dtype=np.int64)
                at_ns = mine["planned_ns"].to_numpy() + shift_ns - start_ns
                slot = np.clip(at_ns * SLICES // (end_ns - start_ns), 0, SLICES - 1)
                counts[row] += np.bincount(slot, minlength=SLICES)
                met[row] += np.bincount(slot[slos[row].judge(TurnBatch.of_columns(mine)).met], minlength=SLICES)
    return met, counts
