"""Export of a run as Benchmark Report 0.2.1 of llm-d-benchmark (package llmd-benchmark-report 0.2.1), in JSON, which is YAML too.

Figures are those of summary.json. Its ITL is a gap between tokens, as `itl_token_ms`. What is not known is null or left out.
"""

from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.figures.rate_figures import INPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL_TOKEN, TPOT, TTFT
from inferload.results.open_run import OpenRun

from ..data.manifest import scenario_of

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
_STATISTICS = {name: name for name in ("mean", "min", "p50", "p90", "p95", "p99", "max")} | {"p99p9": "p999"}


def document(run: OpenRun) -> dict[str, Any]:
    """Return the report; UsageError without a summary of measured turns."""
    if not run.has(rundir.SUMMARY) or not run.summary.turns.sent:
        raise UsageError(f"--as llm-d: {run.path}: no measured turns; name a complete run")
    summary, manifest, turns = run.summary, run.manifest, run.summary.turns
    requests: dict[str, Any] = {"total": turns.sent, "failures": turns.failed, "incomplete": turns.unfinished}
    planned: dict[str, Any] = {}
    for name, total, count in (
        ("input", turns.input_tokens, turns.input_tokens_from),
        ("output", turns.output_tokens, turns.output_tokens_from),
    ):
        if total is not None and count:
            requests[f"{name}_length"] = {"units": "count", "mean": total / count}
            planned[f"{name}_seq_len"] = {"distribution": "other", "value": total / count}
    latency = {
        name: {"units": unit} | {key: getattr(values, own) for key, own in _STATISTICS.items()}
        for name, (figure, unit) in _LATENCIES.items()
        if (values := summary.latency.get(figure.key)) is not None and values.mean is not None
    }
    known = ((name, unit, summary.rates.get(figure.key)) for name, (figure, unit) in _RATES.items())
    rates = {name: {"units": unit, "mean": rate} for name, unit, rate in known if rate is not None}
    aggregate = {"requests": requests, "latency": latency, "throughput": rates}
    versions = summary.run.versions
    # The accelerators, which a component of an engine requires, are not known; a load requires the length of its prompts.
    server = {
        "kind": "generic",
        "tool": manifest.engine or "unknown",
        "tool_version": versions.get("server") or "unknown",
        "model": manifest.model and {"name": manifest.model},
    }
    load = {"tool": "inferload", "tool_version": versions.get("inferload") or "unknown", "source": "unknown"}
    target = dict.fromkeys(("label", "cfg_id"), manifest.target or "unknown")
    config = {"metadata": {"cfg_id": manifest.scenario.digest}, "native": {"config": scenario_of(manifest)}}
    return {
        "version": "0.2.1",
        "run": {
            "uid": manifest.id or run.path.name,
            "description": f"{manifest.scenario.name}: {summary.outcome.headline}",
            "time": {"start": manifest.started_at, "duration": summary.window_s and f"PT{summary.window_s}S"},
        },
        "scenario": {
            "stack": [{"metadata": target, "standardized": server, "native": {}}],
            "load": config | {"standardized": load | planned} if "input_seq_len" in planned else None,
        },
        "results": {"request_performance": {"aggregate": aggregate}},
    }
