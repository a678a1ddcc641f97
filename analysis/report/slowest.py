"""Table of the slowest turns of a run."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from inferload.figures.figure import Head
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import E2E_PLANNED, OF_TURN

from ..data.frames import RunFrames
from ..data.turn_frames import LONGEST_GAP

SHOWN = 15
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
    slowest: pd.DataFrame | None = None
    for turns in run.batches(*_NEEDED):
        if "phase" not in turns:
            continue
        chosen = turns[turns["ok"] & (turns["phase"] == "measure") & turns[E2E_PLANNED.key].notna()]
        so_far = chosen if slowest is None else pd.concat([slowest, chosen.nlargest(SHOWN, E2E_PLANNED.key)])
        slowest = so_far.nlargest(SHOWN, E2E_PLANNED.key)
    if slowest is None or not len(slowest):
        return None
    rows = [_row(turn) for _, turn in slowest.iterrows()]
    note = "By E2E from the plan; successful turns of the measure phase, without cancelled ones."
    return Table("slowest", "Slowest turns", COLUMNS, rows, note)


_NEEDED = (
    *("session_id", "turn_index", "class", "worker", "phase", "ok", "planned_s"),
    *(*(figure.key for figure in OF_TURN), LONGEST_GAP),
    *("input_tokens", "cached_tokens", "output_tokens"),
)


def _row(turn: Any) -> Sequence[Cell]:
    def count(name: str) -> int | None:
        value = turn.get(name)
        return None if value is None or pd.isna(value) else int(value)

    return (
        f"{turn['session_id']}/{turn['turn_index']}",
        str(turn["class"]),
        f"{turn['planned_s']:.1f}",
        *(float(turn[name]) for name in (*(figure.key for figure in OF_TURN), LONGEST_GAP)),
        *(count(name) for name in ("input_tokens", "cached_tokens", "output_tokens")),
        str(turn["worker"]),
    )
