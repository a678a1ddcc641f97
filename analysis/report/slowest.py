"""Table of the slowest turns of a run."""

from typing import Any

import numpy as np
import pandas as pd

from inferload.numbers import NOT_KNOWN, number

from ..data.frames import RunFrames
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
    """Return the slowest successful turns of the measure phase by E2E from the plan; None without any."""
    turns = run.turns
    if not len(turns) or "phase" not in turns:
        return None
    chosen = turns[turns["ok"] & (turns["phase"] == "measure") & turns["e2e_planned_ms"].notna()]
    if not len(chosen):
        return None
    slowest = chosen.nlargest(SHOWN, "e2e_planned_ms")
    gaps_ms = _longest_gaps(run, slowest.index.to_numpy())
    rows = tuple(_row(turn, gap) for (_, turn), gap in zip(slowest.iterrows(), gaps_ms, strict=True))
    note = "By E2E from the plan; successful turns of the measure phase, without cancelled ones."
    return Table("slowest", "Slowest turns", COLUMNS, rows, note)


def _longest_gaps(run: RunFrames, rows: np.ndarray[Any, Any]) -> list[float | None]:
    inside = np.isin(run.events.turn, rows)
    gaps = pd.Series(run.events.gap_ms[inside]).groupby(run.events.turn[inside]).max()
    return [float(gaps[row]) if row in gaps and not np.isnan(gaps[row]) else None for row in rows]


def _row(turn: Any, gap_ms: float | None) -> tuple[str, ...]:
    def count(name: str) -> str:
        value = turn.get(name)
        return NOT_KNOWN if value is None or pd.isna(value) else f"{int(value):,}"

    name = f"{turn['session_id']}/{turn['turn_index']}"
    return (
        name,
        str(turn["class"]),
        f"{turn['planned_s']:.1f}",
        *(number(turn[name]) for name in ("lag_ms", "ttft_ms", "e2e_ms", "e2e_planned_ms")),
        number(gap_ms),
        count("input_tokens"),
        count("cached_tokens"),
        count("output_tokens"),
        str(turn["worker"]),
    )
