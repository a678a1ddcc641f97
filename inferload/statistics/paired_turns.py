"""Differences between the same turns in two runs. A pair has one turn id, and ended well in the measure phase of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferload.measure.arrow import pa, pc
from inferload.measure.columns import values_by_turn

COLUMNS = ("turn_id", "phase", "failure", "finish_reason", "sent_ns", "first_ns", "last_ns")
_MEASURES = ("ttft_ms", "e2e_ms")


def paired(before: pa.Table, after: pa.Table) -> dict[str, Any]:
    """Return per measure: pairs, both means, mean difference and median ratio (after / before).

    `only_after`: turns that the run before did not send.
    """
    ok_before, ok_after = _measured(before), _measured(after)
    sent_before = set(before["turn_id"].to_pylist())
    sent_after = ok_after["turn_id"].to_pylist()
    measures = {name: _compared(_values(ok_before, name), _values(ok_after, name)) for name in _MEASURES}
    return {"only_after": sum(turn not in sent_before for turn in sent_after), "measures": measures}


def _measured(table: pa.Table) -> pa.Table:
    ended = pc.and_(pc.equal(table["phase"], "measure"), pc.is_null(table["failure"]))
    return table.filter(pc.and_(ended, pc.not_equal(pc.fill_null(table["finish_reason"], ""), "cancelled")))


def _values(table: pa.Table, name: str) -> dict[str, float]:
    values, rows = values_by_turn(table, name)
    return dict(zip(table["turn_id"].take(pa.array(rows)).to_pylist(), values.tolist(), strict=True))


def _compared(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    both = [turn for turn in after if turn in before]
    if not both:
        return {"pairs": 0, "before_mean": None, "after_mean": None, "difference_mean": None, "ratio_p50": None}
    old, new = (np.array([values[turn] for turn in both]) for values in (before, after))
    ratios = new[old > 0] / old[old > 0]
    return {
        "pairs": len(both),
        "before_mean": float(old.mean()),
        "after_mean": float(new.mean()),
        "difference_mean": float((new - old).mean()),
        "ratio_p50": float(np.median(ratios)) if len(ratios) else None,
    }
