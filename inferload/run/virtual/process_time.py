"""Virtual time in the whole process: in Locust, in libraries and in the program of a user."""

import sys
import time
from collections.abc import Callable

from inferload.base.clock import NS_PER_S, Clock

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


def replace_in_process(clock: Clock) -> None:
    """Replace the functions of `time` that read a clock, also under the names that loaded modules have imported them by."""
    seconds = {"time": clock.wall_ns, "monotonic": clock.now_ns, "perf_counter": clock.now_ns}
    replaced: dict[Callable[[], float], Callable[[], float]] = {}
    for name in _CLOCKS:
        source = seconds[name.removesuffix("_ns")]
        replaced[getattr(time, name)] = source if name.endswith("_ns") else _in_seconds(source)
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if callable(value) and _is_known(value, replaced):
                setattr(module, name, replaced[value])


def _is_known(value: object, replaced: dict[Callable[[], float], Callable[[], float]]) -> bool:
    try:
        return value in replaced
    except TypeError:  # not hashable
        return False


def _in_seconds(source_ns: Callable[[], int]) -> Callable[[], float]:
    return lambda: source_ns() / NS_PER_S
