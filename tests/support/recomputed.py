"""Recomputation of summary.json from the rows of turns/*.parquet in plain Python, independent of inferload."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

Row = dict[str, Any]
QUANTILES = {"p50": Fraction(1, 2), "p90": Fraction(9, 10), "p95": Fraction(19, 20), "p99": Fraction(99, 100)}


def _span(start: str, end: str) -> Callable[[Row], list[float]]:
    def values(row: Row) -> list[float]:
        return [] if None in (row[start], row[end]) else [(row[end] - row[start]) / 1e6]

    return values


def _gaps(row: Row) -> list[float]:
    at_ns = row["event_ns"] or []
    return [(later - earlier) / 1e6 for earlier, later in pairwise(at_ns)]


def _cancelled(row: Row) -> bool:
    return row["failure"] is None and row["finish_reason"] == "cancelled"


def _tokens(row: Row) -> list[int] | None:
    """Return the tokens of each event: as reported, else those of the turn in equal whole shares."""
    if row["event_tokens"] is not None or row["output_tokens"] is None:
        return row["event_tokens"]
    n = len(row["event_ns"] or [])
    upto = [row["output_tokens"] * k // n for k in range(n + 1)] if n else []
    return [later - earlier for earlier, later in pairwise(upto)]


def _tpot(row: Row) -> list[float]:
    if _cancelled(row) or not row["event_ns"] or None in (row["output_tokens"], row["hidden_tokens"]):
        return []
    counted = row["event_tokens"]
    streamed = row["output_tokens"] - row["hidden_tokens"]
    after = streamed - (counted[0] if counted else streamed / len(row["event_ns"]))
    return [(row["last_ns"] - row["first_ns"]) / 1e6 / after] if after > 0 else []


def _unless_cancelled(values: Callable[[Row], list[float]]) -> Callable[[Row], list[float]]:
    return lambda row: [] if _cancelled(row) else values(row)


MEASURES: dict[str, Callable[[Row], list[float]]] = {
    "lag_ms": _span("planned_ns", "sent_ns"),
    "upload_ms": _span("sent_ns", "written_ns"),
    "ttft_ms": _span("sent_ns", "first_ns"),
    "first_event_ms": _span("sent_ns", "first_event_ns"),
    "ttft_planned_ms": _span("planned_ns", "first_ns"),
    "ttfo_ms": _span("sent_ns", "first_visible_ns"),
    "e2e_ms": _unless_cancelled(_span("sent_ns", "last_ns")),
    "e2e_planned_ms": _unless_cancelled(_span("planned_ns", "last_ns")),
    "itl_ms": _gaps,
    "tpot_ms": _tpot,
    "connect_ms": lambda row: [] if row["connect_ns"] is None else [row["connect_ns"] / 1e6],
    "round_trip_ms": lambda row: [] if row["round_trip_ns"] is None else [row["round_trip_ns"] / 1e6],
}


def check_latency(block: dict[str, Any], rows: Iterable[Row], within: float) -> None:
    """Check a `latency` block against its rows. `within`: relative tolerance of percentiles."""
    successful = [row for row in rows if row["failure"] is None]
    for name in MEASURES.keys() & block.keys():
        of = MEASURES[name]
        values, shown = sorted(value for row in successful for value in of(row)), block[name]
        assert shown["count"] == len(values), name
        if values:
            expected = (sum(values) / len(values), values[0], values[-1])
            assert (shown["mean"], shown["min"], shown["max"]) == pytest.approx(expected, abs=2e-6), name
        for key, q in QUANTILES.items():
            if not values:
                assert shown[key] is None, (name, key)
                continue
            expected_at = values[math.ceil(len(values) * q) - 1]
            assert shown[key] == pytest.approx(expected_at, rel=within, abs=2e-6), (name, key)
            assert (key in shown.get("intervals", {})) == (len(values) * (1 - q) < 10), (name, key)


def check_turns(counts: dict[str, Any], rows: list[Row]) -> None:
    """Check a `turns` block against its rows."""
    by_failure = Counter(row["failure"] for row in rows if row["failure"] is not None)
    unfinished = by_failure.pop("unfinished", 0)
    reported = {key: counts[key] for key in ("sent", "ok", "cancelled", "failed", "unfinished", "requests", "retried")}
    ok = sum(row["failure"] is None for row in rows)
    assert reported == {
        "sent": len(rows),
        "ok": ok,
        "cancelled": sum(_cancelled(row) for row in rows),
        "failed": len(rows) - ok - unfinished,
        "unfinished": unfinished,
        "requests": sum(row["attempts"] for row in rows),
        "retried": sum(row["attempts"] > 1 for row in rows),
    }
    assert {key: value for key, value in counts["by_failure"].items() if key != "unfinished"} == by_failure


def check_rates(
    summary: dict[str, Any], manifest: dict[str, Any], rows: list[Row], overrun_ms: Mapping[str, float]
) -> None:
    """Check the rates of the measure phase, with the times of workers on the master's clock."""
    workers, anchor = {worker["name"]: worker for worker in manifest["workers"]}, manifest["anchor"]
    phase = next(phase for phase in manifest["phases"] if phase["phase"] == "measure")
    start_ns, end_ns = (phase[key] - anchor["wall_ns"] + anchor["mono_ns"] for key in ("start_wall_ns", "end_wall_ns"))
    unknown, least, most = False, Counter[str](), Counter[str]()  # they differ if a worker knew the end late
    for row in rows:
        worker = workers[row["worker"]]
        shift_ns = worker["anchor"]["mono_ns"] - worker["clock_offset_ns"]
        until_ns = end_ns
        if row["worker"] in overrun_ms:
            until_ns += round(overrun_ms[row["worker"]] * 1e6) + 1000  # marks have microseconds
        assert row["phase"] != "measure" or start_ns <= row["planned_ns"] + shift_ns < until_ns
        counted = _tokens(row)
        unknown |= counted is None and any(_events_in(row, start_ns - shift_ns, until_ns - shift_ns))
        for counts, last_ns in ((least, end_ns), (most, until_ns)):
            window = start_ns - shift_ns, last_ns - shift_ns
            counts["ended"] += row["failure"] is None and window[0] <= row["closed_ns"] < window[1]
            counts["begun"] += _session_begun(row, *window)
            counts["tokens"] += sum(n for n, here in zip(counted or [], _events_in(row, *window), strict=False) if here)
    window_s, rates = (end_ns - start_ns) / 1e9, summary["rates"]
    assert summary["window_s"] == pytest.approx(window_s, abs=1e-6)
    names = {"turns_per_s": "ended", "achieved_sessions_per_s": "begun"} | (
        {} if unknown else {"output_tok_per_s": "tokens"}
    )
    for rate, name in names.items():
        count = rates[rate] * window_s
        assert count == pytest.approx(max(least[name], min(count, most[name]))), (rate, least, most)
    assert rates["achieved_sessions_per_s"] <= rates["offered_sessions_per_s"]


def _events_in(row: Row, start_ns: int, end_ns: int) -> list[bool]:
    """Return True for each event in the window; none for a turn that was not sent."""
    sent_ns = row["sent_ns"]
    return [] if sent_ns is None else [start_ns <= sent_ns + at_ns < end_ns for at_ns in row["event_ns"] or []]


def _session_begun(row: Row, start_ns: int, end_ns: int) -> bool:
    """Return True if a session was planned and started in the window; connecting counts as started."""
    begun_ns = row["planned_ns"]
    if row["sent_ns"] is not None:
        begun_ns = max(begun_ns, row["sent_ns"] - (row["connect_ns"] or 0))
    opens = row["turn_index"] == 0 and row["session_id"].partition("/")[2] in ("", "#1")
    return opens and start_ns <= row["planned_ns"] and begun_ns < end_ns


def check(summary: dict[str, Any], manifest: dict[str, Any], rows: list[Row], overrun_ms: Mapping[str, float]) -> None:
    """Check a whole summary. `overrun_ms`: delay of the end of the phase, by worker."""
    measured = [row for row in rows if row["phase"] == "measure"]
    assert MEASURES.keys() <= summary["latency"].keys()
    check_latency(summary["latency"], measured, 1e-9 if summary["percentiles_from"] == "records" else 0.003)
    check_turns(summary["turns"], measured)
    for phase, counts in summary["turns"]["by_phase"].items():
        check_turns(counts, rows if phase == "all" else [row for row in rows if row["phase"] == phase])
    for column, key in (("class", "by_class"), ("target", "by_target"), ("model", "by_model")):
        for name, block in (summary.get(key) or {}).items():
            mine = [row for row in measured if row[column] == name]
            check_latency(block["latency"], mine, 0.003)
    for step in summary["steps"]:
        mine = [row for row in measured if row["step"] == step["step"]]
        check_latency(step["latency"], mine, 0.003)
        check_turns(step["turns"], mine)
    if any(phase["phase"] == "measure" for phase in manifest["phases"]):
        check_rates(summary, manifest, rows, overrun_ms)
