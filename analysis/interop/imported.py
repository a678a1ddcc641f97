"""Readers of result files of other clients, for comparisons.

Supported: `vllm bench serve --save-result` (Python and Rust), SGLang's `bench_serving`, AIPerf's `profile_export_aiperf.json`,
GuideLLM's benchmark JSON, genai-bench's file per scenario and concurrency. A client is recognised by keys that it alone writes.
`notes` lists differing definitions; missing values are None.

Keys by version, from the clients' packages: GuideLLM 0.1 has reports of benchmarks without distributions; 0.2 and 0.3 have `args`
and `worker` in each benchmark (0.2 without p50), later versions `config`, and since 0.5 `metadata`. AIPerf names its version since
0.4; its settings were in `endpoint` and `loadgen` before they were in `models` and `phases`. vLLM and SGLang append to a file.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import number
from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

from . import published

Document = Mapping[str, Any]

OUR_BACKEND = "inferload"  # in the files of `inferload report --vllm-bench`
OUR_EXPORT = "inferload report --vllm-bench"
_CLOCK_UNKNOWN = "its timing error is not known"
_QUANTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Imported:
    """One result of a file. `figures`: by gate name; `concurrency`: configured limit, if any."""

    client: str
    figures: Mapping[str, float | None]
    model: str | None = None
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None
    started_at: str = ""
    notes: tuple[str, ...] = ()
    label: str = ""  # of a row of a table


def are_configurations(results: Sequence[Imported]) -> bool:
    """Return True for several published results: rows of a table or printed blocks, which are no repeats of one configuration."""
    return len(results) > 1 and all(published.ONE_FIGURE in result.notes for result in results)


def read(path: Path) -> list[Imported]:
    """Read the results of a file, in their order; UsageError for an unknown format."""
    try:
        text = rundir.read_text(path)
        if texts := _published(path, text):
            return texts
        documents = list(_documents(text))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}); is the file complete?") from error
    results = [result for document in documents for result in _results(path, document)]
    if not results:
        raise UsageError(f"{path}: {_EXPECTED}")
    return results


def _published(path: Path, text: str) -> list[Imported]:
    """Read the blocks that vLLM prints, or else the rows of tables; empty for a text without figures."""
    if found := published.blocks(text):
        return [_block(block) for block in found]
    is_table = path.suffix in (".md", ".csv", ".txt", ".log")
    return [_row(row) for row in published.rows(text)] if is_table else []


def _block(block: published.Published) -> Imported:
    counts = block.counts
    completed = counts.get("successful requests")
    notes = (published.ONE_FIGURE, *_failed(counts.get("failed requests"), completed))
    return Imported(
        client="vllm bench serve",
        figures=_NO_TURNS if completed == 0 else block.figures,
        settings={"max_concurrency": limit} if (limit := counts.get("maximum request concurrency")) else {},
        input_tokens=_ratio(counts.get("total input tokens"), completed),
        output_tokens=_ratio(counts.get("total generated tokens"), completed),
        concurrency=counts.get("maximum request concurrency"),
        notes=notes,
    )


def _row(row: published.Published) -> Imported:
    unread = (f"columns without a figure: {', '.join(row.unread)}",) if row.unread else ()
    return Imported(client="a table", figures=row.figures, label=row.label, notes=(published.ONE_FIGURE, *unread))


def _documents(text: str) -> Iterator[object]:
    """Yield the values of a text: one, several behind each other, or the elements of an array."""
    decoder, at = json.JSONDecoder(), 0
    text = text.removeprefix("\ufeff").strip()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield from value if isinstance(value, list) else [value]
        while at < len(text) and text[at].isspace():
            at += 1


def _results(path: Path, document: object) -> list[Imported]:
    if not isinstance(document, Mapping):
        raise UsageError(f"{path}: {_EXPECTED}")
    for refused, remedy in _REFUSED:
        if (name := refused(document)) is not None:
            raise UsageError(f"{path}: a result of {name}, which is not read; {remedy}")
    for reader in _READERS:
        if (name := reader.name_of(document)) is not None:
            results = list(reader.results(document, name))
            if not any(value is not None for result in results for value in result.figures.values()):
                raise UsageError(f"{path}: looks like a result of {name}, but has no figures; is the file complete?")
            return results
    keys = ", ".join(map(str, list(document)[:5])) or "none"
    raise UsageError(f"{path}: {_EXPECTED} (its keys: {keys})")


_EXPECTED = (
    "no result of vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM or genai-bench; "
    "name a file that one of them wrote, a text with the block that vLLM prints, or a table as .md or .csv"
)


def _at(value: object, *path: str | int) -> Any:
    """Return the value at a path of keys and positions; None if a part of the path is missing."""
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and -len(value) <= part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _number(value: object) -> float | None:
    """Return a number as float; None for NaN and infinity, which Python's JSON has, and for numbers above 1e18."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e18 <= value <= 1e18:
        return None
    return float(value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _settings(document: object, names: Sequence[str]) -> dict[str, Any]:
    """Return settings by name; an infinite rate, which Python's JSON has, as the text that vLLM writes."""
    values = {name: _at(document, name) for name in names}
    return {name: "inf" if isinstance(value, float) and isinf(value) else value for name, value in values.items()}


def _latencies(
    names: Mapping[str, str], of: Callable[[str, str], float | None], to_ms: float = 1.0
) -> dict[str, float | None]:
    """Return latency figures by gate name; `of(name, q)` returns a value of the file in units of `to_ms`."""
    figures: dict[str, float | None] = {}
    for ours, theirs in names.items():
        for q in ("mean", *_QUANTILES):
            value = of(theirs, q)
            figures[f"{q}({ours})"] = None if value is None else value * to_ms
    return figures


def _failed(failed: float | None, completed: float | None) -> tuple[str, ...]:
    """Return a note on failed requests, which may bias the latencies of the others."""
    if not failed:
        return ()
    of_all = "" if completed is None else f"{number(failed + completed)} "
    return (f"{number(failed)} of its {of_all}requests failed and are not in the latencies",)


def _unfinished(count: float | None) -> tuple[str, ...]:
    """Return a note on requests that were unfinished at the end."""
    return (
        (f"{number(count)} of its requests were unfinished at the end and are not in the latencies",) if count else ()
    )


def _per_turn(document: Document, name: str) -> float | None:
    total, completed = _number(document.get(name)), _number(document.get("completed"))
    return total / completed if total is not None and completed else None


def _ratio(total: float | None, by: float | None) -> float | None:
    return total / by if total is not None and by else None


def _serving_latencies(document: Document, names: Mapping[str, str]) -> dict[str, float | None]:
    """Return the latencies of the keys `mean_NAME`, `median_NAME` and `p99_NAME`."""

    def of(name: str, q: str) -> float | None:
        value = _number(document.get(f"{q}_{name}"))
        return _number(document.get(f"median_{name}")) if value is None and q == "p50" else value

    return _latencies(names, of)


_NO_TURNS: dict[str, float | None] = {TURNS.key: 0.0}  # vLLM and SGLang write 0 for latencies without samples

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
    completed = _number(document.get("completed"))
    figures = {TURNS.key: "request_throughput", OUTPUT.key: "output_throughput"}
    figures |= {TOTAL.key: "total_token_throughput", GOODPUT.key: "request_goodput"}
    values = {ours: _number(document.get(key)) for ours, key in figures.items()}
    values |= _serving_latencies(
        document, {TTFT.key: "ttft_ms", TPOT.key: "tpot_ms", ITL.key: "itl_ms", E2E.key: "e2el_ms"}
    )
    if completed == 0:
        values = _NO_TURNS
    ours = "measured by inferload; the file does not contain the verdict of its run"
    yield Imported(
        client=name,
        figures=values,
        model=_text(document.get("model_id")),
        settings=_settings(document, ("num_prompts", "request_rate", "burstiness", "max_concurrency")),
        input_tokens=_per_turn(document, "total_input_tokens"),
        output_tokens=_per_turn(document, "total_output_tokens"),
        concurrency=_number(document.get("max_concurrency")),
        started_at=str(document.get("date") or ""),
        notes=(
            "its TTFT ends at the first event of any kind (our first_event_ms); "
            + (ours if name == OUR_EXPORT else _CLOCK_UNKNOWN),
            *_failed(_number(document.get("failed")), completed),
        ),
    )


def _sglang_name(document: Document) -> str | None:
    serving = "completed" in document and any(key in document for key in _SGLANG_ONLY)
    return "SGLang bench_serving" if serving else None


def _sglang(document: Document, name: str) -> Iterator[Imported]:
    completed, duration_s = (_number(document.get(key)) for key in ("completed", "duration"))
    tokens = [_number(document.get(f"total_{side}_tokens")) for side in ("input", "output")]
    both = None if None in tokens else sum(filter(None, tokens))
    values = {
        TURNS.key: _number(document.get("request_throughput")) or _ratio(completed, duration_s),
        OUTPUT.key: _number(document.get("output_throughput")),
        TOTAL.key: _number(document.get("total_throughput")) or _ratio(both, duration_s),
    }
    values |= _serving_latencies(
        document, {TTFT.key: "ttft_ms", TPOT.key: "tpot_ms", ITL.key: "itl_ms", E2E.key: "e2e_latency_ms"}
    )
    if completed == 0:
        values = _NO_TURNS
    errors = document.get("errors")
    failed = sum(bool(error) for error in errors) if isinstance(errors, list) else None
    workload = ("random_input_len", "random_output_len", "random_range_ratio", "sharegpt_output_len")
    yield Imported(
        client=name,
        figures=values,
        model=_text(_at(document, "server_info", "model_path")),
        settings=_settings(document, ("backend", "dataset_name", "request_rate", "max_concurrency", *workload)),
        input_tokens=_per_turn(document, "total_input_tokens"),
        output_tokens=_per_turn(document, "total_output_tokens"),
        concurrency=_number(document.get("max_concurrency")),
        notes=(
            f"its answers without a usage count as long as requested; {_CLOCK_UNKNOWN}",
            *(_failed(float(failed), completed) if failed is not None else ("it does not record failed requests",)),
        ),
    )


_AIPERF_FIGURES = ("request_throughput", "request_latency", "time_to_first_token", "output_token_throughput")
_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3}


def _nvidia_export(document: Document) -> bool:
    return any(isinstance(_at(document, name, "unit"), str) for name in _AIPERF_FIGURES)


def _aiperf_name(document: Document) -> str | None:
    if "aiperf_version" in document:
        return f"AIPerf {_text(document['aiperf_version']) or 'of an unknown version'}"
    settings = _at(document, "input_config", "endpoint", "model_names")
    return "AIPerf before 0.4" if settings is not None and _nvidia_export(document) else None


def _aiperf(document: Document, name: str) -> Iterator[Imported]:
    def of(metric: str, figure: str = "avg") -> float | None:
        return _number(_at(document, metric, figure))

    def latency_ms(metric: str, q: str) -> float | None:
        value, unit = of(metric, "avg" if q == "mean" else q), _at(document, metric, "unit")
        factor = _MS.get(unit) if isinstance(unit, str) else None
        return None if value is None or factor is None else value * factor

    latencies = {
        TTFT.key: "time_to_first_token",
        TPOT.key: "inter_token_latency",  # its ITL is one mean per turn, like our TPOT
        ITL.key: "inter_chunk_latency",
        E2E.key: "request_latency",
    }
    figures = {TURNS.key: of("request_throughput"), OUTPUT.key: of("output_token_throughput")}
    figures[TOTAL.key] = of("total_token_throughput")
    figures[GOODPUT.key] = of("goodput")
    figures |= _latencies(latencies, latency_ms)
    failed = of("error_request_count")
    if failed is None:  # AIPerf omits metrics without a value, but not the list of errors
        errors = document.get("error_summary")
        failed = sum(_number(_at(entry, "count")) or 0.0 for entry in (errors if isinstance(errors, list) else ()))
    cut_off = ("it was cancelled before its end",) if document.get("was_cancelled") is True else ()
    config = document.get("input_config")
    load = _at(config, "phases", -1)
    settings = _settings(load, ("type", "requests", "concurrency", "rate"))
    if load is None:  # the settings of versions before the phases
        load = _at(config, "loadgen")
        settings = _settings(load, ("request_count", "concurrency", "request_rate"))
    seeds = (_at(config, "random_seed"), _at(config, "input", "random_seed"))
    yield Imported(
        client=name,
        figures=figures,
        model=_text(_at(config, "models", "items", 0, "name")) or _text(_at(config, "endpoint", "model_names", 0)),
        seed=next((seed for seed in map(_whole, seeds) if seed is not None), None),
        settings=settings,
        input_tokens=of("input_sequence_length"),
        output_tokens=of("output_sequence_length"),
        concurrency=_number(_at(load, "concurrency")),
        started_at=str(document.get("start_time") or ""),
        notes=(
            "its inter_chunk_latency is our ITL, its inter_token_latency our TPOT",
            *_failed(failed, of("request_count")),
            *cut_off,
        ),
    )


def _guidellm_name(document: Document) -> str | None:
    version = _text(_at(document, "metadata", "guidellm_version"))
    if version is not None:
        return f"GuideLLM {version}"
    first = _at(document, "benchmarks", 0)
    if not isinstance(_at(first, "metrics"), Mapping):
        return None
    return "GuideLLM 0.4" if "config" in first else "GuideLLM 0.2 or 0.3"


def _guidellm(document: Document, name: str) -> Iterator[Imported]:
    benchmarks = document.get("benchmarks")
    for benchmark in benchmarks if isinstance(benchmarks, list) else ():
        yield _guidellm_benchmark(document, benchmark, name)


def _guidellm_benchmark(document: Document, benchmark: object, name: str) -> Imported:
    def of(metric: str, figure: str = "mean") -> float | None:
        block = _at(benchmark, "metrics", metric, "successful")
        value = _number(_at(block, figure) if figure == "mean" else _at(block, "percentiles", figure))
        return _number(_at(block, "median")) if value is None and figure == "p50" else value

    latencies = {
        TTFT.key: "time_to_first_token_ms",
        TPOT.key: "inter_token_latency_ms",  # one mean per turn without the first token, like our TPOT
    }
    figures = {TURNS.key: of("requests_per_second"), OUTPUT.key: of("output_tokens_per_second")}
    figures[TOTAL.key] = of("tokens_per_second")
    figures |= _latencies(latencies, of) | _latencies({E2E.key: "request_latency"}, of, 1000.0)
    strategy = _at(benchmark, "config", "strategy") or _at(benchmark, "args", "strategy")
    ended = _at(benchmark, "metrics", "request_totals") or _at(benchmark, "request_totals")
    models = (
        _at(benchmark, "config", "backend", "model"),
        _at(benchmark, "worker", "backend_model"),
        _at(document, "args", "model"),
    )
    return Imported(
        client=name,
        figures=figures,
        model=next((model for model in map(_text, models) if model is not None), None),
        settings=_settings(strategy, ("type_", "streams", "rate")),
        input_tokens=of("prompt_token_count"),
        output_tokens=of("output_token_count"),
        concurrency=_number(_at(strategy, "streams")),
        started_at=str(_at(benchmark, "start_time") or ""),
        notes=(
            "its ITL is our TPOT weighted by tokens; its TPOT includes the time to the first token and is left out",
            *_failed(_number(_at(ended, "errored")), _number(_at(ended, "successful"))),
            *_unfinished(_number(_at(ended, "incomplete"))),
        ),
    )


def _genai_name(document: Document) -> str | None:
    return "genai-bench" if isinstance(_at(document, "aggregated_metrics", "stats"), Mapping) else None


def _genai(document: Document, name: str) -> Iterator[Imported]:
    all_in = document["aggregated_metrics"]

    def of(metric: str, figure: str = "mean") -> float | None:
        return _number(_at(all_in, "stats", metric, figure))

    unit = document.get("_time_unit", "s")
    factor = _MS.get(unit) if isinstance(unit, str) else None
    figures = {
        TURNS.key: _number(_at(all_in, "requests_per_second")),
        OUTPUT.key: _number(_at(all_in, "mean_output_throughput_tokens_per_s")),
        TOTAL.key: _number(_at(all_in, "mean_total_tokens_throughput_tokens_per_s")),
    }
    latencies = {TTFT.key: "ttft", TPOT.key: "tpot", E2E.key: "e2e_latency"}
    figures |= _latencies(latencies, of if factor is not None else lambda metric, q: None, factor or 1.0)
    yield Imported(
        client=name,
        figures=figures,
        settings=_settings(all_in, ("scenario", "num_concurrency", "iteration_type")),
        input_tokens=of("num_input_tokens"),
        output_tokens=of("num_output_tokens"),
        concurrency=_number(_at(all_in, "num_concurrency")),
        notes=(
            "it records no gaps between tokens, so ITL is not known",
            *_failed(_number(_at(all_in, "num_error_requests")), _number(_at(all_in, "num_completed_requests"))),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of one client. `name_of`: its name and version, None for a file of another client."""

    name_of: Callable[[Document], str | None]
    results: Callable[[Document, str], Iterator[Imported]]


def _throughput_name(document: Document) -> str | None:
    return "vllm bench throughput" if published.throughput(document) is not None else None


def _throughput(document: Document, name: str) -> Iterator[Imported]:
    yield Imported(
        client=name,
        figures=published.throughput(document) or {},
        model=_text(document.get("model")),
        input_tokens=_number(document.get("prompt_tokens_per_req")),
        output_tokens=_number(document.get("generation_tokens_per_req")),
        notes=(f"{published.ONE_FIGURE}; without a server: the engine's limit",),
    )


_READERS = (
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
    return "GuideLLM 0.1" if isinstance(_at(document, "benchmarks", 0, "benchmarks"), list) else None


def _genai_perf(document: Document) -> str | None:
    settings = _at(document, "input_config")
    old = isinstance(settings, Mapping) and "model_names" in settings and "aiperf_version" not in document
    return "GenAI-Perf" if old and _nvidia_export(document) else None


# Files that look like a result but have other contents, with the remedy.
_REFUSED: tuple[tuple[Callable[[Document], str | None], str], ...] = (
    (_old_guidellm, "results are read from GuideLLM 0.2 on"),
    (_genai_perf, "repeat it with AIPerf, its successor"),
    (_with_keys("AIPerf by time slice", "timeslices"), "name profile_export_aiperf.json"),
    (_with_keys("AIPerf on the server's metrics", "aiperf_version", "metrics"), "name profile_export_aiperf.json"),
    (_with_keys("vllm bench latency", "avg_latency", "percentiles"), "name a result of vllm bench serve"),
)
