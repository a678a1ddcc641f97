"""Table of prefix cache hits for the terminal: expected, counted by the server, and reported with the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferload.base.numbers import short
from inferload.base.text_table import align


def cache_table(summary: Mapping[str, Any]) -> str:
    """Return the table; empty if no hits are known."""
    cache = summary.get("cache") or {}
    expected, counted, reported = (cache.get(name) for name in ("expected", "counted", "per_turn"))
    rows = []
    if expected:
        rows.append(["expected", expected["input_tokens"], expected["cached_tokens"], expected["hit_rate"]])
    if counted:
        rows.append(["counted by the server", counted["queries"], counted["hits"], counted["hit_rate"]])
    if reported:
        rows.append(
            ["reported with answers", reported["input_tokens"], reported["cached_tokens"], reported["hit_rate"]]
        )
    if not rows:
        return ""
    shown = [[row[0], short(row[1]), short(row[2]), short(None if row[3] is None else row[3] * 100)] for row in rows]
    exactness = f", expected hits {expected['exactness']}" if expected else ""
    off = "; it is switched off" if cache.get("enabled") is False else ""
    title = f"prefix cache over the whole run, all phases (blocks of {cache['block_size']} tokens{exactness}{off})"
    notes = [f"  {note}" for part in (expected, counted) for note in (part or {}).get("notes", [])]
    table = align([["", "input", "cached", "hit %"], *shown])
    return "\n".join([title, table, *notes, *_against(cache)])


def against_earlier(summary: Mapping[str, Any]) -> str:
    """Return the mean latencies beside those of the same turns in the run before, on one line; empty without such a run."""
    cache = summary.get("cache") or {}
    earlier = cache.get("earlier") or {}
    texts = [
        f"mean {name.removesuffix('_ms').upper()} {short(block['after_mean'])} against {short(block['before_mean'])} ms "
        f"{earlier['arm']} ({block['pairs']} pairs)"
        for name, block in (earlier.get("measures") or {}).items()
        if block["pairs"]
    ]
    return f"the same turns as {earlier['run_dir']}: {'; '.join(texts)}" if texts else ""


def _against(cache: Mapping[str, Any]) -> list[str]:
    """Return the comparison of the same turns in the run before and in this run."""
    earlier = cache.get("earlier") or {}
    measures = earlier.get("measures") or {}
    rows = [
        [name, *(short(measure[key]) for key in ("pairs", "before_mean", "after_mean", "difference_mean", "ratio_p50"))]
        for name, measure in measures.items()
        if measure["pairs"]
    ]
    if not rows:
        return []
    heads = ["", "pairs", f"{earlier['arm']} mean", f"{cache['arm']} mean", "difference", "ratio p50"]
    more = f"; {earlier['only_after']} turns have no pair, and were cold" if earlier["only_after"] else ""
    title = (
        f"the same turns, {earlier['arm']} ({earlier['run_dir']}) and {cache['arm']}, of one start of the server{more}"
    )
    return ["", title, align([heads, *rows])]
