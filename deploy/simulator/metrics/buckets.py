"""Histogram bounds of vLLM 0.32 in seconds by family (`v1/metrics/buckets.py`), and `--custom-histogram-buckets`."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from inferload.base.errors import UsageError

Bounds = Mapping[str, Sequence[float]]

DEFAULTS: Bounds = {
    "request_latency": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
    "time_to_first_token": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
    ),
    "inter_token_latency": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
    ),
}


def check(custom: Mapping[str, Any]) -> Bounds:
    """Check the value of the flag as vLLM does. Raise UsageError for an unknown family or an invalid bound."""
    return {family: _checked(family, values) for family, values in custom.items()}


def _checked(family: str, values: Any) -> tuple[float, ...]:
    flag = f"--custom-histogram-buckets {family}"
    if family not in DEFAULTS:
        raise UsageError(f"{flag}: the simulator has no such histograms; choose from {', '.join(DEFAULTS)}")
    if not isinstance(values, list) or not values or any(type(bound) not in (int, float) for bound in values):
        raise UsageError(f"{flag}: {values!r}: needs a list of numbers")
    if not all(math.isfinite(bound) and bound > 0 for bound in values) or any(a >= b for a, b in pairwise(values)):
        raise UsageError(f"{flag}: {values!r}: needs ascending bounds above 0")
    return tuple(map(float, values))
