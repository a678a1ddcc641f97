"""Differences between the same turns in two runs. A pair has one turn id, and ended well in the measure phase of both."""

from collections.abc import Iterable
from itertools import chain

import numpy as np

from inferload.base.arrow import pa, pc
from inferload.figures.turn_figures import HEADLINES
from inferload.figures.turn_values import turn_columns
from inferload.results.documents.figures_document import PairedMeasure
from inferload.turns.record import CANCELLED
from inferload.turns.sketch import Floats

_FIGURES = tuple(figure for figure in HEADLINES if not figure.by_event)
_MEASURES = tuple(figure.key for figure in _FIGURES)
COLUMNS = tuple(
    dict.fromkeys(("turn_id", "phase", "failure", "finish_reason", *chain(*(figure.columns for figure in _FIGURES))))
)


def figures_of_turns(turns: pa.Table) -> pa.Table:
    """Return what `paired` needs of a table of COLUMNS. Measures of turns that did not end well are NaN."""
    ended = pc.and_(pc.equal(turns["phase"], "measure"), pc.is_null(turns["failure"]))
    ended = pc.and_(ended, pc.not_equal(pc.fill_null(turns["finish_reason"], ""), CANCELLED))
    measures = turn_columns(turns, _MEASURES)
    columns = {name: np.where(ended.to_numpy(), values, np.nan) for name, values in measures.items()}
    return pa.table({"turn_id": turns["turn_id"], "ended_well": ended, **columns})


def paired(parts: Iterable[tuple[pa.Table, pa.Table]]) -> tuple[int, dict[str, PairedMeasure]]:
    """Return the turns that the run before did not send, and the comparison of the others by measure.

    `parts`: tables of `figures_of_turns` of the run before and the run after; turns of one pair are in one part.
    """
    only_after = 0
    pairs: dict[str, list[tuple[Floats, Floats]]] = {name: [] for name in _MEASURES}
    for before, after in parts:
        at = pc.index_in(after["turn_id"], value_set=before["turn_id"].combine_chunks())
        only_after += pc.sum(pc.and_(after["ended_well"], pc.is_null(at))).as_py() or 0
        both = at.is_valid().to_numpy()
        rows = at.drop_null().to_numpy()
        for name, found in pairs.items():
            old, new = before[name].to_numpy()[rows], after[name].to_numpy()[both]
            known = ~np.isnan(old) & ~np.isnan(new)
            found.append((old[known], new[known]))
    return only_after, {name: _compared(found) for name, found in pairs.items()}


def _compared(pairs: list[tuple[Floats, Floats]]) -> PairedMeasure:
    old, new = (np.concatenate([np.zeros(0), *(pair[side] for pair in pairs)]) for side in (0, 1))
    if not len(old):
        return PairedMeasure(pairs=0)
    ratios = new[old > 0] / old[old > 0]
    return PairedMeasure(
        pairs=len(old),
        before_mean=float(old.mean()),
        after_mean=float(new.mean()),
        difference_mean=float((new - old).mean()),
        ratio_p50=float(np.median(ratios)) if len(ratios) else None,
    )
