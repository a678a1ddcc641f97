"""Files of other tools: vLLM's log, Locust's CSV files, saved metrics pages, a GPU exporter; and export in vLLM's bench format."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import summaries
import synthetic_run as synthetic
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.comparison import comparable, read_sides
from inferload.analysis.data import frames, timeline, vllm_log
from inferload.analysis.interop import imported, locust_csv, vllm_bench
from inferload.analysis.report.report import ReportOptions, make, make_of_locust, slowest
from paths import DATA
from summaries import server_documents as servers_block

from inferload import cli
from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.cli import main
from inferload.figures.pages import metric_names
from inferload.figures.servers.server_figure import GPU
from inferload.figures.servers.server_figures import KEPT_PREFIXES, KV_CACHE_USAGE, SERVER_FIGURES
from inferload.results.documents.summary_document import OtherRequests
from inferload.results.open_run import OpenRun
from inferload.servers.scrapes_file import ScrapeColumns, write_part

START_S = synthetic.START_WALL_NS / 1e9
GPU_TARGET = "http://127.0.0.1:9400"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("runs") / "run")


def stamped(at_s: float, text: str) -> str:
    stamp = datetime.fromtimestamp(START_S + at_s).strftime("%m-%d %H:%M:%S")
    return f"(APIServer pid=7) INFO {stamp} [loggers.py:335] {text}\n"


ENGINE = (
    "Engine {:03d}: Avg prompt throughput: {} tokens/s, Avg generation throughput: {} tokens/s, Running: {} reqs, "
    "Waiting: {} reqs, "
)
FIRST = (
    ENGINE.format(0, 120.5, 84.0, 2, 1)
    + "GPU KV cache usage: 31.5%, Prefix cache hit rate: 25.0%, MM cache hit rate: 50.0%"
)
MORE = (
    ENGINE.format(0, 99.9, 80.0, 3, 2)
    + "Deferred: 1 reqs, Preemptions: 4, CPU KV cache usage: 40.0%, Prefix cache hit rate: 30.0%, "
    + "External prefix cache hit rate: 7.0%"
)
SPECULATION = (
    "SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 60.10 tokens/s, Drafted throughput: 160.00 tokens/s, "
    "Accepted: 601 tokens, Drafted: 1600 tokens, Per-position acceptance rate: 0.800, 0.450, 0.200, 0.050, "
    "Avg Draft acceptance rate: 37.6%"
)


def test_every_field_of_the_vllm_log_is_read() -> None:
    text = "INFO nothing of interest\n" + stamped(5, FIRST) + stamped(5, SPECULATION) + stamped(10, MORE)
    first, second = vllm_log.parse(text)
    assert first.figures == pytest.approx({
        "prompt_tok_computed_per_s": 120.5, "generation_tok_per_s": 84.0, "requests_running": 2, "requests_waiting": 1,
        "kv_cache_usage": 0.315, "prefix_cache_hit_rate": 0.25, "mm_cache_hit_rate": 0.5, "mean_acceptance_length": 2.5,
        "accepted_tok_per_s": 60.1, "drafted_tok_per_s": 160, "accepted_tokens": 601, "drafted_tokens": 1600,
        "acceptance_rate": 0.376})  # fmt: skip
    assert first.per_position == (0.8, 0.45, 0.2, 0.05)
    assert second.figures == pytest.approx({
        "prompt_tok_computed_per_s": 99.9, "generation_tok_per_s": 80.0, "requests_running": 3, "requests_waiting": 2,
        "waiting_deferred": 1, "preemptions": 4, "kv_cache_usage": 0.4, "prefix_cache_hit_rate": 0.3,
        "external_cache_hit_rate": 0.07})  # fmt: skip


# Lines of the V0 engine and of V1's speculation, as in vLLM 0.8.4 (vllm/engine/metrics.py, vllm/v1/spec_decode/metrics.py).
V0 = (
    "Avg prompt throughput: 50.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 9 reqs, Swapped: 2 reqs, "
    "Pending: 5 reqs, GPU KV cache usage: 91.0%, CPU KV cache usage: 3.0%."
)
V0_HITS = "Prefix cache hit rate: GPU: 62.50%, CPU: 0.00%"
V0_SPECULATION = (
    "Speculative metrics: Draft acceptance rate: 0.713, System efficiency: 0.600, Number of speculative tokens: 4, "
    "Number of accepted tokens: 70, Number of draft tokens: 98, Number of emitted tokens: 90."
)
V1_SPECULATION = "SpecDecoding metrics: Draft acceptance rate: 37.5%, Accepted: 3 tokens, Drafted: 8 tokens"
V0_UNREAD = ("Swapped", "CPU KV cache usage", "CPU")


@pytest.mark.parametrize(
    ("rows", "figures", "unread"),
    [
        ([V0], {"prompt_tok_per_s": 50, "requests_waiting": 5, "kv_cache_usage": 0.91}, V0_UNREAD[:2]),
        ([V0, V0_HITS], {"prefix_cache_hit_rate": 0.625}, V0_UNREAD),
        ([V0, V0_SPECULATION], {"requests_running": 9}, (
            *V0_UNREAD[:2], "Draft acceptance rate", "System efficiency", "Number of speculative tokens",
            "Number of accepted tokens", "Number of draft tokens", "Number of emitted tokens")),
        ([FIRST, V1_SPECULATION], {"acceptance_rate": 0.375, "accepted_tokens": 3, "drafted_tokens": 8}, ()),
        ([FIRST, SPECULATION], {"acceptance_rate": 0.376}, ()),
        ([MORE + ", Corrupted: 3 reqs"], {"preemptions": 4}, ("Corrupted",)),
    ],
)  # fmt: skip
def test_a_field_of_a_known_line_is_read_or_named(
    rows: list[str], figures: dict[str, float], unread: tuple[str, ...]
) -> None:
    (line,) = vllm_log.parse("".join(stamped(5, row) for row in rows))
    assert {key: line.figures[key] for key in figures} == pytest.approx(figures)
    assert line.unread == unread
    assert ("acceptance_rate" in line.figures) == (rows[-1] in (V1_SPECULATION, SPECULATION))
    assert ("prompt_tok_computed_per_s" in line.figures) != ("prompt_tok_per_s" in line.figures)
    table = vllm_log.table(vllm_log.on_run_clock("log", [line], int(START_S * 1e9)))
    assert table is not None
    assert ("V0 engine: of blocks" in table.note) == (rows[0] is V0)
    assert all(name in table.note for name in unread)


def test_lines_with_an_impossible_date_are_skipped() -> None:
    wrong = stamped(5, FIRST).replace(datetime.fromtimestamp(START_S + 5).strftime("%m-%d"), "02-31")
    assert vllm_log.parse(wrong) == []
    leap = stamped(5, FIRST).replace(datetime.fromtimestamp(START_S + 5).strftime("%m-%d"), "02-29")
    at_ns = int(datetime(2026, 2, 28).timestamp()) * 10**9  # 2025, 2026 and 2027 are not leap years
    assert len(vllm_log.on_run_clock("log", vllm_log.parse(leap), at_ns).rows) == 1


def test_figures_of_a_log_are_columns_of_the_timeline(run_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    lines = ((4, FIRST), (4, SPECULATION), (9, MORE), (9, FIRST.replace("Engine 000", "Engine 001")))
    log.write_text("".join(stamped(at_s, line) for at_s, line in lines))
    table = timeline.build(frames.load(OpenRun(run_dir), log))
    by_second = np.stack([table["requests_running@log"], table["kv_cache_usage@log"]]).T
    assert np.flatnonzero(~np.isnan(by_second[:, 0])).tolist() == [4, 9]
    np.testing.assert_allclose(by_second[[4, 9]], [[2, 0.315], [5, 0.4]])  # the sum and the maximum of two engines
    by_second = table["generation_tok_per_s@log"][:10]
    np.testing.assert_allclose(by_second, [84.0] * 4 + [164.0] * 5 + [np.nan])
    files = make(OpenRun(run_dir), ReportOptions(server_log=log))
    assert "accepted at position 3" in files.markdown.read_text()
    assert f"{KV_CACHE_USAGE.label} @log" in files.html.read_text()


def test_acceptance_by_position_outside_the_run_is_left_out(run_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("".join(stamped(at_s, FIRST) + stamped(at_s, SPECULATION) for at_s in (-3600, 4, 3600)))
    read = frames.load(OpenRun(run_dir), log).log
    assert read is not None
    assert [t_s for t_s, _ in read.per_position] == list(read.rows["t_s"])
    assert len(read.per_position) == 1


def test_a_log_of_another_time_or_without_figures_is_refused(run_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(stamped(7200, FIRST))
    with pytest.raises(UsageError, match=r"are outside the run.*TZ"):
        frames.load(OpenRun(run_dir), log)
    log.write_text("hello\n")
    with pytest.raises(UsageError, match="no line with 'Avg prompt throughput'"):
        frames.load(OpenRun(run_dir), log)
    with pytest.raises(UsageError, match="No such file"):
        frames.load(OpenRun(run_dir), tmp_path / "nowhere")


HEADER = ["Timestamp", "User Count", "Type", "Name", "Requests/s", "Failures/s", "50%", "95%"]
STATS = ["Type", "Name", "Request Count", "Failure Count", "50%", "95%", "Requests/s"]
ENTRIES = (("POST", "/v1/chat"), ("", "Aggregated"))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    rows = [[START_S + second, 8, kind, name, 4.0, 0.5, 120, "N/A" if second < 2 else 300]
            for second in range(10) for kind, name in ENTRIES]  # fmt: skip
    write_csv(tmp_path / "load_stats_history.csv", HEADER, rows)
    write_csv(tmp_path / "load_stats.csv", STATS, [[*entry, 40, 5, 120, 300, 4.0] for entry in ENTRIES])
    return tmp_path / "load"


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_a_report_of_locust_csv_files_names_the_missing_figures(
    prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scrape = prefix.parent / "metrics"
    scrape.mkdir()
    write_part(scrape, 0, synthetic.scrapes())
    assert main(["report", "--locust-csv", str(prefix.parent), "--scrape", str(scrape)]) == 0
    assert capsys.readouterr().out.startswith("Locust's CSV files only: without turns of inferload")
    folder = prefix.with_name("load-report")
    markdown = (folder / rundir.REPORT_MD).read_text()
    assert "## Requests by Locust\n" in markdown
    assert "| POST /v1/chat | 40 | 5 | not known | 120 | 300 |" in markdown
    assert "ttft_ms | " not in markdown.split("## Definitions")[0]
    rows = list(csv.DictReader((folder / rundir.TIMELINE).open()))
    assert len(rows) == 12
    names = ("users", "locust_requests_per_s", "locust_response_ms_p95", "ttft_ms_p50")
    assert [rows[3][name] for name in names] == ["8", "4.0", "300.0", ""]
    assert rows[1]["locust_response_ms_p95"] == ""
    assert rows[3]["requests_running"] == "2.0"
    assert re.search(r"^\| requests running \| .*\d", markdown.partition("## Engine\n")[2], re.MULTILINE)
    assert "Locust response, ms" in (folder / rundir.REPORT_HTML).read_text()


@given(
    names=st.lists(
        st.sampled_from(["NA", "null", "Aggregated", "", "a,b", 'say "hi"', "a\nb"]) | st.text(), max_size=4
    ),
    users=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    percentile=st.sampled_from(["N/A", 0, 12, 1.5e3]),
)
def test_no_part_of_sound_locust_files_is_called_damaged(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], users: list[int], percentile: object
) -> None:
    folder = tmp_path_factory.mktemp("locust")
    entries = [*(("GET", name) for name in names), ("", "Aggregated")]
    history = [[START_S + second, count, kind, name, 4.0, 0.5, percentile, percentile]
               for second, count in enumerate(users) for kind, name in entries]  # fmt: skip
    write_csv(folder / "load_stats_history.csv", HEADER, history)
    write_csv(folder / "load_stats.csv", STATS, [[*entry, 40, 5, percentile, percentile, 4.0] for entry in entries])
    files = make_of_locust(folder, (), None, ReportOptions())
    markdown = files.markdown.read_text()
    assert "damaged" not in markdown
    assert [int(float(row["users"])) for row in csv.DictReader(files.timeline.open())] == users
    assert markdown.count("| 40 | 5 |") == len(entries)


def test_counts_that_a_locust_file_lacks_are_not_known(prefix: Path) -> None:
    write_csv(prefix.with_name("load_stats.csv"), ["Type", "Name", "Request Count"], [["", "Aggregated", 5]])
    assert locust_csv.requests(prefix) == OtherRequests(sent=5, failed=None)
    markdown = make_of_locust(prefix, (), None, ReportOptions()).markdown.read_text()
    assert "0 of 5 other requests" not in markdown
    assert re.search(r"Failed.*not known.*of 5 other requests", markdown)


def test_locusts_json_comes_before_its_csv(prefix: Path) -> None:
    def entry(method: str, name: str, *times_ms: int) -> dict[str, Any]:
        counted = {str(time_ms): times_ms.count(time_ms) for time_ms in times_ms}
        totals = {"total_response_time": sum(times_ms), "max_response_time": max(times_ms, default=0)}
        counts = {"num_requests": len(times_ms), "num_failures": 1, "response_times": counted}
        span = {"start_time": START_S, "last_request_timestamp": START_S + 10}
        return {"method": method, "name": name} | counts | totals | span

    entries = [entry("POST", "/v1/chat", 100, 200, 200, 900), entry("GET", "/health", 5, 5), entry("GET", "/none")]
    prefix.with_name("load.json").write_text(json.dumps(entries))
    found = locust_csv.requests(prefix)
    assert (found.sent, found.failed, found.by_name[1].p50_ms, found.by_name[2].p50_ms) == (6, 3, 5, None)
    markdown = make_of_locust(prefix, (), None, ReportOptions()).markdown.read_text()
    assert "| POST /v1/chat | 4 | 1 | 350 | 200 | 900 | 900 | 900 | 0.4 |" in markdown
    assert "may end a second before" not in markdown
    of_another_run = [{**each, "start_time": 1e9, "last_request_timestamp": 1e9 + 10} for each in entries]
    for other in ([{}], of_another_run):
        prefix.with_name("load.json").write_text(json.dumps(other))
        assert locust_csv.requests(prefix).sent == 40
    assert "may end a second before" in make_of_locust(prefix, (), None, ReportOptions()).markdown.read_text()


def test_percentiles_of_few_requests_in_locusts_history_are_left_out(tmp_path: Path) -> None:
    total = [0, 20, 40, *[41] * 12, 60]  # a pause between
    rows = [[START_S + second, 8, "", "Aggregated", 4.0, 0.5, 120, 300, count] for second, count in enumerate(total)]
    write_csv(tmp_path / "load_stats_history.csv", [*HEADER, "Total Request Count"], rows)
    run = locust_csv.load(tmp_path)
    assert np.flatnonzero(np.isnan(run.users["response_ms_p95"])).tolist() == [0, 12, 13, 14]
    assert any("percentiles of 4 of 16 seconds of Locust's history are left out" in note for note in run.notes)


def test_saved_metrics_pages_have_the_time_of_their_file(tmp_path: Path, prefix: Path) -> None:
    page = tmp_path / "page.txt"
    page.write_text('# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3\n')
    (server,) = locust_csv.read_pages([page]).values()
    assert server.summed(metric_names.RUNNING).tolist() == [3.0]  # type: ignore[union-attr]
    run = locust_csv.load(prefix, [page])
    assert [note for note in run.notes if "outside the time of Locust's history" in note]
    assert not run.servers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Timestamp,User Count\n1,2\n", "lacks Name"),
        ("Timestamp,User Count,Type,Name\n", "no row named Aggregated"),
        ("", "cannot be read"),
    ],
)
def test_an_invalid_locust_history_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x_stats_history.csv").write_text(content)
    with pytest.raises(UsageError, match=message):
        locust_csv.load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name either run directories or"),
        (["RUN", "--locust-csv", "x"], "name either run directories or"),
        (["RUN", "--out", "x"], "require --locust-csv"),
        (["RUN", "RUN", "--vllm-bench", "x.json"], "a single run directory"),
        (["RUN", "RUN", "--as", "llm-d"], "a single run directory"),
        (["--locust-csv", "nowhere"], "no nowhere_stats_history.csv"),
        (["--locust-csv", "x", "--as", "vllm-bench"], "--as vllm-bench prints run directories only"),
        (["RUN", "--as", "vllm-bench", "--vllm-bench", "x.json"], "--as vllm-bench prints run directories only"),
        (["RUN", "--as", "vllm-bench", "--junit", "x.xml"], "--as vllm-bench prints run directories only"),
    ],
)
def test_conflicting_report_options_are_a_usage_error(
    arguments: list[str], message: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(str(run_dir) if word == "RUN" else word for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def gpu_scrapes() -> Iterator[tuple[int, str, tuple[tuple[str, str], ...], float]]:
    for second in range(12):
        for gpu in ("0", "1"):
            labels = (("Hostname", "node"), ("gpu", gpu))
            first = gpu == "0"
            figures = {metric_names.GPU_USE: 90.0 if first else 40.0, metric_names.GPU_MEMORY: 20480.0}
            figures |= {metric_names.GPU_POWER: 300.0, metric_names.GPU_SM_CLOCK: 1980.0 if first else 1410.0}
            for name, value in figures.items():
                yield synthetic.START_WALL_NS + second * synthetic.NS, name, labels, value


def test_figures_of_a_gpu_exporter_are_in_timeline_and_report(tmp_path: Path) -> None:
    columns = ScrapeColumns()
    for wall_ns, name, labels, value in gpu_scrapes():
        columns.append(wall_ns, GPU_TARGET, name, labels, value)
    path = synthetic.write(tmp_path / "run")
    write_part(path / rundir.SERVER_METRICS, 1, columns.to_table())
    table = timeline.build(frames.load(OpenRun(path)))
    gpu = [f"{name}@127.0.0.1:9400" for name in ("gpu_use", "gpu_memory_mib", "gpu_power_w", "gpu_sm_clock_mhz")]
    assert [table[name][4] for name in gpu] == [0.9, 40960.0, 600.0, 1410.0]
    assert not [name for name in table if str(name).endswith("@127.0.0.1:9400") and name not in gpu]
    gpu_metrics = (reading.metric for row in SERVER_FIGURES if row.block == GPU for reading in row.formula.readings)
    assert all(name.startswith(KEPT_PREFIXES) for name in gpu_metrics)
    assert "GPU power, W" in make(OpenRun(path)).html.read_text()
    assert GPU_TARGET not in json.dumps(json.loads((path / rundir.DIAGNOSIS).read_text()))
    (block,) = servers_block(columns.to_table(), synthetic.START_WALL_NS, synthetic.START_WALL_NS + 11 * synthetic.NS)
    assert block["gpu"]["power_w"] == {"mean": 600.0, "max": 600.0}
    assert block["requests_running"] == {"mean": None, "max": None}


def test_the_report_of_llm_d_is_valid_and_reads_back_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, page = synthetic.write(tmp_path / "run"), tmp_path / "report.yaml"
    assert main(["report", str(run_dir)]) == 0
    document = json.loads((run_dir / rundir.SUMMARY).read_text())
    document["turns"] |= {"input_tokens": 4000, "input_tokens_from": 40}  # the format has no load without them
    (run_dir / rundir.SUMMARY).write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["report", str(run_dir), "--as", "llm-d"]) == 0
    page.write_text(capsys.readouterr().out)
    (read,) = imported.read(page)
    summary, turns = OpenRun(run_dir).summary, OpenRun(run_dir).summary.turns
    assert read.client == f"llm-d Benchmark Report 0.2.1 of inferload {summary.run.versions['inferload']}"
    assert (read.completed, read.failed, read.cut_off) == (turns.ok, turns.failed, turns.unfinished)
    assert read.model == summary.run.model
    for measure in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert read.figures[f"p99({measure})"] == pytest.approx(summary.latency[measure].p99)
    assert read.figures["output_tok_per_s"] == pytest.approx(summary.rates["output_tok_per_s"])
    package = pytest.importorskip("llmd_benchmark_report")  # Apache-2.0, 0.2.1
    assert package.load_benchmark_report(json.loads(page.read_text())).dump()["version"] == "0.2.1"


def test_the_vllm_bench_export_reads_back_the_same(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["report", str(run_dir), "--vllm-bench", str(out)]) == 0
    document = json.loads(out.read_text())
    assert (document["completed"], document["failed"], document["num_prompts"]) == (35, 1, 36)
    assert document["total_output_tokens"] == 35 * synthetic.EVENTS == sum(filter(None, document["output_lens"]))
    assert document["mean_ttft_ms"] == pytest.approx(98)  # until the first event of any kind
    assert document["mean_tpot_ms"] == pytest.approx(402 / (synthetic.EVENTS - 1))
    assert document["median_itl_ms"] == pytest.approx(20)
    assert [len(gaps) for gaps in document["itls"]].count(1) == 1  # the failed turn
    lists = (document[key] for key in ("ttfts", "itls", "latencies", "errors"))
    for ttft, gaps, latency, error in zip(*lists, strict=True):
        assert gaps[0] == pytest.approx(0.002)  # after the event of the role
        assert error or ttft + sum(gaps) == pytest.approx(latency)
    assert document["errors"].count("") == 35
    (read,) = imported.read(out)
    assert read.client == "inferload report --vllm-bench"
    assert "measured by inferload" in read.notes[0]
    assert "clock" not in read.notes[0]
    differ = comparable.differences(read_sides.read_side(run_dir), read_sides.read_side(out), ())
    assert differ.refusals[0] == (
        "client: inferload against inferload report --vllm-bench: definitions differ; compare the run directories"
    )
    assert read.figures["p99(e2e_ms)"] == pytest.approx(500)
    turns = frames.load(OpenRun(run_dir)).turns
    measured = turns[turns["phase"] == "measure"]
    spent_s = measured["last_s"].max() - measured["sent_s"].min()  # the time in which all of these tokens arrived
    assert document["duration"] == pytest.approx(spent_s)
    ends_s = [start + took for start, took in zip(document["start_times"], document["latencies"], strict=True) if took]
    assert spent_s == pytest.approx(max(ends_s) - min(document["start_times"]))
    assert read.figures["output_tok_per_s"] == pytest.approx(35 * synthetic.EVENTS / spent_s)
    theirs = json.loads((DATA / "results" / "vllm-bench.json").read_text())
    omitted = {"tokenizer_mode", "endpoint_type", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx", "label"}
    assert {key for key in theirs if not key.startswith("spec_decode")} - set(document) - omitted == set()


def test_the_printed_block_of_vllm_bench_reads_back_the_same(
    run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["report", str(run_dir), "--as", "vllm-bench"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("============ Serving Benchmark Result ============\nSuccessful requests: ")
    assert {len(line) for line in text.splitlines() if line[0] in "=-"} == {50}
    (tmp_path / "block.txt").write_text(text)
    (read,) = imported.read(tmp_path / "block.txt")
    vllm_bench.write(frames.load(OpenRun(run_dir), whole=True), tmp_path / "result.json")
    (exact,) = imported.read(tmp_path / "result.json")
    assert read.figures
    for name, value in read.figures.items():
        assert value == pytest.approx(exact.figures[name], abs=0.005)


def test_a_cancelled_turn_has_no_latency_in_the_vllm_bench_export(run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_dir, folder)
    before = vllm_bench.document(frames.load(OpenRun(folder)))
    for path in (folder / "turns").glob("*.parquet"):
        table = pq.read_table(path)
        rows = table.to_pylist()
        first = next(n for n, row in enumerate(rows) if row["phase"] == "measure" and row["failure"] is None)
        rows[first]["finish_reason"] = "cancelled"
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    run = frames.load(OpenRun(folder))
    document = vllm_bench.document(run)
    cancelled = int((run.turns["finish_reason"] == "cancelled").sum())
    assert cancelled > 0
    assert document["completed"] == before["completed"]
    assert document["latencies"].count(None) == before["latencies"].count(None) + cancelled
    assert document["mean_e2el_ms"] == pytest.approx(500)
    assert document["ttfts"].count(None) == before["ttfts"].count(None)
    shown = slowest.table(run)
    assert shown is not None
    turns = run.turns[run.turns["finish_reason"] == "cancelled"]
    ids = {f"{session}/{index}" for session, index in zip(turns["session_id"], turns["turn_index"], strict=True)}
    assert not ids & {row[0] for row in shown.rows}


def test_turns_without_a_connection_are_failed_requests_of_the_vllm_bench_export(run_dir: Path) -> None:
    run = frames.load(OpenRun(run_dir))
    failed = (run.turns["phase"] == "measure") & ~run.turns["ok"]
    absent = ("sent_s", "written_s", "first_event_s", "first_s", "first_visible_s", "last_s")
    absent += ("lag_ms", "first_event_ms", "e2e_ms", "output_tokens", "input_tokens")
    columns = {name: np.where(failed, np.nan, run.turns[name]) for name in absent}
    columns["failure"] = np.where(failed, "connect", run.turns["failure"])
    document = vllm_bench.document(replace(run, turns=run.turns.with_columns(columns)))
    assert (document["completed"], document["failed"], document["num_prompts"]) == (35, 1, 36)
    assert (document["errors"][-1], document["start_times"][-1], document["queue_times"][-1]) == ("connect", None, None)
    assert len(document["itls"]) == len(document["start_times"]) == 36


def test_rates_of_the_vllm_bench_export_are_over_its_duration(run_dir: Path) -> None:
    run = frames.load(OpenRun(run_dir))
    turns = {"sent": 36, "ok": 35, "failed": 1, "unfinished": 0}
    known = {"turns": turns, "sessions": {"dropped": 4}}
    rates = {"goodput_turns_per_s": 99.0, "slo_attainment": 30 / 40}  # 30 of 40 planned turns
    document = vllm_bench.document(replace(run, summary=summaries.summary(known | {"rates": rates})))
    assert document["request_goodput"] == pytest.approx(30 / document["duration"])
    rates = {"goodput_turns_per_s": None, "slo_attainment": None}
    unknown = summaries.summary(known | {"rates": rates})
    assert vllm_bench.document(replace(run, summary=unknown))["request_goodput"] is None


def test_totals_with_unknown_prompt_lengths_are_null_in_the_vllm_bench_export(run_dir: Path, tmp_path: Path) -> None:
    run = frames.load(OpenRun(run_dir))
    before = vllm_bench.document(run)
    assert before["total_token_throughput"] == pytest.approx(
        (before["total_input_tokens"] + before["total_output_tokens"]) / before["duration"]
    )
    tokens = run.turns.numbers("input_tokens").copy()
    tokens[np.flatnonzero(run.turns["ok"] & (run.turns["phase"] == "measure"))[0]] = np.nan
    document = vllm_bench.document(replace(run, turns=run.turns.with_columns({"input_tokens": tokens})))
    assert (document["total_input_tokens"], document["total_token_throughput"]) == (None, None)
    out = tmp_path / "out.json"
    out.write_text(json.dumps(document))
    (read,) = imported.read(out)
    assert (read.input_tokens, read.figures["total_tok_per_s"]) == (None, None)


def test_a_run_without_measured_turns_has_no_vllm_bench_export(tmp_path: Path) -> None:
    run = frames.load(OpenRun(synthetic.write(tmp_path / "run", killed=True)))
    with pytest.raises(UsageError, match="no end of the measure phase"):
        vllm_bench.document(run)
