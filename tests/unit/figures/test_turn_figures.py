"""The table of measures, against a turn with known timestamps and the generated page."""

import math
from array import array

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paths import ROOT
from records import MS, turn, turns
from turn_reference import VALUES

from inferload.figures import measures_page
from inferload.figures.figure import PEERS
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import BY_KEY, HEADLINES, TURN_FIGURES
from inferload.turns.record import TurnRecord
from inferload.turns.turn_columns import SCHEMA


def value(name: str, record: TurnRecord) -> float | None:
    assert not BY_KEY[name].by_event
    return next(iter(samples(name, record)), None)


def samples(name: str, record: TurnRecord) -> list[float]:
    return BY_KEY[name].of(record).tolist()


@given(st.lists(turns(), max_size=6))
def test_values_of_a_batch_are_those_of_each_turn_in_plain_python(records: list[TurnRecord]) -> None:
    batch = TurnBatch.of_records(records)
    for figure in TURN_FIGURES:
        values, rows = figure.values(batch)
        expected = [(value, row) for row, record in enumerate(records) for value in VALUES[figure.key](record)]
        assert sorted(zip(values.tolist(), rows.tolist(), strict=True)) == sorted(expected), figure.key
        assert figure.by_event or (np.diff(rows) > 0).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lag_ms", 2),
        ("connect_ms", 7.5),
        ("upload_ms", 1),
        ("ttft_ms", 50),
        ("first_event_ms", 49),
        ("ttft_planned_ms", 52),
        ("ttfo_ms", 60),
        ("tpot_ms", 10),
        ("e2e_ms", 90),
        ("e2e_planned_ms", 92),
        ("server_queue_ms", 0.5),
        ("server_ttft_ms", 40.0),
        ("server_generation_ms", 41.0),
    ],
)
def test_measures_of_a_known_turn(name: str, expected: float) -> None:
    record = turn(connect_ns=7_500_000, server_queue_ms=0.5, server_ttft_ms=40.0, server_generation_ms=41.0)
    assert value(name, record) == expected


def test_measures_of_missing_events_are_none() -> None:
    record = TurnRecord("t", "s", 0, "chat", "w", "measure", planned_ns=5, closed_ns=9)
    assert [figure.key for figure in TURN_FIGURES if len(figure.of(record))] == []


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_a_server_figure_that_is_not_finite_is_none(figure: float) -> None:
    assert value("server_ttft_ms", turn(server_ttft_ms=figure)) is None


def test_a_cancelled_turn_has_no_measures_of_its_end() -> None:
    cancelled = turn(finish_reason="cancelled")
    known = {figure.key for figure in TURN_FIGURES if len(figure.of(cancelled))}
    assert cancelled.ok
    assert {"ttft_ms", "ttfo_ms", "lag_ms"} <= known
    assert not known & {"e2e_ms", "e2e_planned_ms", "tpot_ms"}
    assert len(samples("itl_ms", cancelled)) == 4


def test_a_headline_by_event_has_a_value_for_each_gap() -> None:
    """The timeline places it at the ends of the gaps."""
    record = turn(event_tokens=array("i", [1, 2, 3, 1, 1]), output_tokens=8)
    for figure in HEADLINES:
        if figure.by_event:
            assert len(figure.of(record)) == 4, figure.key


def test_each_event_after_the_first_has_a_gap() -> None:
    assert samples("itl_ms", turn(event_ns=array("q", [50 * MS, 60 * MS, 60 * MS, 400 * MS]))) == [10, 0, 340]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 1, 1, 1], [10, 20, 30]),
        ([3, 2, 1, 3], [5, 5, 20, 10, 10, 10]),
        ([1, 0, 2, 1], [15, 15, 30]),  # the time to an event without tokens is added to that of the next event
        ([1, 2, 0, 0], [5, 5]),
        ([0, 0, 0, 0], []),
    ],
)
def test_gaps_by_token_with_running_counts(tokens: list[int], expected: list[float]) -> None:
    record = turn(event_ns=array("q", [0, 10 * MS, 30 * MS, 60 * MS]), event_tokens=array("i", tokens))
    assert samples("itl_token_ms", record) == expected


@pytest.mark.parametrize(
    ("output_tokens", "expected"),
    [
        (4, [10, 20, 30]),
        (8, [5, 5, 10, 10, 15, 15]),  # two tokens per event
        (6, pytest.approx([20 / 3, 20 / 3, 40 / 3, 20, 20])),  # 1.5 per event: 2, 1, 2 samples after the first event
        (None, []),
        (0, []),
    ],
)
def test_gaps_by_token_with_only_the_total(output_tokens: int | None, expected: list[float]) -> None:
    record = turn(event_ns=array("q", [0, 10 * MS, 30 * MS, 60 * MS]), output_tokens=output_tokens)
    assert samples("itl_token_ms", record) == expected


@given(turns())
def test_the_number_of_gaps_by_token(record: TurnRecord) -> None:
    assume(record.event_ns is not None)
    assert record.event_ns is not None
    shared = samples("itl_token_ms", record)
    if record.hidden_tokens is None:
        assert shared == []
    elif record.event_tokens is not None:
        carrying = [count for count in record.event_tokens if count]
        assert len(shared) == (sum(carrying[1:]) if len(record.event_ns) > 1 else 0)
    elif record.output_tokens:
        streamed = record.output_tokens - record.hidden_tokens
        first = streamed // len(record.event_ns)
        assert len(shared) == (streamed - first if len(record.event_ns) > 1 else 0)
    else:
        assert shared == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"output_tokens": None}, None),
        ({"output_tokens": 10}, 5),  # two tokens in each of five events: 40 ms for eight tokens
        ({"event_tokens": array("i", [1, 1, 1, 1, 1])}, 10),
        ({"event_tokens": array("i", [3, 1, 1, 0, 0])}, 20),
        ({"event_tokens": array("i", [5, 0, 0, 0, 0])}, None),
        ({"event_ns": array("q", [50 * MS]), "output_tokens": 1}, None),
        ({"event_ns": None}, None),
    ],
)
def test_tpot_excludes_tokens_of_the_first_event(changes: dict[str, object], expected: float | None) -> None:
    assert value("tpot_ms", turn(**changes)) == expected


def test_every_measure_has_its_unit_in_its_key_and_names_of_known_tools() -> None:
    for figure in TURN_FIGURES:
        assert set(figure.called) <= set(PEERS), figure.key
        assert figure.key.endswith(f"_{figure.unit}")
        assert set(figure.columns) <= set(SCHEMA.names)
    assert len(BY_KEY) == len(TURN_FIGURES) == len(VALUES)


def test_the_page_is_generated_from_the_table() -> None:
    page = (ROOT / "docs/reference/measures.md").read_text(encoding="utf-8")
    assert page == measures_page.document(), "python -m inferload.figures.measures_page > docs/reference/measures.md"
