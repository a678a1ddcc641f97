"""Run frames, timeline and report of a run with known figures."""

import copy
import csv
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import summaries
import synthetic_run as synthetic
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.charts.charts import pictures
from inferload.analysis.data import breakdown, frames, timeline
from inferload.analysis.data.frame import Frame
from inferload.analysis.data.frames import Recorded
from inferload.analysis.data.partial_run import Notes
from inferload.analysis.report import first_screen, report
from inferload.analysis.report.model import build, recorded_load
from msgspec.structs import replace
from records import S, turns

from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.numbers import NOT_KNOWN
from inferload.cli import main
from inferload.figures.counting import within
from inferload.figures.servers.server_figures import Server
from inferload.figures.table import Table, head_of
from inferload.figures.turn_batch import TurnBatch
from inferload.results.documents.manifest_document import Manifest, ScenarioFile
from inferload.results.documents.typed_documents import typed
from inferload.results.open_run import OpenRun
from inferload.results.summary import exact_block
from inferload.results.tables.run_tables import run_tables
from inferload.results.tables.server_tables import servers_tables
from inferload.results.verdict import failures
from inferload.scenario import scenario as scenarios
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.servers.scrapes_file import write_part
from inferload.turns import turns_file
from inferload.turns.record import PhaseWindow, TurnRecord
from inferload.turns.turn_columns import TurnColumns, to_table

Golden = Callable[[str, str], None]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("runs") / "20261118T103640Z-chat")


@pytest.fixture(scope="module")
def table(run_dir: Path) -> Frame:
    return timeline.build(frames.load(OpenRun(run_dir)))


def test_worker_clocks_are_mapped_to_the_masters(run_dir: Path) -> None:
    turns = frames.load(OpenRun(run_dir)).turns.sorted_by("planned_s")
    assert len(turns) == synthetic.TURNS
    expected = [synthetic.planned_ms(number) / 1e3 for number in range(synthetic.TURNS)]
    assert turns["planned_s"] == pytest.approx(expected, abs=1e-6)
    assert set(turns["worker"]) == {"w0", "w1"}


def test_a_worker_with_unknown_clock_offset_is_noted(tmp_path: Path) -> None:
    run = frames.load(OpenRun(synthetic.write(tmp_path, workers=[{"name": "w0", "clock_offset_ns": 0}])))
    assert [note for note in run.notes if "clock offset of worker w1" in note]
    late = run.turns[run.turns["worker"] == "w1"]["planned_s"].min()
    assert late == pytest.approx(synthetic.planned_ms(1) / 1e3 + 0.040)  # its wall clock was 40 ms ahead


@pytest.mark.parametrize("damaged", [False, True])
def test_a_turn_in_two_files_counts_once(tmp_path: Path, damaged: bool) -> None:
    """As after a crash between the join of a worker's parts and their removal; also if the joined file is damaged."""
    path = synthetic.write(tmp_path / "run")
    folder, joined = path / rundir.TURNS, path / rundir.TURNS / "w0-all.parquet"
    shutil.copytree(folder, tmp_path / "parts")
    turns_file.join_parts(folder, "w0")
    assert not (folder / "w0-0000.parquet").exists()
    shutil.copytree(tmp_path / "parts", folder, dirs_exist_ok=True)
    if damaged:  # its metadata, at the end, is whole
        joined.write_bytes(b"PAR1" + bytes(2000) + joined.read_bytes()[2004:])
    run = frames.load(OpenRun(path))
    assert len(run.turns) == synthetic.TURNS
    assert len(run.events.at_s) == synthetic.TURNS * synthetic.EVENTS
    assert ("turns/w0-all.parquet cannot be read and is left out" in run.notes) == damaged


def test_the_timeline_counts_every_turn_and_token_once(table: Frame) -> None:
    assert table["t_s"].tolist() == list(range(12))
    assert table["turns_started"].sum() == synthetic.TURNS
    assert table["turns_ended"].sum() == synthetic.TURNS
    assert table["turns_failed"].tolist() == [0] * 8 + [1] + [0] * 3
    assert table["output_tok"].sum() == pytest.approx((synthetic.TURNS - 1) * synthetic.EVENTS)
    assert table["in_flight"][-1] == 0
    assert table["in_flight"][3] == 2  # the turns sent at 3.502 and 3.752 s are in flight at 4 s


SENT = turns().filter(lambda record: (record.sent_ns is not None or not record.ok) and record.closed_ns % S > 0)


@given(st.lists(SENT, min_size=1, max_size=12))
def test_a_second_of_the_timeline_equals_a_window_of_the_summary(records: list[TurnRecord]) -> None:
    columns, anchor = TurnColumns(), Anchor(synthetic.START_WALL_NS, 0)
    columns.extend([replace(record, turn_id=f"t{number}") for number, record in enumerate(records)])
    with tempfile.TemporaryDirectory() as folder:
        path = synthetic.write(Path(folder), anchor={"mono_ns": 0, "wall_ns": anchor.wall_ns})
        for part in (path / rundir.TURNS).iterdir():
            part.unlink()
        pq.write_table(
            to_table(columns, anchor, "w0", synthetic.MANIFEST["id"]), path / rundir.TURNS / "w0-0000.parquet"
        )
        table = timeline.build(frames.load(OpenRun(path)))
    for second in range(len(table)):
        window = PhaseWindow("measure", second * S, (second + 1) * S)
        counts = within(TurnBatch.of_records(records), window)
        assert table["turns_ended"][second] - table["turns_failed"][second] == counts.ended_ok.sum()
        if not np.isnan(table["output_tok"][second]):
            assert table["output_tok"][second] == counts.output_tokens.sum()


def test_latencies_are_in_the_second_of_their_end(table: Frame) -> None:
    assert np.isnan(table["e2e_ms_p50"][0])  # the first turn ends at 1.002 s
    assert table["ttft_ms_p50"][5] == pytest.approx(100)
    assert table["itl_ms_p95"][5] == pytest.approx(20)
    assert table["e2e_ms_p95"][5] == pytest.approx(500)


def test_the_timeline_has_phases_and_users(table: Frame) -> None:
    assert table["phase"].tolist() == ["warmup"] * 2 + ["measure"] * 9 + ["drain"]
    users = table["users"].tolist()
    assert users[:11] == [4] * 3 + [8] * 8
    assert np.isnan(users[11])


def test_server_figures_of_the_timeline_have_gaps_without_scrapes(table: Frame) -> None:
    unseen = np.isnan(table["kv_cache_usage"]).tolist()
    assert unseen == [False] * 5 + [False, True] + [False] * 5  # no scrapes between 5.0 and 7.5 s
    rate = table["generation_tok_per_s"]
    assert rate[[0, 1, 2, 3, 4, 8, 9, 10, 11]].tolist() == pytest.approx([84] * 9)
    assert np.isnan(rate[[5, 6, 7]]).all()
    assert table["preemptions"].tolist()[8] == 1
    hit_rate = table["prefix_cache_hit_rate"]
    assert hit_rate[~np.isnan(hit_rate)].tolist() == pytest.approx([0.25] * 9)
    assert np.isnan(table["waiting_capacity"]).all()
    assert table["generation_tokens"][[0, 1, 2, 3]].tolist() == [84] * 4
    assert np.isnan(table["generation_tokens"][[5, 6, 7]]).all()


def test_each_of_several_servers_has_its_columns(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path)
    other = synthetic.scrapes().set_column(1, "target", [["http://127.0.0.1:9000"] * len(synthetic.scrapes())])
    write_part(path / rundir.SERVER_METRICS, 1, other)
    columns = timeline.build(frames.load(OpenRun(path)))
    assert {"kv_cache_usage@127.0.0.1:8000", "kv_cache_usage@127.0.0.1:9000"} <= set(columns)
    assert "kv_cache_usage" not in columns


@given(st.lists(st.tuples(st.floats(0, 4.99), st.floats(0, 1e4)), max_size=40), st.sampled_from([0.5, 0.95]))
def test_quantiles_by_second_are_nearest_rank(samples: list[tuple[float, float]], q: float) -> None:
    at_s = np.array([at for at, _ in samples])
    values = np.array([value for _, value in samples])
    (quantiles,) = timeline.quantiles_by_second(at_s, values, (q,), 5)
    for second in range(5):
        inside = sorted(value for at, value in samples if int(at) == second)
        if inside:
            assert quantiles[second] == inside[max(0, int(np.ceil(q * len(inside))) - 1)]
        else:
            assert np.isnan(quantiles[second])


def test_the_report_of_a_known_run(run_dir: Path, golden: Golden) -> None:
    run = frames.load(OpenRun(run_dir))
    model = build(Recorded(run_dir, run.manifest, run.summary), run.notes)
    model_without_manifest = type(model)(**{name: getattr(model, name) for name in model.__slots__} | {"manifest": ""})
    drawn = pictures(run, timeline.build(run), breakdown.parts(run.turns), Notes())
    golden("report.md", report.markdown(model, run.marks))
    page = report.html(model_without_manifest, run.marks, drawn, "plotly.js")
    golden("report.html", re.sub(r"(<(style|script)\b[^>]*>).*?(</\2>)", r"\1\3", page, flags=re.DOTALL))


def test_the_timeline_file_of_a_known_run(run_dir: Path, golden: Golden, tmp_path: Path) -> None:
    timeline.write(timeline.build(frames.load(OpenRun(run_dir))), tmp_path / "timeline.csv")
    golden("timeline.csv", (tmp_path / "timeline.csv").read_text())


def summary_with(**verdict: Any) -> dict[str, Any]:
    summary = copy.deepcopy(synthetic.SUMMARY)
    summary["verdict"] |= verdict
    return summary


def pages(path: Path) -> tuple[str, str]:
    files = report.make(OpenRun(path))
    page = files.html.read_text()
    return files.markdown.read_text(), re.sub(r'(id="plotly">)[^<]*', r"\1", page)


def test_an_invalid_run_is_marked_in_every_section_of_the_text_and_once_on_the_page(tmp_path: Path) -> None:
    reason = {"code": "client_delay", "phase": "measure", "level": "invalid", "text": "the client was late"}
    summary = summary_with(measurement="invalid", reasons=[reason])
    markdown, page = pages(synthetic.write(tmp_path / "run", summary))
    outcome = "failed: 2 of 3 gates failed; 1 of 44 turns failed; measurement invalid (client_delay)"
    assert markdown.splitlines()[2] == f"**{outcome}.**"
    assert "the client was late (`client_delay`, measure)" in markdown
    numbers = re.split(r"^## ", markdown, flags=re.MULTILINE)[1:]
    silent = [text.splitlines()[0] for text in numbers if "measurement not valid" not in text.splitlines()[0]]
    assert silent == ["Load", "Events", "Configuration"]
    assert f"<title>{outcome} ·" in page
    shown = re.sub(r"<(style|script|head)\b.*?</\1>|<[^>]*>", "", page, flags=re.DOTALL)
    assert (
        len(re.findall("not valid|measurement invalid", shown, re.IGNORECASE)) == 1
    )  # in the line that stays at the top of the page
    assert 'data-caution="measurement not valid"' in page  # of saved charts


def test_a_run_on_the_simulator_is_marked_first(tmp_path: Path) -> None:
    summary = summary_with()
    summary["run"]["engine"] = "simulator"
    markdown, page = pages(synthetic.write(tmp_path / "run", summary, engine="simulator", insecure=True))
    assert markdown.startswith("# chat on the simulator\n")
    assert markdown.splitlines()[2].startswith(
        "**Simulated server: what it stands for is not recorded. failed: 2 of 3 gates failed; "
    )
    assert "--insecure" in markdown
    assert " · chat on the simulator</title>" in page
    assert re.search(r'<div class="verdict"><span [^>]*>.*</span><span class="badge">simulator</span>', page)
    assert '</h1>\n<p class="note">Simulated server: what it stands for is not recorded.</p>' in page
    assert "--insecure" in page


def test_the_report_of_a_killed_run_is_marked_incomplete(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run", killed=True)
    (path / rundir.TURNS / "w1-0002.parquet").write_bytes(b"PAR1 cut short")
    markdown, page = pages(path)
    assert "The run is incomplete" in markdown.splitlines()[2]
    assert "summary.json is missing" in markdown
    assert "w1-0002.parquet cannot be read" in markdown
    assert "## Latency (" not in markdown
    assert 'data-picture="over-time"' in page
    rows = list(csv.DictReader((path / rundir.TIMELINE).open()))
    assert len(rows) == 12
    # The last turns of the workers close at 11.503 and 11.753 s, and a turn takes 0.501 s: the last second is unknown.
    assert [bool(row["turns_ended"]) for row in rows] == [True] * 11 + [False]
    assert [bool(row["in_flight"]) for row in rows] == [True] * 11 + [False]
    assert "turns in flight when the run was killed were not written" in markdown


def test_an_almost_empty_run_directory_has_a_report(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run", killed=True)
    for name in (rundir.TURNS, rundir.SERVER_METRICS):
        shutil.rmtree(path / name)
    for name in (rundir.MANIFEST, rundir.LOCUST_HISTORY):
        (path / name).unlink()
    markdown, page = pages(path)
    assert "run.json is missing" in markdown
    assert "no turn records are in the run directory" in markdown
    assert 'class="plot"' not in page


def test_foreign_text_is_escaped_in_the_report(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>|x"
    _, page = pages(synthetic.write(tmp_path / "run", scenario={"name": evil, "text": evil}, stop_reason=evil))
    markdown = (tmp_path / "run" / rundir.REPORT_MD).read_text()
    assert "<script>alert" not in page
    assert "\\</script>\\<script>alert(1)\\</script>\\|x" in markdown
    assert not re.search(r"(?<!\\)<script", markdown)


def test_the_page_needs_no_network(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    files = report.make(OpenRun(tmp_path / "run"))
    page = files.html.read_text()
    assert re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page.split("<script>")[0]) == []
    assert "default-src 'none'" in page
    assert page.count("<script") == 3
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])["figures"]  # type: ignore[index]
    assert list(figures) == ["over-time", "spectrum", "where-from", "prompts", "itl-heat", "lanes"]
    assert 400_000 < len(page) < 1_000_000  # with its chart library


@pytest.mark.parametrize("path", ["nowhere", "empty"])
def test_a_missing_or_empty_run_directory_is_a_usage_error(
    tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="name one that a run wrote"):
        frames.load(OpenRun(tmp_path / path))
    assert main(["report", str(tmp_path / path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_prints_the_outcome_and_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic.write(tmp_path / "run")
    assert main(["report", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "failed: 2 of 3 gates failed; 1 of 44 turns failed. The measurement is valid."
    assert [Path(line.strip()).is_file() for line in lines[1:]] == [True] * 3


def test_a_price_adds_costs_to_the_business_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic.write(tmp_path / "run")
    assert main(["report", str(path)]) == 0
    assert "Cost of" not in (path / "report.md").read_text()
    output = json.loads((path / "summary.json").read_text())["rates"]["output_tok_per_s"]
    assert main(["report", str(path), "--gpu-hour-price", "3.6", "--gpus", "2"]) == 0
    business = (path / "report.md").read_text().partition("## Business")[2].partition("## ")[0]
    cost = next(line for line in business.splitlines() if "Cost of a million output tokens" in line).split("|")[2]
    assert float(cost) == pytest.approx(0.002 / output * 1e6, rel=1e-3)
    capsys.readouterr()
    assert main(["report", "--locust-csv", str(tmp_path / "x"), "--gpus", "2"]) == 2
    assert "--gpus requires run directories" in capsys.readouterr().err


def test_the_tables_of_servers_have_engines_drafts_and_machines() -> None:
    drafts = {"drafts": 100, "accepted_tok_per_s": 21.0, "acceptance_by_position": [0.9, 0.5, None]}
    servers = [{"spec_decode": drafts, "process_cpu_share": 0.5}, {"gpu": {"use": {"mean": 0.4, "max": 0.9}}}]
    engine, machines, _ = servers_tables([msgspec.convert({"target": "x", **entry}, Server) for entry in servers], {})
    assert (engine.title, machines.title) == ("Engine", "Machines of the servers")
    rows = {name: values for name, *values in rows_of(engine)}
    assert rows["accepted, tok/s"] == ["21", NOT_KNOWN]
    assert rows["accepted by position"] == [f"90 %, 50 %, {NOT_KNOWN}", NOT_KNOWN]
    assert [name for name, *_ in rows_of(machines)] == ["front end CPU, cores", "GPU use"]


def test_unknown_values_of_a_table_are_not_known() -> None:
    gauge, histogram = {"mean": None, "max": None}, {"mean": 96.5, "p50": [80.0, 100.0], "p99": [250.0, None]}
    known = {"requests_running": {"mean": 2.0, "max": 3.0}, "ttft_ms": histogram}
    unknown = {"requests_running": gauge, "ttft_ms": histogram | {"p50": None}}
    rows = {
        name: values
        for name, *values in rows_of(
            servers_tables(
                [msgspec.convert({"target": "x", **figures}, Server) for figures in (known, unknown, {})], {}
            )[0]
        )
    }
    assert rows["requests running"] == ["2 (max 3)", NOT_KNOWN, NOT_KNOWN]
    assert rows["engine TTFT, ms"] == [
        "96.5 (p50 80 to 100, p99 over 250)",
        f"96.5 (p50 {NOT_KNOWN}, p99 over 250)",
        NOT_KNOWN,
    ]


def test_each_load_step_has_a_row_with_its_window() -> None:
    part = {name: synthetic.SUMMARY[name] for name in ("rates", "latency", "turns")}
    steps = [
        {"step": 0, "sessions_per_s": 1.0, "window_s": 4.0, **part},
        {"step": 1, "sessions_per_s": 2.5, "window_s": 5.0, **part},
    ]
    tables = {table.title: table for table in run_tables(summaries.results(synthetic.SUMMARY | {"steps": steps}))}
    by_step = tables["Steps"]
    assert by_step.columns[:2] == ["step", "window, s"]
    assert [row[:2] for row in rows_of(by_step)] == [("0: 1 sessions/s", "4"), ("1: 2.5 sessions/s", "5")]
    assert "Steps" not in {table.title for table in run_tables(summaries.results(synthetic.SUMMARY))}


def block_of(values: np.ndarray) -> dict[str, Any]:
    block: dict[str, Any] = msgspec.to_builtins(exact_block(values))
    return block


def rows_of(table: Table) -> list[tuple[str, ...]]:
    return [tuple(row) for row in table.texts]


def titled_tables(**summary: Any) -> dict[str, Table]:
    return {table.title: table for table in run_tables(summaries.results(synthetic.SUMMARY | summary))}


def test_a_percentile_of_a_step_with_few_samples_is_marked() -> None:
    latency = {"ttft_ms": block_of(np.arange(40.0)), "itl_ms": block_of(np.arange(400.0))}
    part = {name: synthetic.SUMMARY[name] for name in ("rates", "turns")} | {"latency": latency}
    by_step = titled_tables(steps=[{"step": 0, "users": 2, "window_s": 4.0, **part}])["Steps"]
    assert rows_of(by_step)[0][6:12] == ("19", "37 ~ (over 34)", "39 ~ (over 37)", "199", "379", "395 ~ (391 to 399)")
    assert "fewer than 10 samples" in by_step.note


@pytest.mark.parametrize(
    ("server", "client", "turns", "longest"),
    [
        (0, 0, "0", "none over 250"),
        (2, 0, "2", "300"),
        (2, 1, "2; 1 while the client was blocked", "300"),
        (0, 1, "0; 1 while the client was blocked", "none over 250 by the server"),
    ],
)
def test_a_stall_of_the_client_is_no_stall_of_the_server(server: int, client: int, turns: str, longest: str) -> None:
    stalls = {
        "turns_with_stall": server,
        "turns_with_client_stall": client,
        "longest_ms": 300.0 if server else None,
    }
    rows = dict(rows_of(titled_tables(stalls=stalls)["System"]))
    assert (rows["turns with a stall (a gap over 250 ms)"], rows["longest gap, ms"]) == (turns, longest)


def test_a_gate_and_its_interval_have_the_digits_of_the_terminal() -> None:
    gate = {"gate": "p95(ttft_ms) < 200", "value": 123.45, "passed": True, "low": 120.51, "high": 126.44}
    (row,) = rows_of(titled_tables(verdict={"gates": [gate]})["Gates"])
    assert row == ("p95(ttft_ms) < 200", "123 ms", "passed; 95 %: 121 to 126 ms")


def test_the_slo_table_has_the_limits_and_the_share_that_missed_each_by_class() -> None:
    agent = {"limits": {"ttft_ms": 5000.0}, "turns": 20, "met": 20, "missed": {}}
    chat = {
        "limits": {"ttft_ms": 1000.0, "itl_ms": 50.0},
        "turns": 80,
        "met": 40,
        "missed": {"ttft_ms": 8, "itl_ms": 36},
    }
    both = {
        "limits": {"ttft_ms": None, "itl_ms": None},
        "turns": 100,
        "met": 60,
        "missed": chat["missed"] | {"dropped": 2},
    }
    table = titled_tables(slo=both, by_class={"chat": {"slo": chat}, "agent": {"slo": agent}})[
        "SLO: limits of one turn"
    ]
    heads = ["class", "turns", "met all", "TTFT, ms", "p99 of the gaps within the turn, ms", "dropped"]
    assert [head_of(column).text for column in table.columns] == heads
    assert rows_of(table) == [
        ("all", "100", "60 %", "by class", "by class", "2 %"),
        ("chat", "80", "50 %", "1,000: missed by 10 %", "50: missed by 45 %", "0 %"),
        ("agent", "20", "100 %", "5,000: missed by 0 %", "no limit", "0 %"),
    ]
    assert "SLO: limits of one turn" not in titled_tables(slo=None)


def test_each_status_and_class_of_turns_has_its_message_in_the_table_of_failures() -> None:
    errors = [
        {"failure": "http_4xx", "status": status, "class": of, "text": f"{status} of {of}", "at_s": 1.0, "worker": "w"}
        for status in (404, 400)
        for of in ("ask", "say")
    ]
    table = titled_tables(turns=synthetic.SUMMARY["turns"] | {"by_failure": {"http_4xx": 9}, "first_errors": errors})
    rows = rows_of(table["Failed turns by class"])
    assert [row[1] for row in rows] == ["9", "", "", ""]
    assert [row[3:5] + row[6:] for row in rows] == [(str(e["status"]), e["class"], e["text"]) for e in errors]


def test_a_measure_equal_in_all_classes_has_no_rows() -> None:
    ttft_ms, itl_ms = (synthetic.SUMMARY["latency"][name] for name in ("ttft_ms", "itl_ms"))
    slower = ttft_ms | {"p95": 900.0}
    classes = {
        "agent": {"turns": {"sent": 4, "failed": 0}, "latency": {"ttft_ms": slower, "itl_ms": itl_ms}},
        "chat": {"turns": {"sent": 32, "failed": 1}, "latency": {"ttft_ms": ttft_ms, "itl_ms": itl_ms | {"count": 9}}},
    }
    table = titled_tables(by_class=classes)["Latency by class"]
    assert [row[:2] for row in rows_of(table)] == [("TTFT, ms", "agent"), ("TTFT, ms", "chat")]
    assert "Turns: agent 4 sent, 0 failed; chat 32 sent, 1 failed. Equal in all classes: ITL." in table.note
    assert "Latency by class" not in titled_tables(by_class={"chat": classes["chat"]})  # equal to the total


def test_a_result_equal_to_the_measure_phase_has_no_column() -> None:
    turns = synthetic.SUMMARY["turns"]
    assert titled_tables()["Turns and sessions"].columns == ("", "measure", "warmup", "drain", "all")
    other = titled_tables(turns=turns | {"sent": turns["sent"] + 1})["Turns and sessions"]
    assert other.columns[:2] == ("", "result")


def test_cancelled_turns_are_a_row_of_the_counts() -> None:
    turns = synthetic.SUMMARY["turns"]
    assert "turns cancelled" not in [row[0] for row in rows_of(titled_tables()["Turns and sessions"])]
    table = titled_tables(turns=turns | {"cancelled": 3})["Turns and sessions"]
    assert [row[:2] for row in rows_of(table)][1:3] == [("turns ok", "35"), ("turns cancelled", "3")]


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        ([{"stands_for": "Qwen3-4B on NVIDIA T4"}], "Simulated server: stands for Qwen3-4B on NVIDIA T4."),
        ([{"stands_for": "a"}, {"stands_for": "b"}, {"stands_for": "a"}], "Simulated server: stands for a and b."),
        ([{}], "Simulated server: what it stands for is not recorded."),
    ],
)
def test_the_report_names_what_a_simulated_server_stands_for(targets: list[dict[str, str]], sentence: str) -> None:
    model = build(Recorded(Path("x"), typed({"engine": "simulator", "targets": targets}, Manifest), None))
    assert model.announced.startswith(sentence)
    assert (
        sentence
        not in build(Recorded(Path("x"), typed({"engine": "vllm", "targets": targets}, Manifest), None)).announced
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "too few scrapes of the measure phase"),
        ({"servers": []}, "no metrics of a server were scraped"),
        ({"turns": {"sent": 0}}, "the run has no turns"),
        (None, ""),  # the headline says it
    ],
)
def test_an_unknown_cause_states_why(changes: dict[str, Any] | None, why: str) -> None:
    summary = None if changes is None else summaries.summary(synthetic.SUMMARY | changes)
    recorded = Recorded(Path("x"), typed(synthetic.MANIFEST, Manifest), summary)
    assert build(recorded).first.cause == (why and f"not known: {why}")
    assert build(recorded, cause="queue-bound").first.cause == "queue-bound"


def test_percentiles_of_few_tasks_and_reads_are_marked() -> None:
    block = block_of(np.arange(1.0, 6.0))
    counts = ("begun", "done", "stalled", "cancelled_turns", "uncounted_turns")
    task = dict.fromkeys((*counts, "input_per_output", "cached_share"), 0)
    tables = titled_tables(
        tasks={"agent": task | {"completion_s": block, "cached_share_by_step": []}},
        client=synthetic.SUMMARY["client"] | {"delay_ms": block},
    )
    (row,) = [row for row in rows_of(tables["Tasks: agent"]) if row[0].startswith("whole task")]
    assert ["~" in cell for cell in row[1:]] == [False, True, True, True, False, False]
    (delay,) = [row for row in rows_of(tables["Load generator"]) if row[0].startswith("Client delay")]
    assert ["~" in cell for cell in delay[1:]] == [True, True, False]


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 50))
def test_the_first_screen_counts_failed_turns_as_the_headline(ok: int, failed: int, unfinished: int) -> None:
    turns = {"sent": ok + failed + unfinished, "ok": ok, "failed": failed, "unfinished": unfinished}
    summary = summaries.results({"turns": turns | {"by_failure": {"cut": failed}}})
    screen = first_screen.of_run(Manifest(), summary, None, "")
    (tile,) = (tile for tile in screen.tiles if tile.label.text == "Failed")
    assert failures.lines(summary)[0].startswith(f"{tile.value} {tile.detail.partition(',')[0]} failed (")
    assert tile.detail.endswith(f", {unfinished} unfinished" if unfinished else "turns")


def test_the_load_is_that_of_the_manifest_or_of_its_scenario() -> None:
    manifest = typed(synthetic.MANIFEST, Manifest)
    assert recorded_load(manifest, ()) == manifest.load
    killed = recorded_load(Manifest(scenario=ScenarioFile(text=scenarios.load("chat-open").resolved_text())), ())
    assert killed is not None
    assert killed.detail == "session starts"
    assert [title for title, _ in killed.rows] == ["arrivals", "phases"]
    assert recorded_load(Manifest(), ()) is None
    with pytest.raises(ScenarioError, match=r"run\.json"):
        recorded_load(Manifest(scenario=ScenarioFile(text="schema: 1\nname: chat\n")), ())
