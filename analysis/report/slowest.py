"""Table of the slowest turns of a run."""

from collections.abc import Mapping, Sequence

import numpy as np

from inferload.base.numbers import number, time_unit
from inferload.figures.figure import Head
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import E2E_PLANNED, OF_TURN, TTFT

from ..data.frame import Frame, concat, known
from ..data.frames import RunFrames
from ..data.turn_frames import LONGEST_GAP

SHOWN = 15
_LONGEST = Head("longest gap, ms")
_OF_STREAMS = (TTFT.head(), _LONGEST, Head("output tokens"))
COLUMNS = [
    *map(Head, ("turn", "class", "planned at, s")),
    *(figure.head() for figure in OF_TURN),
    _LONGEST,
    *map(Head, ("input tokens", "cached", "output tokens", "worker")),
]
_TIMES = (*(figure.key for figure in OF_TURN), LONGEST_GAP)


def table(run: RunFrames) -> Table | None:
    """Return the slowest successful turns of the measure phase by E2E from the plan, of all turns; None without any."""
    slowest = Frame({})
    for turns in run.batches(*_NEEDED):
        if "phase" not in turns:
            continue
        chosen = np.flatnonzero(turns["ok"] & (turns["phase"] == "measure") & known(turns[E2E_PLANNED.key]))
        longest = turns[chosen[np.argsort(-turns[E2E_PLANNED.key][chosen], kind="stable")[:SHOWN]]]
        so_far = concat([slowest, longest]) if len(slowest) else longest
        slowest = so_far[np.argsort(-so_far[E2E_PLANNED.key], kind="stable")[:SHOWN]]
    if not len(slowest):
        return None
    scales = {name: time_unit(slowest[name].tolist()) for name in _TIMES}
    rows: list[Sequence[Cell]] = [_row(slowest, row, scales) for row in range(len(slowest))]
    units = {name: unit for name, (unit, _) in scales.items()}
    heads = {figure.head(): figure.head(unit=units[figure.key]) for figure in OF_TURN}
    heads |= {_LONGEST: Head(f"longest gap, {units[LONGEST_GAP]}", _LONGEST.text)}
    shown = [at for at, head in enumerate(COLUMNS) if head not in _OF_STREAMS or known(slowest[TTFT.key]).any()]
    columns = [heads.get(COLUMNS[at], COLUMNS[at]) for at in shown]
    rows = [[row[at] for at in shown] for row in rows]
    note = "By E2E from the plan; successful turns of the measure phase, without cancelled ones."
    return Table("slowest", "Slowest turns", columns, rows, note)


_NEEDED = (
    *("session_id", "turn_index", "class", "worker", "phase", "ok", "planned_s"),
    *_TIMES,
    *("input_tokens", "cached_tokens", "output_tokens"),
)


def _row(turns: Frame, row: int, scales: Mapping[str, tuple[str, float]]) -> Sequence[Cell]:
    counts = (turns.numbers(name)[row] for name in ("input_tokens", "cached_tokens", "output_tokens"))
    return (
        f"{turns['session_id'][row]}/{turns['turn_index'][row]}",
        str(turns["class"][row]),
        f"{turns['planned_s'][row]:.1f}",
        *(number(float(turns[name][row]) * factor) for name, (_, factor) in scales.items()),
        *(None if np.isnan(count) else int(count) for count in counts),
        str(turns["worker"][row]),
    )
