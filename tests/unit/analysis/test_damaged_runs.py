"""Reports of truncated, partly written or inconsistent runs."""

import csv
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic_run as synthetic
from inferload.analysis.data import frames
from inferload.analysis.report import report

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.figures.pages import metric_names as names
from inferload.results.open_run import OpenRun
from inferload.servers.scrapes_file import ScrapeColumns, join_parts, write_part

ENGINE = (("engine", "0"),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("runs") / "run")


def notes_of(path: Path) -> str:
    return report.make(OpenRun(path)).markdown.read_text().partition("## Notes")[2].partition("## ")[0]


def scraped(
    path: Path, figure: Callable[[float], float], seconds: float, gap: tuple[float, float] = (0.0, 0.0)
) -> Path:
    """Replace the scrapes of the run: a counter with the values of `figure`, four times a second, none within `gap`."""
    shutil.rmtree(path / rundir.SERVER_METRICS)
    (path / rundir.SERVER_METRICS).mkdir()
    columns = ScrapeColumns()
    for quarter in range(int(seconds * 4) + 1):
        at_s = quarter / 4
        if not gap[0] < at_s < gap[1]:
            wall_ns = synthetic.START_WALL_NS + round(at_s * synthetic.NS)
            columns.append(wall_ns, synthetic.TARGET, names.GENERATION_TOKENS, ENGINE, figure(at_s))
            columns.append(wall_ns, synthetic.TARGET, names.RUNNING, ENGINE, 2.0)
            columns.append(wall_ns, synthetic.TARGET, names.WAITING, ENGINE, 0.0)
    write_part(path / rundir.SERVER_METRICS, 0, columns.to_table())
    return path


def rates(path: Path) -> list[str]:
    return [row["generation_tok_per_s"] for row in csv.DictReader((path / rundir.TIMELINE).open())]


def test_a_mark_cut_inside_a_character_is_left_out(whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "run")
    line = json.dumps({"wall_ns": 1, "text": "übung"}, ensure_ascii=False).encode()
    (path / rundir.MARKS).write_bytes(line + b"\n" + line[: line.index("ü".encode()) + 1])
    assert [mark.text for mark in OpenRun(path).marks] == ["übung"]


def test_a_minute_without_scrapes_is_a_gap_with_a_note(tmp_path: Path) -> None:
    path = scraped(synthetic.write(tmp_path / "run"), lambda at_s: 84 * at_s, 120, (20, 80))
    assert "was not scraped from 20 to 80 s" in notes_of(path)
    assert rates(path)[:20] == ["84.0"] * 20
    assert rates(path)[21:79] == [""] * 58
    assert rates(path)[81:119] == ["84.0"] * 38


def test_a_time_without_scrapes_has_no_cause(tmp_path: Path) -> None:
    phases = [
        {
            "phase": "measure",
            "start_wall_ns": synthetic.START_WALL_NS,
            "end_wall_ns": synthetic.START_WALL_NS + 120 * synthetic.NS,
        }
    ]
    well = synthetic.SUMMARY | {"turns": {"sent": 36, "ok": 36, "failed": 0, "unfinished": 0, "by_failure": {}}}
    path = synthetic.write(tmp_path / "run", summary=well, phases=phases)
    report.make(OpenRun(scraped(path, lambda at_s: 84 * at_s, 120, (29, 91))))
    (server,) = json.loads((path / rundir.DIAGNOSIS).read_text())["servers"]
    first, silent, last = server["history"]
    assert first["code"] == last["code"] != silent["code"] is None
    assert silent["start_s"] == 9.0  # a turn failed, so the server is not said to keep up in the 30 s after it
    assert 91 <= silent["end_s"] <= 92


def test_a_counter_reset_gives_no_negative_rate(tmp_path: Path) -> None:
    path = scraped(synthetic.write(tmp_path / "run"), lambda at_s: 1e6 + 84 * at_s if at_s < 6 else 84 * (at_s - 6), 12)
    assert "restarted, or its counters were reset, before 6 s" in notes_of(path)
    known = [float(rate) for rate in rates(path)]
    assert known[:5] + known[7:] == [84.0] * 10
    assert all(0 <= rate <= 84 for rate in known)


def clocks(path: Path, apart_s: float, **manifest: Any) -> Path:
    """A run in which the wall clock of one worker is `apart_s` ahead."""
    synthetic.write(path, **manifest)
    for file in (path / rundir.TURNS).glob("w1-*.parquet"):
        table = pq.read_table(file)
        metadata = dict(table.schema.metadata)
        metadata[b"anchor_wall_ns"] = str(int(metadata[b"anchor_wall_ns"]) + round(apart_s * synthetic.NS)).encode()
        pq.write_table(table.replace_schema_metadata(metadata), file)
    return path


def test_clocks_20_s_apart_are_corrected_by_their_offset(tmp_path: Path) -> None:
    path = clocks(tmp_path / "run", 20.0)
    assert notes_of(path) == ""
    planned_s = np.sort(frames.load(OpenRun(path)).turns["planned_s"])
    assert planned_s == pytest.approx([synthetic.planned_ms(number) / 1e3 for number in range(synthetic.TURNS)])


def test_clocks_20_s_apart_without_an_offset_are_noted(tmp_path: Path) -> None:
    path = clocks(tmp_path / "run", 20.0, workers=[{"name": "w0", "clock_offset_ns": 0}])
    notes = notes_of(path)
    assert "the clock offset of worker w1 is not known" in notes
    assert "turns of worker w1 are up to 19 s outside the run" in notes
    assert "worker w0" not in notes


@pytest.mark.parametrize("joined", [False, True])
def test_truncated_scrapes_are_left_out_with_a_note(tmp_path: Path, joined: bool) -> None:
    path = synthetic.write(tmp_path / "run")
    folder = path / rundir.SERVER_METRICS
    if joined:
        join_parts(folder)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    assert f"server_metrics/{file.name} cannot be read to its end; the rest is left out" in notes_of(path)
    assert "no server metrics were scraped" in notes_of(path)


def test_missing_columns_of_an_older_version_are_named(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run")
    file = path / rundir.TURNS / "w0-0000.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["event_ns", "failure"]), file)
    assert "turns/w0-0000.parquet lacks event_ns, failure and is left out" in notes_of(path)
    assert len(frames.load(OpenRun(path)).turns) == synthetic.TURNS - 10


def test_unrelated_parquet_files_are_left_out_with_a_note(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run")
    for folder in (rundir.TURNS, rundir.SERVER_METRICS):
        pq.write_table(pa.table({"a": [1]}), path / folder / "z-copied.parquet")
    file = path / rundir.TURNS / "w0-0000.parquet"
    table = pq.read_table(file)
    other = table.replace_schema_metadata({**table.schema.metadata, b"run_id": b"another"})
    ids = pa.array([f"other-{row}" for row in range(len(table))])
    pq.write_table(
        other.set_column(table.schema.get_field_index("turn_id"), "turn_id", ids), file.with_name("w0-9.parquet")
    )
    notes = notes_of(path)
    assert "turns/z-copied.parquet holds no turns of a run, and is left out" in notes
    assert "turns/w0-9.parquet holds turns of another run, another, and is left out" in notes
    assert "server_metrics/z-copied.parquet cannot be read to its end; the rest is left out" in notes
    assert len(frames.load(OpenRun(path)).turns) == synthetic.TURNS


def test_the_truncated_last_line_of_a_history_is_ignored(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run")
    file = path / rundir.LOCUST_HISTORY
    file.write_text(file.read_text() + "1795000011,12")  # of 128
    assert frames.load(OpenRun(path)).users["users"].max() == 8


def test_a_value_of_the_wrong_type_is_named_by_its_key(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run", phases="none")
    summary = json.loads((path / rundir.SUMMARY).read_text())
    summary["turns"] = [1, 2]
    summary["verdict"]["gates"][0] = "passed"
    (path / rundir.SUMMARY).write_text(json.dumps(summary))
    notes = notes_of(path)
    assert "run.json: phases is left out (phases: expected \\`array\\`, got \\`str\\`)" in notes
    assert "summary.json: turns is left out (turns: expected \\`object\\`, got \\`array\\`)" in notes
    assert "summary.json: verdict is left out (verdict.gates" in notes
    assert "summary.json is left out (object missing required field \\`turns\\`)" in notes


def check(base: Path, path: Path, hurt: damage.Damage) -> None:
    """A damaged run gives a report without wrong numbers, or a usage error."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    hurt(path)
    try:
        files = report.make(OpenRun(path))
    except UsageError:
        return
    text = files.markdown.read_text()
    assert "nan" not in re.findall(r"[a-z]+", text.partition("## Definitions")[0])
    table = next(iter(csv.reader(files.timeline.open())))
    values = np.array(
        [row[table.index("turns_started")] or "nan" for row in list(csv.reader(files.timeline.open()))[1:]], dtype=float
    )
    assert np.nansum(values) <= synthetic.TURNS


def all_damages(base: Path) -> list[tuple[str, damage.Damage]]:
    return [*damage.truncations(base, (0.0, 0.3, 0.7, 0.97)), *damage.documents(base)]


def test_a_damaged_run_gives_a_page_or_a_usage_error(whole: Path, tmp_path: Path) -> None:
    cuts = list(damage.truncations(whole, (0.6,)))
    for _, hurt in [*cuts[::2], *random.Random(2).sample(list(damage.documents(whole)), 3)]:
        check(whole, tmp_path / "run", hurt)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_damage_gives_a_page_or_a_usage_error(whole: Path, tmp_path: Path) -> None:
    for label, hurt in all_damages(whole):
        try:
            check(whole, tmp_path / "run", hurt)
        except Exception as error:
            raise AssertionError(label) from error


def test_empty_turns_files_give_a_report_of_the_summary(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run")
    for file in (path / rundir.TURNS).iterdir():
        table = pq.read_table(file)
        pq.write_table(pa.Table.from_batches([], schema=table.schema), file)
    text = report.make(OpenRun(path)).markdown.read_text()
    assert "## The slowest turns" not in text
    assert "## Latency" in text  # from the summary, which has figures of turns
