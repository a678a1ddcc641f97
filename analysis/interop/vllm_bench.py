"""Export of a run in the format of `vllm bench serve --save-result --save-detailed`.

The definitions are those of vLLM 0.32 (Python): TTFT ends at the first event of any kind, whose gap to the first output is one of
the gaps, so that TTFT and the gaps of a turn add up to its latency; TPOT is (latency - TTFT) / (output tokens - 1), percentiles
are interpolated. Its gaps to other events without text are not in the records.

A cancelled turn has no latency, one without a connection no start time. Only turns of the measure phase are
included. The duration is from the first send to the last end, which is after the end of the window. `generated_texts` is empty.
Totals that include unknown prompt lengths are null.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inferload.base import rundir
from inferload.base.errors import UsageError, explained
from inferload.figures.rate_figures import ATTAINMENT
from inferload.figures.turn_figures import E2E, FIRST_EVENT, LAG, TTFT
from inferload.turns.sketch import Floats

from ..data.frame import Frame
from ..data.frames import UNFINISHED, RunFrames
from .clients import OUR_BACKEND

_PERCENTILES = (50, 90, 95, 99)
# Lines of the printed block: title, key of the result, digits after the point.
_TOTALS = (
    ("Successful requests:", "completed", 0),
    ("Failed requests:", "failed", 0),
    ("Benchmark duration (s):", "duration", 2),
    ("Total input tokens:", "total_input_tokens", 0),
    ("Total generated tokens:", "total_output_tokens", 0),
    ("Request throughput (req/s):", "request_throughput", 2),
    ("Request goodput (req/s):", "request_goodput", 2),
    ("Output token throughput (tok/s):", "output_throughput", 2),
    ("Total token throughput (tok/s):", "total_token_throughput", 2),
)
_DISTRIBUTIONS = (
    ("Time to First Token", "TTFT", "ttft"),
    ("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
    ("Inter-token Latency", "ITL", "itl"),
    ("End-to-end Latency", "E2EL", "e2el"),
)


def document(run: RunFrames) -> dict[str, Any]:
    """Return the result; UsageError without measured turns or a complete measure phase."""
    span = next((span for span in run.phases if span.phase == "measure"), None)
    turns = run.turns
    if span is None or span.end_s is None or not len(turns) or "phase" not in turns:
        raise UsageError(
            f"--vllm-bench: {run.path}: no measured turns, or no end of the measure phase; name a complete run"
        )
    turns = turns.with_columns({"row": np.arange(len(turns))})
    measured = turns[turns["phase"] == "measure"].sorted_by("sent_s")
    ok = measured[measured["ok"]]
    tokens = ok.numbers("output_tokens")
    if not len(ok):
        raise UsageError(f"--vllm-bench: {run.path}: no successful turn, which the format requires")
    if np.isnan(tokens).any():
        raise UsageError(
            f"--vllm-bench: {run.path}: {np.isnan(tokens).sum()} turns without a token count, which the format requires"
        )
    latency_ms, ttft_ms = ok[E2E.key], ok[FIRST_EVENT.key]
    of_role_s = ((measured[TTFT.key] - measured[FIRST_EVENT.key]) / 1e3).round(9).tolist()
    itls = [[gap, *gaps] if gap > 0 else gaps for gap, gaps in zip(of_role_s, _gaps_s(run, measured), strict=True)]
    duration_s = float(np.fmax.reduce(measured["last_s"]) - np.fmin.reduce(measured["sent_s"]))
    tpot_ms = (latency_ms - ttft_ms)[tokens > 1] / (tokens[tokens > 1] - 1)
    gaps_ms = [gap * 1e3 for gaps, well in zip(itls, measured["ok"], strict=True) if well for gap in gaps]
    unfinished = int((measured["failure"] == UNFINISHED).sum())
    return {
        "date": run.manifest.started_at,
        "backend": OUR_BACKEND,
        "model_id": run.manifest.model,
        "tokenizer_id": None,
        "num_prompts": len(measured),
        "request_rate": None,
        "burstiness": None,
        "max_concurrency": None,
        "duration": duration_s,
        "completed": len(ok),
        "failed": len(measured) - len(ok) - unfinished,
        "unfinished": unfinished,
        **_totals(ok, _met(run), duration_s),
        "input_lens": _whole(measured.numbers("input_tokens")),
        "output_lens": _whole(measured.numbers("output_tokens")),
        "ttfts": _seconds(measured[FIRST_EVENT.key]),
        "itls": itls,
        "latencies": _seconds(measured[E2E.key]),
        "start_times": _seconds(measured["sent_s"] * 1e3),
        "queue_times": _seconds(measured[LAG.key]),
        "generated_texts": [],
        "errors": ["" if well else str(why) for well, why in zip(measured["ok"], measured["failure"], strict=True)],
        **_figures("ttft", ttft_ms),
        **_figures("tpot", tpot_ms),
        **_figures("itl", np.array(gaps_ms)),
        **_figures("e2el", latency_ms),
    }


def _totals(ok: Frame, met: float | None, duration_s: float) -> dict[str, Any]:
    """Return token counts and rates. `ok`: successful turns; `met`: turns that met the SLO."""
    total_out, prompts = int(ok["output_tokens"].sum()), ok.numbers("input_tokens")
    total_in = None if np.isnan(prompts).any() else int(prompts.sum())
    return {
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": len(ok) / duration_s,
        "request_goodput": None if met is None else met / duration_s,
        "output_throughput": total_out / duration_s,
        "total_token_throughput": None if total_in is None else (total_in + total_out) / duration_s,
    }


def block(result: Mapping[str, Any]) -> str:
    """Format a result as the block that `vllm bench serve` prints; unknown values are left out."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]
    lines += [_line(title, result[key], digits) for title, key, digits in _TOTALS if result[key] is not None]
    for heading, short, name in _DISTRIBUTIONS:
        if f"mean_{name}_ms" not in result:
            continue
        lines.append(f"{heading:-^50}")
        lines += [
            _line(f"{title} {short} (ms):", result[f"{key}_{name}_ms"], 2)
            for title, key in (("Mean", "mean"), ("Median", "median"), ("P99", "p99"))
        ]
    return "\n".join([*lines, "=" * 50])


def _line(title: str, value: float, digits: int) -> str:
    return f"{title:<40} {value:<10.{digits}f}"


def write(run: RunFrames, path: Path) -> None:
    """Write the result atomically."""
    result = document(run)
    with explained(f"--vllm-bench {path}", "name a file that can be written"):
        rundir.write_output(path, json.dumps(result, allow_nan=False) + "\n")


def _met(run: RunFrames) -> float | None:
    """Return the number of measured turns that met the SLO; None without an SLO."""
    summary = run.summary
    share = None if summary is None else summary.rates.get(ATTAINMENT.key)
    if summary is None or share is None:
        return None
    return float(round(share * (summary.turns.ended + (summary.sessions.dropped or 0))))


def _gaps_s(run: RunFrames, measured: Frame) -> list[list[float]]:
    """Return the gaps of each turn, in the order of `measured`."""
    order = np.argsort(run.events.turn, kind="stable")
    turn, gap_ms = run.events.turn[order], run.events.gap_ms[order]
    known = ~np.isnan(gap_ms)
    turn, gap_ms = turn[known], gap_ms[known]
    rows = measured["row"]
    low, high = np.searchsorted(turn, rows), np.searchsorted(turn, rows, side="right")
    return [(gap_ms[first:after] / 1e3).round(9).tolist() for first, after in zip(low, high, strict=True)]


def _figures(name: str, values: Floats) -> Mapping[str, float]:
    """Return vLLM's figures of the known values; none without samples, for which vLLM writes 0."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    figures = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    return figures | {f"p{p}_{name}_ms": float(np.percentile(values, p)) for p in _PERCENTILES}


def _seconds(values_ms: Floats) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value) / 1e3, 9) for value in values_ms]


def _whole(values: Floats) -> list[int | None]:
    return [None if np.isnan(value) else int(value) for value in values]
