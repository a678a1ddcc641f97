"""Table of the slowest turns of a run."""

from typing import Any

import pandas as pd

from inferload.base.numbers import NOT_KNOWN, number
from inferload.figures.turn_figures import E2E, E2E_PLANNED, LAG, TTFT

from ..data.frames import RunFrames
from ..data.turn_frames import LONGEST_GAP
from ..pages.tables import Table

SHOWN = 15
COLUMNS = (
    "turn",
    "class",
    "planned at, s",
    "lag, ms",
    "TTFT, ms",
    "E2E, ms",
    "E2E from plan, ms",
    "longest gap, ms",
    "input tokens",
    "cached",
    "output tokens",
    "worker",
)


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
    rows = tuple(_row(turn) for _, turn in slowest.iterrows())
    note = "By E2E from the plan; successful turns of the measure phase, without cancelled ones."
    return Table("slowest", "Slowest turns", COLUMNS, rows, note)


_NEEDED = (
    *("session_id", "turn_index", "class", "worker", "phase", "ok", "planned_s"),
    *(LAG.key, TTFT.key, E2E.key, E2E_PLANNED.key, LONGEST_GAP),
    *("input_tokens", "cached_tokens", "output_tokens"),
)


def _row(turn: Any) -> tuple[str, ...]:
    def count(name: str) -> str:
        value = turn.get(name)
        return NOT_KNOWN if value is None or pd.isna(value) else f"{int(value):,}"

    name = f"{turn['session_id']}/{turn['turn_index']}"
    return (
        name,
        str(turn["class"]),
        f"{turn['planned_s']:.1f}",
        *(number(turn[name]) for name in (LAG.key, TTFT.key, E2E.key, E2E_PLANNED.key)),
        number(turn[LONGEST_GAP]),
        count("input_tokens"),
        count("cached_tokens"),
        count("output_tokens"),
        str(turn["worker"]),
    )
