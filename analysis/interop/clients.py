"""Results of other clients in JSON: a row of paths for each client, and one reader of the rows.

Supported: `vllm bench serve --save-result` (Python and Rust) and `vllm bench throughput`, SGLang's `bench_serving`, AIPerf's
`profile_export_aiperf.json` (its CSV and printed tables: `aiperf_text`), GuideLLM's benchmark JSON, genai-bench's file per scenario
and concurrency, inference-perf's lifecycle metrics (0.7), EvalScope's summary (1.14, with the percentiles beside it), and llm-d's
Benchmark Report 0.2. A client is recognised by keys that it alone writes. `notes` has its definitions; missing values are None.

Keys by version, from the clients' packages: GuideLLM 0.1 has reports of benchmarks without distributions; 0.2 and 0.3 have `args`
and `worker` in each benchmark (0.2 without p50), later versions `config`, and since 0.5 `metadata`. AIPerf names its version since
0.4; its settings were in `endpoint` and `loadgen` before they were in `models` and `phases`. vLLM and SGLang append to a file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Any, TypeVar

from inferload.figures.other_clients import note_of
from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS

from . import aiperf_text, published, units
from .result import STATISTICS, Document, Imported, at, lost_notes, number_of, ratio, text_of, unread_note

OUR_BACKEND = "inferload"  # in the files of `inferload report --vllm-bench`
OUR_EXPORT = "inferload report --vllm-bench"
VLLM, SGLANG = "vllm bench serve", "SGLang bench_serving"
AIPERF_TEXT = "AIPerf, as printed or as CSV"
OFFLINE = "vllm bench throughput"
WITHOUT_SERVER = f"{published.ONE_FIGURE}; without a server: the engine's limit"

_CLOCK_UNKNOWN = "its timing error is not known"

_Value = TypeVar("_Value")
_RATES = (TURNS.key, OUTPUT.key, TOTAL.key, GOODPUT.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client's file. Values are paths: keys and positions between dots; the first of several between bars that has a value.

    A number is also a sum, less what has a value, and a quotient of paths: `a + b - c / d`. In `rate`, `statistic` and `count`,
    `{name}` is a metric, `{q}` a statistic and `{word}` the client's word for it, in which `{name}` may be. `settings`: keys below
    the first path there is.
    """

    notes: tuple[str, ...] = ()  # empty: what it counts
    each: str = ""  # of the file, which is the `report` of a result: the result, or several; empty: the whole file
    rates: Sequence[str] = ()  # metrics of _RATES, empty for none
    rate: str = "{name}"
    latencies: Sequence[str] = ()  # metrics of LATENCIES, empty for none
    statistic: str = "{q}_{name}|{word}_{name}"
    words: Mapping[str, str] = field(default_factory=lambda: {"p50": "median"})
    count: str = ""  # samples of a latency
    unit: Callable[[Document, str], object] = lambda _document, _name: "ms"  # of a latency
    units_of_rates: bool = False  # they are beside the numbers
    model: str = ""
    seed: str = ""
    settings: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    input_tokens: str = ""
    output_tokens: str = ""
    concurrency: str = ""
    started_at: str = ""
    completed: str = ""
    failed: str | Callable[[Document], float | None] = ""
    unfinished: str = ""


def _found(read: Callable[[object], _Value | None], document: Document, paths: str) -> _Value | None:
    values = (read(at(document, *_parts(path))) for path in paths.split("|") if path)
    return next((value for value in values if value is not None), None)


def _parts(path: str) -> Iterator[str | int]:
    for part in filter(None, path.split(".")):
        yield int(part) if part.lstrip("-").isdecimal() else part


def _number(document: Document, expression: str) -> float | None:
    """Return the first alternative of an expression that has a value."""
    for alternative in filter(None, expression.split("|")):
        sum_of, _, by = alternative.partition(" / ")
        sum_of, *less = sum_of.split(" - ")
        terms = [_found(number_of, document, path) for path in sum_of.split(" + ")]
        without = sum(_found(number_of, document, path) or 0.0 for path in less)
        total = None if None in terms else float(sum(filter(None, terms))) - without
        value = ratio(total, _found(number_of, document, by)) if by else total
        if value is not None:
            return value
    return None


def _mean(document: Document, expression: str) -> float | None:
    """Return a mean; None for one of no samples, whose number is beside it."""
    beside, dot, _ = expression.rpartition(".")
    return None if dot and _number(document, f"{beside}.count") == 0 else _number(document, expression)


def _in_unit(value: float | None, measure: str, unit: object) -> float | None:
    factor = units.factor(measure, unit) if isinstance(unit, str) else None
    return None if value is None or factor is None else value * factor


def _figures(client: Client, document: Document) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for rate, name in _named(_RATES, client.rates):
        figures[rate] = _number(document, client.rate.format(name=name))
        if client.units_of_rates:
            figures[rate] = _in_unit(figures[rate], rate, at(document, name, "unit"))
    for measure, name in _named(units.LATENCIES, client.latencies):
        for q in STATISTICS:
            path = client.statistic.format(q=q, name=name, word=client.words.get(q, q).format(name=name))
            figures[f"{q}({measure})"] = _in_unit(_number(document, path), measure, client.unit(document, name))
    return figures


def _named(figures: Sequence[str], metrics: Sequence[str]) -> list[tuple[str, str]]:
    return [(figure, metric) for figure, metric in zip(figures, metrics, strict=False) if metric]


def _settings(client: Client, document: Document) -> dict[str, Any]:
    """Return settings by name; an infinite rate, which Python's JSON has, as the text that vLLM writes."""
    of_paths = [(at(document, *_parts(path)), names) for path, names in client.settings.items()]
    load, names = next((each for each in of_paths if each[0] is not None), of_paths[-1])
    values = {name: at(load, name) for name in names.split()}
    return {name: "inf" if isinstance(value, float) and isinf(value) else value for name, value in values.items()}


def results(client: Client, document: Document, name: str) -> Iterator[Imported]:
    """Yield the results of a client's file. `name`: the client with its version."""
    found = at(document, *_parts(client.each))
    for one in found if isinstance(found, list) else [found]:
        yield _result(client, {**(one if isinstance(one, Mapping) else {}), "report": document}, name)


def _result(client: Client, document: Document, name: str) -> Imported:
    figures, settings = _figures(client, document), _settings(client, document)
    completed, unfinished = _number(document, client.completed), _number(document, client.unfinished)
    failed = _number(document, client.failed) if isinstance(client.failed, str) else client.failed(document)
    if completed is None and failed and all(value is None for value in figures.values()):
        completed = 0.0  # AIPerf omits counts of 0
    cut_off = ("it was cancelled before its end",) if document.get("was_cancelled") is True else ()
    counts = client.notes or (f"{note_of(name)}; {_CLOCK_UNKNOWN}",)
    notes = (*counts, *lost_notes(failed, completed, unfinished, settings.get("num_prompts")))
    return Imported(
        client=name,
        figures=figures,
        model=_found(text_of, document, client.model),
        seed=_found(lambda value: value if type(value) is int else None, document, client.seed),
        settings=settings,
        input_tokens=_mean(document, client.input_tokens),
        output_tokens=_mean(document, client.output_tokens),
        concurrency=max(0.0, _number(document, client.concurrency) or 0.0) or None,  # 0 and -1: no limit
        started_at=str(_found(lambda value: value or None, document, client.started_at) or ""),
        notes=(*notes, *cut_off),
        completed=completed,
        failed=failed,
        cut_off=unfinished or 0.0,
        samples={
            measure: _number(document, client.count.format(name=metric))
            for measure, metric in _named(units.LATENCIES, client.latencies if client.count else ())
        },
    )


# -- rows


def _sglang_failed(document: Document) -> float | None:
    errors = document.get("errors")
    return float(sum(map(bool, errors))) if isinstance(errors, list) else None


def _aiperf_failed(document: Document) -> float | None:
    """Return the number of errors; AIPerf omits metrics without a value, but not the list of errors."""
    if (failed := _number(document, "error_request_count.avg")) is not None:
        return failed
    errors = document.get("error_summary")
    return sum(number_of(at(entry, "count")) or 0.0 for entry in (errors if isinstance(errors, list) else ()))


_SERVING = Client(
    rates=(
        *("request_throughput", "output_throughput", "total_token_throughput"),
        "request_goodput|request_goodput:|goodput",  # with a colon in earlier versions
    ),
    latencies=("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"),
    model="model_id",
    settings={"": "num_prompts request_rate burstiness max_concurrency"},
    input_tokens="total_input_tokens / completed",
    output_tokens="total_output_tokens / completed",
    concurrency="max_concurrency",
    started_at="date",
    completed="completed",
    failed="failed",
)
_OURS = replace(
    _SERVING, notes=(f"counts as {VLLM} 0.32; measured by inferload; the verdict of its run is not in the file",)
)
_SGLANG_SETTINGS = "backend dataset_name request_rate max_concurrency"
_SGLANG_WORKLOAD = "random_input_len random_output_len random_range_ratio sharegpt_output_len"
_SGLANG = replace(
    _SERVING,
    rates=(
        "request_throughput|completed / duration",
        "output_throughput",
        "total_throughput|total_input_tokens + total_output_tokens / duration",
        "request_goodput",
    ),
    latencies=("ttft_ms", "tpot_ms", "itl_ms", "e2e_latency_ms"),
    model="server_info.model_path",
    settings={"": f"{_SGLANG_SETTINGS} {_SGLANG_WORKLOAD}"},
    started_at="",
    failed=_sglang_failed,
)
_BEFORE_PHASES = "request_count concurrency request_rate"
_AIPERF = Client(
    rates=("request_throughput", "output_token_throughput", "total_token_throughput", "goodput"),
    rate="{name}.avg",
    units_of_rates=True,
    # Its ITL is one mean per turn, like our TPOT.
    latencies=("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency"),
    statistic="{name}.{word}",
    words={"mean": "avg"},
    count="{name}.count",
    unit=lambda document, name: at(document, name, "unit"),
    model="input_config.models.items.0.name|input_config.endpoint.model_names.0",
    seed="input_config.random_seed|input_config.input.random_seed",
    settings={"input_config.phases.-1": "type requests concurrency rate", "input_config.loadgen": _BEFORE_PHASES},
    input_tokens="input_sequence_length.avg",
    output_tokens="output_sequence_length.avg",
    concurrency="input_config.phases.-1.concurrency|input_config.loadgen.concurrency",
    started_at="start_time",
    completed="request_count.avg",
    failed=_aiperf_failed,
)
_GUIDELLM = Client(
    each="benchmarks",
    rates=("requests_per_second", "output_tokens_per_second", "tokens_per_second"),
    rate="metrics.{name}.successful.mean",
    # Its ITL is one mean per turn without the first token, like our TPOT.
    latencies=("time_to_first_token_ms", "inter_token_latency_ms", "", "request_latency"),
    statistic="metrics.{name}.successful.percentiles.{q}|metrics.{name}.successful.{word}",
    count="metrics.{name}.successful.count",
    unit=lambda _document, name: "s" if name == "request_latency" else "ms",
    model="config.backend.model|worker.backend_model|report.args.model",
    settings=dict.fromkeys(("config.strategy", "args.strategy"), "type_ streams rate"),
    input_tokens="metrics.prompt_token_count.successful.mean",
    output_tokens="metrics.output_token_count.successful.mean",
    concurrency="config.strategy.streams|args.strategy.streams",
    started_at="start_time",
    completed="metrics.request_totals.successful|request_totals.successful",
    failed="metrics.request_totals.errored|request_totals.errored",
    unfinished="metrics.request_totals.incomplete|request_totals.incomplete",
)
_GENAI = Client(
    each="aggregated_metrics",
    rates=("requests_per_second", "mean_output_throughput_tokens_per_s", "mean_total_tokens_throughput_tokens_per_s"),
    latencies=("ttft", "tpot", "", "e2e_latency"),
    statistic="stats.{name}.{q}",
    unit=lambda document, _name: document["report"].get("_time_unit", "s"),
    settings={"": "scenario num_concurrency iteration_type"},
    input_tokens="stats.num_input_tokens.mean",
    output_tokens="stats.num_output_tokens.mean",
    concurrency="num_concurrency",
    completed="num_completed_requests",
    failed="num_error_requests",
)
_INFERENCE_PERF = Client(
    rates=("requests_per_sec", "output_tokens_per_sec", "total_tokens_per_sec", "request_goodput"),
    rate="successes.throughput.{name}|successes.goodput_metrics.{name}",
    latencies=("time_to_first_token", "time_per_output_token", "inter_token_latency", "request_latency"),
    statistic="successes.latency.{name}.{word}",
    unit=lambda _document, _name: "s",
    settings={"load_summary": "requested_rate concurrency"},
    input_tokens="successes.prompt_tokens.mean|successes.prompt_len.mean",
    output_tokens="successes.output_tokens.mean|successes.output_len.mean",
    concurrency="load_summary.concurrency",
    completed="successes.count",
    failed="failures.count",
)
_EVALSCOPE = Client(
    rates=("Req Throughput (req/s)", "Output Throughput (tok/s)", "Total Throughput (tok/s)"),
    latencies=("TTFT (ms)", "TPOT (ms)", "ITL (ms)", "Latency (s)"),
    statistic="{word}",
    words={"mean": "Avg {name}|{name}", **{q: f"percentiles.{q[1:]}%.{{name}}" for q in STATISTICS[1:]}},
    unit=lambda _document, name: "s" if name.endswith("(s)") else "ms",
    model="arguments.model",
    seed="arguments.seed",
    settings={"arguments": "parallel number rate dataset stream"},
    input_tokens="Avg Input Tokens",
    output_tokens="Avg Output Tokens",
    concurrency="Concurrency",
    completed="Success Requests",
    failed="Failed Requests",
)
_OF_LLMD = "results.request_performance.aggregate"
_LLMD = Client(
    rates=("request_rate", "output_token_rate", "total_token_rate"),
    rate=f"{_OF_LLMD}.throughput.{{name}}.mean",
    latencies=("time_to_first_token", "time_per_output_token", "inter_token_latency", "request_latency"),
    statistic=f"{_OF_LLMD}.latency.{{name}}.{{q}}",
    unit=lambda document, name: at(document, *_OF_LLMD.split("."), "latency", name, "units"),
    model="scenario.stack.0.standardized.model.name",
    settings={"scenario.load.standardized": "tool tool_version stage rate_qps concurrency"},
    input_tokens=f"{_OF_LLMD}.requests.input_length.mean",
    output_tokens=f"{_OF_LLMD}.requests.output_length.mean",
    concurrency="scenario.load.standardized.concurrency",
    started_at="run.time.start",
    completed=f"{_OF_LLMD}.requests.total - {_OF_LLMD}.requests.failures - {_OF_LLMD}.requests.incomplete",
    failed=f"{_OF_LLMD}.requests.failures",
    unfinished=f"{_OF_LLMD}.requests.incomplete",
)
# Of these two, its ITL is one mean per turn, as in their own files.
_LLMD_OF_MEANS = replace(_LLMD, latencies=("time_to_first_token", "inter_token_latency", "", "request_latency"))
_LLMD_TOOLS = {"guidellm": ("GuideLLM", _LLMD_OF_MEANS), "aiperf": ("AIPerf", _LLMD_OF_MEANS)}
_LLMD_TOOLS["vllm-benchmark"] = (VLLM, _LLMD)
_THROUGHPUT = Client(
    notes=(WITHOUT_SERVER,),
    rates=("requests_per_second", "", "tokens_per_second"),
    model="model",
    input_tokens="prompt_tokens_per_req",
    output_tokens="generation_tokens_per_req",
    completed="num_requests",
    failed=lambda _document: 0.0,
)
_OLD_THROUGHPUT = replace(
    _THROUGHPUT, rates=("num_prompts / total_time", "avg_generation_throughput|throughput"), completed="num_prompts"
)

# -- recognition

_VLLM_ONLY = {"model_id", "tokenizer_id", "total_token_throughput", "endpoint_type", "burstiness", "mean_e2el_ms"}
_SGLANG_ONLY = {"total_output_tokens_retokenized", "mean_e2e_latency_ms", "median_e2e_latency_ms"}
_NVIDIA_FIGURES = ("request_throughput", "request_latency", "time_to_first_token", "output_token_throughput")


def recognised(document: Document) -> tuple[str, Client | str] | None:
    """Return the client of a file by name and version, or what it is and the remedy if it is not read; None for another file."""
    keys, first, settings = document.keys(), at(document, "benchmarks", 0), at(document, "input_config")
    version = text_of(document.get("aiperf_version")) or "of an unknown version"
    guidellm = text_of(at(document, "metadata", "guidellm_version"))
    before_0_5 = "0.4" if isinstance(first, Mapping) and "config" in first else "0.2 or 0.3"
    before_0_4 = at(settings, "endpoint", "model_names") is not None and _is_of_nvidia(document)
    genai_perf = at(settings, "model_names") is not None and "aiperf_version" not in keys and _is_of_nvidia(document)
    is_vllm = "completed" in keys and bool(_VLLM_ONLY & keys)
    of_rust = {"input_throughput", "max_model_len"} <= keys
    serving = "TensorRT-LLM benchmark_serving" if "user_throughput" in keys else "vllm-rs bench" if of_rust else VLLM
    llmd, load = str(document.get("version")), at(document, "scenario", "load", "standardized")
    named = str(at(load, "tool") or "an unknown tool")
    tool, of_llmd = _LLMD_TOOLS.get(named, (named, _LLMD))
    report = f"llm-d Benchmark Report {llmd} of {tool} {at(load, 'tool_version') or ''}".strip()
    old_evalscope = {"Request throughput (req/s)", "Succeed requests"} <= keys
    export = "name profile_export_aiperf.json"
    rows: tuple[tuple[bool, str, Client | str], ...] = (
        ({"version", "scenario", "metrics"} <= keys, "llm-d Benchmark Report 0.1", "write it as version 0.2.1"),
        (old_evalscope, "an earlier EvalScope", "repeat it with EvalScope 1.14"),
        (isinstance(at(first, "benchmarks"), list), "GuideLLM 0.1", "results are read from GuideLLM 0.2 on"),
        (genai_perf, "GenAI-Perf", "repeat it with AIPerf, its successor"),
        ("timeslices" in keys, "AIPerf by time slice", export),
        ({"aiperf_version", "metrics"} <= keys, "AIPerf on several runs or on the server's metrics", export),
        ({"avg_latency", "percentiles"} <= keys, "vllm bench latency", "name a result of vllm bench serve"),
        (llmd.startswith("0.2") and at(document, *_OF_LLMD.split(".")) is not None, report, of_llmd),
        ({"load_summary", "successes"} <= keys, "inference-perf", _INFERENCE_PERF),
        ({"Req Throughput (req/s)", "Success Requests"} <= keys, "EvalScope", _EVALSCOPE),
        ({"elapsed_time", "num_requests"} <= keys, OFFLINE, _THROUGHPUT),
        ({"throughput", "total_time"} <= keys, OFFLINE, _OLD_THROUGHPUT),
        ("aiperf_version" in keys, f"AIPerf {version}", _AIPERF),
        (before_0_4, "AIPerf before 0.4", _AIPERF),
        (guidellm is not None, f"GuideLLM {guidellm}", _GUIDELLM),
        (isinstance(at(first, "metrics"), Mapping), f"GuideLLM {before_0_5}", _GUIDELLM),
        (isinstance(at(document, "aggregated_metrics", "stats"), Mapping), "genai-bench", _GENAI),
        ("completed" in keys and bool(_SGLANG_ONLY & keys), SGLANG, _SGLANG),
        (is_vllm and document.get("backend") == OUR_BACKEND, OUR_EXPORT, _OURS),
        (is_vllm, serving, _SERVING),
    )
    return next(((name, client) for matches, name, client in rows if matches), None)


def _is_of_nvidia(document: Document) -> bool:
    return any(isinstance(at(document, name, "unit"), str) for name in _NVIDIA_FIGURES)


def aiperf_of_text(document: Document) -> Imported:
    """Return the result of a document of `aiperf_text`."""
    (result,) = results(_AIPERF, document, AIPERF_TEXT)
    return replace(result, notes=(*result.notes, *unread_note(document.get(aiperf_text.CUT))))
