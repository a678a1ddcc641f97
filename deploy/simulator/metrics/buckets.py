"""Histogram bounds of vLLM 0.32 by family (`v1/metrics/buckets.py`), and `--custom-histogram-buckets`."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from inferload.errors import UsageError
from inferload.server_metrics.bucket_bounds import ITL_S, REQUEST_S, TTFT_S

_DEFAULTS: Mapping[str, tuple[float, ...]] = {
    "request_latency": REQUEST_S,
    "time_to_first_token": TTFT_S,
    "inter_token_latency": ITL_S,
    "iteration_tokens": tuple(2**power for power in range(15) if power not in (1, 2)),
    "request_params_n": (1, 2, 5, 10, 20),
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
}
_FAMILIES = (*_DEFAULTS, "request_tokens", "kv_cache_residency")  # the simulator has no kv_cache_residency histogram

Bounds = Mapping[str, Sequence[float]]


def histogram_bounds(max_model_len: int, custom: Bounds | None = None) -> Bounds:
    """Upper bounds of every family; custom bounds replace the defaults."""
    return {**_DEFAULTS, "request_tokens": token_bounds(max_model_len), **(custom or {})}


def token_bounds(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to `max_model_len`."""
    bounds: list[int] = []
    power = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * power > max_model_len:
                return tuple(bounds)
            bounds.append(mantissa * power)
        power *= 10


def check(custom: Mapping[str, Any]) -> Bounds:
    """Check the value of the flag as vLLM does. Raise UsageError for an invalid family or bound."""
    return {family: _checked(family, values) for family, values in custom.items()}


def _checked(family: str, values: Any) -> tuple[float, ...]:
    flag = f"--custom-histogram-buckets {family}"
    if family not in _FAMILIES:
        raise UsageError(f"{flag}: unknown; choose from {', '.join(_FAMILIES)}")
    if not isinstance(values, list) or not values or any(type(bound) not in (int, float) for bound in values):
        raise UsageError(f"{flag}: {values!r}: needs a list of numbers")
    if not all(math.isfinite(bound) and bound > 0 for bound in values) or any(a >= b for a, b in pairwise(values)):
        raise UsageError(f"{flag}: {values!r}: needs ascending bounds above 0")
    return tuple(map(float, values))
