"""Run directories with one value of another type or size: report, comparison and list give a page or a UsageError."""

import contextlib
import copy
import functools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic_run as synthetic
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from inferload.analysis.comparison import baselines
from inferload.analysis.data import frames, timeline
from inferload.analysis.report import report
from searches import search_document

from inferload import cli
from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.campaign import search_plan
from inferload.results import run_list
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.search_document import SearchDocument
from inferload.results.documents.summary_document import Summary
from inferload.results.documents.typed_documents import document_of, faults, typed
from inferload.results.open_run import OpenRun

Place = tuple[str, tuple[str | int, ...]]


def nested(depth: int) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


ODD = (
    *({}, {"a": {"b": 1}}, [], [1], ["a"], [[1]], [{}], nested(40), nested(300), None, True, False),
    *(0, -1, 3, 10**39, 2**62, -(2**62), 2**63, 1e308, -1e308, 1e-308, math.nan, math.inf, "", "abc", "x" * 3000),
    *("\ud800", "a\udfffb", "\udcff\ud83d", {"\ud83d": "\ud83d"}, ["\ud83d"]),
)


def places(name: str, document: Any, before: tuple[str | int, ...] = ()) -> Iterator[Place]:
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield name, (*before, key)
        yield from places(name, value, (*before, key))


DOCUMENTS = {rundir.MANIFEST: synthetic.MANIFEST, rundir.SUMMARY: synthetic.SUMMARY}
PLACES = [place for name, document in DOCUMENTS.items() for place in places(name, document)]
# By way of JSON, which has lists instead of tuples.
SEARCH = {rundir.SEARCH: json.loads(json.dumps(document_of(search_document({4.0: 0.99, 8.0: 0.7}))))}


def write(folder: Path, place: Place, value: Any, documents: dict[str, Any] = DOCUMENTS) -> None:
    """Write the documents of a folder, by default run.json and summary.json, with another value at one place."""
    name, path = place
    for each, document in documents.items():
        (folder / each).write_text(json.dumps(document))
    changed = part = copy.deepcopy(documents[name])
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (folder / name).write_text(json.dumps(changed))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def other(run: Path) -> Path:
    return shutil.copytree(run, run.with_name("other"))


def test_the_documents_of_a_run_have_their_types() -> None:
    assert not faults(synthetic.MANIFEST, Manifest)
    assert not faults(synthetic.SUMMARY, Summary)
    assert typed(SEARCH[rundir.SEARCH], SearchDocument) == search_document({4.0: 0.99, 8.0: 0.7})


def test_what_a_manifest_lacks_of_a_worker_is_unknown() -> None:
    worker = typed({"workers": [{"name": "w0", "turns": None}]}, Manifest).workers[0]
    assert (worker.turns, worker.wall_offset_ns, worker.written) == (None, None, None)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_odd_value_is_listed(run: Path) -> None:
    for place in PLACES:
        for value in ODD:
            write(run, place, value)
            check_listed(run)


def check_listed(run: Path) -> None:
    """The run is in the list, under its name, with a state and without a figure that is no number."""
    entry = run_list.listed(OpenRun(run))
    assert entry.name == run.name
    assert entry.state
    assert not {"nan", "inf", "-inf", "None"} & {figure.removesuffix(" ~") for figure in entry.figures}


sampled = given(st.sampled_from(PLACES), st.sampled_from(ODD))


@sampled
@example((rundir.SUMMARY, ("verdict",)), 3)
@example((rundir.SUMMARY, ("verdict", "measurement")), 3)
@example((rundir.SUMMARY, ("latency", "ttft_ms", "count")), None)
def test_an_odd_value_is_listed(run: Path, place: Place, value: Any) -> None:
    write(run, place, value)
    check_listed(run)


@sampled
@example((rundir.SUMMARY, ("latency", "ttft_ms")), None)
@example((rundir.SUMMARY, ("verdict",)), 3)
@example((rundir.MANIFEST, ("phases", 0, "end_wall_ns")), 10**39)
def test_an_odd_value_is_compared_or_refused(run: Path, other: Path, place: Place, value: Any) -> None:
    write(run, place, value)
    assert cli.main(["compare", str(run), str(other), "--format", "markdown"]) in (0, 2)


@sampled
@example((rundir.SUMMARY, ("verdict", "gates", 0, "value")), 1e308)
def test_an_odd_value_is_written_for_pipelines_or_refused(run: Path, place: Place, value: Any) -> None:
    write(run, place, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "make", lambda *_: report.ReportFiles("", Path(), Path(), Path()))
        assert cli.main(["report", str(run), "--junit", str(run / "junit"), "--markdown", str(run / "md")]) in (0, 2)


@settings(max_examples=2, suppress_health_check=list(HealthCheck))
@sampled
@example((rundir.MANIFEST, ("anchor", "wall_ns")), 2**62)
@example((rundir.MANIFEST, ("phases", 1, "start_wall_ns")), 2**62)
@example((rundir.SUMMARY, ("latency", "ttft_ms")), None)
@example((rundir.MANIFEST, ("hosts",)), nested(300))
def test_an_odd_value_is_reported_or_refused(run: Path, place: Place, value: Any) -> None:
    write(run, place, value)
    reported(run)


def reported(run: Path) -> None:
    with contextlib.suppress(UsageError):
        assert "## " in report.make(OpenRun(run)).markdown.read_text()


@given(st.sampled_from(list(places(rundir.SEARCH, SEARCH[rundir.SEARCH]))), st.sampled_from(ODD))
@example((rundir.SEARCH, ("points", 0, "runs", 0)), "x" * 3000)
@example((rundir.SEARCH, ("points", 0, "level")), 0)
@example((rundir.SEARCH, ("points", 0, "conditions", 0, "limit")), 1e-308)
def test_an_odd_value_in_a_search_is_on_its_page_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: Place, value: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "search"
    folder.mkdir(exist_ok=True)
    write(folder, place, value, SEARCH)
    assert cli.main(["report", str(folder)]) in (0, 2)


@pytest.fixture(scope="module")
def baseline(run: Path) -> dict[str, Any]:
    """The document of a baseline file."""
    for name, document in DOCUMENTS.items():
        rundir.write_json(run / name, document)
    path = run.with_name("baseline.json")
    baselines.add(path, [run])
    return rundir.read_object(path)


@given(st.data(), st.sampled_from(ODD))
def test_an_odd_value_in_a_baseline_is_compared_or_refused(
    run: Path, other: Path, baseline: dict[str, Any], data: st.DataObject, value: Any
) -> None:
    name = "baseline.json"
    write(run.parent, data.draw(st.sampled_from(list(places(name, baseline)))), value, {name: baseline})
    path = run.with_name(name)
    assert cli.main(["compare", str(path), str(other)]) in (0, 2)
    assert cli.main(["baseline", "show", str(path)]) in (0, 2)


PLAN: dict[str, Any] = {
    search_plan.PLAN: {
        **{"scenario": "chat", "host": "http://127.0.0.1:1", "slo": "p95(ttft_ms)<200", "extra": ["-L", "INFO"]},
        **{"budget_s": 60.0, "window_s": 5.0, "warmup_s": 1.0, "guess": 2.0, "precision": 0.1, "rates": [1.0]},
        **{"seed": 1, "options": {"header": ["X-A: b"], "model": "m"}, "headers_again": ["Authorization"]},
    }
}


@given(st.sampled_from(list(places(search_plan.PLAN, PLAN[search_plan.PLAN]))), st.sampled_from(ODD))
@example((search_plan.PLAN, ("rates",)), None)
@example((search_plan.PLAN, ("headers_again",)), [1])
def test_an_odd_value_in_the_plan_of_a_search_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: Place, value: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "plan"
    folder.mkdir(exist_ok=True)
    write(folder, place, value, PLAN)
    with contextlib.suppress(UsageError):
        assert search_plan.read(folder, ["Authorization: x"]).options["header"]


RAW = st.sampled_from(
    [b"", b"NaN", b"\xff\xfe", b"[" * 100_000, b'{"a": Infinity}', b"null", bytes(100), b'{"a": "\xed\xa0\xbd"}']
)


@given(
    st.sampled_from([rundir.MANIFEST, rundir.SUMMARY, rundir.COUNTS, rundir.MARKS, rundir.DIAGNOSIS]),
    RAW | st.binary(max_size=40),
)
def test_any_bytes_of_a_document_are_listed_and_compared_or_refused(
    run: Path, other: Path, name: str, content: bytes
) -> None:
    for each, document in DOCUMENTS.items():
        rundir.write_json(run / each, document)
    (run / name).write_bytes(content)
    try:
        check_listed(run)
        assert cli.main(["compare", str(run), str(other)]) in (0, 2)
        read(run)
    finally:
        (run / name).unlink()


def read(run: Path) -> None:
    """The part of a report that reads the files, without its charts. No turn is counted twice."""
    with contextlib.suppress(UsageError):
        assert np.nansum(timeline.build(frames.load(OpenRun(run)))["turns_started"]) <= synthetic.TURNS


@pytest.mark.parametrize(
    "line",
    [
        {"wall_ns": 10**30},
        {"wall_ns": -1},
        {"wall_ns": 2**62, "text": "late"},
        {"wall_ns": synthetic.START_WALL_NS, "text": 3},
        {"wall_ns": synthetic.START_WALL_NS, "kind": "users", "users": "x"},
        {"wall_ns": synthetic.START_WALL_NS, "detail": nested(60)},
    ],
)
def test_an_odd_mark_is_left_out_or_shown(run: Path, line: dict[str, Any], tmp_path: Path) -> None:
    path = shutil.copytree(run, tmp_path / "run")
    for name, document in DOCUMENTS.items():
        rundir.write_json(path / name, document)
    (path / rundir.MARKS).write_text(json.dumps(line) + "\n")
    read(path)


NUMBERS = (0, -1, 1, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63))


def odd_column(table: pa.Table, name: str, value: object) -> pa.Table:
    """Set all values of a column, or the elements of its lists; None: no value."""
    kind, index = table.schema.field(name).type, table.schema.get_field_index(name)
    values: Any = [value] * len(table)
    if value is not None and pa.types.is_list(kind):
        values = [[value] * 3] * len(table)
    return table.set_column(index, name, pa.array(values).cast(kind, safe=False))


def odd_files(run: Path) -> Iterator[tuple[Path, str, object]]:
    for folder, words in (
        (rundir.TURNS, ("", "x" * 300, "\u202e", None)),
        (rundir.SERVER_METRICS, ("", "[", "3", None)),
    ):
        file = sorted((run / folder).glob("*.parquet"))[0]
        for field in pq.read_schema(file):
            plain = pa.types.is_string(field.type) or pa.types.is_dictionary(field.type)
            for value in words if plain else (*NUMBERS, None):
                yield file, field.name, value
            if pa.types.is_floating(field.type):
                yield from ((file, field.name, value) for value in (np.nan, np.inf, 1e308, -1e308))


def check_columns(run: Path, tmp_path: Path, use: Callable[[Path], None], every: int = 1) -> None:
    for number, (file, name, value) in enumerate(odd_files(run)):
        if number % every:
            continue
        path = shutil.copytree(run, tmp_path / "run", dirs_exist_ok=True)
        for each, document in DOCUMENTS.items():
            rundir.write_json(path / each, document)
        table = pq.read_table(file)
        pq.write_table(
            odd_column(table, name, value).replace_schema_metadata(table.schema.metadata), path / file.relative_to(run)
        )
        try:
            use(path)
        except Exception as error:
            raise AssertionError(f"{file.name}: {name} = {value!r}") from error


def test_odd_values_in_columns_are_reported_or_refused(run: Path, tmp_path: Path) -> None:
    check_columns(run, tmp_path, read, every=25)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_odd_value_in_a_column_is_reported_or_refused(run: Path, tmp_path: Path) -> None:
    check_columns(run, tmp_path, reported)
