"""Table of the SLO: the limits of one turn, and the share of the turns that missed each, from summary.json."""

from collections.abc import Mapping
from typing import Any

from inferload.base.escaping import escaped
from inferload.base.numbers import number, percent
from inferload.figures.slo_text import LIMITS

NOTE = (
    "A turn meets the SLO if it succeeds within every limit. Each cell: the limit, and the share of the turns that missed it; "
    "a turn can miss several. The p99 of the gaps is that of one turn. In an open loop TTFT and E2E count from the planned "
    "start. The SLO does not decide whether the run passes; a gate on slo_attainment does."
)

Rows = tuple[tuple[str, ...], ...]


def columns_and_rows(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    """Return the columns, and a row for all classes and for each of several; no rows without an SLO."""
    classes = summary.get("by_class") or {}
    parts = [("all", summary), *(classes.items() if len(classes) > 1 else ())]
    blocks = [(name, block) for name, part in parts if (block := part.get("slo"))]
    known = dict.fromkeys(name for _, block in blocks for name in (*(block.get("limits") or {}), *block["missed"]))
    shown = [*(name for name in LIMITS if name in known), *(name for name in known if name not in LIMITS)]
    heads = [f"{LIMITS[name]}, ms" if name in LIMITS else escaped(name) for name in shown]
    rows = tuple(
        (
            escaped(name),
            number(block["turns"]),
            percent(_share(block, block.get("met", 0))),
            *(_missed(block, limit) for limit in shown),
        )
        for name, block in blocks
    )
    return ("class", "turns", "met all", *heads), rows


def _missed(block: Mapping[str, Any], name: str) -> str:
    """Return limit and share, as `1,000: missed by 3 %`; of failed and dropped turns the share."""
    share = percent(_share(block, block["missed"].get(name, 0)))
    limits = block.get("limits") or {}
    if name not in LIMITS:
        return share
    if name not in limits:
        return "no limit"
    # Turns of classes without the limit could not miss it, so that a share of all turns says nothing.
    return "by class" if limits[name] is None else f"{number(limits[name])}: missed by {share}"


def _share(block: Mapping[str, Any], turns: int) -> float | None:
    return turns / block["turns"] if block["turns"] else None
