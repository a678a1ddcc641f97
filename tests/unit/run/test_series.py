"""Series of live points: bounded memory, exact recent points, and minima and maxima of the history."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferload.run.live.panels import CLIENT, LOAD, SERVER, view
from inferload.run.live.series import BUCKETS, RECENT, Series
from inferload.run.master.live import HISTORY, NEWEST, series_document

VALUES = st.one_of(st.none(), st.floats(-1e9, 1e9), st.just(math.nan), st.integers(0, 10**6))


def filled(values: list[float | None], name: str = "a") -> Series:
    series = Series()
    for second, value in enumerate(values, 1):
        series.append(float(second), {name: value})
    return series


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


@settings(deadline=None, max_examples=40)
@given(st.lists(VALUES, min_size=1, max_size=60), st.integers(1, 60), st.integers(1, 200))
def test_the_history_keeps_extremes_and_times(pattern: list[float | None], repeats: int, most: int) -> None:
    values = (pattern * repeats)[: 3 * RECENT]
    series = filled(values)
    history = series.history(series.sequence, most, ["a"])
    assert 1 <= len(history.t_s) <= most
    assert history.t_s == sorted(set(history.t_s))
    assert history.t_s[0] == 1.0
    lows, highs = known(history.low["a"]), known(history.high["a"])
    if not known(values):
        assert lows == highs == known(history.mean["a"]) == []
        return
    assert min(lows) == rounded(min(known(values)))
    assert max(highs) == rounded(max(known(values)))
    for low, mean, high in zip(history.low["a"], history.mean["a"], history.high["a"], strict=True):
        if low is not None and mean is not None and high is not None:
            slack = 1e-3 * max(abs(low), abs(high))
            assert low - slack <= mean <= high + slack


@pytest.mark.parametrize("rising", [True, False])
def test_each_bucket_has_the_extremes_of_its_own_points(rising: bool) -> None:
    """Buckets that were used before the number of points per bucket doubled start empty."""
    count = RECENT + 3 * BUCKETS
    values = [float(second if rising else count - second) for second in range(count)]
    series = filled(values)
    history = series.history(count - RECENT, BUCKETS, ["a"])
    starts = [round(start) - 1 for start in history.t_s]
    parts = [values[start:end] for start, end in zip(starts, [*starts[1:], count - RECENT], strict=True)]
    assert history.low["a"] == [rounded(min(part)) for part in parts]
    assert history.high["a"] == [rounded(max(part)) for part in parts]
    assert history.mean["a"] == [pytest.approx(sum(part) / len(part), rel=1e-3, abs=1e-3) for part in parts]


@given(st.lists(VALUES, max_size=50), st.integers(0, 60))
def test_points_after_a_number_are_returned(values: list[float | None], after: int) -> None:
    points = filled(values).after(after, ["a"])
    if after > len(values):
        assert points is None
        return
    assert points is not None
    assert points.t_s == [float(second) for second in range(after + 1, len(values) + 1)]
    expected = [None if value is None or math.isnan(value) else rounded(value) for value in values[after:]]
    assert points.columns.get("a", []) == expected


def test_missing_values_of_a_column_are_unknown() -> None:
    series = Series()
    series.append(1.0, {"a": 1})
    series.append(2.0, {"b": 2})
    points = series.after(0, ["a", "b", "c"])
    assert points is not None
    assert points.columns == {"a": [1, None], "b": [None, 2]}


def test_an_old_point_number_returns_the_whole_history() -> None:
    series = filled([1.0] * (RECENT + 5))
    assert series.after(4, ["a"]) is None
    assert series.after(5, ["a"]) is not None
    assert series_document(series, 4)["whole"] is True


def test_memory_is_bounded_over_days() -> None:
    series, peak = Series(), 5.0
    for second in range(1, 40 * BUCKETS):
        series.append(float(second), {"a": peak if second == 777 else 1.0})
    assert len(series._t_s) == RECENT
    assert len(series._starts) <= BUCKETS
    assert max(known(series.history(series.sequence, HISTORY, ["a"]).high["a"])) == peak


def test_a_response_after_three_hours_is_below_100_kb() -> None:
    series = Series()
    names = (*CLIENT, *LOAD, *SERVER, "failed:timeout_first_event", "failed:http_5xx", "failed:http_429")
    for second in range(1, 3 * 3600 + 1):
        swing = 1 + math.sin(second / 7) / 3
        series.append(float(second), {name: 1234.5678 * swing / (number + 1) for number, name in enumerate(names)})
    document, later = (series_document(series, after) for after in (None, 3 * 3600 - 2))
    for each, most_bytes in ((document, 90_000), (later, 1_500)):
        assert len(json.dumps(each, allow_nan=False, separators=(",", ":"))) < most_bytes  # without tables and marks
        assert each["points"]["t"][-1] == 3 * 3600
    assert len(document["points"]["t"]) == NEWEST
    assert document["history"]["t"][0] == 1.0
    assert document["history"]["t"][-1] < document["points"]["t"][0]
    assert set(document["points"]["columns"]) == set(names)


def test_a_document_has_only_columns_of_its_class_and_target() -> None:
    series = Series()
    series.append(
        1.0,
        {
            "ttft_ms_p50": 1,
            "ttft_ms_p50@class:rag": 2,
            "kv_cache_usage": 0.1,
            "kv_cache_usage@target:b": 0.2,
            "users": 3,
            "itl_ms_p50": None,
        },
    )
    assert series_document(series)["points"]["columns"] == {"ttft_ms_p50": [1], "users": [3], "kv_cache_usage": [0.1]}
    chosen = series_document(series, None, "rag", "b")["points"]["columns"]
    assert chosen == {"ttft_ms_p50": [2], "users": [3], "kv_cache_usage": [0.2]}
    assert series_document(series, None, "no such class")["points"]["columns"] == {
        "users": [3],
        "kv_cache_usage": [0.1],
    }


def test_charts_of_streams_failures_a_gpu_and_drafts_are_hidden_without_them() -> None:
    hidden = {chart["title"] for chart in view()["charts"] if chart.get("optional")}
    of_streams = {"TTFT, ms", "ITL, ms", "TPOT, ms"}
    assert hidden == of_streams | {"Draft tokens, tok/s", "GPU, %", "GPU power, W", "Failed turns, /s"}


def test_each_text_of_the_view_is_in_sentence_case() -> None:
    shown = view()
    texts = [part["title"] for part in (*shown["charts"], *shown["tiles"], *shown["columns"])]
    texts += [line["label"] for chart in shown["charts"] for line in chart["lines"]]
    assert {"In flight", "Users", "Waiting", "p50", "KV cache usage", "Unfinished", "Requests"} <= {*texts}
    assert [text for text in texts if re.match(r"[a-z]+\b", text)] == []
