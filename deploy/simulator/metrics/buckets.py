"""Histogram bounds by family, and `--custom-histogram-buckets`."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from inferload.base.errors import UsageError
from inferload.servers.text_format import ITL_S, REQUEST_S, TTFT_S

Bounds = Mapping[str, Sequence[float]]

ITERATION_TOKENS = (1, *(2**power for power in range(3, 15)))
DEFAULTS: Bounds = {"request_latency": REQUEST_S, "time_to_first_token": TTFT_S, "inter_token_latency": ITL_S}


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
