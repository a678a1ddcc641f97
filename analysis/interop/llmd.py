"""Export of a run as Benchmark Report 0.2.1 of llm-d-benchmark (package llmd-benchmark-report 0.2.1), in JSON, which is YAML too.

Figures are those of summary.json: latencies by the nearest rank, rates of the window. Its ITL is a gap between tokens: gaps between
events with several tokens are shared by them, as in `itl_token_ms`. Statistics of nothing are left out.
"""

from collections.abc import Mapping
from typing import Any

from inferload import __version__
from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.figures.rate_figures import INPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL_TOKEN, TPOT, TTFT
from inferload.results.documents.figures_document import Distribution
from inferload.results.open_run import OpenRun

from ..data.manifest import scenario_of

VERSION = "0.2.1"
_LATENCIES = {
    "time_to_first_token": (TTFT, "ms"),
    "time_per_output_token": (TPOT, "ms/token"),
    "inter_token_latency": (ITL_TOKEN, "ms/token"),
    "request_latency": (E2E, "ms"),
}
_RATES = {
    "request_rate": (TURNS, "queries/s"),
    "input_token_rate": (INPUT, "tokens/s"),
    "output_token_rate": (OUTPUT, "tokens/s"),
    "total_token_rate": (TOTAL, "tokens/s"),
}


def document(run: OpenRun) -> dict[str, Any]:
    """Return the report; UsageError without a summary of measured turns."""
    if not run.has(rundir.SUMMARY) or not run.summary.turns.sent:
        raise UsageError(f"--as llm-d: {run.path}: no measured turns; name a complete run")
    summary, manifest = run.summary, run.manifest
    turns = summary.turns
    lengths = {
        "input_length": _mean(turns.input_tokens, turns.input_tokens_from),
        "output_length": _mean(turns.output_tokens, turns.output_tokens_from),
    }
    requests = {"total": turns.sent, "failures": turns.failed, "incomplete": turns.unfinished}
    latencies = {
        name: _statistics(summary.latency.get(figure.key, Distribution()), unit)
        for name, (figure, unit) in _LATENCIES.items()
    }
    rates = {name: _value(summary.rates.get(figure.key), unit) for name, (figure, unit) in _RATES.items()}
    report = {
        "version": VERSION,
        "run": {
            "uid": manifest.id or run.path.name,
            "description": f"{manifest.scenario.name}: {summary.outcome.headline}",
            "time": {
                "start": manifest.started_at,
                "duration": None if summary.window_s is None else f"PT{summary.window_s}S",
            },
        },
        "scenario": {"stack": _stack(run), "load": _load(run, lengths)},
        "results": {
            "request_performance": {
                "aggregate": {"requests": requests | lengths, "latency": latencies, "throughput": rates}
            }
        },
    }
    known: dict[str, Any] = _without_none(report)
    return known


def _stack(run: OpenRun) -> list[dict[str, Any]]:
    """Return the server: a component with its model, as its accelerators are not known."""
    manifest = run.manifest
    server = next(iter(manifest.targets), None)
    engine, version = manifest.engine or "unknown", (server and server.version) or "unknown"
    model = {"name": manifest.model} if manifest.model else None
    standardized = {"kind": "generic", "tool": engine, "tool_version": version, "model": model}
    metadata = {"label": manifest.target or "server", "cfg_id": manifest.target or "unknown"}
    return [{"metadata": metadata, "standardized": standardized, "native": {}}]


def _load(run: OpenRun, lengths: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the workload; None if the lengths of its prompts, which the format requires, are not known."""
    if lengths["input_length"] is None:
        return None
    planned = {name: {"distribution": "other", "value": each["mean"]} for name, each in lengths.items() if each}
    return {
        "metadata": {"cfg_id": run.manifest.scenario.digest, "description": run.manifest.scenario.name},
        "standardized": {
            "tool": "inferload",
            "tool_version": run.summary.run.versions.get("inferload", __version__),
            "source": "unknown",
            "input_seq_len": planned["input_length"],
            "output_seq_len": planned.get("output_length"),
        },
        "native": {"config": scenario_of(run.manifest)},
    }


def _mean(total: float | None, count: int | None) -> dict[str, Any] | None:
    return None if total is None or not count else _value(total / count, "count")


def _value(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if value is None else {"units": unit, "mean": value}


def _statistics(values: Distribution, unit: str) -> dict[str, Any] | None:
    found = {name: getattr(values, name) for name in ("mean", "min", "p50", "p90", "p95", "p99", "max")}
    return None if values.mean is None else {"units": unit, **found, "p99p9": values.p999}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
