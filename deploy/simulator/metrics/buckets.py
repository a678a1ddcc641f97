"""Histogram bounds of vLLM 0.32 by family (`v1/metrics/buckets.py`), and `--custom-histogram-buckets`."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from inferload.errors import UsageError

_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_DEFAULTS: Mapping[str, tuple[float, ...]] = {
    "request_latency": _REQUEST_S,
    "time_to_first_token": _TTFT_S,
    "inter_token_latency": _ITL_S,
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
