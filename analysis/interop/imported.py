"""Readers of result files of other clients, for comparisons.

Supported: `vllm bench serve --save-result` (Python and Rust), AIPerf's `profile_export_aiperf.json`, GuideLLM's benchmark JSON
(one benchmark each), genai-bench's file per scenario and concurrency. `notes` lists differing definitions; missing values are None.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError

Document = Mapping[str, Any]

OUR_BACKEND = "inferload"  # in the files of `inferload report --vllm-bench`
OUR_EXPORT = "inferload report --vllm-bench"
_CLOCK_UNKNOWN = "its timing error is not known"


@dataclass(frozen=True, slots=True)
class Imported:
    """Contents of a result file. `figures`: by gate name; `concurrency`: configured limit, if any."""

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


def read(path: Path) -> Imported:
    """Read a result file; UsageError for an unknown format."""
    try:
        document = json.loads(rundir.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}); is the file complete?") from error
    if isinstance(document, Mapping):
        for matches, reader in _READERS:
            if matches(document):
                try:
                    result = reader(document)
                except UsageError as error:
                    raise UsageError(f"{path}: {error}") from error
                except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
                    raise UsageError(
                        f"{path}: looks like {reader.__doc__}, but cannot be read ({error!r}); is the file complete?"
                    ) from error
                return result
    raise UsageError(
        f"{path}: no result of vllm bench serve, AIPerf, GuideLLM or genai-bench; name a file that one of them wrote"
    )


def _number(value: object) -> float | None:
    """Return a number as float; None for NaN and infinity, which Python's JSON has, and for numbers above 1e18."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e18 <= value <= 1e18:
        return None
    return float(value)


def _latencies(
    names: Mapping[str, str], of: Callable[[str, str], float | None], to_ms: float = 1.0
) -> dict[str, float | None]:
    """Return latency figures by gate name; `of(name, q)` returns a value of the file in units of `to_ms`."""
    figures: dict[str, float | None] = {}
    for ours, theirs in names.items():
        for q in ("mean", "p50", "p90", "p95", "p99"):
            value = of(theirs, q)
            figures[f"{q}({ours})"] = None if value is None else value * to_ms
    return figures


def _failed(failed: float | None, completed: float | None) -> tuple[str, ...]:
    """Return a note on failed requests, which may bias the latencies of the others."""
    if not failed:
        return ()
    of_all = "" if completed is None else f"{failed + completed:g} "
    return (f"{failed:g} of its {of_all}requests failed and are not in the latencies",)


def _unfinished(count: float | None) -> tuple[str, ...]:
    """Return a note on requests that were unfinished at the end."""
    return (f"{count:g} of its requests were unfinished at the end and are not in the latencies",) if count else ()


def _vllm(document: Document) -> Imported:
    """a result of vllm bench serve"""
    completed = _number(document["completed"]) or 0.0

    def per_turn(name: str) -> float | None:
        total = _number(document.get(name))
        return total / completed if total is not None and completed else None

    latencies = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2e_ms": "e2el_ms"}
    figures = {"turns_per_s": "request_throughput", "output_tok_per_s": "output_throughput"}
    figures |= {"total_tok_per_s": "total_token_throughput", "goodput_turns_per_s": "request_goodput"}
    values = {name: _number(document.get(key)) for name, key in figures.items()}
    for ours, theirs in latencies.items():
        values[f"mean({ours})"] = _number(document.get(f"mean_{theirs}"))
        values[f"p50({ours})"] = _number(document.get(f"median_{theirs}"))
        for q in ("p90", "p95", "p99"):
            values[f"{q}({ours})"] = _number(document.get(f"{q}_{theirs}"))
    if not completed:  # vLLM writes 0 for latencies without samples
        values = dict.fromkeys(values)
    failed = _failed(_number(document.get("failed")), completed)
    exported = document.get("backend") == OUR_BACKEND
    clock = "measured by inferload; the file does not contain the verdict of its run" if exported else _CLOCK_UNKNOWN
    return Imported(
        client=OUR_EXPORT if exported else "vllm bench serve",
        figures=values,
        model=document.get("model_id"),
        settings={key: document.get(key) for key in ("num_prompts", "request_rate", "burstiness", "max_concurrency")},
        input_tokens=per_turn("total_input_tokens"),
        output_tokens=per_turn("total_output_tokens"),
        concurrency=_number(document.get("max_concurrency")),
        started_at=str(document.get("date") or ""),
        notes=(
            f"its TTFT ends at the first event of any kind (our first_event_ms); {clock}",
            *failed,
        ),
    )


def _aiperf(document: Document) -> Imported:
    """a result of AIPerf"""

    def of(name: str, figure: str = "avg") -> float | None:
        return _number((document.get(name) or {}).get(figure))

    latencies = {
        "ttft_ms": "time_to_first_token",
        "tpot_ms": "inter_token_latency",  # its ITL is one mean per turn, like our TPOT
        "itl_ms": "inter_chunk_latency",
        "e2e_ms": "request_latency",
    }
    figures = {"turns_per_s": of("request_throughput"), "output_tok_per_s": of("output_token_throughput")}
    figures["total_tok_per_s"] = of("total_token_throughput")
    figures["goodput_turns_per_s"] = of("goodput")
    figures |= _latencies(latencies, lambda name, q: of(name, "avg" if q == "mean" else q))
    failed = of("error_request_count")
    if failed is None:  # AIPerf omits metrics without a value, but not the list of errors
        failed = float(sum(_number(entry.get("count")) or 0.0 for entry in document.get("error_summary") or ()))
    cut_off = ("it was cancelled before its end",) if document.get("was_cancelled") else ()
    config = document.get("input_config") or {}
    models = (config.get("models") or {}).get("items") or [{}]
    phase = (config.get("phases") or [{}])[-1]
    return Imported(
        client=f"AIPerf {document['aiperf_version']}",
        figures=figures,
        model=models[0].get("name"),
        seed=config.get("random_seed"),
        settings={key: phase.get(key) for key in ("type", "requests", "concurrency", "rate")},
        input_tokens=of("input_sequence_length"),
        output_tokens=of("output_sequence_length"),
        concurrency=_number(phase.get("concurrency")),
        started_at=str(document.get("start_time") or ""),
        notes=(
            "its inter_chunk_latency is our ITL, its inter_token_latency our TPOT",
            *_failed(failed, of("request_count")),
            *cut_off,
        ),
    )


def _guidellm(document: Document) -> Imported:
    """a result of GuideLLM"""
    benchmarks = document["benchmarks"]
    if len(benchmarks) != 1:
        raise UsageError(f"{len(benchmarks)} benchmarks in a file of GuideLLM; run each rate separately")
    benchmark = benchmarks[0]
    metrics, config = benchmark["metrics"], benchmark["config"]

    def of(name: str, figure: str = "mean") -> float | None:
        block = (metrics.get(name) or {}).get("successful") or {}
        return _number(block.get(figure) if figure == "mean" else (block.get("percentiles") or {}).get(figure))

    latencies = {
        "ttft_ms": "time_to_first_token_ms",
        "tpot_ms": "inter_token_latency_ms",  # one mean per turn without the first token, like our TPOT
    }
    figures = {"turns_per_s": of("requests_per_second"), "output_tok_per_s": of("output_tokens_per_second")}
    figures["total_tok_per_s"] = of("tokens_per_second")
    figures |= _latencies(latencies, of) | _latencies({"e2e_ms": "request_latency"}, of, 1000.0)
    strategy = config.get("strategy") or {}
    ended = metrics.get("request_totals") or {}
    return Imported(
        client=f"GuideLLM {(document.get('metadata') or {}).get('guidellm_version', '')}".strip(),
        figures=figures,
        model=(config.get("backend") or {}).get("model"),
        settings={key: strategy.get(key) for key in ("type_", "streams", "rate")},
        input_tokens=of("prompt_token_count"),
        output_tokens=of("output_token_count"),
        concurrency=_number(strategy.get("streams")),
        started_at=str(benchmark.get("start_time") or ""),
        notes=(
            "its ITL is our TPOT weighted by tokens; its TPOT includes the time to the first token and is left out",
            *_failed(_number(ended.get("errored")), _number(ended.get("successful"))),
            *_unfinished(_number(ended.get("incomplete"))),
        ),
    )


def _genai(document: Document) -> Imported:
    """a result of genai-bench"""
    all_in = document["aggregated_metrics"]
    statistics = all_in["stats"]
    latencies = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2e_latency"}
    factor = {"s": 1000.0, "ms": 1.0}[document.get("_time_unit", "s")]
    figures = {
        "turns_per_s": _number(all_in["requests_per_second"]),
        "output_tok_per_s": _number(all_in["mean_output_throughput_tokens_per_s"]),
        "total_tok_per_s": _number(all_in["mean_total_tokens_throughput_tokens_per_s"]),
    }
    figures |= _latencies(latencies, lambda name, q: _number(statistics[name].get(q)), factor)
    return Imported(
        client="genai-bench",
        figures=figures,
        settings={key: all_in.get(key) for key in ("scenario", "num_concurrency", "iteration_type")},
        input_tokens=_number(statistics["num_input_tokens"].get("mean")),
        output_tokens=_number(statistics["num_output_tokens"].get("mean")),
        concurrency=_number(all_in.get("num_concurrency")),
        notes=(
            "it records no gaps between tokens, so ITL is not known",
            *_failed(_number(all_in.get("num_error_requests")), _number(all_in.get("num_completed_requests"))),
        ),
    )


_READERS: tuple[tuple[Callable[[Document], bool], Callable[[Document], Imported]], ...] = (
    (lambda document: "aiperf_version" in document, _aiperf),
    (lambda document: "benchmarks" in document and "metadata" in document, _guidellm),
    (lambda document: "aggregated_metrics" in document, _genai),
    (lambda document: "request_throughput" in document and "completed" in document, _vllm),
)
