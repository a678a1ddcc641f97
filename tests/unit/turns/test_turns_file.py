"""Turn files: records are read back equal, and none is lost or counted twice."""

import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from paths import ROOT
from records import MS, S, turn, turns
from turn_reference import VALUES

from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.rundir import TURNS
from inferload.figures.turn_figures import TURN_FIGURES
from inferload.figures.turn_values import ExactValues, Read, batched_values, turn_columns
from inferload.results.open_run import OpenRun
from inferload.turns import turns_file, turns_page
from inferload.turns.record import INSTANTS, Failure, TurnRecord
from inferload.turns.turn_columns import SCHEMA, TurnColumns, to_table

ANCHOR = Anchor(wall_ns=1_790_000_000 * S, mono_ns=3 * S)


def columns_of(records: list[TurnRecord]) -> TurnColumns:
    columns = TurnColumns()
    for record in records:
        columns.append(record)
    return columns


def expected_row(record: TurnRecord, anchor: Anchor) -> dict[str, object]:
    """Return the expected row of a turn file, computed from the record alone."""
    row: dict[str, object] = {"class": record.class_name, "failure": record.failure and record.failure.value}
    for name in SCHEMA.names:
        if name in row:
            continue
        value = getattr(record, name)
        is_instant = name in INSTANTS
        if is_instant and value is not None:
            value -= anchor.mono_ns
        row[name] = list(value) if isinstance(value, array) else value
    return row


@given(st.lists(turns(), max_size=6), st.integers(0, 10**15))
def test_a_row_equals_its_record(records: list[TurnRecord], mono_ns: int) -> None:
    anchor = Anchor(5, mono_ns)
    table = to_table(columns_of(records), anchor, "w1", "r")
    table.validate(full=True)
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == [expected_row(record, anchor) for record in records]
    stamps = {b"worker": b"w1", b"run_id": b"r", b"anchor_wall_ns": b"5", b"anchor_mono_ns": b"%d" % mono_ns}
    assert table.schema.metadata == stamps


NAMES = [figure.key for figure in TURN_FIGURES]


def reading(table: pa.Table) -> Read:
    """Return a reader of one table, which gives only the columns asked for."""
    return lambda columns: [table.select(list(columns))]


def in_plain_python(records: list[TurnRecord], name: str) -> list[float]:
    return sorted(value for record in records for value in VALUES[name](record))


@given(st.lists(turns(), max_size=8), st.sampled_from([None, "chat", "agent"]))
def test_exact_values_equal_those_in_plain_python(records: list[TurnRecord], class_name: str | None) -> None:
    table = to_table(columns_of(records), ANCHOR, "w1")
    values = ExactValues(reading(table))
    selected = [r for r in records if r.ok and r.phase == "measure" and class_name in (None, r.class_name)]
    for name in NAMES:
        measured = values.of(name) if class_name is None else values.of(name, "class", class_name)
        assert sorted(measured.tolist()) == in_plain_python(selected, name), name


@given(st.lists(turns(), max_size=8))
def test_measure_columns_have_the_value_of_each_turn(records: list[TurnRecord]) -> None:
    table = to_table(columns_of(records), ANCHOR, "w1")
    names = [figure.key for figure in TURN_FIGURES if not figure.by_event]
    for name, column in turn_columns(table, names).items():
        expected = [next(iter(VALUES[name](record)), None) for record in records]
        assert [None if np.isnan(value) else value for value in column.tolist()] == expected, name


def test_a_measure_without_its_column_is_none() -> None:
    table = to_table(columns_of([turn(connect_ns=MS)]), ANCHOR, "w1")
    assert turn_columns(table, ["connect_ms"])["connect_ms"].tolist() == [1.0]
    columns = turn_columns(table.drop_columns(["connect_ns"]), ["connect_ms", "ttft_ms"])
    assert np.isnan(columns["connect_ms"]).all()
    assert not np.isnan(columns["ttft_ms"]).any()


def test_exact_values_of_several_row_groups() -> None:
    many = [turn(event_ns=array("q", range(0, k * MS, MS))) for k in range(1, 40)]
    parts = [to_table(columns_of(many[k : k + 7]), ANCHOR, "w1") for k in range(0, len(many), 7)]
    combined = to_table(columns_of(many), ANCHOR, "w1")
    pieces, whole = (
        ExactValues(lambda columns: [part.select(columns) for part in parts]),
        ExactValues(reading(combined)),
    )
    for name in NAMES:
        assert np.array_equal(whole.of(name), pieces.of(name)), name
    assert len(pieces.of("itl_ms")) == sum(k - 1 for k in range(1, 40))


def write_two_workers(run_dir: Path) -> None:
    (run_dir / TURNS).mkdir()
    for worker, first in (("host-a_1", 0), ("host-a_2", 100)):
        for part in range(3):
            records = [turn(turn_id=f"t{first + part * 10 + k}", worker=worker) for k in range(4)]
            turns_file.write_part(run_dir / TURNS, worker, part + 1, columns_of(records), ANCHOR)


def ids(run_dir: Path) -> list[str]:
    return sorted(OpenRun(run_dir).turns.table()["turn_id"].to_pylist())


def test_joining_keeps_every_turn_and_the_anchor(tmp_path: Path) -> None:
    write_two_workers(tmp_path)
    before = ids(tmp_path)
    assert len(before) == 24
    turns_file.join_parts(tmp_path / TURNS, "host-a_1")
    assert ids(tmp_path) == before
    assert len(list((tmp_path / TURNS).iterdir())) == 4
    turns_file.join_parts(tmp_path / TURNS, "host-a_2")
    assert ids(tmp_path) == before
    assert [path.name for path in sorted((tmp_path / TURNS).iterdir())] == [
        "host-a_1-all.parquet",
        "host-a_2-all.parquet",
    ]
    assert OpenRun(tmp_path).turns.anchors == {"host-a_1": ANCHOR, "host-a_2": ANCHOR}
    turns_file.join_parts(tmp_path / TURNS, "host-a_2")
    assert ids(tmp_path) == before


def test_long_answers_are_joined_in_small_groups(tmp_path: Path) -> None:
    for part in range(3):  # 3 MB each, of which two are joined in a group
        records = [turn(turn_id=f"{part}.{k}", event_ns=array("q", range(4000))) for k in range(100)]
        turns_file.write_part(tmp_path, "w", part, columns_of(records), ANCHOR)
    turns_file.join_parts(tmp_path, "w")
    joined = pq.ParquetFile(turns_file.joined_path(tmp_path, "w"))
    assert [joined.metadata.row_group(number).num_rows for number in range(joined.num_row_groups)] == [200, 100]
    assert joined.read(["turn_id"])["turn_id"].to_pylist() == [f"{part}.{k}" for part in range(3) for k in range(100)]


def test_a_crash_after_joining_duplicates_nothing(tmp_path: Path) -> None:
    write_two_workers(tmp_path)
    before = ids(tmp_path)
    folder = tmp_path / TURNS
    part_bytes = {path.name: path.read_bytes() for path in folder.glob("host-a_1-*.parquet")}
    turns_file.join_parts(folder, "host-a_1")
    for name, content in part_bytes.items():  # as if the parts had not been removed yet
        (folder / name).write_bytes(content)
    assert ids(tmp_path) == before
    turns_file.write_part(folder, "host-a_1", 9, columns_of([turn(turn_id="t-late")]), ANCHOR)
    turns_file.join_parts(folder, "host-a_1")
    assert ids(tmp_path) == sorted([*before, "t-late"])
    assert len(list(folder.glob("host-a_1-*"))) == 1


def test_a_truncated_part_is_ignored(tmp_path: Path) -> None:
    write_two_workers(tmp_path)
    (tmp_path / TURNS / "host-a_1-00004.parquet.tmp").write_bytes(b"PAR1 and then the power failed")
    assert len(ids(tmp_path)) == 24


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    write_two_workers(tmp_path)
    (tmp_path / TURNS / "host-b-00001.parquet").write_bytes(b"not this")
    with pytest.raises(UsageError, match="host-b-00001"):
        OpenRun(tmp_path).turns.table()


def test_a_file_of_another_run_is_named_and_not_counted(tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run / TURNS).mkdir(parents=True)
        columns = columns_of([turn(turn_id=f"t-{run}", session_id="s")])
        turns_file.write_part(tmp_path / run / TURNS, "w0", 1, columns, Anchor(5, 7), run_id=run)
    rundir.write_json(tmp_path / "one" / rundir.MANIFEST, {"id": "one"})
    strange = tmp_path / "one" / TURNS / "copied.parquet"
    (tmp_path / "two" / TURNS / "w0-00001.parquet").rename(strange)
    with pytest.raises(UsageError, match=r"copied.parquet: holds turns of another run, two"):
        OpenRun(tmp_path / "one").turns.table()
    pq.write_table(pa.table({"turn_id": ["x"]}), strange)
    with pytest.raises(UsageError, match=r"copied.parquet: holds no turns of a run"):
        _ = OpenRun(tmp_path / "one").turns.anchors


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(turns(), min_size=1, max_size=4), max_size=3))
@example(
    [
        [turn(input_tokens=9, cached_tokens=None), turn(input_tokens=9, cached_tokens=8)],
        [turn(input_tokens=5, cached_tokens=None)],
    ]
)
@example(  # of three servers, of which one names only hits, one hits and misses, and one neither
    [
        [turn(target=target, input_tokens=9, cached_tokens=cached) for cached in both]
        for target, both in {"a": (None, 8), "b": (None, 0), "c": (None, None)}.items()
    ]
)
def test_batches_are_all_turns_and_size_counts_them(tmp_path: Path, parts: list[list[TurnRecord]]) -> None:
    run = tmp_path / str(len(list(tmp_path.iterdir())))
    (run / TURNS).mkdir(parents=True)
    for number, records in enumerate(parts):
        turns_file.write_part(run / TURNS, "w1", number, columns_of(records), ANCHOR)
    rows = [expected_row(record, ANCHOR) for records in parts for record in records]
    cached: dict[str, set[int]] = {row["target"]: set() for row in rows}
    for row in rows:
        cached[row["target"]] |= {row["cached_tokens"]} - {None}
    for row in rows:
        of_server = cached[row["target"]]
        if of_server and 0 not in of_server and row["cached_tokens"] is None and row["input_tokens"] is not None:
            row["cached_tokens"] = 0  # the server names only hits
    pieces = list(OpenRun(run).turns.batches(SCHEMA.names))
    assert [row for piece in pieces for row in piece.to_pylist()] == rows
    assert len(pieces) == len(parts)
    events = sum(len(row["event_ns"] or ()) for row in rows)
    assert OpenRun(run).turns.size == (len(rows), events)


def test_no_turns_are_an_empty_table(tmp_path: Path) -> None:
    table = OpenRun(tmp_path).turns.table()
    assert (table.num_rows, table.schema) == (0, SCHEMA)
    assert not any(len(ExactValues(reading(table)).of(name)) for name in NAMES)
    assert not any(len(ExactValues(lambda _names: []).of(name)) for name in NAMES)


def test_a_worker_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = turns_file.write_part(tmp_path, "../w/1", 1, columns_of([turn()]), ANCHOR)
    assert path.parent == tmp_path
    assert pq.read_schema(path).metadata[b"worker"] == b"../w/1"
    turns_file.join_parts(tmp_path, "../w/1")
    assert [path.name for path in tmp_path.iterdir()] == [".._w_1-all.parquet"]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(turns(), min_size=1, max_size=5))
def test_single_columns_can_be_read(tmp_path: Path, records: list[TurnRecord]) -> None:
    (tmp_path / TURNS).mkdir(exist_ok=True)
    turns_file.write_part(tmp_path / TURNS, "w1", 1, columns_of(records), ANCHOR)
    table = OpenRun(tmp_path).turns.table(["failure", "turn_id"])
    assert table.to_pylist() == [{"failure": r.failure and r.failure.value, "turn_id": r.turn_id} for r in records]


def test_failures_are_written_by_class() -> None:
    table = to_table(columns_of([turn(failure=Failure.HTTP_429), turn()]), ANCHOR, "w1")
    assert table["failure"].to_pylist() == ["http_429", None]


@settings(max_examples=40)
@given(st.lists(turns(), max_size=8))
def test_batched_values_are_all_values(records: list[TurnRecord]) -> None:
    table = to_table(columns_of(records), ANCHOR, "w1")
    for name in ("ttft_ms", "itl_ms", "tpot_ms"):
        batches = batched_values(reading(table), name, 4)
        assert len(batches) == 4
        assert sorted(np.concatenate(batches)) == sorted(ExactValues(reading(table)).of(name))
    assert batched_values(reading(table), "client_delay_ms", 4) == []
    for name in set(table["class"].to_pylist()):
        of_class = np.concatenate(batched_values(reading(table), "ttft_ms", 4, name))
        assert sorted(of_class) == sorted(ExactValues(reading(table)).of("ttft_ms", "class", name))
    assert not any(map(len, batched_values(reading(table), "ttft_ms", 4, "no such class")))


def test_the_page_of_the_columns_is_generated() -> None:
    command = "python -m inferload.turns.turns_page > docs/reference/turns.md"
    assert (ROOT / "docs" / "reference" / "turns.md").read_text(encoding="utf-8") == turns_page.document(), command


def test_the_examples_of_the_page_have_the_values_of_the_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "runs" / "latest"
    gaps = [(0, (10 + n) * MS, (25 + 3 * n) * MS) for n in range(40)]
    records = [
        turn(turn_id=f"s{n}.0", first_ns=S + (52 + n) * MS, event_ns=array("q", gap)) for n, gap in enumerate(gaps)
    ]
    records = [replace(record, event_tokens=None) for record in records]
    records += [turn(turn_id="s90.0", failure=Failure.CUT), turn(turn_id="s91.0", phase="warmup")]
    (run_dir / TURNS).mkdir(parents=True)
    turns_file.write_part(run_dir / TURNS, "w0", 0, columns_of(records), ANCHOR)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for shown in re.findall(r"```python\n(.*?)```", turns_page.document(), re.DOTALL):
        exec(shown, names)
    values = ExactValues(OpenRun(run_dir).turns.batches)
    for name, column in (("ttft_ms", names["ttft_ms"]), ("itl_ms", names["gaps_ms"])):
        assert np.allclose(np.sort(column), np.sort(values.of(name)))
        assert len(column) > 0
    assert "w0-00000.parquet 2026-" in capsys.readouterr().out
