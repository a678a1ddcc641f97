"""Results that other clients wrote, as sides of a comparison.

Read are: `vllm bench serve --save-result` (Python and Rust), AIPerf's `profile_export_aiperf.json`, GuideLLM's benchmark JSON
(each with one benchmark), genai-bench's file per scenario and concurrency. Their definitions differ from ours in places that
are said in `notes`; what a file does not hold stays None.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError

Document = Mapping[str, Any]

OUR_BACKEND = "inferload"  # in the files of `inferload report --vllm-bench`
OUR_EXPORT = "inferload report --vllm-bench"
_CLOCK_UNKNOWN = "it does not say how true its clock was"


@dataclass(frozen=True, slots=True)
class Imported:
    """What one result file says. `figures`: by our names; `concurrency`: the limit that was asked for, if any."""

    client: str
    figures: Mapping[str, float | None]
    model: str | None = None
    seed: int | None = None
    asks: Mapping[str, Any] = field(default_factory=dict)
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None
    started_at: str = ""
    notes: tuple[str, ...] = ()


def read(path: Path) -> Imported:
    """The result in a file; UsageError where it is none that we know."""
    try:
        document = json.loads(rundir.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}); is the file complete?") from error
    if isinstance(document, Mapping):
        for is_it, reader in _READERS:
            if is_it(document):
                try:
                    result = reader(document)
                except UsageError as error:
                    raise UsageError(f"{path}: {error}") from error
                except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
                    raise UsageError(
                        f"{path}: looks like {reader.__doc__}, but {error!r} came of reading it; is the file complete?"
                    ) from error
                return result
    raise UsageError(
        f"{path}: no result of vllm bench serve, AIPerf, GuideLLM or genai-bench; name a file that one of them wrote"
    )


def _number(value: object) -> float | None:
    """None for what is none, NaN and infinity among them: JSON of Python holds both."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        return None
    return float(value)


def _latencies(
    names: Mapping[str, str], of: Callable[[str, str], float | None], to_ms: float = 1.0
) -> dict[str, float | None]:
    """Our figures by the client's names: `of(name, q)` is what its file says, in units of `to_ms`."""
    found: dict[str, float | None] = {}
    for ours, theirs in names.items():
        for q in ("mean", "p50", "p90", "p95", "p99"):
            value = of(theirs, q)
            found[f"{q}({ours})"] = None if value is None else value * to_ms
    return found


def _lost(failed: float | None, completed: float | None) -> tuple[str, ...]:
    """What to say of requests that failed: those that are left may be the quick ones."""
    if not failed:
        return ()
    of_all = "" if completed is None else f"{failed + completed:g} "
    return (f"{failed:g} of its {of_all}requests failed, and are in no latency",)


def _unfinished(count: float | None) -> tuple[str, ...]:
    """What to say of requests that were still under way at its end."""
    return (f"{count:g} of its requests were not over when it ended, and are in no latency",) if count else ()


def _vllm(said: Document) -> Imported:
    """a result of vllm bench serve"""
    completed = _number(said["completed"]) or 0.0

    def per_turn(name: str) -> float | None:
        total = _number(said.get(name))
        return total / completed if total is not None and completed else None

    latencies = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2e_ms": "e2el_ms"}
    figures = {"turns_per_s": "request_throughput", "output_tok_per_s": "output_throughput"}
    figures |= {"total_tok_per_s": "total_token_throughput", "goodput_turns_per_s": "request_goodput"}
    found = {name: _number(said.get(key)) for name, key in figures.items()}
    for ours, theirs in latencies.items():
        found[f"mean({ours})"] = _number(said.get(f"mean_{theirs}"))
        found[f"p50({ours})"] = _number(said.get(f"median_{theirs}"))
        for q in ("p90", "p95", "p99"):
            found[f"{q}({ours})"] = _number(said.get(f"{q}_{theirs}"))
    if not completed:  # it writes 0 for every latency of nothing
        found = dict.fromkeys(found)
    lost = _lost(_number(said.get("failed")), completed)
    exported = said.get("backend") == OUR_BACKEND
    clock = "measured by inferload; the file does not hold the verdict of its run" if exported else _CLOCK_UNKNOWN
    return Imported(
        client=OUR_EXPORT if exported else "vllm bench serve",
        figures=found,
        model=said.get("model_id"),
        asks={key: said.get(key) for key in ("num_prompts", "request_rate", "burstiness", "max_concurrency")},
        input_tokens=per_turn("total_input_tokens"),
        output_tokens=per_turn("total_output_tokens"),
        concurrency=_number(said.get("max_concurrency")),
        started_at=str(said.get("date") or ""),
        notes=(
            f"its TTFT ends at the first event of any kind (our first_event_ms); {clock}",
            *lost,
        ),
    )


def _aiperf(said: Document) -> Imported:
    """a result of AIPerf"""

    def of(name: str, figure: str = "avg") -> float | None:
        return _number((said.get(name) or {}).get(figure))

    latencies = {
        "ttft_ms": "time_to_first_token",
        "tpot_ms": "inter_token_latency",  # what it calls ITL is one mean per turn, as our TPOT
        "itl_ms": "inter_chunk_latency",
        "e2e_ms": "request_latency",
    }
    found = {"turns_per_s": of("request_throughput"), "output_tok_per_s": of("output_token_throughput")}
    found["total_tok_per_s"] = of("total_token_throughput")
    found["goodput_turns_per_s"] = of("goodput")
    found |= _latencies(latencies, lambda name, q: of(name, "avg" if q == "mean" else q))
    failed = of("error_request_count")
    if failed is None:  # it leaves out a metric that has no value; the list of errors is always there
        failed = float(sum(_number(one.get("count")) or 0.0 for one in said.get("error_summary") or ()))
    cut_off = ("it was broken off before its end",) if said.get("was_cancelled") else ()
    asked = said.get("input_config") or {}
    models = (asked.get("models") or {}).get("items") or [{}]
    phase = (asked.get("phases") or [{}])[-1]
    return Imported(
        client=f"AIPerf {said['aiperf_version']}",
        figures=found,
        model=models[0].get("name"),
        seed=asked.get("random_seed"),
        asks={key: phase.get(key) for key in ("type", "requests", "concurrency", "rate")},
        input_tokens=of("input_sequence_length"),
        output_tokens=of("output_sequence_length"),
        concurrency=_number(phase.get("concurrency")),
        started_at=str(said.get("start_time") or ""),
        notes=(
            "its inter_chunk_latency is our ITL, its inter_token_latency our TPOT",
            *_lost(failed, of("request_count")),
            *cut_off,
        ),
    )


def _guidellm(said: Document) -> Imported:
    """a result of GuideLLM"""
    benchmarks = said["benchmarks"]
    if len(benchmarks) != 1:
        raise UsageError(
            f"GuideLLM's file holds {len(benchmarks)} benchmarks; a side needs one, so run each rate by itself"
        )
    one = benchmarks[0]
    metrics, config = one["metrics"], one["config"]

    def of(name: str, figure: str = "mean") -> float | None:
        found = (metrics.get(name) or {}).get("successful") or {}
        return _number(
            found.get(figure) if figure in ("mean", "median") else (found.get("percentiles") or {}).get(figure)
        )

    latencies = {
        "ttft_ms": "time_to_first_token_ms",
        "tpot_ms": "inter_token_latency_ms",  # one mean per turn without the first token, as our TPOT
    }
    found = {"turns_per_s": of("requests_per_second"), "output_tok_per_s": of("output_tokens_per_second")}
    found["total_tok_per_s"] = of("tokens_per_second")
    found |= _latencies(latencies, of) | _latencies({"e2e_ms": "request_latency"}, of, 1000.0)
    strategy = config.get("strategy") or {}
    ended = metrics.get("request_totals") or {}
    return Imported(
        client=f"GuideLLM {(said.get('metadata') or {}).get('guidellm_version', '')}".strip(),
        figures=found,
        model=(config.get("backend") or {}).get("model"),
        asks={key: strategy.get(key) for key in ("type_", "streams", "rate")},
        input_tokens=of("prompt_token_count"),
        output_tokens=of("output_token_count"),
        concurrency=_number(strategy.get("streams")),
        started_at=str(one.get("start_time") or ""),
        notes=(
            "its ITL is our TPOT, with turns weighted by their tokens; its own TPOT counts the first token's time, and is left out",
            *_lost(_number(ended.get("errored")), _number(ended.get("successful"))),
            *_unfinished(_number(ended.get("incomplete"))),
        ),
    )


def _genai(said: Document) -> Imported:
    """a result of genai-bench"""
    all_in = said["aggregated_metrics"]
    statistics = all_in["stats"]
    latencies = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2e_latency"}
    factor = {"s": 1000.0, "ms": 1.0}[said.get("_time_unit", "s")]
    found = {
        "turns_per_s": _number(all_in["requests_per_second"]),
        "output_tok_per_s": _number(all_in["mean_output_throughput_tokens_per_s"]),
        "total_tok_per_s": _number(all_in["mean_total_tokens_throughput_tokens_per_s"]),
    }
    found |= _latencies(latencies, lambda name, q: _number(statistics[name].get(q)), factor)
    return Imported(
        client="genai-bench",
        figures=found,
        asks={key: all_in.get(key) for key in ("scenario", "num_concurrency", "iteration_type")},
        input_tokens=_number(statistics["num_input_tokens"].get("mean")),
        output_tokens=_number(statistics["num_output_tokens"].get("mean")),
        concurrency=_number(all_in.get("num_concurrency")),
        notes=(
            "it has no gaps between tokens, so ITL is not known",
            *_lost(_number(all_in.get("num_error_requests")), _number(all_in.get("num_completed_requests"))),
        ),
    )


_READERS: tuple[tuple[Callable[[Document], bool], Callable[[Document], Imported]], ...] = (
    (lambda said: "aiperf_version" in said, _aiperf),
    (lambda said: "benchmarks" in said and "metadata" in said, _guidellm),
    (lambda said: "aggregated_metrics" in said, _genai),
    (lambda said: "request_throughput" in said and "completed" in said, _vllm),
)
