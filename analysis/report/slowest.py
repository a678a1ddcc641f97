"""Table of the slowest turns of a run."""

from collections.abc import Sequence

import numpy as np

from inferload.figures.figure import Head
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import E2E_PLANNED, OF_TURN, TTFT

from ..data.frame import Frame, concat, known
from ..data.frames import RunFrames
from ..data.turn_frames import LONGEST_GAP

SHOWN = 15
_OF_STREAMS = (TTFT.head(), "longest gap, ms", "output tokens")
COLUMNS: list[str | Head] = [
    "turn",
    "class",
    "planned at, s",
    *(figure.head() for figure in OF_TURN),
    "longest gap, ms",
    "input tokens",
    "cached",
    "output tokens",
    "worker",
]


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
    rows: list[Sequence[Cell]] = [_row(slowest, row) for row in range(len(slowest))]
    columns = COLUMNS
    if not known(slowest[TTFT.key]).any():
        shown = [at for at, column in enumerate(COLUMNS) if column not in _OF_STREAMS]
        columns, rows = [COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in rows]
    note = "By E2E from the plan; successful turns of the measure phase, without cancelled ones."
    return Table("slowest", "Slowest turns", columns, rows, note)


_NEEDED = (
    *("session_id", "turn_index", "class", "worker", "phase", "ok", "planned_s"),
    *(*(figure.key for figure in OF_TURN), LONGEST_GAP),
    *("input_tokens", "cached_tokens", "output_tokens"),
)


def _row(turns: Frame, row: int) -> Sequence[Cell]:
    counts = (turns.numbers(name)[row] for name in ("input_tokens", "cached_tokens", "output_tokens"))
    return (
        f"{turns['session_id'][row]}/{turns['turn_index'][row]}",
        str(turns["class"][row]),
        f"{turns['planned_s'][row]:.1f}",
        *(float(turns[name][row]) for name in (*(figure.key for figure in OF_TURN), LONGEST_GAP)),
        *(None if np.isnan(count) else int(count) for count in counts),
        str(turns["worker"][row]),
    )
