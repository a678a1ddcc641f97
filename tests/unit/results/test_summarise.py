"""The summary of a run directory from counts, turn records and scrapes."""

import copy
import json
import math
import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import documents
import ended_counts
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from summaries import summarised
from turn_reference import count_all

from inferload import cli
from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.figures.pages import metric_names as names
from inferload.results.documents.summary_document import FirstExample, RequestName, Run
from inferload.results.open_run import OpenRun
from inferload.results.summarise.counts import Counts, Earlier, EndedWorker, Others
from inferload.results.summarise.summarise import refresh, summarise
from inferload.results.terminal_summary import brief, details
from inferload.results.verdict.first_errors import FirstError, FirstErrors
from inferload.scenario import scenario as scenarios
from inferload.servers.scrapes_file import ScrapeColumns, write_part
from inferload.turns import turns_file
from inferload.turns.record import PhaseWindow, TurnRecord
from inferload.turns.socket_reader import SocketReader
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns

SCENARIO = """
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 20, output_tokens: 8}
arrivals: {kind: closed, users: 2, spawn_per_s: 2}
phases: {warmup_s: 0, measure_s: 10, drain_s: 5}
"""
RUN = "run-1"


def records(count: int) -> list[TurnRecord]:
    return [
        TurnRecord(
            f"s{number}.0",
            f"s{number}",
            0,
            "chat",
            "w0",
            "measure",
            number * 10_000_000,
            (number + 2) * 10_000_000,
            sent_ns=number * 10_000_000,
            first_ns=(number + 1) * 10_000_000,
            last_ns=(number + 2) * 10_000_000,
            event_ns=array("q", [10_000_000, 20_000_000]),
            input_tokens=20,
            output_tokens=8,
        )
        for number in range(count)
    ]


def counts(turns: list[TurnRecord], **changes: Any) -> Counts:
    tallies, windows = TallySet(), (PhaseWindow("measure", 0, 10_000_000_000),)
    for turn in turns:
        tallies.at(turn.phase, turn.class_name).turns_begun += 1
    count_all(tallies, turns, windows, None)
    worker = EndedWorker("w0", turns=len(turns), at_hand=len(turns), written=len(turns))
    scenario = scenarios.from_text(SCENARIO, "small.yaml")
    known = {"run": {"id": RUN, "scenario": "small"}, "windows": windows, "workers": (worker,)}
    return ended_counts.ended(scenario=scenario, tallies=tallies, **(known | changes))


def run_of(folder: Path, turns: list[TurnRecord], **changes: Any) -> Path:
    """A run directory without a summary."""
    (folder / rundir.TURNS).mkdir(parents=True)
    (folder / rundir.SERVER_METRICS).mkdir()
    rundir.write_json(folder / rundir.MANIFEST, {"id": RUN})
    columns = TurnColumns()
    columns.extend(turns)
    turns_file.write_part(folder / rundir.TURNS, "w0", 1, columns, Anchor(0, 0), run_id=RUN)
    rundir.write_json(folder / rundir.COUNTS, counts(turns, **changes).to_wire())
    return folder


def test_percentiles_are_from_records_only_if_complete(tmp_path: Path) -> None:
    turns = records(20)
    document = summarised(run_of(tmp_path / "whole", turns))
    assert document["percentiles_from"] == "records"
    assert document["latency"]["ttft_ms"]["p50"] == 10.0
    assert document["turn_records"] == {"counted": 20, "at_hand": 20, "held_back": 0, "lost": 0, "why": None}

    lost = (EndedWorker("w0", turns=20, at_hand=17, lost=True),)
    document = summarised(run_of(tmp_path / "lost", turns, workers=lost))
    assert document["percentiles_from"] == "sketches"
    assert (document["turn_records"]["lost"], document["turn_records"]["held_back"]) == (3, 0)
    (reason,) = [entry for entry in document["verdict"]["reasons"] if entry["code"] == "lost_records"]
    assert reason["value"] == 3

    held = (EndedWorker("w0", turns=20, at_hand=17, written=20, held_back="the limit"),)
    document = summarised(run_of(tmp_path / "held", turns, workers=held))
    assert document["percentiles_from"] == "sketches"
    assert document["turn_records"] == {
        "counted": 20, "at_hand": 17, "held_back": 3, "lost": 0, "why": "worker w0: the limit",
    }  # fmt: skip
    note = "17 of 20 turn records are in the run directory (worker w0: the limit)"
    assert document["notes"] == [f"{note}; percentiles from sketches, within 0.25 %"]
    assert "lost_records" not in {entry["code"] for entry in document["verdict"]["reasons"]}


def test_the_reader_of_the_sockets_is_named_with_its_reason_and_advice(tmp_path: Path) -> None:
    tls = SocketReader(target="https://b", reader="python", why="TLS")
    old = SocketReader(target="http://a", reader="python", why="not compiled", remedy="install a compiler")
    native = SocketReader(target="http://a", reader="native")
    turns = records(20)
    for name, readers, shown, advised in (
        ("tls", [(tls,)], "python (TLS)", False),
        ("old", [(old,), (old,)], "python (not compiled)", True),
        ("mixed", [(native, tls)], "native for http://a; python (TLS) for https://b", False),
    ):
        workers = tuple(
            EndedWorker(f"w{number}", turns=20, at_hand=20, written=20, readers=own)
            for number, own in enumerate(readers)
        )
        folder = run_of(tmp_path / name, turns, workers=workers)
        summary = summarise(folder)
        assert summary.client.reader == ("mixed" if name == "mixed" else "python")
        assert {use.why for use in summary.client.readers} == {reader.why for own in readers for reader in own}
        assert f"; reader {shown}" in brief(summary)
        assert f"Reader of the sockets: {shown}." in details(summary)
        for text in (brief(summary), details(summary)):
            assert ("install a compiler" in text) == advised


def scraped_run(folder: Path, seconds: dict[str, range], **changes: Any) -> Path:
    """Return a run with a scrape of each target at each of its seconds."""
    targets = ("http://server:8000", "http://other:8000")
    run_dir = run_of(folder, records(20), metrics_targets=targets, **changes)
    columns = ScrapeColumns()
    for target, scraped_s in seconds.items():
        for second in scraped_s:
            for metric, value in ((names.RUNNING, 1.0), (names.WAITING, 0.0), (names.PREEMPTIONS, 0.0)):
                columns.append(second * 10**9, target, metric, (), value)
    write_part(run_dir / rundir.SERVER_METRICS, 0, columns.to_table())
    return run_dir


def codes_of(document: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in document["verdict"]["reasons"]}


def test_a_gap_between_scrapes_is_a_reason_and_leaves_gates_unknown(tmp_path: Path) -> None:
    gates = "gates: [max(requests_waiting) < 5, preemptions < 1, restarts == 0]\n"
    gated = {"scenario_text": scenarios.from_text(SCENARIO + gates, "small.yaml").resolved_text()}
    silent = {"http://server:8000": range(11), "http://other:8000": range(4)}
    document = summarised(scraped_run(tmp_path / "silent", silent, **gated))
    (reason,) = [entry for entry in document["verdict"]["reasons"] if entry["code"] == "scrape_gap"]
    assert (reason["level"], reason["value"]) == ("suspect", 1.4)
    assert reason["text"].startswith("the metrics page of http://other:8000 was not scraped for 7 s")
    notes = {gate["gate"]: (gate["passed"], gate.get("note")) for gate in document["verdict"]["gates"]}
    cause = "was not measured at http://other:8000: its metrics page was not scraped for 7 s of the measure phase"
    assert notes["max(requests_waiting) < 5"] == (False, f"requests_waiting {cause}")

    whole = {"http://server:8000": range(11), "http://other:8000": range(0, 11, 5)}
    document = summarised(scraped_run(tmp_path / "whole", whole, **gated))
    assert "scrape_gap" not in codes_of(document)
    assert [gate["passed"] for gate in document["verdict"]["gates"]] == [True, True, True]

    slow = {"scenario_text": gated["scenario_text"].replace("interval_s: 0.25", "interval_s: 4.0")}
    document = summarised(scraped_run(tmp_path / "slow", silent, **slow))
    assert "scrape_gap" not in codes_of(document)  # 7 s are less than 2.5 intervals


def test_a_page_that_never_answered_is_no_reason(tmp_path: Path) -> None:
    document = summarised(scraped_run(tmp_path / "run", {"http://server:8000": range(11)}))
    assert [entry["longest_gap_s"] for entry in document["servers"]] == [None, 1.0]
    assert "scrape_gap" not in codes_of(document)


def test_a_write_error_is_the_reason_for_lost_records() -> None:
    worker = EndedWorker("w0", turns=5, at_hand=3, written=3, write_error="/run/turns: No space left on device")
    assert (worker.lost_records, worker.why_lost) == (2, "/run/turns: No space left on device")
    held = replace(worker, held_back="the limit", at_hand=1)
    assert (held.held_back_records, held.lost_records) == (4, 2)
    assert EndedWorker("w0", turns=5, at_hand=6).lost_records == 0  # a report was lost, no record


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"lost": True}, "the worker was lost before it had written its last records"),
        ({}, "/run: the worker did not report that it had written its last records"),
        ({"written": 5}, "unknown cause: the worker wrote 5 to /run, and the master read 3"),
        ({"written": 3}, "unknown cause"),
        (
            {"written": 3, "write_error": "/run/turns: 1 of 2 files were removed"},
            "/run/turns: 1 of 2 files were removed",
        ),
    ],
)
def test_the_cause_of_lost_records_is_known_or_called_unknown(facts: dict[str, Any], why: str) -> None:
    worker = EndedWorker("w0", folder="/run", turns=5, at_hand=3, **facts)
    assert (worker.lost_records, worker.why_lost) == (2, why)


def test_counts_are_read_back_equal(tmp_path: Path) -> None:
    written = counts(
        records(3), earlier=Earlier("cold", "run"), early_by="SIGTERM", others=Others(1, 1, users={"A": 2})
    )
    rundir.write_json(tmp_path / rundir.COUNTS, written.to_wire())
    assert json.dumps(OpenRun(tmp_path).counts.to_wire()) == json.dumps(written.to_wire())
    assert OpenRun(tmp_path).counts.early is not None


def test_the_first_error_of_a_request_survives_the_counts_of_the_run_directory(tmp_path: Path) -> None:
    errors = FirstErrors()
    errors.add(FirstError.of_request(("GET", "/a"), "no id", 5, "w1"))
    rows = [RequestName(type="GET", name=name, sent=2, failed=int(name == "/a")) for name in ("/a", "/b")]
    written = counts(records(3), others=Others(4, 1, by_name=rows), errors_wire=errors.to_wire())
    rundir.write_json(tmp_path / rundir.COUNTS, written.to_wire())
    totals = OpenRun(tmp_path).counts.totals
    first, other = totals.others.requests(totals.errors, 0).by_name
    assert first.first_error == FirstExample(text="no id", at_s=0.0, worker="w1")
    assert other.first_error is None
    assert totals.errors.document(0) == []


def test_a_summary_is_rewritten_only_if_missing_or_outdated(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path / "run", records(5))
    summary = run_dir / rundir.SUMMARY
    refresh(OpenRun(run_dir))
    assert json.loads(summary.read_text()) == summarised(run_dir)
    summary.write_text("{}")
    refresh(OpenRun(run_dir))
    assert summary.read_text() == "{}"  # newer than its sources
    (part,) = (run_dir / rundir.TURNS).iterdir()
    os.utime(part, ns=(0, summary.stat().st_mtime_ns + 10**9))
    refresh(OpenRun(run_dir))
    assert json.loads(summary.read_text()) == summarised(run_dir)


def test_the_report_writes_a_missing_summary(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path / "run", records(5))
    assert cli.main(["report", str(run_dir)]) == 0
    assert json.loads((run_dir / rundir.SUMMARY).read_text()) == summarised(run_dir)


def test_a_run_without_counts_keeps_its_summary(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path / "run", records(5))
    (run_dir / rundir.COUNTS).unlink()
    refresh(OpenRun(run_dir))
    assert not (run_dir / rundir.SUMMARY).exists()
    with pytest.raises(UsageError, match=r"counts\.json"):
        summarised(run_dir)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": None},
        {"workers": [{"name": 1}]},
        {"tallies_wire": [1, 2]},
        {"tallies_wire": None},
        {"health_wire": {"x": 1}},
        {"scenario_text": "schema: 1"},
        {"windows": [["measure"]]},
        {"errors_wire": {"connect": {}}},
    ],
)
def test_damaged_counts_are_named(changes: dict[str, Any], tmp_path: Path) -> None:
    run_dir = run_of(tmp_path / "run", records(5))
    document = json.loads((run_dir / rundir.COUNTS).read_text())
    (run_dir / rundir.COUNTS).write_text(json.dumps(document | changes))
    with pytest.raises(UsageError):
        refresh(OpenRun(run_dir))


@pytest.mark.parametrize(
    ("changes", "key"), [({"run": None}, "run"), ({"run": {"seed": "x"}}, "run.seed"), ({"format": "x"}, "format")]
)
def test_a_damaged_value_of_the_counts_is_named_with_its_path(
    changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    run_dir = run_of(tmp_path / "run", records(5))
    document = json.loads((run_dir / rundir.COUNTS).read_text())
    (run_dir / rundir.COUNTS).write_text(json.dumps(document | changes))
    with pytest.raises(UsageError, match=rf"at `\$\.{key}`"):
        refresh(OpenRun(run_dir))


def test_without_the_earlier_run_expected_hits_are_omitted(tmp_path: Path) -> None:
    turns = records(4)
    cold = run_of(tmp_path / "run", turns)
    warm = run_of(tmp_path / "run-warm", turns, arm="warm", earlier=Earlier("cold", "run"))
    assert summarised(warm)["cache"]["expected"] is not None
    (cold / rundir.COUNTS).unlink()
    assert summarised(warm)["cache"]["expected"] is None


def test_neither_locust_nor_pandas_is_imported() -> None:
    program = (
        "import sys, inferload.results.summarise.summarise; print({'locust', 'gevent', 'pandas'} & set(sys.modules))"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout == "set()\n"


RUN_BLOCK = Run(
    id=RUN,
    scenario="small",
    digest="0",
    seed=0,
    target="http://server:8000",
    model="m",
    started_at="2026-11-23T09:00:00+00:00",
    versions={"inferload": "0.1.0", "locust": "2.47.0", "python": "3.11.7", "server": None},
)


def test_the_documented_keys_and_types_equal_the_summary(tmp_path: Path) -> None:
    complete = summarised(run_of(tmp_path / "whole", records(20), run=RUN_BLOCK))
    assert documents.differences("summary-1", complete) == []
    sketched = summarised(
        run_of(tmp_path / "lost", records(20), run=RUN_BLOCK, workers=(EndedWorker("w0", lost=True),))
    )
    assert documents.differences("summary-1", sketched) == []
    changed = {
        **complete,
        "window_s": "10",
        "extra": 1,
        "client": {**complete["client"], "cpu_share": None, "reader": 1},
    }
    del changed["growth"]
    assert documents.differences("summary-1", changed) == [
        "$.client.reader: 1 is not valid under any of the given schemas",
        "$.window_s: '10' is not valid under any of the given schemas",
        "$: 'growth' is a required property",
        "$: Additional properties are not allowed ('extra' was unexpected)",
    ]


def places(document: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield (*before, key)
        yield from places(value, (*before, key))


COUNTED = json.loads(json.dumps(counts(records(20)).to_wire()))
PLACES = list(places(COUNTED))
TTFT = ("tallies_wire", "tallies", 0, 3, "sketches", "ttft_ms")
ODD = (
    *({}, {"a": 1}, [], [1], ["a"], [[1], [1]], [{}], None, True, False, 0, -1, 3, 10**39, 2**62, -(2**62), 2**63),
    *(1e308, -1e308, 1e-308, math.nan, math.inf, "", "abc", "1" * 400, "-1" + "0" * 300, "\ud83d", {"\ud83d": 1}),
)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("counted") / "run", records(20), complete=False)


@settings(max_examples=150 if os.environ.get("INFERLOAD_SOAK") else 15)
@given(
    st.sampled_from(PLACES) | st.sampled_from([place for place in PLACES if place[: len(TTFT)] == TTFT]),
    st.sampled_from(ODD),
)
@example((*TTFT, "positive", 1, 0), -1e308)
@example((*TTFT, "positive", 1, 0), 0)
@example((*TTFT, "positive", 0), False)
@example((*TTFT, "positive", 0, 0), 2**62)
@example((*TTFT, "total"), "1" * 400)
@example(("windows", 0, "end_ns"), 2**62)
@example(("anchor", "wall_ns"), 10**39)
def test_an_odd_value_in_the_counts_is_summarised_or_refused(
    counted: Path, place: tuple[str | int, ...], value: Any
) -> None:
    document = part = copy.deepcopy(COUNTED) | {"complete": False}
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (counted / rundir.COUNTS).write_text(json.dumps(document))
    (counted / rundir.SUMMARY).unlink(missing_ok=True)
    try:
        refresh(OpenRun(counted))
    except UsageError:
        return
    assert rundir.read_object(counted / rundir.SUMMARY)["format"] == rundir.FORMAT
