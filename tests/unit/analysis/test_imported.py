"""Result files of other clients: the right client and version, several results in a file, damaged and foreign files."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferload.analysis.comparison.compare import compare
from inferload.analysis.comparison.output import documents
from inferload.analysis.comparison.output import text as output
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.data.figures import figure
from inferload.analysis.interop import imported
from paths import DATA

from inferload.base.errors import UsageError
from inferload.cli import main

RESULTS = DATA / "results"
STORED = {
    name: json.loads((RESULTS / f"{name}.json").read_text())
    for name in ("vllm-bench", "vllm-rs", "aiperf", "guidellm", "genai-bench")
}


def sglang(rate: float | str = 8.0, **changes: Any) -> dict[str, Any]:
    """Return a result with the keys of SGLang's bench_serving, of 60 requests with 100 tokens each in 30 s."""
    figures = {"ttft": 50.0, "tpot": 10.0, "itl": 10.0, "e2e_latency": 1040.0}
    document: dict[str, Any] = {
        "backend": "sglang", "dataset_name": "random", "request_rate": rate, "max_concurrency": 20, "sharegpt_output_len": None,
        "random_input_len": 50, "random_output_len": 100, "random_range_ratio": 1.0, "duration": 30.0, "completed": 60,
        "total_input_tokens": 3000, "total_output_tokens": 6000, "total_output_tokens_retokenized": 5990,
        "request_throughput": 2.0, "input_throughput": 100.0, "output_throughput": 200.0,
        **{f"{q}_{name}_ms": value for name, value in figures.items() for q in ("mean", "median", "std", "p99")},
        "concurrency": 19.5, "accept_length": None,
    }  # fmt: skip
    return document | changes


def guidellm_before_metadata() -> dict[str, Any]:
    """Return the result in the form of GuideLLM 0.4: arguments instead of metadata."""
    document = copy.deepcopy(STORED["guidellm"])
    del document["metadata"]
    return {"args": {"model": "paced", "target": "http://x"}, **document}


def guidellm_before_config() -> dict[str, Any]:
    """Return the result in the form of GuideLLM 0.2: arguments, worker and totals in each benchmark, no p50."""
    (benchmark,) = copy.deepcopy(STORED["guidellm"]["benchmarks"])
    strategy = {"type_": "concurrent", "streams": 20}
    totals = {"successful": 380, "incomplete": 0, "errored": 20, "total": 400}
    for metric in benchmark["metrics"].values():
        metric.get("successful", {}).get("percentiles", {}).pop("p50", None)
    benchmark["metrics"].pop("request_totals", None)
    del benchmark["config"]
    worker = {"type_": "generative_requests_worker", "backend_model": "paced"}
    return {"benchmarks": [benchmark | {"args": {"strategy": strategy}, "worker": worker, "request_totals": totals}]}


def aiperf_before_phases(version: str | None) -> dict[str, Any]:
    """Return the result with the settings of earlier versions; without a version, in the form before 0.4."""
    document = {
        key: value for key, value in STORED["aiperf"].items() if key not in ("schema_version", "aiperf_version")
    }
    endpoint = {"model_names": ["paced"], "type": "chat", "streaming": True}
    load = {"concurrency": 20, "request_count": 560}
    config = {"endpoint": endpoint, "loadgen": load, "input": {"random_seed": 7}, "cli_command": "aiperf profile"}
    return document | {"input_config": config} | ({} if version is None else {"aiperf_version": version})


def inference_perf() -> dict[str, Any]:
    """Return lifecycle metrics with the keys of inference-perf 0.7.0, in s."""
    values = dict.fromkeys(("mean", "median", "p90", "p99"), 0.05)
    latency = dict.fromkeys(("time_to_first_token", "time_per_output_token"), values)
    successes = {"count": 60, "latency": latency, "output_tokens": {"mean": 100.0}}
    return {"load_summary": {"concurrency": 20}, "successes": successes, "failures": {"count": 2}}


def llmd() -> dict[str, Any]:
    """Return a report with the keys of llm-d's Benchmark Report 0.2.1."""
    seconds = {"units": "s/token", "mean": 0.05, "p50": 0.05, "p99": 0.05}
    latency = {"time_to_first_token": seconds | {"units": "s"}, "inter_token_latency": seconds}
    requests = {"total": 63, "failures": 2, "incomplete": 1, "output_length": {"units": "count", "mean": 100}}
    aggregate = {"requests": requests, "latency": latency}
    load = {"standardized": {"tool": "guidellm", "tool_version": "0.8.1", "concurrency": 20}}
    scenario = {"stack": [{"standardized": {"model": {"name": "paced"}}}], "load": load}
    return {"version": "0.2.1", "scenario": scenario, "results": {"request_performance": {"aggregate": aggregate}}}


CLIENTS: dict[str, tuple[dict[str, Any], str]] = {
    "vllm": (STORED["vllm-bench"], "vllm bench serve"),
    "vllm-rs": (STORED["vllm-rs"], "vllm-rs bench"),
    "sglang": (sglang(), "SGLang bench_serving"),
    "aiperf": (STORED["aiperf"], "AIPerf 0.13.0"),
    "aiperf-0.6": (aiperf_before_phases("0.6.0"), "AIPerf 0.6.0"),
    "aiperf-0.2": (aiperf_before_phases(None), "AIPerf before 0.4"),
    "guidellm": (STORED["guidellm"], "GuideLLM 0.8.1"),
    "guidellm-0.4": (guidellm_before_metadata(), "GuideLLM 0.4"),
    "guidellm-0.2": (guidellm_before_config(), "GuideLLM 0.2 or 0.3"),
    "genai-bench": (STORED["genai-bench"], "genai-bench"),
    "inference-perf": (inference_perf(), "inference-perf"),
    "llm-d": (llmd(), "llm-d Benchmark Report 0.2.1 of GuideLLM 0.8.1"),
    "llm-d as a number": (llmd() | {"version": 0.2}, "llm-d Benchmark Report 0.2 of GuideLLM 0.8.1"),
}
kinds = st.sampled_from(sorted(CLIENTS))


def write(tmp_path: Path, *documents: Any) -> Path:
    file = tmp_path / "r.json"
    file.write_text("\n".join(map(json.dumps, documents)))
    return file


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_result_is_read_as_that_of_its_client_and_version(tmp_path: Path, kind: str) -> None:
    document, client = CLIENTS[kind]
    (result,) = imported.read(write(tmp_path, document))
    assert result.client == client
    assert result.concurrency == 20
    assert result.output_tokens == 100
    assert result.figures["mean(ttft_ms)"] == pytest.approx(50, rel=0.2)
    assert result.figures["p50(ttft_ms)"] == pytest.approx(50, rel=0.2)
    assert result.figures["p99(ttft_ms)"] is not None
    assert result.notes[0].startswith("counts as ")
    if kind not in ("sglang", "genai-bench", "inference-perf"):
        assert result.model == "paced"


@pytest.mark.parametrize("key", ["request_goodput", "request_goodput:", "goodput"])
def test_goodput_is_read_however_its_key_is_spelt(tmp_path: Path, key: str) -> None:
    document = {name: value for name, value in STORED["vllm-bench"].items() if "goodput" not in name}
    (result,) = imported.read(write(tmp_path, document | {key: 1.5}))
    assert result.figures["goodput_turns_per_s"] == 1.5


@pytest.mark.parametrize(("document", "cut_off"), [(inference_perf(), 0), (llmd(), 1)])
def test_times_in_seconds_and_counts_of_newer_formats(tmp_path: Path, document: dict[str, Any], cut_off: int) -> None:
    (read,) = imported.read(write(tmp_path, document))
    assert {value for name, value in read.figures.items() if "(" in name} == {50.0, None}
    assert (read.completed, read.failed, read.cut_off) == (60, 2, cut_off)


TOOLS: dict[str, tuple[str, str]] = {
    **{"guidellm": ("tpot_ms", "version 0.8.1"), "aiperf": ("tpot_ms", "version 0.13.0")},
    **{"vllm-benchmark": ("itl_ms", "version 0.32"), "inferload": ("itl_ms", "its ITL as itl_token_ms")},
    "x": ("itl_ms", "not looked at"),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_report_of_llm_d_has_the_definitions_of_its_tool(tmp_path: Path, tool: str) -> None:
    (measure, counts), document = TOOLS[tool], llmd()
    document["scenario"]["load"]["standardized"]["tool"] = tool
    (read,) = imported.read(write(tmp_path, document))
    assert {key for key, value in read.figures.items() if value and "p50" in key} == {"p50(ttft_ms)", f"p50({measure})"}
    assert counts in read.notes[0]


def test_a_report_that_llm_d_makes_of_aiperfs_file_has_its_figures(tmp_path: Path) -> None:
    made_by = pytest.importorskip("llmd_benchmark_report.native_to_br0_2")  # Apache-2.0, 0.2.1
    file, page = write(tmp_path, STORED["aiperf"] | {"request_count": {"avg": 560.0}}), tmp_path / "report.yaml"
    page.write_text(made_by.import_aiperf(str(file)).get_yaml_str())
    own, read = (
        {name: value for name, value in imported.read(path)[0].figures.items() if value is not None}
        for path in (file, page)
    )
    assert read == pytest.approx({name: own[name] for name in own if "itl_ms" not in name})  # it leaves chunks out


def test_evalscopes_summary_is_read_with_the_files_beside_it(tmp_path: Path) -> None:
    summary = {"Success Requests": 60, "Req Throughput (req/s)": 2.0, "Avg Latency (s)": 1.04, "Avg ITL (ms)": -1000.0}
    beside = {
        "benchmark_summary.json": {"Concurrency": 0, **summary},  # no limit
        "benchmark_percentile.json": [{"Percentiles": f"{q}%", "TTFT (ms)": 50.0 + q} for q in (50, 99)],
        "benchmark_args.json": {"model": "paced", "seed": 7},
    }
    for name, content in beside.items():
        (tmp_path / name).write_text(json.dumps(content))
    file = tmp_path / "benchmark_summary.json"
    (read,) = imported.read_folder(tmp_path, texts=False).by_file[file]
    assert (read.client, read.model, read.seed, read.concurrency) == ("EvalScope", "paced", 7, None)
    known = {"turns_per_s": 2, "mean(e2e_ms)": 1040, "p50(ttft_ms)": 100, "p99(ttft_ms)": 149}
    assert {name: value for name, value in read.figures.items() if value is not None} == known
    (tmp_path / "benchmark_percentile.json").unlink()
    assert imported.read(file)[0].figures["p99(ttft_ms)"] is None
    file.write_text(json.dumps(summary | {"Concurrency": -1, "TTFT (ms)": 50.0}))  # a mean without its name
    (read,) = imported.read(file)
    assert (read.concurrency, read.figures["mean(ttft_ms)"], read.figures["p50(ttft_ms)"]) == (None, 50, None)


def test_a_folder_has_each_result_once(tmp_path: Path) -> None:
    """The summary of inference-perf is over its stages, and llm-d writes each stage again as a report."""
    stages = [inference_perf() | {"load_summary": {"requested_rate": rate}} for rate in (1, 2)]
    files = {f"stage_{number}_lifecycle_metrics.json": stage for number, stage in enumerate(stages)}
    others = {
        "summary_lifecycle_metrics.json": inference_perf(),
        "per_request_lifecycle_metrics.json": [{"request": {}}],
    }
    others |= {f"benchmark_report_v0.2,_{name}.yaml": llmd() for name in files}
    for name, content in (files | others).items():
        (tmp_path / name).write_text(json.dumps(content))
    found = imported.read_folder(tmp_path, texts=True)
    assert [file.name for file in found.by_file] == sorted(files)
    assert sorted(found.left_out) == sorted(others)
    for name in files:
        (tmp_path / name).unlink()
    assert len(imported.read_folder(tmp_path, texts=True).by_file) == 3


def test_unknown_failures_are_said(tmp_path: Path) -> None:
    document = {key: value for key, value in STORED["vllm-bench"].items() if key != "failed"}
    (read,) = imported.read(write(tmp_path, document | {"num_prompts": 100, "completed": 60}))
    assert (read.failed, read.notes[1]) == (None, "its failed requests are not known: 60 of 100 were completed")


def test_sglangs_own_names_are_read(tmp_path: Path) -> None:
    errors = {"errors": ["", "", "503"], "server_info": {"model_path": "some/model"}}
    plain, detailed = imported.read(write(tmp_path, sglang(), sglang(**errors, request_throughput=None)))
    assert plain.figures["mean(e2e_ms)"] == plain.figures["p99(e2e_ms)"] == 1040
    assert plain.figures["p50(itl_ms)"] == 10
    assert plain.figures["total_tok_per_s"] == 300  # computed: early versions lack it
    assert plain.figures["turns_per_s"] == detailed.figures["turns_per_s"] == 2
    assert (plain.input_tokens, plain.model, detailed.model) == (50, None, "some/model")
    assert plain.notes[1] == "its failed requests are not known"
    assert detailed.notes[1].startswith("1 of its 61 requests failed")


def test_the_settings_of_older_versions_are_read(tmp_path: Path) -> None:
    (aiperf,) = imported.read(write(tmp_path, aiperf_before_phases("0.6.0")))
    assert (aiperf.seed, aiperf.settings["request_count"]) == (7, 560)
    (guidellm,) = imported.read(write(tmp_path, guidellm_before_config()))
    assert guidellm.notes[1] == "20 of its 400 requests failed and are not in the latencies"


@given(
    documents=st.lists(kinds.map(lambda kind: CLIENTS[kind][0]) | st.floats(1, 99).map(sglang), min_size=1, max_size=4),
    between=st.sampled_from(["\n", "", " ", "\n\n", "\r\n"]),
    end=st.sampled_from(["", "\n"]),
    array=st.booleans(),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_appended_results_are_all_read_in_order(
    tmp_path: Path, documents: list[dict[str, Any]], between: str, end: str, array: bool
) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes((json.dumps(documents) if array else between.join(map(json.dumps, documents)) + end).encode())
    single = [imported.read(write(tmp_path, document))[0] for document in documents]
    assert imported.read(file) == single
    side = read_side(file)
    assert [run.settings for run in sorted(side.runs, key=lambda run: run.label)] == [
        result.settings for result in single
    ]


def test_one_of_several_results_is_named_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = tmp_path / "rates.jsonl"
    rates.write_text("".join(json.dumps(sglang(rate, mean_ttft_ms=40.0 + rate)) + "\n" for rate in (1.0, 2.0, 4.0)))
    side = read_side(tmp_path / "rates.jsonl:2")
    assert (side.label, [run.value("mean(ttft_ms)") for run in side.runs]) == ("rates:2", [42])
    assert main(["compare", str(rates), f"{rates}:2"]) == 0
    assert "its runs differ in request_rate: 1.0, 2.0, 4.0; name one result as FILE:N" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"rates.jsonl:4: the file has the results 1 to 3"):
        read_side(tmp_path / "rates.jsonl:4")


def test_repeats_in_one_file_are_runs_of_one_side(tmp_path: Path) -> None:
    file = write(tmp_path, *(sglang(mean_ttft_ms=value) for value in (40.0, 50.0, 60.0)))
    assert read_side(file).mean("mean(ttft_ms)") == pytest.approx((40 * 50 * 60) ** (1 / 3))


def test_each_benchmark_of_guidellm_is_a_result(tmp_path: Path) -> None:
    document = copy.deepcopy(STORED["guidellm"])
    document["benchmarks"] *= 3
    assert [run.label for run in read_side(write(tmp_path, document)).runs] == ["r:1", "r:2", "r:3"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"benchmarks": [{"benchmarks": [], "args": {}}]}, "a result of GuideLLM 0.1, .* from GuideLLM 0.2 on"),
        (
            aiperf_before_phases(None) | {"input_config": {"model_names": ["m"], "endpoint": {}}},
            "a result of GenAI-Perf, which is not read; repeat it with AIPerf",
        ),
        ({"aiperf_version": "0.13.0", "metrics": {}, "summary": {}}, "name profile_export_aiperf.json"),
        ({"timeslices": []}, "AIPerf by time slice"),
        (
            {"Request throughput (req/s)": 1.0, "Succeed requests": 9},
            "a result of an earlier EvalScope, which is not read; repeat it",
        ),
        ({"avg_latency": 1.0, "latencies": [], "percentiles": {}}, "vllm bench latency"),
        ({"metadata": {"guidellm_version": "9.0"}, "benchmarks": []}, "GuideLLM 9.0, but has no figures"),
        (
            {"completed": 3, "request_throughput": 1.0},
            r"no result of vllm bench serve, .*keys: completed, request_throu",
        ),
        ([1, 2], "no result of vllm bench serve"),
        ([], "no result of vllm bench serve"),
        (7, "no result of vllm bench serve"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        imported.read(write(tmp_path, document))


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [inner for key, part in items for inner in ((*path, key), *paths_of(part, (*path, key)))]


ODD: tuple[Any, ...] = (
    None,
    0,
    -1,
    True,
    "",
    "text",
    [],
    {},
    [None],
    float("nan"),
    float("inf"),
    10**30,
    {"unit": "ms"},
)


def damaged(document: dict[str, Any], choose: Callable[[list[Any]], Any], times: int) -> dict[str, Any]:
    """Return the document with values removed or replaced by odd ones."""
    changed: dict[str, Any] = copy.deepcopy(document)
    for _ in range(times):
        *parents, last = choose(paths_of(changed))
        block: Any = changed
        for key in parents:
            block = block[key]
        odd = copy.deepcopy(choose([..., *ODD]))
        if odd is ... and isinstance(block, dict):
            del block[last]
        else:
            block[last] = None if odd is ... else odd
        if not changed:
            return changed
    return changed


@given(kind=kinds, times=st.integers(1, 8), data=st.data())
@settings(
    max_examples=200 if os.environ.get("INFERLOAD_SOAK") else 80,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_damaged_result_is_read_or_refused_in_one_line_and_never_another_clients(
    tmp_path: Path, kind: str, times: int, data: st.DataObject
) -> None:
    document, client = CLIENTS[kind]
    file = write(tmp_path, damaged(document, lambda items: data.draw(st.sampled_from(items)), times))
    results, problem = [], ""
    try:
        results = imported.read(file)
    except UsageError as error:
        problem = str(error)
    assert bool(results) != bool(problem)
    assert "\n" not in problem
    for result in results:
        assert result.client.split()[0] == client.split()[0]
        assert all(value is None or abs(value) < 1e22 for value in result.figures.values())
        assert result.model is None or isinstance(result.model, str)
    if results:
        comparison = compare(read_side(file), read_side(file), figure("mean(ttft_ms)"), ())
        assert output.text([comparison])
        assert documents.json_text([comparison])


@given(
    kind=kinds,
    more=st.dictionaries(st.sampled_from(["tag", "label", "notes", "server_info", "host", "version"]), st.text()),
    rng=st.randoms(),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_further_keys_and_the_order_change_nothing(
    tmp_path: Path, kind: str, more: dict[str, str], rng: Random
) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(item) for key, item in rng.sample([*value.items(), ("new", 1)], len(value) + 1)}
        return list(map(shuffled, value)) if isinstance(value, list) else value

    document, client = CLIENTS[kind]
    (result,) = imported.read(write(tmp_path, shuffled(more | document)))
    assert result.client == client
    assert result == imported.read(write(tmp_path, document))[0]


@given(kind=kinds, cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str, cut: float) -> None:
    text = json.dumps(CLIENTS[kind][0])
    file = tmp_path / "r.json"
    file.write_text(text[: int(cut * len(text))])
    with pytest.raises(UsageError, match=r"is the file complete\?|no result of vllm bench serve"):
        imported.read(file)
    file.write_text(text + "\n" + text[: max(1, int(cut * len(text)))])
    with pytest.raises(UsageError, match=r"is the file complete\?"):
        imported.read(file)
