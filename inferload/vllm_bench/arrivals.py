"""Arrivals and warmup that are equivalent to those of `vllm bench serve`."""

import math
from collections.abc import Mapping
from typing import Any

from inferload.errors import UsageError
from inferload.vllm_bench.translation import DEFAULT_PROMPTS, Translation

_RAMP_SEGMENTS = 20


def arrivals_of(bench: Translation, timed: bool) -> dict[str, Any]:
    options = bench.options
    limit = options.get("max-concurrency")
    rate = options.get("request-rate", math.inf)
    if not timed and "ramp-up-strategy" not in options and math.isinf(rate):
        prompts = options.get("num-prompts", DEFAULT_PROMPTS)
        users = min(limit or prompts, prompts)
        if limit is None:
            bench.note("arrivals", "All requests at once: as many users as prompts.")
        return {"kind": "closed", "users": users, "spawn_per_s": max(users, 100)}
    if timed:
        arrivals: dict[str, Any] = {"kind": "trace"}
    elif "ramp-up-strategy" in options:
        arrivals = {"kind": "poisson", **_burstiness(options), "profile": _ramp(bench)}
    else:
        arrivals = {"kind": "poisson", **_burstiness(options), "sessions_per_s": rate}
    if limit is None:
        return arrivals
    bench.note("arrivals", "Requests above max_in_flight are delayed; ttft_planned_ms includes that delay.")
    return arrivals | {"max_in_flight": limit, "when_full": "delay"}


def _burstiness(options: Mapping[str, Any]) -> dict[str, Any]:
    shape = options.get("burstiness", 1.0)
    if math.isinf(shape):
        return {"kind": "constant"}
    return {} if shape == 1 else {"kind": "gamma", "burstiness": shape}


def _ramp(bench: Translation) -> dict[str, Any]:
    """Return vLLM's ramp as a piecewise-linear function of time; vLLM defines it by the number of the request."""
    options = bench.options
    strategy = options["ramp-up-strategy"]
    first, last = options.get("ramp-up-start-rps"), options.get("ramp-up-end-rps")
    if first is None or last is None or first > last or "request-rate" in options:
        raise UsageError(
            "--ramp-up-strategy: needs --ramp-up-start-rps, a --ramp-up-end-rps that is not below it, and no --request-rate"
        )
    duration_s = ramp_s(strategy, first, last, options.get("num-prompts", DEFAULT_PROMPTS))
    bench.note(
        "arrivals", f"vLLM's {strategy} ramp is a function of the request number; this is the equivalent over time."
    )
    shares = [index / _RAMP_SEGMENTS for index in range(_RAMP_SEGMENTS + 1)]
    points = [
        {"time_s": round(duration_s * share, 3), "sessions_per_s": round(ramp_rate(strategy, first, last, share), 3)}
        for share in shares
    ]
    return {"kind": "points", "points": points}


def ramp_s(strategy: str, first: float, last: float, prompts: int) -> float:
    """Return the duration of vLLM's ramp: the sum of 1 / rate over its requests, as an integral."""
    if first == last:
        return prompts / first
    log = math.log(last / first)
    return prompts * log / (last - first) if strategy == "linear" else prompts * (1 / first - 1 / last) / log


def ramp_rate(strategy: str, first: float, last: float, share: float) -> float:
    """Return the rate after a share of the ramp's duration.

    A rate that is linear in the number of the request is exponential in time; one that is exponential has a linear 1 / rate.
    """
    if strategy == "linear":
        return float(first * (last / first) ** share)
    return 1 / ((1 - share) / first + share / last)


def add_warmup(bench: Translation) -> None:
    turns = bench.options.get("num-warmups", 0)
    if not turns:
        return
    arrivals = bench.document["arrivals"]
    burst = arrivals["kind"] == "closed" and "max-concurrency" not in bench.options
    if burst or arrivals["kind"] == "trace" or "profile" in arrivals:
        bench.unsupported.append(
            "--num-warmups: a burst, a ramp or a trace has no warmup; run inferload run smoke before it"
        )
        return
    bench.note(
        "phases", "Warmup turns are like the others; vLLM's benchmark repeats its first prompt, which is cached."
    )
    bench.document["phases"].update(warmup_s=600, warmup_turns=turns)
