"""Readers of the results of other clients in JSON, one for each client.

Supported: `vllm bench serve --save-result` (Python and Rust), SGLang's `bench_serving`, AIPerf's `profile_export_aiperf.json` (its
CSV and printed tables: `aiperf_text`), GuideLLM's benchmark JSON, genai-bench's file per scenario and concurrency. A client is
recognised by keys that it alone writes.
`notes` lists differing definitions; missing values are None.

Keys by version, from the clients' packages: GuideLLM 0.1 has reports of benchmarks without distributions; 0.2 and 0.3 have `args`
and `worker` in each benchmark (0.2 without p50), later versions `config`, and since 0.5 `metadata`. AIPerf names its version since
0.4; its settings were in `endpoint` and `loadgen` before they were in `models` and `phases`. vLLM and SGLang append to a file.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

from . import aiperf_text, published, units
from .result import (
    CLOCK_UNKNOWN,
    Document,
    Imported,
    at,
    failed_note,
    latencies_of,
    number_of,
    per_turn,
    ratio,
    serving_latencies,
    settings_of,
    text_of,
    unfinished_note,
    unread_note,
    whole_of,
)

OUR_BACKEND = "inferload"  # in the files of `inferload report --vllm-bench`

OUR_EXPORT = "inferload report --vllm-bench"

_VLLM_ONLY = ("model_id", "tokenizer_id", "total_token_throughput", "endpoint_type", "burstiness", "mean_e2el_ms")

_SGLANG_ONLY = ("total_output_tokens_retokenized", "mean_e2e_latency_ms", "median_e2e_latency_ms")


def _vllm_name(document: Document) -> str | None:
    serving = "completed" in document and not any(key in document for key in _SGLANG_ONLY)
    if not serving or not any(key in document for key in _VLLM_ONLY):
        return None
    if document.get("backend") == OUR_BACKEND:
        return OUR_EXPORT
    return "TensorRT-LLM benchmark_serving" if "user_throughput" in document else "vllm bench serve"


def _vllm(document: Document, name: str) -> Iterator[Imported]:
    completed = number_of(document.get("completed"))
    figures = {TURNS.key: "request_throughput", OUTPUT.key: "output_throughput"}
    figures |= {TOTAL.key: "total_token_throughput", GOODPUT.key: "request_goodput"}
    values = {ours: number_of(document.get(key)) for ours, key in figures.items()}
    values |= serving_latencies(
        document, {TTFT.key: "ttft_ms", TPOT.key: "tpot_ms", ITL.key: "itl_ms", E2E.key: "e2el_ms"}
    )
    failed = number_of(document.get("failed"))
    ours = "measured by inferload; the file does not contain the verdict of its run"
    yield Imported(
        client=name,
        figures=values,
        model=text_of(document.get("model_id")),
        settings=settings_of(document, ("num_prompts", "request_rate", "burstiness", "max_concurrency")),
        input_tokens=per_turn(document, "total_input_tokens"),
        output_tokens=per_turn(document, "total_output_tokens"),
        concurrency=number_of(document.get("max_concurrency")),
        started_at=str(document.get("date") or ""),
        notes=(
            "its TTFT ends at the first event of any kind (our first_event_ms); "
            + (ours if name == OUR_EXPORT else CLOCK_UNKNOWN),
            *failed_note(failed, completed),
        ),
        completed=completed,
        failed=failed,
    )


def _sglang_name(document: Document) -> str | None:
    serving = "completed" in document and any(key in document for key in _SGLANG_ONLY)
    return "SGLang bench_serving" if serving else None


def _sglang(document: Document, name: str) -> Iterator[Imported]:
    completed, duration_s = (number_of(document.get(key)) for key in ("completed", "duration"))
    tokens = [number_of(document.get(f"total_{side}_tokens")) for side in ("input", "output")]
    both = None if None in tokens else sum(filter(None, tokens))
    values = {
        TURNS.key: number_of(document.get("request_throughput")) or ratio(completed, duration_s),
        OUTPUT.key: number_of(document.get("output_throughput")),
        TOTAL.key: number_of(document.get("total_throughput")) or ratio(both, duration_s),
    }
    values |= serving_latencies(
        document, {TTFT.key: "ttft_ms", TPOT.key: "tpot_ms", ITL.key: "itl_ms", E2E.key: "e2e_latency_ms"}
    )
    errors = document.get("errors")
    failed = float(sum(map(bool, errors))) if isinstance(errors, list) else None
    workload = ("random_input_len", "random_output_len", "random_range_ratio", "sharegpt_output_len")
    yield Imported(
        client=name,
        figures=values,
        model=text_of(at(document, "server_info", "model_path")),
        settings=settings_of(document, ("backend", "dataset_name", "request_rate", "max_concurrency", *workload)),
        input_tokens=per_turn(document, "total_input_tokens"),
        output_tokens=per_turn(document, "total_output_tokens"),
        concurrency=number_of(document.get("max_concurrency")),
        notes=(
            f"its answers without a usage count as long as requested; {CLOCK_UNKNOWN}",
            *(failed_note(failed, completed) if failed is not None else ("it does not record failed requests",)),
        ),
        completed=completed,
        failed=failed,
    )


_AIPERF_FIGURES = ("request_throughput", "request_latency", "time_to_first_token", "output_token_throughput")


def _nvidia_export(document: Document) -> bool:
    return any(isinstance(at(document, name, "unit"), str) for name in _AIPERF_FIGURES)


def _aiperf_name(document: Document) -> str | None:
    if "aiperf_version" in document:
        return f"AIPerf {text_of(document['aiperf_version']) or 'of an unknown version'}"
    settings = at(document, "input_config", "endpoint", "model_names")
    return "AIPerf before 0.4" if settings is not None and _nvidia_export(document) else None


def _aiperf(document: Document, name: str) -> Iterator[Imported]:
    def of(metric: str, figure: str = "avg") -> float | None:
        return number_of(at(document, metric, figure))

    def in_unit_of(measure: str, metric: str, figure: str = "avg") -> float | None:
        value, unit = of(metric, figure), at(document, metric, "unit")
        factor = units.factor(measure, unit) if isinstance(unit, str) else None
        return None if value is None or factor is None else value * factor

    def latency_ms(metric: str, q: str) -> float | None:
        return in_unit_of(TTFT.key, metric, "avg" if q == "mean" else q)

    latencies = {
        TTFT.key: "time_to_first_token",
        TPOT.key: "inter_token_latency",  # its ITL is one mean per turn, like our TPOT
        ITL.key: "inter_chunk_latency",
        E2E.key: "request_latency",
    }
    rates = {TURNS.key: "request_throughput", OUTPUT.key: "output_token_throughput"}
    rates |= {TOTAL.key: "total_token_throughput", GOODPUT.key: "goodput"}
    figures = {measure: in_unit_of(measure, metric) for measure, metric in rates.items()}
    figures |= latencies_of(latencies, latency_ms)
    failed = of("error_request_count")
    if failed is None:  # AIPerf omits metrics without a value, but not the list of errors
        errors = document.get("error_summary")
        failed = sum(number_of(at(entry, "count")) or 0.0 for entry in (errors if isinstance(errors, list) else ()))
    completed = of("request_count")
    if completed is None and failed and all(value is None for value in figures.values()):
        completed = 0.0
    cut_off = ("it was cancelled before its end",) if document.get("was_cancelled") is True else ()
    config = document.get("input_config")
    load = at(config, "phases", -1)
    settings = settings_of(load, ("type", "requests", "concurrency", "rate"))
    if load is None:  # the settings of versions before the phases
        load = at(config, "loadgen")
        settings = settings_of(load, ("request_count", "concurrency", "request_rate"))
    seeds = (at(config, "random_seed"), at(config, "input", "random_seed"))
    yield Imported(
        client=name,
        figures=figures,
        model=text_of(at(config, "models", "items", 0, "name")) or text_of(at(config, "endpoint", "model_names", 0)),
        seed=next((seed for seed in map(whole_of, seeds) if seed is not None), None),
        settings=settings,
        input_tokens=of("input_sequence_length"),
        output_tokens=of("output_sequence_length"),
        concurrency=number_of(at(load, "concurrency")),
        started_at=str(document.get("start_time") or ""),
        notes=(
            "its inter_chunk_latency is our ITL, its inter_token_latency our TPOT",
            *failed_note(failed, completed),
            *cut_off,
        ),
        completed=completed,
        failed=failed,
        samples={measure: of(metric, "count") for measure, metric in latencies.items()},
    )


def _guidellm_name(document: Document) -> str | None:
    version = text_of(at(document, "metadata", "guidellm_version"))
    if version is not None:
        return f"GuideLLM {version}"
    first = at(document, "benchmarks", 0)
    if not isinstance(at(first, "metrics"), Mapping):
        return None
    return "GuideLLM 0.4" if "config" in first else "GuideLLM 0.2 or 0.3"


def _guidellm(document: Document, name: str) -> Iterator[Imported]:
    benchmarks = document.get("benchmarks")
    for benchmark in benchmarks if isinstance(benchmarks, list) else ():
        yield _guidellm_benchmark(document, benchmark, name)


def _guidellm_benchmark(document: Document, benchmark: object, name: str) -> Imported:
    def samples(metric: str) -> float | None:
        return number_of(at(benchmark, "metrics", metric, "successful", "count"))

    def of(metric: str, figure: str = "mean") -> float | None:
        block = at(benchmark, "metrics", metric, "successful")
        value = number_of(at(block, figure) if figure == "mean" else at(block, "percentiles", figure))
        return number_of(at(block, "median")) if value is None and figure == "p50" else value

    latencies = {
        TTFT.key: "time_to_first_token_ms",
        TPOT.key: "inter_token_latency_ms",  # one mean per turn without the first token, like our TPOT
    }
    figures = {TURNS.key: of("requests_per_second"), OUTPUT.key: of("output_tokens_per_second")}
    figures[TOTAL.key] = of("tokens_per_second")
    figures |= latencies_of(latencies, of) | latencies_of({E2E.key: "request_latency"}, of, 1000.0)
    strategy = at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")
    ended = at(benchmark, "metrics", "request_totals") or at(benchmark, "request_totals")
    models = (
        at(benchmark, "config", "backend", "model"),
        at(benchmark, "worker", "backend_model"),
        at(document, "args", "model"),
    )
    errored, successful = number_of(at(ended, "errored")), number_of(at(ended, "successful"))
    return Imported(
        client=name,
        figures=figures,
        model=next((model for model in map(text_of, models) if model is not None), None),
        settings=settings_of(strategy, ("type_", "streams", "rate")),
        input_tokens=of("prompt_token_count") if samples("prompt_token_count") != 0 else None,
        output_tokens=of("output_token_count") if samples("output_token_count") != 0 else None,
        concurrency=number_of(at(strategy, "streams")),
        started_at=str(at(benchmark, "start_time") or ""),
        notes=(
            "its ITL is our TPOT weighted by tokens; its TPOT includes the time to the first token and is left out",
            *failed_note(errored, successful),
            *unfinished_note(number_of(at(ended, "incomplete"))),
        ),
        completed=successful,
        failed=errored,
        cut_off=number_of(at(ended, "incomplete")) or 0.0,
        samples={measure: samples(metric) for measure, metric in (latencies | {E2E.key: "request_latency"}).items()},
    )


def _genai_name(document: Document) -> str | None:
    return "genai-bench" if isinstance(at(document, "aggregated_metrics", "stats"), Mapping) else None


def _genai(document: Document, name: str) -> Iterator[Imported]:
    all_in = document["aggregated_metrics"]

    def of(metric: str, figure: str = "mean") -> float | None:
        return number_of(at(all_in, "stats", metric, figure))

    unit = document.get("_time_unit", "s")
    factor = units.factor(TTFT.key, unit) if isinstance(unit, str) else None
    failed, completed = (number_of(at(all_in, f"num_{name}_requests")) for name in ("error", "completed"))
    figures = {
        TURNS.key: number_of(at(all_in, "requests_per_second")),
        OUTPUT.key: number_of(at(all_in, "mean_output_throughput_tokens_per_s")),
        TOTAL.key: number_of(at(all_in, "mean_total_tokens_throughput_tokens_per_s")),
    }
    latencies = {TTFT.key: "ttft", TPOT.key: "tpot", E2E.key: "e2e_latency"}
    figures |= latencies_of(latencies, of if factor is not None else lambda metric, q: None, factor or 1.0)
    yield Imported(
        client=name,
        figures=figures,
        settings=settings_of(all_in, ("scenario", "num_concurrency", "iteration_type")),
        input_tokens=of("num_input_tokens"),
        output_tokens=of("num_output_tokens"),
        concurrency=number_of(at(all_in, "num_concurrency")),
        notes=(
            "it records no gaps between tokens, so ITL is not known",
            *failed_note(failed, completed),
        ),
        completed=completed,
        failed=failed,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of one client. `name_of`: its name and version, None for a file of another client."""

    name_of: Callable[[Document], str | None]
    results: Callable[[Document, str], Iterator[Imported]]


OFFLINE = "vllm bench throughput"
WITHOUT_SERVER = f"{published.ONE_FIGURE}; without a server: the engine's limit"


def _throughput_name(document: Document) -> str | None:
    return OFFLINE if published.throughput(document) is not None else None


def _throughput(document: Document, name: str) -> Iterator[Imported]:
    yield Imported(
        client=name,
        figures=published.throughput(document) or {},
        model=text_of(document.get("model")),
        input_tokens=number_of(document.get("prompt_tokens_per_req")),
        output_tokens=number_of(document.get("generation_tokens_per_req")),
        notes=(WITHOUT_SERVER,),
        completed=number_of(document.get("num_requests", document.get("num_prompts"))),
        failed=0.0,
    )


AIPERF_TEXT = "AIPerf, as printed or as CSV"


def aiperf_of_text(document: Document) -> Imported:
    """Return the result of a document of `aiperf_text`."""
    (result,) = _aiperf(document, AIPERF_TEXT)
    return replace(result, notes=(*result.notes, *unread_note(document.get(aiperf_text.CUT))))


READERS = (
    _Reader(_throughput_name, _throughput),
    _Reader(_aiperf_name, _aiperf),
    _Reader(_guidellm_name, _guidellm),
    _Reader(_genai_name, _genai),
    _Reader(_sglang_name, _sglang),
    _Reader(_vllm_name, _vllm),
)


def _with_keys(name: str, *keys: str) -> Callable[[Document], str | None]:
    return lambda document: name if all(key in document for key in keys) else None


def _old_guidellm(document: Document) -> str | None:
    return "GuideLLM 0.1" if isinstance(at(document, "benchmarks", 0, "benchmarks"), list) else None


def _genai_perf(document: Document) -> str | None:
    settings = at(document, "input_config")
    old = isinstance(settings, Mapping) and "model_names" in settings and "aiperf_version" not in document
    return "GenAI-Perf" if old and _nvidia_export(document) else None


# Files that look like a result but have other contents, with the remedy.
REFUSED: tuple[tuple[Callable[[Document], str | None], str], ...] = (
    (_old_guidellm, "results are read from GuideLLM 0.2 on"),
    (_genai_perf, "repeat it with AIPerf, its successor"),
    (_with_keys("AIPerf by time slice", "timeslices"), "name profile_export_aiperf.json"),
    (_with_keys("AIPerf on the server's metrics", "aiperf_version", "metrics"), "name profile_export_aiperf.json"),
    (_with_keys("vllm bench latency", "avg_latency", "percentiles"), "name a result of vllm bench serve"),
)
