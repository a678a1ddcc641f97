"""The rates of `vllm bench serve` as arrivals and phases. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from inferload.cli.benchline import BenchLine
from inferload.cli.benchmade import Translated
from inferload.cli.benchnumbers import number, whole
from inferload.errors import UsageError

PROMPTS = 1000  # vLLM's own default


def arrivals(line: BenchLine, made: Translated, own_times: bool = False) -> dict[str, Any]:
    """When requests come: by the line's rate, or, with `own_times`, when the trace says."""
    if own_times:
        return {"kind": "trace", **_capped(whole(line, "max-concurrency", None, 1), made)}
    rate = number(line, "request-rate", math.inf)
    most = whole(line, "max-concurrency", None, 1)
    assert rate is not None
    if line.word("ramp-up-strategy") is not None:
        return {"kind": "poisson", **_burstiness(line), "profile": _ramp(line, made), **_capped(most, made)}
    if math.isinf(rate):
        prompts = whole(line, "num-prompts", PROMPTS, 1) or PROMPTS
        users = min(most or prompts, prompts)
        if most is None:
            made.say("arrivals", "All at once: so many users, each with one request.")
        else:
            made.say("arrivals", "As many at a time, the next one when one is over.")
        return {"kind": "closed", "users": users, "spawn_per_s": max(users, 100)}
    if rate <= 0:
        raise UsageError(f"--request-rate {rate:g}: must be greater than 0")
    return {"kind": "poisson", **_burstiness(line), "sessions_per_s": rate, **_capped(most, made)}


def _burstiness(line: BenchLine) -> dict[str, Any]:
    shape = number(line, "burstiness", 1.0)
    assert shape is not None
    if shape <= 0:
        raise UsageError(f"--burstiness {shape:g}: must be greater than 0")
    if math.isinf(shape):
        return {"kind": "constant"}
    return {} if shape == 1 else {"kind": "gamma", "burstiness": shape}


def _capped(most: int | None, made: Translated) -> dict[str, Any]:
    if most is None:
        return {}
    made.say("arrivals", "What waits at the limit is late, and counted so: ttft_planned_ms has the wait in it.")
    return {"max_in_flight": most, "when_full": "delay"}


def _ramp(line: BenchLine, made: Translated) -> dict[str, Any]:
    """The ramp over time. vLLM's goes by the number of the request: its linear one is exponential in time."""
    if "request-rate" in line.given:
        raise UsageError("--request-rate: stands beside --ramp-up-strategy; vLLM's benchmark takes one of them")
    first, last = whole(line, "ramp-up-start-rps"), whole(line, "ramp-up-end-rps")
    if first is None or last is None:
        raise UsageError("--ramp-up-strategy: needs --ramp-up-start-rps and --ramp-up-end-rps")
    if first > last or first < 1:
        raise UsageError(f"--ramp-up-start-rps {first}: must be 1 or more, and not above --ramp-up-end-rps {last}")
    prompts = whole(line, "num-prompts", PROMPTS, 1) or PROMPTS
    strategy = line.word("ramp-up-strategy") or ""
    lasts_s = ramp_s(strategy, first, last, prompts)
    rates = [first * math.pow(last / first, number / _POINTS) for number in range(_POINTS + 1)]
    points = [
        {"time_s": round(lasts_s * _time_share(strategy, first, last, rate), 3), "sessions_per_s": round(rate, 3)}
        for rate in (rates if first < last else rates[:1])
    ]
    over_time = "that is an exponential one" if strategy == "linear" else "it is steeper"
    made.say(
        "arrivals", f"vLLM's {strategy} ramp goes by the number of the request: over time {over_time}, drawn by points."
    )
    return {"kind": "points", "points": points}


_POINTS = 20


def ramp_s(strategy: str, first: float, last: float, prompts: int) -> float:
    """How long vLLM's ramp takes: the sum of 1 / rate over its requests, as an integral."""
    if strategy not in ("linear", "exponential"):
        raise UsageError(f"--ramp-up-strategy {strategy}: must be linear or exponential")
    if first == last:
        return prompts / first
    log = math.log(last / first)
    return prompts * log / (last - first) if strategy == "linear" else prompts * (1 / first - 1 / last) / log


def _time_share(strategy: str, first: int, last: int, rate: float) -> float:
    """Share of the ramp's time after which a rate is reached: its logarithm or its inverse changes in a straight line."""
    if rate == first:
        return 0.0
    if strategy == "linear":
        return math.log(rate / first) / math.log(last / first)
    return (1 / first - 1 / rate) / (1 / first - 1 / last)


def phases(line: BenchLine, made: Translated, coming: Mapping[str, Any]) -> dict[str, Any]:
    """How long it lasts, with these arrivals: until so many prompts are answered."""
    made.say("phases", "All answers are waited for, as vLLM does.")
    lasts = {"sessions": whole(line, "num-prompts", PROMPTS, 1), "drain_s": 600}
    return {**_warmup(line, made, coming), **lasts}


def _warmup(line: BenchLine, made: Translated, coming: Mapping[str, Any]) -> dict[str, Any]:
    turns = whole(line, "num-warmups", 0, 0)
    if not turns:
        return {"warmup_s": 0}
    at_once = coming["kind"] == "closed" and "max-concurrency" not in line.given
    if at_once or coming["kind"] == "trace" or "profile" in coming:
        what = "a burst" if at_once else "a trace" if coming["kind"] == "trace" else "a ramp"
        made.lose(f"--num-warmups: {what} has no warm-up in front; let a short run (inferload run smoke) go before it")
        return {"warmup_s": 0}
    made.say(
        "phases", "Warm-up by count. vLLM's benchmark sends its first prompt so often, which is cached from then on;"
    )
    made.say("phases", "here these are turns like the others, at the same pace. warmup_s is its longest time.")
    return {"warmup_s": 600, "warmup_turns": turns}
