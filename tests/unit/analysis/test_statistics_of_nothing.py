"""Statistics without samples in the files of other clients: unknown, and never the 0 that their client writes."""

import copy
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferload.analysis.comparison.max_change import check, parse
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.interop import imported, locust_csv
from paths import DATA

from inferload.base.errors import UsageError
from inferload.cli import main

RESULTS = DATA / "results"
STORED = {file.stem: json.loads(file.read_text()) for file in RESULTS.glob("*.json")}
MEASURES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}
STATISTICS = ("mean", "median", "p50", "p90", "p99")

Document = dict[str, Any]


def vllm(empty: set[str], completed: int = 560, failed: int = 0) -> Document:
    """Return a result of `vllm bench serve`, which writes 0.0 for the statistics of an empty list."""
    values = {f"{q}_{name}_ms": 0.0 if name in empty else 10.0 for name in MEASURES for q in (*STATISTICS, "std")}
    rate = completed / 30
    counts = {
        "completed": completed,
        "failed": failed,
        "total_input_tokens": 40 * completed,
        "total_output_tokens": 9 * completed,
    }
    rates = {"request_throughput": rate, "output_throughput": 9 * rate, "total_token_throughput": 49 * rate}
    return STORED["vllm-bench"] | values | counts | rates


def sglang(empty: set[str], completed: int = 560, failed: int = 0) -> Document:
    document = vllm(empty, completed)
    renamed = {name.replace("e2el", "e2e_latency"): value for name, value in document.items() if name != "failed"}
    renamed = {
        name: value for name, value in renamed.items() if name not in ("model_id", "endpoint_type", "burstiness")
    }
    errors = ["503"] * failed + [""] * completed
    return renamed | {"total_output_tokens_retokenized": 9 * completed, "errors": errors, "duration": 30.0}


def guidellm(empty: set[str], completed: int = 560, failed: int = 0, *, counted: bool = True) -> Document:
    """Return a result of GuideLLM, which writes a count of 0 and statistics of 0.0 (schemas/base/statistics.py)."""
    document = copy.deepcopy(STORED["guidellm"])
    metrics = document["benchmarks"][0]["metrics"]
    keys = {"ttft": "time_to_first_token_ms", "tpot": "inter_token_latency_ms", "e2el": "request_latency"}
    names = {keys[name] for name in empty if name in keys}
    names |= set() if completed else {name for name, metric in metrics.items() if "successful" in metric}
    for name in names:
        block = metrics[name]["successful"]
        block |= {"mean": 0.0, "median": 0.0, "percentiles": dict.fromkeys(block["percentiles"], 0.0)}
    if counted:
        for name, metric in metrics.items():
            if "successful" in metric:
                metric["successful"]["count"] = 0 if name in names else completed
    metrics["request_totals"] = {
        "successful": completed,
        "errored": failed,
        "incomplete": 0,
        "total": completed + failed,
    }
    return document


def aiperf(empty: set[str], completed: int = 560, failed: int = 0) -> Document:
    """Return a result of AIPerf, which leaves a metric without samples out."""
    document = copy.deepcopy(STORED["aiperf"])
    keys = {
        "ttft": "time_to_first_token",
        "tpot": "inter_token_latency",
        "itl": "inter_chunk_latency",
        "e2el": "request_latency",
    }
    gone = {keys[name] for name in empty}
    if not completed:
        gone |= {name for name, value in document.items() if isinstance(value, dict) and "avg" in value}
    document = {name: value for name, value in document.items() if name not in gone}
    counts = {"error_request_count": {"unit": "requests", "avg": float(failed)}}
    return document | counts | ({"request_count": {"unit": "requests", "avg": float(completed)}} if completed else {})


def genai(empty: set[str], completed: int = 560, failed: int = 0) -> Document:
    document = copy.deepcopy(STORED["genai-bench"])
    stats = document["aggregated_metrics"]["stats"]
    for name, key in {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e_latency"}.items():
        if name in empty:
            stats[key] = dict.fromkeys(stats[key], 0.0)
    document["aggregated_metrics"] |= {"num_completed_requests": completed, "num_error_requests": failed}
    return document


def block(empty: set[str], completed: int = 560, failed: int = 0) -> str:
    """Return the block that vLLM prints, with two decimals."""
    document = vllm(empty, completed, failed)
    lines = [
        f"Successful requests: {completed}",
        f"Failed requests: {failed}",
        f"Request throughput (req/s): {completed / 30:.2f}",
    ]
    for name in MEASURES:
        lines += [f"{q.title()} {name.upper()} (ms): {document[f'{q}_{name}_ms']:.2f}" for q in STATISTICS]
    return "\n".join(["============ Serving Benchmark Result ============", *lines, "=" * 50])


def table(empty: set[str], completed: int = 560, failed: int = 0) -> str:
    cells = ["0" if name in empty or not completed else "10.0" for name in MEASURES]
    head = " | ".join(name.upper().replace("E2EL", "E2E") for name in MEASURES)
    return f"| Setup | QPS | {head} |\n|---|---|---|---|---|---|\n| a | {completed / 30:.2f} | {' | '.join(cells)} |\n"


FORMS = {
    "vllm.json": vllm,
    "sglang.json": sglang,
    "guidellm.json": guidellm,
    "aiperf.json": aiperf,
    "genai.json": genai,
    "block.txt": block,
    "table.md": table,
}


def write(folder: Path, form: str, *args: Any) -> Path:
    content = FORMS[form](*args)
    path = folder / form
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@given(form=st.sampled_from(sorted(FORMS)), empty=st.sets(st.sampled_from(sorted(MEASURES))))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_measure_without_samples_is_unknown_and_the_others_are_not(
    tmp_path: Path, form: str, empty: set[str]
) -> None:
    full = imported.read(write(tmp_path, form, set()))[0].figures
    (result,) = imported.read(write(tmp_path, form, empty))
    gone = {MEASURES[name] for name in empty}
    for figure, value in full.items():
        unknown = figure.partition("(")[2].removesuffix(")") in gone
        assert result.figures.get(figure) == (None if unknown else value), figure
    assert all(value != 0 for value in result.figures.values())


@pytest.mark.parametrize("form", sorted(FORMS))
def test_all_failed_is_a_rate_of_zero_without_latencies_and_breaks_each_limit_on_them(
    tmp_path: Path, form: str
) -> None:
    good = tmp_path / "good"
    good.mkdir()
    before = read_side(write(good, form, set()))
    after = read_side(write(tmp_path, form, set(MEASURES), 0, 560))
    (run,) = after.runs
    if form != "genai.json":  # it writes the rates that it measured before
        assert run.value("turns_per_s") == 0
        assert run.value("output_tok_per_s") in (0, None)
    assert all(value is None for figure, value in run.figures.items() if "(" in figure)
    assert run.input_tokens is None
    assert run.output_tokens is None
    for figure in (figure for figure, value in before.runs[0].figures.items() if "(" in figure and value is not None):
        for limit in ("+15%", "-15%"):
            checked = check(parse(f"{figure} {limit}"), before, after, ())
            assert not checked.passed
            assert f"{figure} is not measured on {after.label}" in checked.text


def test_a_limit_on_an_unknown_figure_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good"
    good.mkdir()
    sides = [str(write(good, "guidellm.json", set())), str(write(tmp_path, "guidellm.json", set(), 0, 400))]
    assert main(["compare", f"ok={sides[0]}", f"failed={sides[1]}", "--max-change", "p95(ttft_ms) +15%"]) == 4
    out = capsys.readouterr().out
    assert "--max-change 'p95(ttft_ms) +15%' FAILED: p95(ttft_ms) is not measured on failed" in out
    assert "unknown, for lack of samples: ttft_ms" in out


def test_rates_of_no_requests_are_unknown(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(vllm(set(), 0, 0)) + json.dumps(vllm(set())))
    with pytest.raises(UsageError, match="has no figures"):
        imported.read(file)
    document = guidellm(set(), 0, 0)
    document["benchmarks"] += guidellm(set())["benchmarks"]
    file.write_text(json.dumps(document))
    empty, full = imported.read(file)
    assert all(value is None for value in empty.figures.values())
    assert full.figures["turns_per_s"]


@given(empty=st.sets(st.sampled_from(sorted(MEASURES))))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_old_guidellm_without_counts_is_read_alike(tmp_path: Path, empty: set[str]) -> None:
    file = tmp_path / "r.json"
    read = []
    for counted in (True, False):
        file.write_text(json.dumps(guidellm(empty, counted=counted)))
        read.append(imported.read(file)[0].figures)
    assert read[0] == read[1]


def test_a_count_of_zero_decides_over_a_number(tmp_path: Path) -> None:
    document = guidellm(set())
    document["benchmarks"][0]["metrics"]["request_latency"]["successful"]["count"] = 0
    file = tmp_path / "r.json"
    file.write_text(json.dumps(document))
    (result,) = imported.read(file)
    assert result.figures["mean(e2e_ms)"] is None
    assert result.figures["mean(ttft_ms)"] is not None


def test_a_gap_that_is_rounded_to_zero_is_known(tmp_path: Path) -> None:
    """Several tokens may arrive together: their median gap is 0.00 ms in a printed block, beside a mean above 0."""
    file = tmp_path / "block.txt"
    file.write_text(
        block(set())
        .replace("P50 ITL (ms): 10.00", "P50 ITL (ms): 0.00")
        .replace("P50 TTFT (ms): 10.00", "P50 TTFT (ms): 0.00")
    )
    (result,) = imported.read(file)
    assert (result.figures["p50(itl_ms)"], result.figures["mean(itl_ms)"]) == (0, 10)
    assert (result.figures["p50(ttft_ms)"], result.figures["mean(ttft_ms)"]) == (None, 10)


@given(count=st.sampled_from(["0", "5", ""]), value=st.sampled_from(["N/A", "0", "0.0", "12", ""]))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_locusts_response_times_of_no_requests_are_unknown(tmp_path: Path, count: str, value: str) -> None:
    columns = ["Type", "Name", "Request Count", "Failure Count", "Average Response Time", "50%", "95%", "99%"]
    with (tmp_path / "load_stats.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, ["POST", "/x", count, "0", value, value, value, value]])
    (row,) = locust_csv.requests(tmp_path / "load").by_name
    known = count != "0" and value not in ("N/A", "") and not (count == "" and float(value) == 0)
    assert row.p50_ms == row.p99_ms == (float(value) if known else None)


def test_a_second_without_responses_has_no_percentile_in_locusts_history(tmp_path: Path) -> None:
    columns = ["Timestamp", "User Count", "Type", "Name", "Requests/s", "Failures/s", "50%", "95%"]
    rows = [[1000 + second, 8, "", "Aggregated", rate, 0, value, value]
            for second, (rate, value) in enumerate([(0.0, "N/A"), (4.0, 120), (0.0, 0), (0.4, 0)])]  # fmt: skip
    with (tmp_path / "load_stats_history.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    users = locust_csv.load(tmp_path / "load").users
    assert [None if np.isnan(value) else value for value in users["response_ms_p50"]] == [None, 120, None, None]
    assert list(users["requests_per_s"]) == [0, 4, 0, 0.4]
